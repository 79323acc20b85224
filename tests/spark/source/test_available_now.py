"""`trigger(availableNow=True)`: what is stored when the query starts, no more and no less, whatever goes on meanwhile.

The reader is driven as Spark drives it (the order of its calls is that of a real run), so that producers can send between
any two of them.
"""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from metaq.errors import OffsetOutOfRange
from metaq.model import offsets
from metaq.model.queue import MessageQueue
from metaq.spark.cluster import client
from metaq.spark.data_source import MetaqStreamReader
from metaq.spark.source.settings import SourceOptions
from tests.scripted import ScriptedCluster

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", i) for i in range(3))
BATCHES_MAX = 100


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path) as running:
        running.put("orders", 0, [b"x" * 100] * 70)
        running.put("orders", 1, [b"x" * 100] * 31)
        yield running
        client.client_of.cache_clear()


class Query:
    """One query: its checkpoint, and what its runs have read."""

    def __init__(self, cluster: ScriptedCluster, **options: str) -> None:
        self._cluster = cluster
        self._options = {"nameServers": cluster.namesrv, "subscribe": "orders", "retrySeconds": "0.2"} | options
        self.logged: list[dict] = []
        self.committed = 0
        self.batches: list[list[offsets.Slice]] = []

    def run(self, *, batches: int = BATCHES_MAX) -> offsets.Positions:
        """One run, or its first batches, the last of which is logged and never committed. Returns what it was to read to."""
        reader = MetaqStreamReader(SourceOptions.of(self._options), StructType([]))
        wanted = self._cluster.ends("orders")
        reader.prepareForTriggerAvailableNow()
        self._produce()
        limit = reader.getDefaultReadLimit()
        if not self.logged:
            self._produce()
            self.logged.append(self._batch(reader, reader.initialOffset(), limit))
        at = self.logged[self.committed - 1] if self.committed else reader.initialOffset()
        self.batches = self.batches[: self.committed]
        for _ in range(batches):
            if self.committed == len(self.logged):
                if (found := self._batch(reader, at, limit)) == at:
                    return wanted
                self.logged.append(found)
            end = self.logged[self.committed]
            self.batches.append([part.wanted for part in reader.partitions(at, end)])
            self._produce()
            self.committed, at = self.committed + 1, end
        self.committed -= 1
        return wanted

    def _batch(self, reader, at, limit):
        self._produce()
        return reader.latestOffset(at, limit)

    def _produce(self) -> None:
        for queue_id in (0, 1):
            self._cluster.put("orders", queue_id, [b"y" * 100] * 3)

    @property
    def sizes(self) -> list[int]:
        return [sum(piece.messages for piece in batch) for batch in self.batches]

    @property
    def read(self) -> list[tuple[MessageQueue, int]]:
        pieces = itertools.chain(*self.batches)
        return sorted((piece.queue, at) for piece in pieces for at in range(piece.start, piece.end))


def to(ends: dict[MessageQueue, int]) -> list[tuple[MessageQueue, int]]:
    return sorted((queue, at) for queue, end in ends.items() for at in range(end))


@pytest.mark.parametrize("limits", [{}, {"maxOffsetsPerTrigger": "20"}, {"maxBytesPerTrigger": "5000"}])
def test_exactly_what_was_there_is_read_while_producers_run(cluster, limits):
    """In one batch or many; the next run reads what came meanwhile, and again no more."""
    query = Query(cluster, startingOffsets="earliest", **limits)
    assert query.read != (first := to(query.run()))
    assert query.read == first
    if "maxOffsetsPerTrigger" in limits:
        assert query.sizes == [0, 20, 20, 20, 20, 20, 1]
    second = to(query.run())
    assert query.read == second
    assert len(second) > len(first)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_run_that_was_killed_is_finished_by_the_next(cluster, batches):
    """The batch that was logged and not committed is read again, the same; then what is there when the second run starts."""
    query = Query(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    query.run(batches=batches)
    before = query.batches[-1]
    wanted = query.run()
    assert query.batches[batches - 1] == before
    assert query.read == to(wanted)
    assert max(query.sizes) == 20


@pytest.mark.parametrize("killed", [False, True])
def test_a_query_that_begins_at_latest_begins_beside_producers(cluster, killed):
    """Its start lies behind what was there when the run began, because more has come: nothing is read, nothing is amiss."""
    query = Query(cluster)
    if killed:
        query.run(batches=1)
    query.run()
    start = offsets.from_json(query.logged[0])
    assert all(start[queue] > end for queue, end in {Q0: 70, Q1: 31}.items())
    wanted = query.run()
    assert query.read == sorted((queue, at) for queue, end in wanted.items() for at in range(start[queue], end))


def test_a_queue_that_is_new_at_a_restart_is_read_by_that_run(cluster):
    """It is pinned first; one that is made during the run waits for the next."""
    query = Query(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="50")
    query.run()
    cluster.put("orders", 2, [b"z"] * 5)
    assert query.read != (second := to(query.run()))
    assert query.read == second
    assert sum(queue == Q2 for queue, _ in query.read) == 5


def test_a_topic_that_was_made_anew_is_still_told(cluster):
    """A checkpoint beyond the end of a queue is no start of this run's."""
    query = Query(cluster, startingOffsets="earliest")
    query.logged, query.committed = [offsets.to_json({Q0: 10_000, Q1: 0})], 1
    query.batches = [[]]
    with pytest.raises(OffsetOutOfRange, match=r"orders@broker-a:0 keeps \[0, \d+\), wanted 10000"):
        query.run()


@pytest.mark.parametrize("limit", [1, 7, 100, 250])
def test_no_batch_is_above_its_limit_and_each_is_as_large_as_it_may_be(cluster, limit):
    """With more and more there, over many batches of a stream that is not told to end."""
    reader = MetaqStreamReader(
        SourceOptions.of(
            {"nameServers": cluster.namesrv, "subscribe": "orders", "maxOffsetsPerTrigger": str(limit), "startingOffsets": "earliest"}
        ),
        StructType([]),
    )  # fmt: skip
    at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    for _ in range(12):
        cluster.put("orders", 1, [b"x" * 100] * 40)
        behind = sum(cluster.ends("orders").values()) - sum(offsets.from_json(at).values())
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        read = sum(part.wanted.messages for part in reader.partitions(at, end))
        assert read == min(limit, behind)
        at = end
    assert offsets.from_json(reader.latestOffset(at, ReadAllAvailable())) == cluster.ends("orders")
