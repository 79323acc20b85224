"""The source on a cluster of MetaQ 1.x: one broker of ours at its text port. The oracle is what the puts were answered."""

from __future__ import annotations

import itertools
import zlib

import pytest
from pyspark.sql.types import StructType

from metaq.errors import ConfigError, ConnectionFailed, MessagesLost
from metaq.spark.data_source import MetaqDataSource
from metaq.spark.metaq1.fetch import Damaged, Range, RangeReader
from metaq.spark.metaq1.plan import Metaq1Planner
from metaq.spark.metaq1.settings import Metaq1Options
from metaq.spark.metaq1.source import Metaq1StreamReader
from metaq.testing import free_port
from tests.interop.metaq1 import OurServer, TextConnection
from tests.spark.running import finished

PARTITIONS = 2
TOPICS = [f"t{number}" for number in range(20)]
_names = iter(TOPICS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    with OurServer(tmp_path_factory.mktemp("metaq1"), None, topics) as running:
        yield running


@pytest.fixture
def topic():
    return next(_names)


def put(server, topic: str, bodies, partition: int = 0) -> list[int]:
    """Put messages; return their offsets."""
    found = []
    with TextConnection(server.text) as text:
        for body in bodies:
            crc = zlib.crc32(body) & 0x7FFFFFFF
            answer = text.ask(f"put {topic} {partition} {len(body)} 0 {crc} 1", body)
            assert answer is not None
            assert answer.code == 200, answer.text
            found.append(int(answer.text.split()[2]))
    return found


def options_of(server, topic: str, **more: str) -> dict[str, str]:
    return {"metaq1Server": server.text, "partitions": str(PARTITIONS), "topic": topic, "retrySeconds": "1", **more}


def read(wanted: Range, size: int = 131_072, *, fail: bool = True, seconds: float = 1.0):
    reader = RangeReader(wanted, "g", fetch_bytes=size, retry_seconds=seconds, fail_on_data_loss=fail)
    return list(itertools.chain.from_iterable(reader.read()))


@pytest.mark.parametrize("size", [64, 1000, 131_072])
def test_a_range_holds_each_message_once_at_its_offset(server, topic, size):
    """Also where a message is larger than a fetch, and a fetch ends within one."""
    bodies = [b"x" * length for length in (0, 1, 5000, 30, 70_000, 44)]
    offsets = put(server, topic, bodies)
    end = Metaq1Planner(Metaq1Options.of(options_of(server, topic))).end()
    assert end == {"0-0": offsets[-1] + 64, "0-1": 0}
    found = read(Range(topic, "0-0", (server.text,), 0, end["0-0"]), size)
    assert [(one.offset, one.frame.body) for one in found] == list(zip(offsets, bodies, strict=True))
    middle = read(Range(topic, "0-0", (server.text,), offsets[2], offsets[4]), size)
    assert [one.offset for one in middle] == offsets[2:4]


def test_an_offset_within_a_message_is_damage(server, topic):
    """It names partition and offset, and is no end of the partition."""
    put(server, topic, [b"one", b"two" * 100])
    with pytest.raises(Damaged, match=rf"partition 0-0 of {topic} is damaged at offset 7"):
        read(Range(topic, "0-0", (server.text,), 7, 300))


def test_another_server_is_asked_where_the_first_is_away(server, topic):
    """As a slave is, where its master is gone."""
    offsets = put(server, topic, [b"one", b"two"])
    away = f"127.0.0.1:{free_port()}"
    assert len(read(Range(topic, "0-0", (away, server.text), 0, offsets[1] + 23), seconds=10.0)) == 2
    with pytest.raises(ConnectionFailed):
        read(Range(topic, "0-0", (away,), 0, 23), seconds=0.1)


def test_a_partition_that_is_too_short_is_an_error(server, topic):
    """Never an early end."""
    offsets = put(server, topic, [b"one"])
    with pytest.raises(ConnectionFailed, match="before offset 23"):
        read(Range(topic, "0-0", (server.text,), offsets[0], 50), seconds=0.1)


def test_positions_are_of_one_topic(server):
    """A checkpoint of another topic is refused by name; so is a partition whose end lies before the checkpoint's."""
    reader = Metaq1StreamReader(Metaq1Options.of(options_of(server, TOPICS[-1])), StructType([]))
    first = reader.initialOffset()
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == first
    with pytest.raises(ConfigError, match="another source"):
        reader.latestOffset({"v": 1, "q": {}}, reader.getDefaultReadLimit())
    waiting = first | {"q": {"0-0": 100, "0-1": 100}}
    assert reader.latestOffset(waiting, reader.getDefaultReadLimit()) == waiting
    put(server, TOPICS[-1], [b"one"])
    with pytest.raises(MessagesLost):
        reader.latestOffset(first | {"q": {"0-0": 100}}, reader.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"topic": ""}, "name one topic"),
        ({"zkConnect": "a:1"}, "give one of them"),
        ({"startingOffsets": "group"}, "needs zkConnect"),
        ({"startingOffsets": '{"0": 1}'}, "need offsets such as"),
        ({"endingOffsets": "earliest"}, "give latest"),
        ({"subscribe": "t"}, "no option subscribe"),
    ],
)
def test_options_that_contradict_are_refused(more, text):
    with pytest.raises(ConfigError, match=text):
        Metaq1Options.of({"metaq1Server": "127.0.0.1:1", "partitions": "1", "topic": "t", **more})


@pytest.mark.spark
def test_batch_and_available_now(spark, server, topic, tmp_path):
    """Rows with the columns of `metaq`; a checkpointed query reads each message once, over several runs."""
    spark.dataSource.register(MetaqDataSource)
    bodies = [b"%d" % number for number in range(50)]
    offsets = put(server, topic, bodies[:40])
    put(server, topic, bodies[40:], partition=1)
    options = options_of(server, topic)
    rows = spark.read.format("metaq").options(**options).load().collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(bodies)
    assert sorted((row.queue_offset, bytes(row.body)) for row in rows if row.queue_id == 0) == list(
        zip(offsets, bodies[:40], strict=True)
    )
    assert {row.topic for row in rows} == {topic}

    def run():
        stream = spark.readStream.format("metaq").options(**options, startingOffsets="earliest").load()
        out = stream.select("body").writeStream.format("parquet").option("path", str(tmp_path / "out"))
        return out.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()

    finished(run)
    put(server, topic, [b"later"], partition=1)
    finished(run)
    finished(run)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(bytes(row.body) for row in found) == sorted([*bodies, b"later"])
