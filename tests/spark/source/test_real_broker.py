"""What the source asks of a real broker, without Spark. The oracle is what `Reader` reads and where it begins."""

from __future__ import annotations

import itertools
import os
import time

import pytest

import metaq
from metaq.errors import ConfigError, OffsetOutOfRange
from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import SourceOptions
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def filled(metaq_broker):
    """A topic whose queues hold messages of several milliseconds, and its messages. One of the queues is empty."""
    topic = f"spark_times_{os.getpid()}_{next(_names)}"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"0")
        queues = producer.queues(topic)[:-1]
        for number in range(1, 9):
            moment = time.time()
            eventually(lambda moment=moment: time.time() > moment + 0.003)
            for future in [producer.submit(topic, b"%d" % number, queue=queue) for queue in queues for _ in range(3)]:
                future.result(PATIENCE)
    with metaq.Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
        return topic, list(reader), reader.ranges()


def planner(broker, topic: str, **more) -> Planner:
    return Planner(SourceOptions.of({"nameServers": broker.namesrv, "subscribe": topic, **more}))


def test_a_starting_time_is_exact(metaq_broker, filled):
    """At every store time, one millisecond beside it, before the first and in the future."""
    topic, messages, ranges = filled
    times = sorted({message.store_ms for message in messages})
    assert len(times) >= 8
    moments = sorted({moment + step for moment in times for step in (-1, 0, 1)} | {0, times[-1] + 3_600_000})
    for moment in moments:
        expected = {queue: kept.stop for queue, kept in ranges.items()}
        for message in reversed(messages):
            if message.store_ms >= moment:
                expected[message.queue] = min(expected[message.queue], message.queue_offset)
        assert planner(metaq_broker, topic, startingTimestamp=str(moment)).start("latest") == expected


def test_it_begins_where_a_reader_begins(metaq_broker, filled):
    """The same moment, the same messages."""
    topic, messages, ranges = filled
    moment = sorted(message.store_ms for message in messages)[len(messages) // 2]
    start = planner(metaq_broker, topic, startingTimestamp=str(moment)).start("latest")
    with metaq.Reader(metaq_broker.namesrv, topic, start=moment / 1000, stop_at_end=True) as reader:
        first = {}
        for message in reader:
            first.setdefault(message.queue, message.queue_offset)
    assert first == {queue: offset for queue, offset in start.items() if offset < ranges[queue].stop}


def test_offsets_beyond_the_end_are_refused_by_their_option(metaq_broker, filled):
    """Nothing was ever there: no loss, and no wait for it."""
    topic, _, ranges = filled
    queue, kept = next((queue, kept) for queue, kept in ranges.items() if kept)
    beyond = offsets.to_text({queue: kept.stop + 5})
    text = f"startingOffsets lies beyond what is stored: {queue} ends at {kept.stop}, {kept.stop + 5} is given"
    with pytest.raises(ConfigError, match=text):
        planner(metaq_broker, topic, startingOffsets=beyond, failOnDataLoss="false").start("latest")


def test_a_checkpoint_beyond_the_end_is_told_and_nothing_is_called_gone(metaq_broker, filled, caplog):
    """By the plan, and by a worker that is asked to read there."""
    topic, _, ranges = filled
    queue, kept = next((queue, kept) for queue, kept in ranges.items() if kept)
    start = {one: held.stop for one, held in ranges.items()} | {queue: kept.stop + 5}
    text = rf"keeps \[0, {kept.stop}\), wanted {kept.stop + 5}"
    with pytest.raises(OffsetOutOfRange, match=text):
        planner(metaq_broker, topic).advance(start, None)
    asking = ClusterClient(metaq_broker.namesrv, retry_seconds=0.3)
    for begin in (kept.stop - 1, kept.stop, kept.stop + 2):
        with pytest.raises(OffsetOutOfRange, match=text):
            list(read_slice(asking, Slice(queue, begin, kept.stop + 5), FetchSettings(retry_seconds=0.3)))
    asking.close()
    assert planner(metaq_broker, topic, failOnDataLoss="false").advance(start, None)[queue] == kept.stop
    assert "gone" not in caplog.text


def test_a_queue_without_a_message_begins_at_its_end(fresh_metaq_broker):
    """Whatever the moment: there is nothing to look at."""
    topic = "nothing_yet"
    with metaq.admin.Admin(fresh_metaq_broker.namesrv) as admin:
        admin.create_topic(topic)
    found = planner(fresh_metaq_broker, topic, startingTimestamp="1").start("latest")
    assert set(found.values()) == {0}
    assert all(isinstance(queue, MessageQueue) for queue in found)


@pytest.mark.parametrize("choice", [{"tags": "even || third"}, {"filter": "number > 30 AND number < 50"}])
def test_brokers_send_only_what_is_chosen(metaq_broker, choice):
    """By tags or by properties: the same messages that a reader with that filter gets, of any slice."""
    topic = f"spark_sifted_{os.getpid()}_{next(_names)}"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(200):
            tag = "even" if number % 2 == 0 else "third" if number % 3 == 0 else "other"
            producer.send(topic, b"%d" % number, tag=tag, properties={"number": str(number)}, ordering_key="one")
    wanted = metaq.Sql(choice["filter"]) if "filter" in choice else choice["tags"]
    with metaq.Reader(metaq_broker.namesrv, topic, tags=wanted, stop_at_end=True) as reader:
        expected = [message.body for message in reader]
        queue = next(queue for queue, kept in reader.ranges().items() if kept.stop > kept.start)
    chosen = SourceOptions.of({"nameServers": metaq_broker.namesrv, "subscribe": topic, **choice})
    client = ClusterClient(metaq_broker.namesrv, 5)
    for bounds in ([0, 200], [0, 33, 34, 150, 200]):
        bodies = []
        for begin, stop in itertools.pairwise(bounds):
            for decoded in read_slice(client, Slice(queue, begin, stop), chosen.fetch):
                bodies += decoded.to_batch(("body",)).column(0).to_pylist()
        assert bodies == expected
    assert 0 < len(expected) < 150
    client.close()
