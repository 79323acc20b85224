"""Messages that were stored twice are handed out once, and nothing else is left out."""

from __future__ import annotations

import contextlib

import pytest

import metaq
from metaq.errors import ConfigError
from metaq.spark import without_repeats
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command
from tests.scripted import Fate, ScriptedCluster
from tests.spark.running import finished

pytestmark = [pytest.mark.slow, pytest.mark.spark]
START = 1_700_000_000_000
MINUTE = 60_000


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        running.make_topic("orders", 2)
        yield running


@contextlib.contextmanager
def lost_acknowledgements(cluster, every: int):
    """Of each so many sends the answer is lost, so that the producer sends again."""
    asked, lost = [0], set()

    def note(request: Command):
        if request.code in {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}:
            asked[0] += 1
            if asked[0] % every == 0:
                lost.add(request.opaque)

    def lose(answer: Command):
        if answer.opaque in lost:
            lost.discard(answer.opaque)
            return Fate.HANG_UP
        return None

    cluster.script, cluster.answer_script = note, lose
    yield
    cluster.script = cluster.answer_script = lambda command: None


def put(cluster, queue_id: int, minutes: float, name: str, keys: str = "") -> None:
    """A message with the unique id `name`."""
    text = f"UNIQ_KEY\x01{name}" + (f"\x02KEYS\x01{keys}" if keys else "")
    cluster.put("orders", queue_id, [b"x"], START + round(minutes * MINUTE), text)


def read(spark, cluster, **more):
    return spark.read.format("metaq").options(nameServers=cluster.namesrv, subscribe="orders", **more).load()


def places(frame) -> list[tuple[int, int]]:
    return sorted((row.queue_id, row.queue_offset) for row in frame.select("queue_id", "queue_offset").collect())


def test_what_a_producer_sent_again_is_read_once(spark, cluster):
    """Real copies: acknowledgements were lost, so there are more messages than were sent."""
    with lost_acknowledgements(cluster, 3), metaq.Producer(cluster.namesrv) as producer:
        for number in range(10):
            producer.send("orders", b"%d" % number, keys=[f"key-{number // 2}"])
    stored = read(spark, cluster)
    bodies = [bytes(row.body) for row in stored.collect()]
    assert len(bodies) > 10
    once = without_repeats(stored)
    assert once.columns == stored.columns
    assert sorted(bytes(row.body) for row in once.collect()) == sorted(b"%d" % number for number in range(10))
    assert without_repeats(stored, "key").count() == 5
    assert without_repeats(stored, "off").count() == len(bodies)


def test_in_a_batch_read_the_time_between_two_copies_counts(spark, cluster):
    """The one stored first stays; copies further apart than `within` are messages of their own."""
    for queue_id, minutes, name in [(0, 0, "a"), (1, 9, "a"), (0, 9.5, "b"), (0, 25, "a"), (1, 26, "a")]:
        put(cluster, queue_id, minutes, name)
    stored = read(spark, cluster)
    assert places(without_repeats(stored)) == [(0, 0), (0, 1), (0, 2)]
    assert places(without_repeats(stored, within="8 minutes")) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert without_repeats(stored, within=None).count() == 2


def test_messages_without_a_key_are_no_copies_of_each_other(spark, cluster):
    """Whether the frame tells where they lie or not."""
    for keys in ["k", "", "", "k l", "k", "l k"]:
        put(cluster, 0, 0, "any", keys)
    assert places(without_repeats(read(spark, cluster), "key")) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 5)]
    assert without_repeats(read(spark, cluster, columns="keys,body"), "key", None).count() == 5


def test_what_cannot_be_told_is_refused(spark, cluster):
    """Unknown words, columns that are missing, and watermarks that Spark would not heed."""
    stored = read(spark, cluster, columns="body,message_id")
    for how, text in [
        ({"dedupe": "id"}, "dedupe='id': need off, unique_id or key"),
        ({"within": "soon"}, "within='soon': need a number of seconds, minutes"),
        ({"within": "0 minutes"}, "within='0 minutes'"),
        ({"dedupe": "key"}, "key needs the column keys, and the frame has body, message_id"),
        ({}, "within in a batch read needs the column store_time"),
    ]:
        with pytest.raises(ConfigError, match=text):
            without_repeats(stored, **how)
    stream = spark.readStream.format("metaq").options(nameServers=cluster.namesrv, subscribe="orders").load()
    with pytest.raises(ConfigError, match="it has none"):
        without_repeats(stream, within=None)
    with pytest.raises(ConfigError, match="has a watermark on store_time"):
        without_repeats(stream.withWatermark("store_time", "1 hour"))


@pytest.mark.all
@pytest.mark.spark_all
@pytest.mark.parametrize(("own_watermark", "late"), [(False, [(1, 0), (1, 2)]), (True, [])])
def test_a_stream_drops_copies_over_batches_and_restarts_and_not_what_is_merely_late(
    spark, cluster, tmp_path, own_watermark, late
):
    """A queue that is read hours behind another loses none of its messages, unless the frame's own watermark says so."""

    def run(**which) -> list:
        seen: list = []

        def note(frame, _batch):
            seen.extend(places(frame))

        options = {"nameServers": cluster.namesrv, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4} | which
        source = spark.readStream.format("metaq").options(**options).load()
        if own_watermark:
            once = without_repeats(source.withWatermark("store_time", "10 minutes"), within=None)
        else:
            once = without_repeats(source)
        writer = once.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "c"))
        finished(writer.trigger(availableNow=True).start)
        return sorted(seen)

    for minutes, name in enumerate(["late-1", "id-3", "late-2"]):
        put(cluster, 1, minutes, name)
    for number in range(4):
        put(cluster, 0, 600 + number, f"id-{number}")
    put(cluster, 0, 604, "id-1")
    assert run(assign='{"orders": {"broker-a": [0]}}') == [(0, number) for number in range(4)]
    assert run(subscribe="orders") == late
