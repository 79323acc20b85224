"""Reading a slice: exactly its messages, whatever the broker does meanwhile."""

from __future__ import annotations

import threading

import pytest
from msgspec import structs

from metaq.client.conversation.reading.slices import PULLS_UNDER_WAY
from metaq.clock import FakeClock
from metaq.errors import BrokerError, ConnectionFailed, MessagesLost, NoRoute, OffsetOutOfRange
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster import client
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source import fetch as reading
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, reply
from metaq.wire.headers import PullReplyHeader
from tests.scripted import Fate, Later, Script, ScriptedCluster, Verdict, goes_on
from tests.support import PATIENCE

QUEUE = MessageQueue("orders", "broker-a", 0)
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """1000 messages in one queue; tests that put or expire make a cluster of their own."""
    with ScriptedCluster(tmp_path_factory.mktemp("filled")) as running:
        running.put("orders", 0, [b"%d" % i for i in range(1000)])
        yield running


@pytest.fixture
def cluster(filled):
    yield filled
    filled.script = filled.answer_script = goes_on


@pytest.fixture
def expiring(tmp_path):
    """1000 messages in one queue, the first 250 in a log file of their own."""
    with ScriptedCluster(tmp_path) as running:
        running.put("orders", 0, [b"%d" % i for i in range(250)])
        running.new_log_file()
        running.put("orders", 0, [b"%d" % i for i in range(250, 1000)])
        yield running


def fetch(cluster: ScriptedCluster, start: int, end: int, **settings) -> list[bytes]:
    asking = ClusterClient(cluster.namesrv, retry_seconds=settings.get("retry_seconds", PATIENCE))
    try:
        batches = read_slice(asking, Slice(QUEUE, start, end), FetchSettings(**settings))
        return [body for decoded in batches for body in decoded.to_batch(("body",))["body"].to_pylist()]
    finally:
        asking.close()


def pulls(fate) -> Script:
    """A script for pulls: `fate(number)` of each, counted from 1."""
    number = 0

    def script(asked: Command) -> Verdict:
        nonlocal number
        if asked.code != PULL:
            return None
        number += 1
        return fate(number)

    return script


def at_most(messages: int) -> Script:
    """A RocketMQ's way: it knows nothing of `maxMsgBytes`, and gives no more than so many messages a pull."""

    def script(asked: Command) -> Verdict:
        if asked.code != PULL:
            return None
        count = str(min(messages, int(asked.ext["maxMsgNums"])))
        ext = {name: text for name, text in asked.ext.items() if name != "maxMsgBytes"}
        return structs.replace(asked, ext=ext | {"maxMsgNums": count})

    return script


@pytest.mark.parametrize("script", [at_most(1), at_most(7), at_most(32), goes_on], ids=["1", "7", "32", "ours"])
@pytest.mark.parametrize(("start", "end"), [(0, 1000), (0, 1), (999, 1000), (13, 988), (500, 500)])
def test_a_slice_is_read_exactly_and_in_order(cluster, script, start, end):
    """Whatever the broker's cap, the rows are the slice's: none before, none behind, none twice."""
    cluster.script = script
    assert fetch(cluster, start, end) == [b"%d" % i for i in range(start, end)]


def test_several_pulls_are_under_way(tmp_path):
    """While one answer is decoded, the broker works on the next: the second is asked for before the first is answered."""
    with ScriptedCluster(tmp_path) as cluster:
        cluster.put("orders", 0, [b"more"] * 5000)
        under_way: list[int] = []
        most = asked_for = 0
        second, last = threading.Event(), threading.Event()

        def asked(command: Command) -> Verdict:
            nonlocal most, asked_for
            if command.code != PULL:
                return None
            asked_for += 1
            under_way.append(command.opaque)
            most = max(most, len(under_way))
            if asked_for == 2:
                second.set()
            if asked_for == 1 + PULLS_UNDER_WAY:
                last.set()
            return Later(second) if asked_for == 1 else Later(last) if asked_for <= PULLS_UNDER_WAY else None

        def answered(answer: Command) -> Verdict:
            if answer.opaque in under_way:
                under_way.remove(answer.opaque)
            return None

        cluster.script, cluster.answer_script = asked, answered
        assert len(fetch(cluster, 0, 5000, pull_bytes=40_000)) == 5000
    assert second.is_set()
    assert last.is_set()  # What the first answer taught is that more may be under way.
    assert most == PULLS_UNDER_WAY
    assert asked_for < 50  # Of about 200 messages each, after what was learnt on the way.


