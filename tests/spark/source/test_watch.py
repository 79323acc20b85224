"""Brokers, queues and topics that come and go during a query: two real brokers, one of which is killed."""

from __future__ import annotations

import pickle
import threading
from contextlib import contextmanager

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import metaq
from metaq.clock import FakeClock
from metaq.errors import ConfigError, ConnectionFailed, NoRoute
from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster import client as cluster_client
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.data_source import MetaqStreamReader
from metaq.spark.source.fetch import read_slice
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import SourceOptions
from metaq.spark.source.watch import PAUSE_MAX_SECONDS, PAUSE_SECONDS, Watch
from metaq.testing import Cluster
from metaq.wire.codes import RequestCode
from tests.scripted import Fate, ScriptedCluster
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

A, B = "broker-0", "broker-1"
NAMES = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
)


@pytest.fixture(scope="module")
def brokers():
    with Cluster(brokers=2) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh_clients():
    yield
    cluster_client.client_of.cache_clear()


def planner(cluster, topics: str = "", **more: str) -> Planner:
    chosen = {"subscribe": topics} if topics else {}
    return Planner(SourceOptions.of({"nameServers": cluster.namesrv, "retrySeconds": "0.3", **chosen, **more}))


def make(cluster, topic: str, queues: int = 1) -> list[MessageQueue]:
    """A topic with so many queues at each broker that is up."""
    with metaq.admin.Admin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=queues)
    up = [one.name for one in cluster.brokers if one.alive]
    wanted = [MessageQueue(topic, broker, i) for broker in up for i in range(queues)]
    asking = ClusterClient(cluster.namesrv, 0.0)
    eventually(lambda: set(wanted) <= set(found(asking, topic)), PATIENCE, what=f"routes of {topic}")
    asking.close()
    return wanted


def found(asking: ClusterClient, topic: str) -> list[MessageQueue]:
    try:
        return asking.queues([topic])
    except NoRoute:
        return []


def send(cluster, queues: list[MessageQueue], count: int) -> None:
    with metaq.Producer(cluster.namesrv) as producer:
        for queue in queues:
            for future in [producer.submit(queue.topic, b"%d" % i, queue=queue) for i in range(count)]:
                future.result(PATIENCE)


@contextmanager
def away(cluster, number: int):
    """A broker is killed; in the end it is back, and known."""
    cluster.brokers[number].kill()
    try:
        yield
    finally:
        if not cluster.brokers[number].alive:
            cluster.brokers[number].start()
        cluster.wait_registered()


def test_the_others_go_on_while_a_broker_is_away(brokers, caplog):
    """Its queues stay where the query has come, which is told; when it is back all of them are read."""
    a, b = make(brokers, "going_on")
    send(brokers, [a, b], 3)
    plan = planner(brokers, "going_on", progressGroup="going_on_readers")
    watch = plan.watch()
    begin = plan.start("earliest")
    with away(brokers, 1):
        send(brokers, [a], 2)
        eventually(lambda: plan.advance(begin, None, watch)[a] == 5)
        assert plan.advance(begin, None, watch) == {a: 5, b: 0}
        assert caplog.text.count(f"the broker {B} is away") == 1
        assert f"1 queues wait, {b} at 0" in caplog.text
        assert not plan.report({a: 5, b: 0}, watch)
        assert plan.client.progress("going_on_readers", [a]) == {a: 5}
    assert eventually(lambda: (end := plan.advance(begin, None, watch))[b] == 3 and end, PATIENCE) == {a: 5, b: 3}
    assert f"the broker {B} is back" in caplog.text
    assert plan.report({a: 5, b: 3}, watch)


def test_a_topic_with_all_its_brokers_away_waits(brokers):
    """Name servers do not know it any more, and that says nothing."""
    with away(brokers, 0):
        [b] = make(brokers, "only_there")
    with metaq.Producer(brokers.namesrv) as producer:
        producer.send("only_there", b"x", queue=b)
    plan = planner(brokers, "only_there")
    watch = plan.watch()
    with away(brokers, 1):
        assert plan.advance({b: 0}, None, watch) == {b: 0}
    assert eventually(lambda: plan.advance({b: 0}, None, watch)[b], PATIENCE) == 1


def test_a_topic_that_was_deleted_fails_the_query_as_before(brokers):
    """Its brokers are up: waiting would be for ever."""
    queues = make(brokers, "deleted")
    with metaq.admin.Admin(brokers.namesrv) as admin:
        admin.delete_topic("deleted")
    plan = planner(brokers, "deleted")
    asking = ClusterClient(brokers.namesrv, 0.0)
    eventually(lambda: not found(asking, "deleted"), PATIENCE)
    asking.close()
    with pytest.raises(NoRoute, match="topic deleted"):
        plan.advance(dict.fromkeys(queues, 0), None, plan.watch())


