"""The source on a cluster of MetaQ 1.x: one broker of ours at its text port. The oracle is what the puts were answered."""

from __future__ import annotations

import itertools
import zlib

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from metaq.errors import BrokerError, ConfigError, ConnectionFailed, MessagesLost, RemoteProtocolError
from metaq.spark.data_source import MetaqDataSource
from metaq.spark.metaq1.fetch import Damaged, Range, RangeReader
from metaq.spark.metaq1.plan import Metaq1Planner
from metaq.spark.metaq1.settings import Metaq1Options
from metaq.spark.metaq1.source import Metaq1StreamReader
from metaq.spark.source.settings import markdown_table
from metaq.testing import free_port
from tests.interop.metaq1 import OurServer, TextConnection
from tests.spark.running import finished
from tests.support import PATIENCE, ROOT, run_metaq

PARTITIONS = 2
NO_LIMIT = ReadAllAvailable()
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
    assert end == {"0-0": offsets[-1] + 64}
    found = read(Range(topic, "0-0", (server.text,), True, 0, end["0-0"]), size)
    assert [(one.offset, one.frame.body) for one in found] == list(zip(offsets, bodies, strict=True))
    middle = read(Range(topic, "0-0", (server.text,), True, offsets[2], offsets[4]), size)
    assert [one.offset for one in middle] == offsets[2:4]


def test_an_offset_within_a_message_is_damage(server, topic):
    """It names partition and offset, and is no end of the partition."""
    put(server, topic, [b"one", b"two" * 100])
    with pytest.raises(Damaged, match=rf"partition 0-0 of {topic} is damaged at offset 7"):
        read(Range(topic, "0-0", (server.text,), True, 7, 300))


def test_another_server_is_asked_where_the_first_is_away(server, topic):
    """As a slave is, where its master is gone."""
    offsets = put(server, topic, [b"one", b"two"])
    away = f"127.0.0.1:{free_port()}"
    assert len(read(Range(topic, "0-0", (away, server.text), True, 0, offsets[1] + 23), seconds=PATIENCE)) == 2
    with pytest.raises(ConnectionFailed):
        read(Range(topic, "0-0", (away,), True, 0, 23), seconds=0.1)


def test_messages_behind_the_end_of_a_log_are_lost_or_waited_for(server, topic):
    """The master's word counts, after `retrySeconds`: then they are lost. A slave may be behind, an empty partition not loaded."""
    (offset,) = put(server, topic, [b"one"])
    with pytest.raises(MessagesLost, match=rf"partition 0-0 of {topic} in bytes \[23, 50\) are gone"):
        read(Range(topic, "0-0", (server.text,), True, offset, 50), seconds=0.1)
    found = read(Range(topic, "0-0", (server.text,), True, offset, 50), seconds=0.1, fail=False)
    assert [one.frame.body for one in found] == [b"one"]
    with pytest.raises(ConnectionFailed, match="at offset 23, though there were messages up to 50"):
        read(Range(topic, "0-0", (server.text,), False, offset, 50), seconds=0.1, fail=False)
    with pytest.raises(ConnectionFailed, match="has nothing of partition 0-1"):
        read(Range(topic, "0-1", (server.text,), True, 0, 50), seconds=0.1, fail=False)


def closed(server, topic: str, *words: str) -> None:
    done = run_metaq("meta1", *words[:1], topic, *words[1:], server.broker)
    assert done.returncode == 0, done.stderr


def test_a_closed_partition_is_an_error_of_a_batch_and_waited_for_by_a_stream(server, topic):
    """403: a stream goes on with the others, and reads it when it is opened."""
    put(server, topic, [b"one"], 0)
    put(server, topic, [b"two"], 1)
    options = Metaq1Options.of(options_of(server, topic))
    closed(server, topic, "close-partitions", "1", "1")
    with pytest.raises(BrokerError, match=rf"403 .*partition 1 of {topic}.*has been closed"):
        Metaq1Planner(options).start("earliest")
    with pytest.raises(ConnectionFailed, match="403"):
        read(Range(topic, "0-1", (server.text,), True, 0, 23), seconds=0.1)
    planner = Metaq1Planner(options, stream=True)
    start = planner.start("earliest")
    assert start == {"0-0": 0}
    assert planner.advance(start, None) == {"0-0": 23}
    closed(server, topic, "open-partitions")
    pinned = planner.advance({"0-0": 23}, None)
    assert pinned == {"0-0": 23, "0-1": 0}
    assert planner.advance(pinned, None) == {"0-0": 23, "0-1": 23}
    planner.close()


def test_other_answers_fail_at_once(server, topic):
    """A partition beyond the topic's: 404, for the original's order of tests; the wrong port: no server of MetaQ 1.x."""
    put(server, topic, [b"one"])
    with pytest.raises(ConnectionFailed, match="has nothing of partition 0-9"):
        read(Range(topic, "0-9", (server.text,), True, 0, 23), seconds=0.1)
    with pytest.raises((ConnectionFailed, RemoteProtocolError)):
        read(Range(topic, "0-0", (server.broker,), True, 0, 23), seconds=0.1)
    with pytest.raises(BrokerError, match="400"):
        read(Range(topic, "0-0", (server.text,), True, 0, 23), size=0)