def test_a_broken_connection_is_made_again_where_it_stood(cluster):
    """A broker that hangs up in the middle costs a new connection, no message and no copy."""
    few, hang_up = at_most(32), pulls(lambda number: Fate.HANG_UP if number % 5 == 3 else None)
    cluster.script = lambda asked: hang_up(asked) or few(asked)
    assert fetch(cluster, 0, 1000) == [b"%d" % i for i in range(1000)]


USELESS = {
    "busy": lambda asked: reply(asked, ResponseCode.SYSTEM_BUSY, remark="later"),
    "no frame": lambda asked: b"\xff" * 64,
    "no offsets": lambda asked: reply(asked, ResponseCode.SUCCESS, remark="of another kind", body=b"x"),
    "no messages": lambda asked: reply(
        asked, ResponseCode.SUCCESS, PullReplyHeader(next_offset=2000, min_offset=0, max_offset=2000)
    ),
}


@pytest.mark.parametrize("useless", USELESS)
def test_an_answer_that_helps_nobody_is_asked_for_again(cluster, useless, caplog):
    """A broker that is busy, or answers what nobody can read: over a new connection, from where it stood."""
    pulled = 0

    def script(asked: Command) -> Verdict:
        nonlocal pulled
        if asked.code != PULL:
            return None
        pulled += 1
        return USELESS[useless](asked) if pulled == 1 else None

    cluster.script = script
    assert fetch(cluster, 0, 1000) == [b"%d" % i for i in range(1000)]
    assert caplog.text.count("trying again in 0.2 s") == 1


def test_a_refusal_is_told_at_once(cluster):
    """Whoever may not read will not be let in a little later."""
    cluster.script = lambda asked: (
        reply(asked, ResponseCode.NO_PERMISSION, remark="not you") if asked.code == PULL else None
    )
    before = cluster.count(PULL)
    with pytest.raises(BrokerError, match=f"code 16 from {cluster.broker} to pull from {QUEUE}: not you"):
        fetch(cluster, 0, 1000)
    assert cluster.count(PULL) - before <= 2  # as many as are under way


def test_a_broker_that_stays_away_fails_the_read_after_its_patience(cluster):
    """After `retrySeconds` without progress the last fault comes out."""
    cluster.script = pulls(lambda number: Fate.HANG_UP)
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        fetch(cluster, 0, 1000, retry_seconds=0.5)


def test_messages_that_left_the_log_fail_the_read_and_are_counted(expiring):
    """The text says how many are gone and which offsets."""
    expiring.expire("orders", 0, 250)
    with pytest.raises(
        MessagesLost, match=r"150 messages of orders@broker-a:0 are gone: offsets \[100, 250\)"
    ) as caught:
        fetch(expiring, 100, 1000)
    assert "failOnDataLoss=false" in str(caught.value)


def test_without_fail_on_data_loss_the_rest_is_read_and_the_loss_is_logged(expiring, caplog):
    """failOnDataLoss=false goes on behind the gap, with a warning that counts."""
    expiring.expire("orders", 0, 250)
    assert fetch(expiring, 100, 1000, fail_on_data_loss=False) == [b"%d" % i for i in range(250, 1000)]
    assert fetch(expiring, 100, 200, fail_on_data_loss=False) == []
    assert "150 messages of orders@broker-a:0 are gone" in caplog.text


def test_messages_that_leave_while_they_are_read_are_noticed(expiring, caplog):
    """The log may move on in the middle of a slice."""

    def expire_later(number: int) -> None:
        if number == 4:
            expiring.expire("orders", 0, 250)

    few, later = at_most(32), pulls(expire_later)
    expiring.script = lambda asked: later(asked) or few(asked)
    got = fetch(expiring, 0, 1000, fail_on_data_loss=False)
    assert got == [b"%d" % i for i in [*range(96), *range(250, 1000)]]
    assert caplog.text.count("are gone") == 1


