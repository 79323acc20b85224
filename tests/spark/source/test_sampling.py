"""Plans by bytes, against a real broker: how even partitions are, how far limits are kept, and what it costs to know."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster import client
from metaq.spark.data_source import MetaqDataSource, MetaqStreamReader
from metaq.spark.source import plan
from metaq.spark.source.sampling import PULLS_MAX
from metaq.spark.source.settings import SourceOptions
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import reply
from tests.scripted import Fate, ScriptedCluster, goes_on

OVERHEAD = 175
"""Bytes of a stored message of the scripted cluster beside its body, about."""
SIZES = {
    "small": [100] * 2000,
    "large": [10_000] * 400,
    "changing": [100] * 1500 + [10_000] * 300,
    "shrinking": [10_000] * 200 + [100] * 2000,
    "mixed": [100, 10_000] * 250,
    "in bursts": ([100] * 100 + [10_000] * 50) * 5,
}
QUEUES = {MessageQueue("orders", "broker-a", number): name for number, name in enumerate(SIZES)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A queue for each of SIZES."""
    with ScriptedCluster(tmp_path_factory.mktemp("cluster")) as running:
        for queue, name in QUEUES.items():
            running.put("orders", queue.queue_id, [bytes(size) for size in SIZES[name]])
        yield running


@pytest.fixture(autouse=True)
def _fresh():
    yield
    client.client_of.cache_clear()
    plan.planner_of.cache_clear()


def options(cluster, names, **more) -> dict[str, str]:
    numbers = [queue.queue_id for queue, name in QUEUES.items() if name in names]
    assign = f'{{"orders": {{"broker-a": {numbers}}}}}'
    return {
        "nameServers": cluster.namesrv,
        "assign": assign,
        "retrySeconds": "0.2",
        "startingOffsets": "earliest",
    } | more


def weight(piece: Slice) -> int:
    return sum(size + OVERHEAD for size in SIZES[QUEUES[piece.queue]][piece.start : piece.end])


@pytest.mark.parametrize(
    "names", [["small", "large"], ["changing"], ["shrinking"], ["mixed"], list(SIZES)[:-1]], ids=" and ".join
)
def test_partitions_are_about_equal_in_bytes(cluster, names):
    """Within a queue whose sizes change, and between queues of unlike sizes; by few pulls."""
    before = cluster.count(RequestCode.PULL_MESSAGE)
    reader = MetaqDataSource(options(cluster, names, minPartitions="16")).reader(StructType([]))
    pieces = [part.wanted for part in reader.partitions()]
    assert cluster.count(RequestCode.PULL_MESSAGE) - before <= PULLS_MAX
    assert len(pieces) == 16
    whole = sum(size + OVERHEAD for name in names for size in SIZES[name])
    # A queue that is smaller than a partition is one; of the others no part is far above the mean.
    assert max(map(weight, pieces)) <= 1.6 * whole / 16
    least = min(weight(piece) for piece in pieces if piece.messages < len(SIZES[QUEUES[piece.queue]]))
    assert least >= 0.4 * whole / 16


def test_no_partition_is_far_above_its_bytes(cluster):
    """Another way to say how many there are to be."""
    reader = MetaqDataSource(options(cluster, ["small", "changing"], maxBytesPerPartition="300000")).reader(
        StructType([])
    )
    pieces = [part.wanted for part in reader.partitions()]
    assert max(map(weight, pieces)) <= 1.5 * 300_000
    assert (
        len(pieces)
        <= 2
        * sum(weight(Slice(q, 0, len(SIZES[n]))) for q, n in QUEUES.items() if n in {"small", "changing"})
        / 300_000
    )


@pytest.mark.parametrize(
    "names", [["small", "large"], ["changing"], ["shrinking"], ["mixed"], ["in bursts"], list(SIZES)], ids=" and ".join
)
@pytest.mark.parametrize("limit", [60_000, 500_000])
def test_no_batch_is_twice_its_limit_of_bytes(cluster, names, limit):
    """Whatever the sizes; few batches are so small that the limit is no help, and all is read."""
    reader = MetaqStreamReader(SourceOptions.of(options(cluster, names, maxBytesPerTrigger=str(limit))), StructType([]))
    at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    batches = []
    while True:
        before = cluster.count(RequestCode.PULL_MESSAGE)
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        assert cluster.count(RequestCode.PULL_MESSAGE) - before <= 2 * PULLS_MAX
        slices = [part.wanted for part in reader.partitions(at, end)]
        if not (size := sum(map(weight, slices))):
            break
        batches.append(size)
        assert size <= 2 * limit
        at = end
    assert {queue: len(SIZES[QUEUES[queue]]) for queue in offsets.from_json(at)} == offsets.from_json(at)
    assert len(batches) <= 2 * sum(batches) / limit + 3