def stream_reader(server, topic: str, **more: str) -> Metaq1StreamReader:
    return Metaq1StreamReader(Metaq1Options.of(options_of(server, topic, **more)), StructType([]))


def test_positions_are_of_one_topic(server, topic):
    """A checkpoint of another topic is refused by name; so is a partition whose end lies before the checkpoint's."""
    reader = stream_reader(server, topic)
    first = reader.initialOffset()
    assert reader.latestOffset(first, NO_LIMIT) == first
    with pytest.raises(ConfigError, match="another source"):
        reader.latestOffset({"v": 1, "q": {}}, NO_LIMIT)
    # Of the original this may be a partition that it has not loaded.
    waiting = first | {"q": {"0-0": 100, "0-1": 100}}
    assert reader.latestOffset(waiting, NO_LIMIT) == waiting
    put(server, topic, [b"one"])
    with pytest.raises(MessagesLost, match=r"in bytes \[23, 100\) are gone. It ends before"):
        reader.latestOffset(first | {"q": {"0-0": 100}}, NO_LIMIT)
    careless = stream_reader(server, topic, failOnDataLoss="false")
    assert careless.latestOffset(first | {"q": {"0-0": 100}}, NO_LIMIT)["q"] == {"0-0": 23}
    assert careless.partitions(first | {"q": {"0-0": 100}}, first | {"q": {"0-0": 23}}) == []


def test_offsets_that_a_user_names_are_checked(server, topic):
    """Beyond the end is an error, whatever failOnDataLoss says; so is a partition that is not there."""
    put(server, topic, [b"one", b"two"])
    for text, why in [('{"0-0": 47}', "0-0 ends at 46, 47 is given"), ('{"0-5": 1}', "not there: 0-5")]:
        options = Metaq1Options.of(options_of(server, topic, startingOffsets=text, failOnDataLoss="false"))
        with pytest.raises(ConfigError, match=why):
            Metaq1Planner(options).start("earliest")
    options = Metaq1Options.of(options_of(server, topic, startingOffsets='{"0-0": 23}'))
    assert Metaq1Planner(options).start("earliest") == {"0-0": 23}


def test_available_now_ends_where_the_log_ended_at_its_start(server, topic):
    """In batches of whole messages, however much comes meanwhile; a partition that is first written then is for the next run."""
    put(server, topic, [b"x" * 80] * 10)
    reader = stream_reader(server, topic, startingOffsets="earliest", maxBytesPerTrigger="350")
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    assert limit.max_bytes == 350
    at = reader.initialOffset()
    assert reader.latestOffset(at, limit) == at
    put(server, topic, [b"x" * 80] * 10)
    put(server, topic, [b"x" * 80], 1)
    reached = []
    while (end := reader.latestOffset(at, limit)) != at:
        reached.append(end["q"])
        at = end
    assert reached == [{"0-0": 300}, {"0-0": 600}, {"0-0": 900}, {"0-0": 1000}]
    assert stream_reader(server, topic).latestOffset(at, NO_LIMIT)["q"] == {"0-0": 2000, "0-1": 0}
    reader.stop()


def test_a_message_above_the_limit_has_its_turn(server, topic):
    """Beside a partition that always has more."""
    put(server, topic, [b"x" * 80] * 50)
    put(server, topic, [b"x" * 5000], 1)
    reader = stream_reader(server, topic, startingOffsets="earliest", maxBytesPerTrigger="400")
    at = reader.initialOffset()
    for _ in range(3):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert at["q"]["0-1"] == 5020
    assert at["q"]["0-0"] in {300, 400}
    reader.stop()


def test_a_run_whose_start_is_behind_its_end_is_empty(server, topic):
    """With startingOffsets=latest a message may come between the two questions: it is for the next run."""
    put(server, topic, [b"one"])
    reader = stream_reader(server, topic)
    reader.prepareForTriggerAvailableNow()
    put(server, topic, [b"two"])
    first = reader.initialOffset()
    assert reader.latestOffset(first, NO_LIMIT) == reader.latestOffset(first, NO_LIMIT) == first
    assert reader.reportLatestOffset()["q"] == {"0-0": 46}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"topic": ""}, "name one topic"),
        ({"zkConnect": "a:1"}, "give one of them"),
        ({"startingGroup": "g"}, "startingGroup needs zkConnect"),
        ({"progressGroup": "g"}, "progressGroup needs zkConnect"),
        ({"progressGroup": "a/b"}, "progressGroup='a/b': need ASCII"),
        ({"zkConnect": "a:1", "metaq1Server": "", "partitions": "2"}, "ZooKeeper tells their number"),
        ({"startingOffsets": '{"0": 1}'}, "need offsets such as"),
        ({"endingOffsets": "earliest"}, "give latest"),
        ({"subscribe": "t"}, "no option subscribe"),
    ],
)
def test_options_that_contradict_are_refused(more, text):
    with pytest.raises(ConfigError, match=text):
        Metaq1Options.of({"metaq1Server": "127.0.0.1:1", "partitions": "1", "topic": "t", **more})


def test_the_page_has_the_options():
    """docs/spark.md holds the table that the code makes."""
    assert markdown_table(Metaq1Options) in (ROOT / "docs" / "spark.md").read_text()


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
