"""Reading without a group, against a real broker."""

from __future__ import annotations

import gc
import itertools
import os
import time

import pytest

import metaq
from metaq import MessageQueue, Producer, Reader
from metaq.wire.codes import RequestCode, ResponseCode
from tests.client.cluster import FakeCluster, refuse
from tests.support import PATIENCE, eventually

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"reader_test_{os.getpid()}_{next(_names)}"


@pytest.fixture
def producer(metaq_broker):
    with Producer(metaq_broker.namesrv) as made:
        yield made


@pytest.fixture
def filled(producer, topic):
    """A thousand numbered messages, even ones tagged."""
    for future in [
        producer.submit(topic, b"%d" % number, tag="even" if number % 2 == 0 else None) for number in range(1000)
    ]:
        future.result(PATIENCE)
    return topic


def numbers(messages) -> list[int]:
    return sorted(int(message.body) for message in messages)


def test_reads_everything_to_the_end_again_and_again(metaq_broker, filled):
    """Two readers see the same; nothing is committed anywhere."""
    for _ in range(2):
        with Reader(metaq_broker.namesrv, filled, stop_at_end=True) as reader:
            assert numbers(reader) == list(range(1000))
            assert list(reader) == []
            assert reader.positions() == {queue: held.stop for queue, held in reader.ranges().items() if held}


def test_nothing_that_was_read_is_kept(metaq_broker, filled):
    """A reader may run for ever."""
    with Reader(metaq_broker.namesrv, filled, stop_at_end=True) as reader:
        assert sum(1 for _ in reader) == 1000
        gc.collect()
        assert not [item for item in gc.get_objects() if type(item) is metaq.StoredMessage and item.topic == filled]


def test_order_within_a_queue(metaq_broker, filled):
    """Offsets of one queue rise by one."""
    with Reader(metaq_broker.namesrv, filled, stop_at_end=True) as reader:
        last: dict[MessageQueue, int] = {}
        for message in reader:
            assert message.queue_offset == last.get(message.queue, -1) + 1
            last[message.queue] = message.queue_offset


def test_latest_sees_only_what_comes_after_enter(metaq_broker, producer, filled):
    """The start is pinned when the block is entered, not when the first message is asked for."""
    with Reader(metaq_broker.namesrv, filled, start="latest") as reader:
        producer.send(filled, b"5000")
        message = reader.receive(PATIENCE)
        assert message is not None
        assert message.body == b"5000"
        assert reader.receive(0.05) is None


def test_time_is_exact(metaq_broker, producer, filled):
    """From a moment on: the first message stored then or later, in every queue."""
    moment = time.time()
    eventually(lambda: time.time() > moment + 0.01)
    for number in range(2000, 2100):
        producer.submit(filled, b"%d" % number)
    producer.flush(10)
    with Reader(metaq_broker.namesrv, filled, start=moment, stop_at_end=True) as reader:
        assert numbers(reader) == list(range(2000, 2100))
        reader.seek(time=time.time() + 1000)
        assert list(reader) == []
        reader.seek(time=0.0)
        assert len(list(reader)) == 1100


def test_another_queue_that_ends_during_a_seek_does_not_end_the_reading(metaq_broker, filled, monkeypatch):
    """The queue that is moved has not begun yet: those that are read were all at their ends, and nothing of it came."""
    with Reader(metaq_broker.namesrv, filled, stop_at_end=True) as reader:
        assert len(list(reader)) == 1000
        reading = reader._reading
        ask = reading._max_offset

        async def asked(queue):
            reading._finish_if_at_end()  # as when a queue's last messages come now
            return await ask(queue)

        monkeypatch.setattr(reading, "_max_offset", asked)
        queue, held = max(reader.ranges().items(), key=lambda item: len(item[1]))
        reader.seek(queue, offset=0)
        assert len(list(reader)) == len(held) > 0


def test_seek_one_queue_by_offset(metaq_broker, filled):
    """The others stay where they are."""
    with Reader(metaq_broker.namesrv, filled, stop_at_end=True) as reader:
        everything = list(reader)
        queue = everything[0].queue
        mine = [message.queue_offset for message in everything if message.queue == queue]
        reader.seek(queue, offset=mine[-1] - 2)
        assert [message.queue_offset for message in reader] == mine[-3:]


def test_leaving_the_loop_early_loses_nothing(metaq_broker, filled):
    """The next loop goes on behind the last message handed out."""
    with Reader(metaq_broker.namesrv, filled, stop_at_end=True) as reader:
        first = list(itertools.islice(reader, 123))
        assert numbers([*first, *reader]) == list(range(1000))


def test_tags_and_chosen_queues(metaq_broker, filled):
    """A tag expression filters; `queues` restricts; an unknown queue is named."""
    with Reader(metaq_broker.namesrv, filled, tags="even", stop_at_end=True) as reader:
        assert numbers(reader) == list(range(0, 1000, 2))
        some = reader.queues()[:2]
    with Reader(metaq_broker.namesrv, filled, queues=some, stop_at_end=True) as reader:
        assert {message.queue for message in reader} <= set(some)
    wrong = MessageQueue(filled, "nowhere", 9)
    with pytest.raises(metaq.ConfigError, match="nowhere:9"), Reader(metaq_broker.namesrv, filled, queues=[wrong]):
        pass


@pytest.mark.parametrize("stop_at_end", [True, False])
def test_offset_that_is_not_there_is_typed(metaq_broker, filled, stop_at_end):
    """OffsetOutOfRange says what is kept, again and again, until `seek`; no other queue loses anything."""
    with Reader(metaq_broker.namesrv, filled, stop_at_end=stop_at_end) as reader:
        queue = next(queue for queue, held in reader.ranges().items() if held)
        held = reader.ranges()[queue]
        reader.seek(queue, offset=1_000_000)
        got = []
        for _ in range(2):
            with pytest.raises(metaq.OffsetOutOfRange) as caught:
                for message in reader:
                    got.append(message)  # noqa: PERF402  an extend would keep nothing of what came before the error
            assert caught.value.wanted == 1_000_000
            assert caught.value.kept == held
        reader.seek(caught.value.queue, offset=caught.value.kept.start)
        while len(got) < 1000:
            message = reader.receive(PATIENCE)
            assert message is not None
            got.append(message)
        assert numbers(got) == list(range(1000))


def test_unknown_topic_and_wrong_arguments(metaq_broker, topic):
    """NoRoute names the command that helps; a wrong start or seek is a ConfigError."""
    with pytest.raises(metaq.NoRoute, match=f"metaq topic create {topic}"), Reader(metaq_broker.namesrv, topic):
        pass
    with pytest.raises(metaq.ConfigError, match="earliest"), Reader(metaq_broker.namesrv, "TBW102", start="begin"):
        pass
    with Reader(metaq_broker.namesrv, "TBW102") as reader, pytest.raises(metaq.ConfigError, match="either"):
        reader.seek(offset=1, time=1.0)


def test_waiting_for_a_broker_is_told_once_in_a_row(caplog):
    """It starts: the reader goes on when it is there. Who looks why nothing comes finds it in the log."""
    with FakeCluster() as cluster:
        cluster.topics = {"orders": 1}
        cluster.store(b"1", b"2")
        refusals = refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker starts", times=2)
        cluster.script[RequestCode.PULL_MESSAGE] = refusals
        with caplog.at_level("DEBUG", "metaq.client"), Reader(cluster.namesrv, "orders", stop_at_end=True) as reader:
            assert numbers(reader) == [1, 2]
    told = [record.levelname for record in caplog.records if "trying again: code 14" in record.getMessage()]
    assert told == ["WARNING", "DEBUG"]
