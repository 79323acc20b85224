"""`format("metaq")` in Spark, against a real broker."""

from __future__ import annotations

import json
import threading

import pytest

from metaq.client.arrow import records
from metaq.model import offsets
from metaq.model.queue import MessageQueue
from tests.scripted import ScriptedCluster
from tests.spark.running import finished

pytestmark = [pytest.mark.slow, pytest.mark.spark]
QUEUES = [MessageQueue("orders", "broker-a", i) for i in range(2)]


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        for queue_id in range(2):
            running.put("orders", queue_id, [b"%d-%d" % (queue_id, i) for i in range(500)])
        yield running


def read(spark, cluster, **options):
    return spark.read.format("metaq").options(nameServers=cluster.namesrv, subscribe="orders", **options).load()


def offsets_of(frame) -> list[tuple[int, int]]:
    return sorted((row.queue_id, row.queue_offset) for row in frame.select("queue_id", "queue_offset").collect())


def all_offsets(start=0, end=500) -> list[tuple[int, int]]:
    return [(queue_id, offset) for queue_id in range(2) for offset in range(start, end)]


def test_a_batch_read_has_every_message_once(spark, cluster):
    """The lean columns, every message, whatever the number of partitions."""
    frame = read(spark, cluster, minPartitions=5)
    assert tuple(frame.columns) == records.LEAN
    assert frame.rdd.getNumPartitions() >= 5
    assert offsets_of(frame) == all_offsets()
    row = frame.where("queue_id = 1 and queue_offset = 7").collect()[0]
    assert (row.topic, row.broker, bytes(row.body), row.tag, row.keys) == ("orders", "broker-a", b"1-7", "t", [])
    assert str(row.store_time) == "2023-11-14 22:13:20"


def test_start_and_end_can_be_given(spark, cluster):
    """Offsets JSON and a timestamp choose the range."""
    start = offsets.to_text({QUEUES[0]: 490, QUEUES[1]: 500})
    end = offsets.to_text({QUEUES[0]: 495, QUEUES[1]: 500})
    assert offsets_of(read(spark, cluster, startingOffsets=start, endingOffsets=end)) == [
        (0, i) for i in range(490, 495)
    ]
    cluster.put("orders", 0, [b"late"], store_ms=1_800_000_000_000)
    assert offsets_of(read(spark, cluster, startingTimestamp=1_750_000_000_000)) == [(0, 500)]
    assert offsets_of(read(spark, cluster, startingOffsets="latest")) == []


def test_columns_can_be_chosen_by_option_and_by_schema(spark, cluster):
    """Both ways give the same columns, also those beyond the lean ones."""
    frame = read(spark, cluster, columns="properties,queue_offset")
    assert frame.columns == ["properties", "queue_offset"]
    assert frame.where("queue_offset = 3").select("properties.TAGS").collect()[0][0] == "t"
    reader = spark.read.format("metaq").options(nameServers=cluster.namesrv, subscribe="orders")
    assert reader.schema("max_offset bigint, body binary").load().where("max_offset = 500").count() == 1000
    with pytest.raises(Exception, match="the column body is a nullable binary, not string"):
        reader.schema("body string").load().collect()


def test_slices_are_ranges_for_the_query_to_fetch(spark, cluster):
    """rows=slices gives one row per range, and the ranges cover the topic."""
    rows = read(spark, cluster, rows="slices", maxOffsetsPerPartition=200).collect()
    covered = [(row.queue_id, i) for row in rows for i in range(row.start_offset, row.end_offset)]
    assert len(rows) == 6
    assert sorted(covered) == all_offsets()


def test_a_wrong_option_fails_the_query_before_it_starts(spark, cluster):
    """Spark shows our own text."""
    with pytest.raises(Exception, match="no option startingofsets; did you mean startingOffsets"):
        read(spark, cluster, startingOfsets="latest")


def test_a_stream_with_an_end_fails_when_it_is_started(spark, cluster, tmp_path):
    """Spark does not tell at `load` whether it is for a stream; the start is where it first asks for one."""
    with pytest.raises(Exception, match=r"a stream has no endingOffsets: .* or use spark\.read"):
        stream(spark, cluster, tmp_path, [], endingOffsets="latest")


def stream(spark, cluster, folder, seen: list, **options):
    """Run what is there through a streaming query, and note (batch, queue, offset) of every row."""

    def note(frame, batch):
        seen.extend(
            (batch, row.queue_id, row.queue_offset) for row in frame.select("queue_id", "queue_offset").collect()
        )

    source = spark.readStream.format("metaq").options(nameServers=cluster.namesrv, subscribe="orders", **options).load()
    writer = source.writeStream.foreachBatch(note).option("checkpointLocation", str(folder))
    return finished(writer.trigger(availableNow=True).start)


def test_a_stream_goes_on_where_it_stopped_and_reports_its_progress(spark, cluster, tmp_path):
    """Batches obey the limit, a restart reads what is new, and the group's offsets are those of the last batch."""
    seen: list = []
    stream(spark, cluster, tmp_path, seen, startingOffsets="earliest", maxOffsetsPerTrigger=300, progressGroup="g")
    assert sorted(row[1:] for row in seen) == all_offsets()
    sizes = [sum(row[0] == batch for row in seen) for batch in sorted({row[0] for row in seen})]
    assert sizes == [300, 300, 300, 100]
    assert cluster.progress("g", "orders") == dict.fromkeys(QUEUES, 500)

    cluster.put("orders", 1, [b"new"] * 3)
    cluster.put("orders", 2, [b"a queue of its own"] * 2)
    seen.clear()
    stream(spark, cluster, tmp_path, seen, startingOffsets="earliest", progressGroup="g")
    assert sorted(row[1:] for row in seen) == [(1, 500), (1, 501), (1, 502), (2, 0), (2, 1)]
    assert cluster.progress("g", "orders")[MessageQueue("orders", "broker-a", 2)] == 2


