"""Whether a master or a slave is asked: the slave here is a second server of the broker, with a slave's way of answering."""

from __future__ import annotations

import itertools
import json
import logging
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

import metaq
from metaq.clock import FakeClock
from metaq.errors import ConnectionFailed, NoRoute
from metaq.model import BrokerData, Route
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.slices import SliceWriter
from metaq.spark.cluster.client import ClusterClient, client_of
from metaq.spark.cluster.replicas import AVOID_SECONDS, ReplicaChoice, Replicas
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.spark.source.settings import SourceOptions
from metaq.testing import Cluster
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, reply
from metaq.wire.headers import PullReplyHeader
from tests.scripted import Fate, Script, ScriptedCluster, ScriptedProxy, Verdict, goes_on
from tests.support import PATIENCE

QUEUE = MessageQueue("orders", "broker-a", 0)
PULL = RequestCode.PULL_MESSAGE
MESSAGES = 1000


class Pair:
    """A master and its slave. The slave keeps all, unless it is told otherwise."""

    def __init__(self, cluster: ScriptedCluster, slave: ScriptedProxy) -> None:
        self.cluster, self.slave = cluster, slave
        self.suggests = 0
        """Whom the master suggests."""
        self.master_is_listed = True
        cluster.answer_script = self._answer

    def _answer(self, answer: Command) -> Verdict:
        if "suggestWhichBrokerId" in answer.ext:
            return structs.replace(answer, ext=answer.ext | {"suggestWhichBrokerId": str(self.suggests)})
        if b"brokerDatas" not in bytes(answer.body):
            return None
        route = json.loads(bytes(answer.body))
        for data in route["brokerDatas"]:
            data["brokerAddrs"]["1"] = self.slave.address
            if not self.master_is_listed:
                del data["brokerAddrs"]["0"]
        return structs.replace(answer, body=json.dumps(route).encode())

    def keeps(self, start: int, stop: int, limit: int = 32) -> None:
        """The slave's answers outside of a range, as a RocketMQ 4.9.7 gives them: no correction of the offset."""

        def script(asked: Command) -> Verdict:
            if asked.code != PULL or start <= int(asked.ext["queueOffset"]) < stop:
                return None
            at = int(asked.ext["queueOffset"])
            code = ResponseCode.PULL_NOT_FOUND if at == stop else ResponseCode.PULL_RETRY_IMMEDIATELY
            return reply(asked, code, PullReplyHeader(next_offset=at, min_offset=start, max_offset=stop))

        self.slave.script = both(script, at_most(limit))
        self.cluster.script = at_most(limit)

    @property
    def pulls(self) -> tuple[int, int]:
        """How often master and slave were pulled from."""
        return self.cluster.count(PULL), self.slave.codes.count(PULL)


def at_most(messages: int) -> Script:
    """A RocketMQ's way: no more than so many messages a pull."""

    def script(asked: Command) -> Verdict:
        if asked.code != PULL:
            return None
        ext = {name: text for name, text in asked.ext.items() if name != "maxMsgBytes"}
        return structs.replace(asked, ext=ext | {"maxMsgNums": str(min(messages, int(asked.ext["maxMsgNums"])))})

    return script


def both(first: Script, second: Script) -> Script:
    return lambda asked: first(asked) or second(asked)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with ScriptedCluster(tmp_path_factory.mktemp("filled")) as running:
        running.put("orders", 0, [b"%d" % i for i in range(MESSAGES)])
        yield running


@pytest.fixture
def pair(filled):
    slave = ScriptedProxy(filled._broker_proxy.target)
    filled._broker_proxy.codes.clear()
    yield Pair(filled, slave)
    filled.script = filled.answer_script = goes_on
    slave.close()


def fetch(pair: Pair, read_from: str, start: int = 0, end: int = MESSAGES, client=None, **more) -> list[bytes]:
    asking = client or ClusterClient(pair.cluster.namesrv, PATIENCE, read_from)
    try:
        return [
            body
            for decoded in read_slice(asking, Slice(QUEUE, start, end), FetchSettings(**more))
            for body in decoded.to_batch(("body",))["body"].to_pylist()
        ]
    finally:
        if client is None:
            asking.close()


def bodies(start: int = 0, end: int = MESSAGES) -> list[bytes]:
    return [b"%d" % i for i in range(start, end)]