def test_with_fail_the_query_ends_and_names_broker_and_queues(brokers):
    a, b = make(brokers, "failing")
    plan = planner(brokers, "failing", brokerAway="fail")
    with away(brokers, 1):
        text = rf"the broker {B} is away .*1 queues wait, {b} at 7.*brokerAway=wait"
        with pytest.raises(ConnectionFailed, match=text):
            plan.advance({a: 0, b: 7}, None, plan.watch())
    assert eventually(lambda: plan.advance({a: 0, b: 0}, None, plan.watch()), PATIENCE) == {a: 0, b: 0}


def test_a_batch_read_fails_whatever_is_said_of_streams(brokers):
    """It has said which queues it wants, by assign or by where it ends; or a task finds its broker away."""
    a, b = make(brokers, "batch")
    assign = f'{{"batch": {{"{A}": [0], "{B}": [0]}}}}'
    ending = planner(brokers, "batch", endingOffsets=offsets.to_text({a: 0, b: 0}))
    with away(brokers, 1):
        with pytest.raises(NoRoute, match=f"assign names queues that are not there: {b}"):
            planner(brokers, assign=assign).start("earliest")
        with pytest.raises(ConfigError, match=f"endingOffsets names queues that are not read: {b}"):
            ending.end(ending.queues())
        with pytest.raises((ConnectionFailed, NoRoute)):
            ending.client.ends([a, b])
        settings = SourceOptions.of({"nameServers": brokers.namesrv, "subscribe": "batch", "retrySeconds": "0.3"}).fetch
        with pytest.raises((ConnectionFailed, NoRoute)):
            list(read_slice(ending.client, Slice(b, 0, 1), settings))


def test_a_batch_that_was_planned_waits_for_its_broker(brokers, caplog):
    """Much longer than retrySeconds, if it has to; not one message is missing."""
    _, b = make(brokers, "planned")
    send(brokers, [b], 50)
    settings = planner(brokers, "planned", retrySeconds="0.1")._options.fetch_of_stream
    client = ClusterClient(brokers.namesrv, 0.1)
    got: list[int] = []

    def read() -> None:
        for decoded in read_slice(client, Slice(b, 0, 50), settings):
            got.extend(map(int, decoded.queue_offsets))

    with away(brokers, 1):
        reading = threading.Thread(target=read)
        reading.start()
        eventually(lambda: "waiting for the broker" in caplog.text, PATIENCE)
        assert not got
    reading.join(PATIENCE)
    assert got == list(range(50))
    client.close()


def test_a_batch_that_was_planned_is_cut_again_without_its_broker(brokers):
    """As a restarted query does with the batch of its checkpoint. Sizes are guessed."""
    [_, b] = make(brokers, "cut")
    with away(brokers, 1):
        pieces = planner(brokers, "cut", minPartitions="4").cut([Slice(b, 0, 1000)])
    assert len(pieces) == 4
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].end) == (0, 1000)


def test_what_is_there_now_leaves_out_a_broker_that_stays_away(brokers, caplog):
    """Trigger.AvailableNow ends without its queues, and says so; the next run has them. With fail it does not run."""
    a, b = make(brokers, "now")
    send(brokers, [a, b], 3)
    plan, begin = planner(brokers, "now"), {a: 1, b: 1}
    with away(brokers, 1):
        watch = plan.watch()
        target = plan.completed(plan.target(watch), begin, watch)
        assert target == {a: 3}
        assert plan.advance(begin, target, watch) == {a: 3, b: 1}
        assert f"the broker {B} is away" in caplog.text
        strict = planner(brokers, "now", brokerAway="fail")
        with pytest.raises(ConnectionFailed, match=f"the broker {B} is away"):
            strict.completed(strict.target(strict.watch()), begin, strict.watch())
    watch = plan.watch()
    target = plan.target(watch)
    assert plan.advance(begin, plan.completed(target, begin, watch), watch) == {a: 3, b: 3}
    assert plan.completed({a: 3}, begin, watch) == {a: 3, b: 3}  # It came back between the two questions.


def test_what_is_there_now_leaves_out_a_topic_with_all_its_brokers_away(brokers):
    """Name servers do not know the topic then; the run has the others, and one that waits for nobody fails."""
    with away(brokers, 0):
        [b] = make(brokers, "now_there")
    with away(brokers, 1):
        [a] = make(brokers, "now_here")
        send(brokers, [a], 3)
        plan, begin = planner(brokers, "now_here,now_there"), {a: 1, b: 0}
        watch = plan.watch()
        target = plan.completed(plan.target(watch), begin, watch)
        assert plan.advance(begin, target, watch) == {a: 3, b: 0}
        strict = planner(brokers, "now_here,now_there", brokerAway="fail")
        with pytest.raises(NoRoute, match="now_there"):
            strict.target(strict.watch())