def test_batch_0_is_empty_and_pins_the_start(spark, cluster, tmp_path):
    """What is latest when the query first starts stays its start: the checkpoint holds it as the end of batch 0."""
    seen: list = []
    stream(spark, cluster, tmp_path, seen, startingOffsets="latest")
    assert seen == []
    pinned = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    assert offsets.from_json(pinned) == dict.fromkeys(QUEUES, 500)
    cluster.put("orders", 0, [b"new"] * 2)
    stream(spark, cluster, tmp_path, seen, startingOffsets="latest")
    assert sorted(row[1:] for row in seen) == [(0, 500), (0, 501)]


def test_a_stream_whose_messages_expired_fails_and_counts_them(spark, cluster, tmp_path):
    """failOnDataLoss is on by default, and the failure names queue and number."""
    seen: list = []
    stream(spark, cluster, tmp_path, seen, startingOffsets="latest")
    cluster.put("orders", 0, [b"new"] * 10)
    cluster.new_log_file()
    cluster.put("orders", 0, [b"new"] * 10)
    cluster.expire("orders", 0, 510)
    with pytest.raises(Exception, match=r"10 messages of orders@broker-a:0 are gone: offsets \[500, 510\)"):
        stream(spark, cluster, tmp_path, seen, startingOffsets="latest")
    stream(spark, cluster, tmp_path, seen, startingOffsets="latest", failOnDataLoss="false")
    assert sorted(row[1:] for row in seen) == [(0, i) for i in range(510, 520)]


@pytest.fixture
def pushing(spark):
    """Spark's own setting for it, which is off unless somebody asks."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushing")
def test_conditions_of_a_query_choose_what_brokers_send(spark, cluster):
    """Each kind of them gives its rows, and the broker's counter of bytes shows that it sent little else."""
    for number in range(10):
        cluster.put("stock", 0, [b"x" * 400] * 50, 1_700_000_000_000 + number * 3_600_000)
    cluster.put("stock", 0, [b"y" * 400] * 50, properties="TAGS\x01rare")
    record = (cluster.bytes_out, offsets_of(read(spark, cluster)), cluster.bytes_out)
    most = (record[2] - record[0]) / len(record[1]) + 400  # Of a record, whatever its body.
    options = {"nameServers": cluster.namesrv, "subscribe": "orders,stock", "pushFilters": "true"}
    frame = spark.read.format("metaq").options(**options).load()
    for where, rows in [
        ("topic in ('orders') and queue_id = 1 and queue_offset >= 490", [(1, at) for at in range(490, 500)]),
        ("tag = 'rare'", [(0, at) for at in range(500, 550)]),
        (
            "topic like 'sto%' and store_time >= timestamp_millis(1700000000000 + 8 * 3600000)",
            [(0, at) for at in range(400, 550)],
        ),
    ]:
        before = cluster.bytes_out
        assert offsets_of(frame.where(where)) == rows
        assert 0 < cluster.bytes_out - before <= (len(rows) + 40) * most, where


def test_push_filters_is_refused_with_the_setting_that_it_needs(spark, cluster):
    """In Spark's words, which name it."""
    setting = "spark.sql.python.filterPushdown.enabled"
    with pytest.raises(
        Exception, match=f"MetaqReaderWithPushFilters implements pushFilters.*{setting}.*Set it to true"
    ):
        read(spark, cluster, pushFilters="true").collect()


@pytest.mark.all
@pytest.mark.spark_all
@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 400}, {"maxBytesPerTrigger": 100_000}])
def test_available_now_reads_what_was_there_beside_a_producer(spark, cluster, tmp_path, limit):
    """No more and no less than when the run starts, in batches within the limit; the next run reads what came meanwhile."""
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.2):  # Or the second run would have hundreds of batches on a slow machine.
            cluster.put("orders", 0, [b"more"] * 5)
            cluster.put("orders", 1, [b"more"] * 2)

    producer = threading.Thread(target=produce)
    producer.start()
    reached = dict.fromkeys(range(2), 0)
    try:
        for _ in range(2):
            seen: list = []
            least = {queue.queue_id: end for queue, end in cluster.ends("orders").items()}
            query = stream(spark, cluster, tmp_path, seen, startingOffsets="earliest", **limit)
            begun = {queue.queue_id: end for queue, end in cluster.ends("orders").items()}
            for queue_id, before in reached.items():
                mine = sorted(offset for _, number, offset in seen if number == queue_id)
                assert mine == list(range(before, before + len(mine)))
                reached[queue_id] = before + len(mine)
                assert least[queue_id] <= reached[queue_id] <= begun[queue_id]
            sizes = [progress["numInputRows"] for progress in query.recentProgress]
            if "maxOffsetsPerTrigger" in limit:
                assert max(sizes) == min(400, sum(sizes))
                assert sum(size == 400 for size in sizes) >= sum(sizes) // 400
            else:
                assert max(sizes) <= 2 * 100_000 / 170  # No record is smaller than that.
    finally:
        ended.set()
        producer.join()
