"""The Spark source over a RocketMQ 4.9.7 master and its slave: who serves what, counted by the brokers themselves.

The master calls everything but its newest message old, and suggests its slave. The slave began later than the master: at
the file that the master's log had come to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from metaq import Producer
from metaq.admin import Admin
from metaq.errors import ConnectionFailed, NoRoute
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.spark.source.slicing import slices_between
from tests.interop.servers import RocketmqServer
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.all
TOPIC = "spark_replicas"
FILE = 1 << 20
EARLY, LATE = 2500, 1500
Stored = dict[tuple[MessageQueue, int], bytes]


class Pair(NamedTuple):
    master: RocketmqServer
    slave: RocketmqServer
    stored: Stored
    """All messages, by queue and offset."""
    copied: Stored
    """Those of them that the slave has for sure."""

    def served(self) -> tuple[int, int]:
        """Messages that the two have given so far."""
        with Admin(self.master.namesrv) as admin:
            told = {one.broker_id: one.runtime for one in admin.list_brokers()}
        return tuple(int(told[one].get("msgGetTotalTodayNow", 0)) for one in (0, 1))  # type: ignore[return-value]

    def is_whole(self) -> bool:
        """Whether the slave has what the master has."""
        with Admin(self.master.namesrv) as admin:
            ends = [one.runtime.get("commitLogMaxOffset") for one in admin.list_brokers()]
        return len(ends) == 2 and ends[0] == ends[1] is not None


def send(namesrv: str, prefix: bytes, count: int) -> Stored:
    with Producer(namesrv, timeout=PATIENCE) as producer:
        bodies = [b"%s %d " % (prefix, i) + b"x" * 1000 for i in range(count)]
        receipts = [future.result(PATIENCE) for future in [producer.submit(TOPIC, body) for body in bodies]]
    return {(one.queue, one.offset): body for one, body in zip(receipts, bodies, strict=True)}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("replicas")
    names = RocketmqServer(folder / "names")
    names.start_namesrv()
    small = f"mappedFileSizeCommitLog={FILE}"
    master = RocketmqServer(
        folder / "master",
        namesrv=names.namesrv,
        options=["brokerRole=ASYNC_MASTER", "slaveReadEnable=true", "accessMessageInMemoryMaxRatio=0", small],
    )
    slave = RocketmqServer(folder / "slave", namesrv=names.namesrv, options=["brokerRole=SLAVE", "brokerId=1", small])
    try:
        master.start()
        early = send(names.namesrv, b"early", EARLY)
        slave.start()
        both = Pair(master, slave, {}, {})
        eventually(both.is_whole, PATIENCE, what="the slave is up")
        late = send(names.namesrv, b"late", LATE)
        eventually(both.is_whole, PATIENCE, what="the slave has what the master has")
        yield Pair(master, slave, early | late, late)
    finally:
        for server in (slave, master, names):
            server.kill()


def read(pair: Pair, read_from: str, wanted: list[Slice] | None = None) -> tuple[Stored, int, int]:
    """What the slices hold, all if none are given, and how much of it master and slave have served."""
    before = pair.served()
    client = ClusterClient(pair.master.namesrv, PATIENCE, read_from)
    try:
        got: Stored = {}
        for one in wanted or slices(pair):
            for decoded in read_slice(client, one, FetchSettings()):
                for offset, body in zip(decoded.queue_offsets, decoded.to_batch(("body",))["body"], strict=True):
                    assert (one.queue, int(offset)) not in got
                    got[one.queue, int(offset)] = body.as_py()
    finally:
        client.close()
    after = pair.served()
    return got, after[0] - before[0], after[1] - before[1]


def slices(pair: Pair) -> list[Slice]:
    starts: dict[MessageQueue, int] = {}
    ends: dict[MessageQueue, int] = {}
    for queue, offset in pair.stored:
        starts[queue] = min(offset, starts.get(queue, offset))
        ends[queue] = max(offset + 1, ends.get(queue, 0))
    return slices_between(starts, ends)


def test_who_serves_is_what_the_option_says(pair: Pair) -> None:
    """Every message once, whoever it comes from; the slave's share is what it has, but for a pull here and there."""
    queues, copied = len(slices(pair)), len(pair.copied)
    a_few = 3 * 32 * queues  # two pulls under way, and the one that learns

    got, master, slave = read(pair, "master")
    assert got == pair.stored
    assert (master >= len(pair.stored), slave) == (True, 0)

    got, master, slave = read(pair, "slave")
    assert got == pair.stored
    assert slave >= copied - a_few
    assert master <= EARLY + a_few

    got, master, slave = read(pair, "auto")
    assert got == pair.stored
    assert slave >= copied - a_few
    assert master <= EARLY + a_few

    only_copied = [Slice(one.queue, one.end - copied // queues // 2, one.end) for one in slices(pair)]
    got, master, slave = read(pair, "slave", only_copied)
    assert len(got) == sum(one.messages for one in only_copied)
    assert (master, slave >= len(got)) == (0, True)


def test_a_slave_that_is_away_is_done_without(pair: Pair) -> None:
    """The name server still names it; the master serves all."""
    pair.slave.kill()
    try:
        client = ClusterClient(pair.master.namesrv, PATIENCE, "slave")
        got = [
            body.as_py()
            for one in slices(pair)
            for decoded in read_slice(client, one, FetchSettings(retry_seconds=5))
            for body in decoded.to_batch(("body",))["body"]
        ]
        client.close()
        assert sorted(got) == sorted(pair.stored.values())
    finally:
        pair.slave.start()
        eventually(pair.is_whole, PATIENCE, what="the slave is back")


def test_a_master_that_is_away_is_done_without_for_what_was_planned(pair: Pair) -> None:
    """The slave serves it. Where queues end only the master can tell."""
    queues = len(slices(pair))
    planned = [Slice(one.queue, one.end - len(pair.copied) // queues // 2, one.end) for one in slices(pair)]
    wanted = {
        (one.queue, offset): pair.stored[one.queue, offset] for one in planned for offset in range(one.start, one.end)
    }
    pair.master.kill()
    try:
        client = ClusterClient(pair.master.namesrv, 1.0)
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
        eventually(pair.is_whole, PATIENCE, what="the master is back")