def test_a_message_above_the_limit_is_read_alone(cluster):
    """Or the query would stand still."""
    reader = MetaqStreamReader(SourceOptions.of(options(cluster, ["large"], maxBytesPerTrigger="500")), StructType([]))
    at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    for _ in range(3):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        assert [part.wanted.messages for part in reader.partitions(at, end)] == [1]
        at = end


def test_a_plan_is_as_long_for_many_messages_as_for_few(cluster):
    """What is asked grows with the queues alone."""

    def asked(**more) -> int:
        before = len(cluster.requests)
        stream = MetaqStreamReader(SourceOptions.of(options(cluster, ["small"], **more)), StructType([]))
        at = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        for _ in range(3):
            end = stream.latestOffset(at, stream.getDefaultReadLimit())
            stream.partitions(at, end)
            at = end
        plan.planner_of.cache_clear()
        return len(cluster.requests) - before

    assert (
        asked(maxBytesPerTrigger="150000", minPartitions="4")
        <= asked(maxBytesPerTrigger="50000", minPartitions="4") + 5
    )


def test_a_plan_by_messages_asks_for_no_sizes(cluster):
    """They are of no use there."""
    before = cluster.count(RequestCode.PULL_MESSAGE)
    MetaqDataSource(options(cluster, list(SIZES))).reader(StructType([])).partitions()
    reader = MetaqDataSource(options(cluster, list(SIZES), maxOffsetsPerPartition="100")).reader(StructType([]))
    assert all(part.wanted.messages <= 100 for part in reader.partitions())
    assert cluster.count(RequestCode.PULL_MESSAGE) == before


def test_samples_that_have_left_the_log_are_done_without(tmp_path):
    """What can still be read is looked at; a queue of which nothing can be is judged like the others."""
    with ScriptedCluster(tmp_path) as cluster:
        cluster.put("orders", 0, [bytes(10_000)] * 60)
        cluster.new_log_file()
        cluster.put("orders", 0, [bytes(100)] * 60)
        cluster.expire("orders", 0, 60)
        planner = plan.Planner(
            SourceOptions.of({"nameServers": cluster.namesrv, "subscribe": "orders", "minPartitions": "3"})
        )
        queue = MessageQueue("orders", "broker-a", 0)
        assert [piece.messages for piece in planner.cut([Slice(queue, 0, 120)])] == [40, 40, 40]


@pytest.mark.parametrize("fate", [Fate.HANG_UP, reply])
def test_a_broker_that_cannot_be_asked_is_guessed_at_once(cluster, fate, caplog):
    """A batch that is replayed is planned while a broker is away: what only serves evenness must not fail or wait."""
    planner = plan.Planner(
        SourceOptions.of(
            options(cluster, ["large"], minPartitions="3", maxBytesPerTrigger="102400", retrySeconds="600")
        )
    )

    def refuse(asked):
        if asked.code == RequestCode.PULL_MESSAGE:
            return fate if fate is Fate.HANG_UP else fate(asked, ResponseCode.SYSTEM_ERROR, remark="not now")
        return None

    cluster.script = refuse
    try:
        whole = next(Slice(queue, 0, 300) for queue, name in QUEUES.items() if name == "large")
        assert [piece.messages for piece in planner.cut([whole])] == [100, 100, 100]
        assert planner.limited({whole.queue: 0}, {whole.queue: 300})[whole.queue] == 100
    finally:
        cluster.script = goes_on
    assert "how large messages at the broker broker-a are is guessed" in caplog.text


def test_of_many_queues_the_longest_are_looked_at(tmp_path):
    """The others are judged by what was found there, so a plan over any number of queues costs the same."""
    with ScriptedCluster(tmp_path) as cluster:
        cluster.make_topic("orders", 100)
        for number in range(100):
            cluster.put("orders", number, [bytes(1000)] * (40 if number < 60 else 3))
        given = {"nameServers": cluster.namesrv, "subscribe": "orders", "startingOffsets": "earliest"}
        before = cluster.count(RequestCode.PULL_MESSAGE)
        reader = MetaqDataSource(given | {"maxBytesPerPartition": "24000"}).reader(StructType([]))
        pieces = [part.wanted for part in reader.partitions()]
        assert cluster.count(RequestCode.PULL_MESSAGE) - before == PULLS_MAX
        assert [piece.messages for piece in pieces] == [20] * 120 + [3] * 40
        stream = MetaqStreamReader(SourceOptions.of(given | {"maxBytesPerTrigger": "300000"}), StructType([]))
        at = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        before = cluster.count(RequestCode.PULL_MESSAGE)
        taken = sum(
            part.wanted.messages
            for part in stream.partitions(at, stream.latestOffset(at, stream.getDefaultReadLimit()))
        )
        assert cluster.count(RequestCode.PULL_MESSAGE) - before <= 2 * PULLS_MAX
        assert 150 <= taken <= 300
