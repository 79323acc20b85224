"""What a broker counts by topic and group, as its clock goes on."""

from __future__ import annotations

import pytest

from metaq.broker.broker import Broker
from metaq.broker.log.records import put_record
from metaq.broker.statistics import sampling
from metaq.broker.statistics.counts import KeyedCounts
from metaq.clock import FakeClock
from metaq.model import GroupConfig, TopicConfig
from metaq.model.statistics import Statistic, WindowFigures
from tests.broker.support import BORN_HOST, open_broker
from tests.support import eventually

PUTS, PUT_BYTES = Statistic.TOPIC_MESSAGES_PUT, Statistic.TOPIC_BYTES_PUT
GETS, GOT_BYTES, SENT_BACK = Statistic.GROUP_MESSAGES_GOT, Statistic.GROUP_BYTES_GOT, Statistic.GROUP_SENT_BACK
ALL_PUTS, ALL_GETS = Statistic.BROKER_MESSAGES_PUT, Statistic.BROKER_MESSAGES_GOT
CLUSTER = "DefaultCluster"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker(tmp_path, clock):
    with open_broker(tmp_path, clock) as broker:
        made(broker)
        broker.tick()
        yield broker


def made(broker: Broker) -> None:
    broker.topics.update(TopicConfig("orders", 2, 2)).settle()
    broker.groups.update(GroupConfig("G")).settle()


def put(broker: Broker, count: int, topic: str = "orders", queue_id: int = 0) -> int:
    """Returns the bytes of the records."""
    start = broker.store.log.end
    for _ in range(count):
        record = put_record(topic, queue_id, b"hello", {}, flag=0, sys_flag=0, born_ms=1, born_host=BORN_HOST)
        broker.appender.put([record])
    return broker.store.log.end - start


def pass_time(broker: Broker, clock: FakeClock, seconds: int, step: int = 10) -> None:
    for _ in range(0, seconds, step):
        clock.advance(step)
        for _ in range(5):  # a round of samples takes a few ticks
            broker.tick()


def test_puts_of_a_topic_are_how_far_its_queues_came(broker, clock):
    """All queues of it; also the bytes. Nothing before there was a message, and of no other topic."""
    pass_time(broker, clock, 10)
    assert broker.statistics.figures(PUTS, "orders") is None
    size = put(broker, 3) + put(broker, 2, queue_id=1)
    assert broker.statistics.figures(PUTS, "orders") is None
    pass_time(broker, clock, 10)
    assert broker.statistics.figures(PUTS, "orders").minute == WindowFigures(5, 0.5, 1.0)
    assert broker.statistics.figures(PUT_BYTES, "orders").minute == (size, size / 10, size / 5)
    assert broker.statistics.figures(ALL_PUTS, CLUSTER).minute == (5, 0.5, 0.0)
    assert broker.statistics.figures(PUTS, "orders", "G") is None
    for other in ("other", ""):
        assert broker.statistics.figures(PUTS, other) is None
    assert broker.statistics.figures(ALL_PUTS, "other") is None


def test_windows_forget(broker, clock):
    """A minute later the minute has nothing; the hour and the day have it from their next sample on."""
    put(broker, 6)
    pass_time(broker, clock, 10)
    pass_time(broker, clock, 70)
    assert broker.statistics.figures(PUTS, "orders") == ((0, 0.0, 0.0), (0, 0.0, 0.0), (0, 0.0, 0.0))
    pass_time(broker, clock, 600)
    figures = broker.statistics.figures(PUTS, "orders")
    assert (figures.minute.total, figures.hour, figures.day.total) == (0, (6, 0.01, 1.0), 0)
    pass_time(broker, clock, 3600)
    figures = broker.statistics.figures(PUTS, "orders")
    assert (figures.minute.total, figures.day) == (0, (6, pytest.approx(6 / 3600), 1.0))


def test_many_records_of_one_sample_count_with_their_average(broker, clock, monkeypatch):
    """Their number stays exact."""
    monkeypatch.setattr(sampling, "SIZES_MAX", 4)
    size = put(broker, 10)
    pass_time(broker, clock, 10)
    assert broker.statistics.figures(PUTS, "orders").minute.total == 10
    assert broker.statistics.figures(PUT_BYTES, "orders").minute.total == size


def test_a_round_goes_over_ticks(tmp_path, clock, monkeypatch):
    """No tick looks at more queues than its piece; every queue is counted once."""
    monkeypatch.setattr(sampling, "PIECE", 4)
    with open_broker(tmp_path, clock) as broker:
        made(broker)
        broker.tick()
        for number in range(10):
            broker.topics.update(TopicConfig(f"T{number}", 1, 1)).settle()
            put(broker, number + 1, f"T{number}")
        clock.advance(10)
        broker.tick()
        assert 1 <= len(broker.stats.topic_puts.table) < 10
        for _ in range(100):
            broker.tick()
        counted = {topic: counts.messages for topic, counts in broker.stats.topic_puts.table.items()}
        assert counted == {f"T{number}": number + 1 for number in range(10)}
        assert broker.statistics.figures(PUTS, "T9").minute.total == 10