def test_a_master_serves_unless_it_suggests_a_slave(pair):
    """Then the slave has the rest, and the beginning too of what is older, without a question."""
    pair.keeps(0, MESSAGES)
    client = ClusterClient(pair.cluster.namesrv, PATIENCE)
    assert fetch(pair, "auto", 500, client=client) == bodies(500)
    assert pair.pulls[1] == 0
    pair.suggests = 1
    asked = pair.pulls[0]
    assert fetch(pair, "auto", 500, client=client) == bodies(500)
    assert pair.pulls[0] - asked <= 2  # as many as were under way
    asked = pair.pulls[0]
    assert fetch(pair, "auto", 0, 500, client=client) == bodies(0, 500)
    assert pair.pulls[0] == asked
    client.close()


@pytest.mark.parametrize(("read_from", "who"), [("master", 0), ("slave", 1)])
def test_whoever_is_asked_for_serves_alone(pair, read_from, who):
    """Whatever the master suggests."""
    pair.suggests = 1 - who
    assert fetch(pair, read_from) == bodies()
    assert pair.pulls[who] > 0
    assert pair.pulls[1 - who] == 0


@pytest.mark.parametrize("read_from", ["auto", "slave"])
@pytest.mark.parametrize("kept", [(0, 600), (400, MESSAGES), (300, 700), (0, 0)])
def test_what_a_slave_lacks_comes_from_the_master_and_is_not_gone(pair, read_from, kept, caplog):
    """It is behind, or began later: every message once, and no loss is told."""
    caplog.set_level(logging.INFO)
    pair.keeps(*kept)
    pair.suggests = 1
    assert fetch(pair, read_from) == bodies()
    assert "are gone" not in caplog.text
    assert f"keeps [{kept[0]}, {kept[1]}) of {QUEUE}" in caplog.text
    if kept == (400, MESSAGES):
        assert pair.pulls[1] >= 600 // 32  # It goes back to the slave where that begins.


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_slave_keeps_and_whoever_hangs_up_each_message_is_read_once(pair, data):
    """Any slice, any part of the queue at the slave, any limit of a pull; connections break on both sides, in any pull."""
    start, end = sorted(data.draw(st.tuples(st.integers(0, MESSAGES), st.integers(0, MESSAGES)), label="slice"))
    kept = sorted(data.draw(st.tuples(st.integers(0, MESSAGES), st.integers(0, MESSAGES)), label="kept"))
    pair.suggests = data.draw(st.integers(0, 2), label="suggested")
    pair.keeps(kept[0], kept[1], data.draw(st.sampled_from([1 + MESSAGES // 10, 32, 8]), label="limit"))
    for side, name in ((pair.cluster, "master"), (pair.slave, "slave")):
        broken = data.draw(st.sets(st.integers(1, 12), max_size=2), label=f"{name} hangs up in pulls")
        side.script = both(hanging_up(broken), side.script)
    read_from = data.draw(st.sampled_from(["auto", "master", "slave"]), label="readFrom")
    assert fetch(pair, read_from, start, end) == bodies(start, end)


def hanging_up(numbers: set[int]) -> Script:
    """A script that ends the connections of pulls with these numbers."""
    count = itertools.count(1)
    return lambda asked: Fate.HANG_UP if asked.code == PULL and next(count) in numbers else None


@pytest.mark.parametrize("read_from", ["auto", "slave"])
def test_a_slave_that_is_away_is_done_without_and_not_asked_again_for_a_while(pair, read_from):
    pair.suggests = 1
    pair.slave.script = lambda asked: Fate.HANG_UP
    client = ClusterClient(pair.cluster.namesrv, PATIENCE, read_from)
    for _ in range(3):
        assert fetch(pair, read_from, client=client) == bodies()
    assert pair.pulls[1] <= 2
    client.close()


def test_a_slave_that_refuses_is_done_without(pair):
    """Whatever it says: it may not know the topic yet, which its master does."""
    pair.slave.script = lambda asked: reply(asked, ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
    assert fetch(pair, "slave") == bodies()


@pytest.mark.parametrize("read_from", ["auto", "slave"])
def test_a_master_that_is_away_is_done_without(pair, read_from):
    """For messages. Where queues begin and end only a master can tell."""
    pair.cluster.script = lambda asked: Fate.HANG_UP if asked.code != RequestCode.GET_ROUTEINFO_BY_TOPIC else None
    assert fetch(pair, read_from, retry_seconds=1) == bodies()
    asking = ClusterClient(pair.cluster.namesrv, 0.1, read_from)
    with pytest.raises(ConnectionFailed):
        asking.ends([QUEUE])
    asking.close()


def test_with_the_master_away_what_the_slave_lacks_is_waited_for_and_not_gone(pair):
    """The master's fault is told, for the master is what is missed."""
    pair.keeps(400, MESSAGES)
    pair.cluster.script = lambda asked: Fate.HANG_UP if asked.code == PULL else None
    with pytest.raises(ConnectionFailed, match=pair.cluster.broker):
        fetch(pair, "slave", retry_seconds=0.5)
    assert fetch(pair, "slave", 400, retry_seconds=0.5) == bodies(400)


def test_a_slave_without_its_master_tells_where_queues_end_if_the_user_wants_slaves(pair):
    """Else the master is missed by name."""
    pair.master_is_listed = False
    with closing(ClusterClient(pair.cluster.namesrv, 0.1, "slave")) as client:
        assert client.ends([QUEUE]) == {QUEUE: MESSAGES}
    for read_from in ("auto", "master"):
        with (
            closing(ClusterClient(pair.cluster.namesrv, 0.1, read_from)) as client,
            pytest.raises(NoRoute, match=f"the master of the broker broker-a of {QUEUE} is not up"),
        ):
            client.ends([QUEUE])
    assert fetch(pair, "auto") == bodies()
    with pytest.raises(NoRoute, match="the master of the broker broker-a"):
        fetch(pair, "master", retry_seconds=0.1)


def test_a_filter_is_heeded_by_whoever_serves(pair):
    """And what a slave lacks is looked for at the master."""
    pair.keeps(400, MESSAGES)
    chosen = SourceOptions.of({"nameServers": "a:1", "subscribe": "orders", "tags": "t", "readFrom": "slave"})
    assert fetch(pair, "slave", subscription=chosen.fetch.subscription) == bodies()
    assert min(pair.pulls) > 0


def test_the_archive_reads_from_whom_its_options_say(pair, tmp_path):
    """A backfill is what slaves are for."""
    chosen = SourceOptions.of({"nameServers": pair.cluster.namesrv, "subscribe": "orders", "readFrom": "slave"})
    writer = SliceWriter(
        name_servers=pair.cluster.namesrv, settings=chosen.fetch_of_stream, staging=str(tmp_path), dedupe="off"
    )
    assert sum(batch["rows"][0].as_py() for batch in writer.write(Slice(QUEUE, 0, MESSAGES))) == MESSAGES
    assert pair.pulls[0] == 0
    client_of.cache_clear()


def test_our_master_serves_what_it_has_on_its_disk_only_where_there_is_no_slave():
    """With `slaveReadEnable`, too: it suggests no slave that does not copy from it."""
    with Cluster(options={"slaveReadEnable": True, "accessMessageInMemoryMaxRatio": 0}) as brokers:
        with metaq.Producer(brokers.namesrv) as producer:
            queue = producer.send("orders", b"0").queue
            for future in [producer.submit("orders", b"%d" % i, queue=queue) for i in range(1, 100)]:
                future.result(PATIENCE)
        with closing(ClusterClient(brokers.namesrv, PATIENCE)) as client:
            found = [
                int(offset)
                for decoded in read_slice(client, Slice(queue, 0, 100), FetchSettings(pull_bytes=4000))
                for offset in decoded.queue_offsets
            ]
            assert found == list(range(100))
            assert not client.replicas.is_old(queue, 0)


# ------------------------------------------------------------------ the decisions alone
def test_queues_spread_over_slaves_unless_one_is_suggested():
    queues = [MessageQueue("t", "b", i) for i in range(4)]
    chosen = [ReplicaChoice("slave", queue, old=False).choose([0, 1, 3], 0) for queue in queues]
    assert chosen == [1, 3, 1, 3]
    turn = ReplicaChoice("auto", queues[0], old=False)
    assert turn.choose([0, 1, 3], 0) == 0
    turn.suggested(3)
    assert turn.choose([0, 1, 3], 0) == 3
    assert turn.choose([0, 1], 0) == 1
    assert turn.choose([0], 0) == 0


def test_a_machine_that_failed_is_avoided_for_a_while_unless_it_is_the_only_one():
    clock = FakeClock()
    replicas, queue = Replicas("auto", clock), MessageQueue("t", "b", 0)
    replicas.learn(Route("t", (), (BrokerData("c", "b", {0: "m:1", 1: "s:1"}),)))
    replicas.failed("b", 0)
    assert (replicas.usable(queue), replicas.another(queue)) == ([1], True)
    replicas.failed("b", 1)
    assert (replicas.usable(queue), replicas.another(queue)) == ([0, 1], False)
    clock.advance(AVOID_SECONDS)
    assert (replicas.usable(queue), replicas.another(queue)) == ([0, 1], True)
