"""Reading from slaves, of pairs of ours, of RocketMQ 4.9.7 and mixed: Spark's source, and groups in Python and Java.

Who serves what is counted by the brokers themselves. They call everything but the newest message old, and suggest the slave. The
slave began later than the master: it has all from a master of ours, from RocketMQ's the file that the log had come to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from metaq import Consumer, Producer
from metaq.admin import Admin
from metaq.errors import ConnectionFailed, NoRoute
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.spark.source.slicing import slices_between
from tests.interop import pairs
from tests.interop.driver import ForeignClient
from tests.interop.pairs import OURS, ROCKETMQ, Pair
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop
TOPIC = "slave_reads_of_spark"
EARLY, LATE = 2500, 1500
ONE_QUEUE, OF_GROUPS = "slave_reads_in_one_queue", 400
PULL = 32
"""Messages of a pull: of RocketMQ's clients, and about what PULL_BYTES hold."""
PULL_BYTES = PULL * 1000
Stored = dict[tuple[MessageQueue, int], bytes]


class Filled(NamedTuple):
    """A pair with messages."""

    pair: Pair
    stored: Stored
    """All messages, by queue and offset."""
    copied: Stored
    """Those of them that the slave has for sure."""


def send(namesrv: str, topic: str, prefix: bytes, count: int) -> Stored:
    with Producer(namesrv, timeout=PATIENCE) as producer:
        bodies = [b"%s %d " % (prefix, i) + b"x" * 1000 for i in range(count)]
        receipts = [future.result(PATIENCE) for future in [producer.submit(topic, body) for body in bodies]]
    return {(one.queue, one.offset): body for one, body in zip(receipts, bodies, strict=True)}


@pytest.fixture(
    scope="module",
    params=[
        (OURS, OURS),
        (ROCKETMQ, OURS),
        pytest.param((OURS, ROCKETMQ), marks=pytest.mark.all),  # RocketMQ's slave takes 10 s to begin
        pytest.param((ROCKETMQ, ROCKETMQ), marks=pytest.mark.all),
    ],
    ids=" and ".join,
)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    master, slave = request.param
    folder = tmp_path_factory.mktemp("replicas")
    with pairs.pair(folder, master, slave, options=["accessMessageInMemoryMaxRatio=0"]) as pair:
        pair.master.start()
        early = send(pair.namesrv, TOPIC, b"early", EARLY)
        with Admin(pair.namesrv) as admin:
            admin.create_topic(ONE_QUEUE, queues=1)
        pair.slave.start()
        pair.wait_until_whole()
        late = send(pair.namesrv, TOPIC, b"late", LATE)
        send(pair.namesrv, ONE_QUEUE, b"grouped", OF_GROUPS)
        pair.wait_until_whole()
        eventually(lambda: knows(pair, TOPIC) and knows(pair, ONE_QUEUE), what="the slave has its master's topics")
        yield Filled(pair, early | late, early | late if master == OURS else late)


def knows(pair: Pair, topic: str) -> bool:
    files = (pair.slave.data / "config").glob("topics.json*")
    return any(topic.encode() in path.read_bytes() for path in files)


def read(filled: Filled, read_from: str, wanted: list[Slice] | None = None) -> tuple[Stored, int, int]:
    """What the slices hold, all if none are given, and how much of it master and slave have served."""
    before = filled.pair.served()
    client = ClusterClient(filled.pair.namesrv, PATIENCE, read_from)
    try:
        got: Stored = {}
        for one in wanted or slices(filled):
            for decoded in read_slice(client, one, FetchSettings(pull_bytes=PULL_BYTES)):
                for offset, body in zip(decoded.queue_offsets, decoded.to_batch(("body",))["body"], strict=True):
                    assert (one.queue, int(offset)) not in got
                    got[one.queue, int(offset)] = body.as_py()
    finally:
        client.close()
    after = filled.pair.served()
    return got, after[0] - before[0], after[1] - before[1]


def slices(filled: Filled) -> list[Slice]:
    starts: dict[MessageQueue, int] = {}
    ends: dict[MessageQueue, int] = {}
    for queue, offset in filled.stored:
        starts[queue] = min(offset, starts.get(queue, offset))
        ends[queue] = max(offset + 1, ends.get(queue, 0))
    return slices_between(starts, ends)