@pytest.mark.parametrize("start", [900, 1000, 1200])
def test_a_queue_that_ends_before_the_slice_is_told_and_nothing_is_called_gone(cluster, caplog, start):
    """A range that was once there and is not any more: the queue was made anew, or its log lost its tail."""
    with pytest.raises(OffsetOutOfRange, match=r"orders@broker-a:0 keeps \[0, 1000\), wanted 1500. .* made anew"):
        fetch(cluster, start, 1500, retry_seconds=0.3)
    got = fetch(cluster, start, 1500, retry_seconds=0.3, fail_on_data_loss=False)
    assert len(got) == max(0, 1000 - start)
    assert "keeps [0, 1000), wanted 1500" in caplog.text
    assert "gone" not in caplog.text


def test_an_unknown_topic_says_how_to_make_one(cluster):
    """No route names topic, name server and command."""
    asking = ClusterClient(cluster.namesrv, retry_seconds=0.1)
    with pytest.raises(
        NoRoute, match=f"topic nix at name servers {cluster.namesrv}: create it with `metaq topic create nix`"
    ):
        asking.queues(["nix"])
    asking.close()


def test_a_name_server_that_is_down_is_passed_over(cluster):
    """The next one in the list is asked."""
    asking = ClusterClient(f"127.0.0.1:1;{cluster.namesrv}", retry_seconds=PATIENCE)
    assert asking.queues(["orders"]) == [QUEUE]
    asking.close()


def test_a_pattern_is_a_glob_over_topic_names(tmp_path):
    """System and retry topics never match a pattern, nor do the topics of cluster and broker."""
    with ScriptedCluster(tmp_path) as cluster:
        for topic in ("orders", "orders-old", "%RETRY%orders", "other"):
            cluster.make_topic(topic, 1)
        asking = ClusterClient(cluster.namesrv, retry_seconds=PATIENCE)
        assert asking.topics("orders*") == ["orders", "orders-old"]
        assert asking.topics("*") == ["orders", "orders-old", "other"]
        assert asking.queues(["%RETRY%orders"]) == cluster.queues("%RETRY%orders")
        asking.close()


def test_a_consumer_may_take_its_time_between_two_batches(cluster, monkeypatch):
    """A connection that broke meanwhile is a fault of this moment, and not one that lasts since the last batch."""
    clock = FakeClock()
    monkeypatch.setattr(client, "SYSTEM", clock)
    monkeypatch.setattr(reading, "BATCH_ROWS", 100)
    cluster.script = at_most(100)
    asking, taken = ClusterClient(cluster.namesrv, retry_seconds=30.0), 0
    for number, decoded in enumerate(read_slice(asking, Slice(QUEUE, 0, 1000), FetchSettings())):
        taken += len(decoded.queue_offsets)
        if number == 3:
            clock.advance(3600)
            asking.link_to(QUEUE).close()
    asking.close()
    assert taken == 1000


def test_each_hole_in_an_answer_is_told_for_itself(cluster, caplog):
    """With the offsets that are gone, and none between them that are there."""
    gone = {5, 9, 10}

    def without(answer: Command) -> Verdict:
        if "nextBeginOffset" not in answer.ext or not (body := bytes(answer.body)):
            return None
        records = []
        while body:
            size = int.from_bytes(body[:4], "big")
            records, body = [*records, body[:size]], body[size:]
        first = int(answer.ext["nextBeginOffset"]) - len(records)
        kept = b"".join(record for at, record in enumerate(records, first) if at not in gone)
        return structs.replace(answer, body=kept)

    cluster.answer_script = without
    wanted = [b"%d" % i for i in range(100) if i not in gone]
    assert fetch(cluster, 0, 100, fail_on_data_loss=False) == wanted
    assert "1 messages of orders@broker-a:0 are gone: offsets [5, 6)" in caplog.text
    assert "2 messages of orders@broker-a:0 are gone: offsets [9, 11)" in caplog.text