def test_what_is_there_now_fails_for_a_topic_that_was_deleted(brokers):
    queues = make(brokers, "now_deleted")
    [a, *_] = make(brokers, "now_left")
    with metaq.admin.Admin(brokers.namesrv) as admin:
        admin.delete_topic("now_deleted")
    asking = ClusterClient(brokers.namesrv, 0.0)
    eventually(lambda: not found(asking, "now_deleted"), PATIENCE)
    asking.close()
    plan = planner(brokers, "now_deleted,now_left")
    watch = plan.watch()
    with pytest.raises(NoRoute, match="now_deleted"):
        plan.completed(plan.target(watch), dict.fromkeys([*queues, a], 0), watch)


def test_how_far_behind_a_query_is_at_a_broker_that_is_away_is_not_known(brokers):
    """It does not look as if all of its messages were read."""
    a, b = make(brokers, "unknown")
    send(brokers, [a, b], 3)
    options = planner(brokers, "unknown")._options
    stream = MetaqStreamReader(options, StructType([]))
    with away(brokers, 1):
        end = stream.latestOffset(offsets.to_json({a: 0, b: 1}), ReadAllAvailable())
        assert offsets.from_json(end) == {a: 3, b: 1}
        assert offsets.from_json(stream.reportLatestOffset()) == {a: 3}


def test_new_brokers_queues_and_topics_of_a_pattern_join_in(brokers):
    """Each is pinned at its first message, and read from there."""
    plan = planner(brokers, subscribePattern="joining-*")
    watch = plan.watch()
    with away(brokers, 1):
        [a] = make(brokers, "joining-a")
        begin = plan.advance({}, None, watch)
        assert begin == {a: 0}
        [_, more] = make(brokers, "joining-a", 2)
        [other] = make(brokers, "joining-b")
        send(brokers, [a, more, other], 1)
        assert plan.advance(begin, None, watch) == {a: 1, more: 0, other: 0}
    queues = make(brokers, "joining-a", 2)
    send(brokers, queues[2:], 2)
    known = {a: 1, more: 1, other: 1}
    pinned = plan.advance(known, None, watch)
    assert pinned == known | dict.fromkeys(queues[2:], 0)
    assert plan.advance(pinned, None, watch) == known | dict.fromkeys(queues[2:], 2)


def test_a_broker_that_is_named_and_does_not_answer_is_looked_at_ever_more_seldom(tmp_path):
    """The pauses grow to a bound. It begins again with every broker that goes."""
    clock = FakeClock()
    with ScriptedCluster(tmp_path) as cluster:
        cluster.put("orders", 0, [b"x"] * 5)
        queue = MessageQueue("orders", "broker-a", 0)
        asked = [RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET]
        cluster.script = lambda command: Fate.HANG_UP if command.code in asked else None
        client, watch = ClusterClient(cluster.namesrv, 0.0), Watch("wait", 0.0, clock)

        def look() -> int:
            before = sum(map(cluster.count, asked))
            seen = watch.look(client, [queue], patiently=False)
            watch.note(seen, {queue: 2})
            assert ("broker-a" in seen.away) == watch.is_away("broker-a")
            return sum(map(cluster.count, asked)) - before

        assert look() == 1
        pause = PAUSE_SECONDS
        for _ in range(8):
            clock.advance(pause - 0.01)
            assert look() == 0
            clock.advance(0.02)
            assert look() == 1
            pause = min(2 * pause, PAUSE_MAX_SECONDS)
        cluster.script = lambda command: None
        clock.advance(PAUSE_MAX_SECONDS)
        assert look() == 2
        assert not watch.is_away("broker-a")
        pickle.loads(pickle.dumps(watch))
        client.close()


def test_a_query_goes_on_while_no_name_server_answers(tmp_path, caplog):
    """With the brokers that it knows. One that begins, and one that is told to fail, does not."""
    with ScriptedCluster(tmp_path) as cluster:
        cluster.put("orders", 0, [b"x"] * 5)
        queue = MessageQueue("orders", "broker-a", 0)
        plan, strict = planner(cluster, "orders"), planner(cluster, "orders", brokerAway="fail")
        watch = plan.watch()
        assert plan.advance({queue: 0}, None, watch) == {queue: 5}
        cluster.script = lambda asked: Fate.HANG_UP if asked.code in NAMES else None
        cluster.put("orders", 0, [b"x"] * 5)
        before = cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        for _ in range(5):
            assert plan.advance({queue: 5}, None, watch) == {queue: 10}
        assert cluster.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) - before < 10
        assert caplog.text.count("Going on with the brokers that are known") == 1
        for other, begin in ((strict, {queue: 0}), (plan, {})):
            with pytest.raises(ConnectionFailed, match="no name server"):
                other.advance(begin, None, other.watch())
        cluster.script = lambda asked: None
        eventually(lambda: plan.advance({queue: 5}, None, watch) and "name servers are back" in caplog.text, PATIENCE)