def test_who_serves_is_what_the_option_says(filled: Filled) -> None:
    """Every message once, whoever it comes from; the slave's share is what it has, but for a pull here and there."""
    queues, copied = len(slices(filled)), len(filled.copied)
    lacking = len(filled.stored) - copied
    a_few = 3 * PULL * queues  # two pulls under way, and the one that learns

    got, master, slave = read(filled, "master")
    assert got == filled.stored
    assert (master >= len(filled.stored), slave) == (True, 0)

    got, master, slave = read(filled, "slave")
    assert got == filled.stored
    assert slave >= copied - a_few
    assert master <= lacking + a_few

    got, master, slave = read(filled, "auto")
    assert got == filled.stored
    assert slave >= copied - a_few
    assert master <= lacking + a_few

    only_copied = [Slice(one.queue, one.end - LATE // queues // 2, one.end) for one in slices(filled)]
    got, master, slave = read(filled, "slave", only_copied)
    assert len(got) == sum(one.messages for one in only_copied)
    assert (master, slave >= len(got)) == (0, True)


def test_groups_that_are_behind_read_from_the_slave(filled: Filled, java: ForeignClient) -> None:
    """In Python and Java, all but a pull or two. From a slave of ours who has caught up comes back to the master."""
    pair = filled.pair
    before = pair.served()
    with Consumer(pair.namesrv, group="python", topics=ONE_QUEUE, start="earliest", pull_count=PULL) as consumer:
        got, messages = set[bytes](), iter(consumer)
        while len(got) < OF_GROUPS:
            with next(messages) as message:
                got.add(message.body)
        python = pair.served()
        java.consumer("java", pair.namesrv, "java", {ONE_QUEUE: "*"})
        assert {event["body"].encode() for event in java.wait("java", OF_GROUPS)} == got
        both = pair.served()
        for earlier, later in ((before, python), (python, both)):
            assert later[1] - earlier[1] >= OF_GROUPS - 3 * PULL
            assert later[0] - earlier[0] <= 3 * PULL
        with Producer(pair.namesrv, timeout=PATIENCE) as producer:
            producer.send(ONE_QUEUE, b"new")
        with next(messages) as message:
            assert message.body == b"new"
    java.wait("java", lambda events: events[-1]["body"] == "new")
    if pair.kinds["slave"] == OURS:
        after = pair.served()
        assert (after[0] - both[0], after[1] - both[1]) == (2, 0)


def test_a_slave_that_is_away_is_done_without(filled: Filled) -> None:
    """The name server still names it; the master serves all."""
    filled.pair.slave.kill()
    try:
        client = ClusterClient(filled.pair.namesrv, PATIENCE, "slave")
        got = [
            body.as_py()
            for one in slices(filled)
            for decoded in read_slice(client, one, FetchSettings(retry_seconds=5))
            for body in decoded.to_batch(("body",))["body"]
        ]
        client.close()
        assert sorted(got) == sorted(filled.stored.values())
    finally:
        filled.pair.slave.start()
        filled.pair.wait_until_whole()


def test_a_master_that_is_away_is_done_without_for_what_was_planned(filled: Filled) -> None:
    """The slave serves it. Where queues end only the master can tell."""
    pair, queues = filled.pair, len(slices(filled))
    planned = [Slice(one.queue, one.end - LATE // queues // 2, one.end) for one in slices(filled)]
    wanted = {
        (one.queue, offset): filled.stored[one.queue, offset] for one in planned for offset in range(one.start, one.end)
    }
    pair.master.kill()
    try:
        client = ClusterClient(pair.namesrv, 1.0)
        got = {
            (one.queue, int(offset)): body.as_py()
            for one in planned
            for decoded in read_slice(client, one, FetchSettings(retry_seconds=5))
            for offset, body in zip(decoded.queue_offsets, decoded.to_batch(("body",))["body"], strict=True)
        }
        assert got == wanted
        with pytest.raises(
            (NoRoute, ConnectionFailed), match=f"the master of the broker broker-a|{pair.master.broker}"
        ):
            client.ends([planned[0].queue])
        client.close()
    finally:
        pair.master.start()
        pair.wait_until_whole()