def test_what_was_there_at_the_start_was_not_put_since(tmp_path, clock):
    """A restart counts from 0, as RocketMQ's."""
    with open_broker(tmp_path, clock) as broker:
        made(broker)
        put(broker, 5)
    with open_broker(tmp_path, clock) as broker:
        pass_time(broker, clock, 20)
        assert broker.statistics.figures(PUTS, "orders") is None
        put(broker, 1)
        pass_time(broker, clock, 10)
        assert broker.statistics.figures(PUTS, "orders").minute.total == 1


def test_a_slave_counts_no_puts(broker, clock):
    """What it copies was put at its master; from a promotion on it counts what comes then."""
    broker.store.state.follow("a slave")
    queue = broker.store.reader.existing_queue
    broker.store.state.follow(None)
    put(broker, 3)  # stands for what is copied
    broker.store.state.follow("a slave")
    pass_time(broker, clock, 10)
    assert queue("orders", 0).max_offset == 3
    assert broker.statistics.figures(PUTS, "orders") is None
    broker.store.state.follow(None)
    put(broker, 2)
    pass_time(broker, clock, 10)
    assert broker.statistics.figures(PUTS, "orders").minute.total == 2


def test_what_is_deleted_has_no_statistics(broker, clock):
    """Neither a topic's, nor a group's in it; made again, they begin anew."""
    put(broker, 3)
    broker.stats.got("G", "orders", 1, 3, 30)
    broker.stats.gave_back("G", "orders")
    pass_time(broker, clock, 10)
    assert broker.statistics.figures(GETS, "orders", "G").minute == (3, 0.3, 3.0)
    assert broker.statistics.figures(GOT_BYTES, "orders", "G").minute.total == 30
    assert broker.statistics.figures(SENT_BACK, "orders", "G").minute == (1, 0.1, 1.0)
    broker.delete_group("G", with_offsets=True).settle()
    assert broker.statistics.figures(GETS, "orders", "G") is broker.statistics.figures(SENT_BACK, "orders", "G") is None
    assert broker.statistics.figures(ALL_GETS, CLUSTER).minute.total == 3
    made(broker)
    broker.stats.got("G", "orders", 1, 3, 30)
    deletion = broker.delete_topic("orders")
    eventually(lambda: deletion.done)
    assert broker.statistics.figures(PUTS, "orders") is broker.statistics.figures(GETS, "orders", "G") is None
    made(broker)
    put(broker, 1)
    pass_time(broker, clock, 10)
    assert broker.statistics.figures(PUTS, "orders").minute.total == 1


def test_idle_keys_leave(broker, clock):
    """A day after the last message; others stay."""
    put(broker, 1)
    broker.stats.got("G", "orders", 1, 1, 10)
    pass_time(broker, clock, 3600, 600)
    assert broker.statistics.figures(PUTS, "orders") is not None
    for _ in range(26):
        put(broker, 1, queue_id=1)
        pass_time(broker, clock, 3600, 600)
    assert broker.statistics.figures(GETS, "orders", "G") is None
    assert broker.statistics.figures(PUTS, "orders").day.total == 24


def test_a_pause_is_one_sample(broker, clock):
    """Of a machine that slept for an hour: not three hundred."""
    put(broker, 36)
    clock.advance(3600)
    for _ in range(50):
        broker.tick()
    pass_time(broker, clock, 10)
    put(broker, 4)
    pass_time(broker, clock, 10)
    figures = broker.statistics.figures(PUTS, "orders")
    assert (figures.minute.total, figures.day.total) == (40, 36)


def test_rate_of_a_group(broker, clock):
    """Of the last minute, in some topics."""
    assert broker.statistics.gets_per_second("G", ["orders"]) == 0
    broker.stats.got("G", "orders", 1, 20, 1)
    broker.stats.got("G", "%RETRY%G", 1, 10, 1)
    pass_time(broker, clock, 10)
    assert broker.statistics.gets_per_second("G", ["orders", "%RETRY%G", "other"]) == pytest.approx(3)
    assert broker.reports.gets_per_second("G", "orders") == pytest.approx(2)
    assert broker.reports.gets_per_second("G", None) == 0  # no offsets
    broker.offsets.put("G", "orders", 0, 1)
    assert broker.reports.gets_per_second("G", None) == pytest.approx(2)
    pass_time(broker, clock, 70)
    assert broker.reports.gets_per_second("G", "orders") == 0


def test_tables_are_bounded(broker):
    """A group may pull from a topic without end: no more keys than are allowed."""
    stats = broker.stats
    stats.group_gets = KeyedCounts("topics of groups", stats.group_gets._warnings, keys_max=3)
    for number in range(10):
        stats.got("G", f"T{number}", 1, 1, 1)
    assert (len(stats.group_gets.table), stats.got_messages) == (3, 10)
