"""The delay ladder: when messages come out, where, and what a restart does to it."""

from __future__ import annotations

import pytest

from metaq.broker import delay
from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreFull
from metaq.model import properties as props
from metaq.store.config_file import ConfigFile
from metaq.wire import fastjson, hot
from metaq.wire.record import decode_record
from tests.broker.support import BORN_HOST, JAVA, open_broker
from tests.doors.support import send_header

LEVELS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def send(broker, body, level, topic="orders", queue_id=0, **more):
    header = send_header(topic, queue_id, "paid", properties={"DELAY": str(level)}, **more)
    return broker.sends.send(header, body, BORN_HOST, JAVA)


def bodies(broker, topic="orders", queue_id=0):
    queue = broker.store.existing_queue(topic, queue_id)
    if queue is None:
        return []
    return [decode_record(broker.store.record_at(unit.log_offset)).body for unit in queue.units(0, 1000)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.mark.parametrize("level", range(1, 19))
def test_each_level_waits_as_long_as_it_says(tmp_path, clock, level):
    """A message of level n is delivered after the ladder's n-th delay, not before."""
    with open_broker(tmp_path, clock) as broker:
        sent = send(broker, b"later", level, queue_id=2)
        assert (sent.queue_id, sent.put.queue_offset) == (2, 0)
        clock.advance(LEVELS[level - 1] - 0.01)
        broker.tick()
        assert bodies(broker, queue_id=2) == []
        clock.advance(0.02)
        broker.tick()
        broker.tick()
        assert bodies(broker, queue_id=2) == [b"later"]


def test_the_delivered_copy_is_the_message_as_it_was_sent(tmp_path, clock):
    """Body, flags, times, host and properties are kept, DELAY, REAL_TOPIC and REAL_QID too; the tag hash is back."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 1, flag=9)
        waiting = broker.store.queue("SCHEDULE_TOPIC_XXXX", 0).units(0, 1)[0]
        assert waiting.tags_code == clock.now_ms() + 1000
        original = decode_record(broker.store.record_at(waiting.log_offset))
        clock.advance(1)
        broker.tick()
        unit = broker.store.queue("orders", 0).units(0, 1)[0]
        copy = decode_record(broker.store.record_at(unit.log_offset))
        assert unit.tags_code == hot.java_hash(b"paid")
        assert copy.properties == original.properties
        assert {props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID, props.WAIT} <= copy.properties.keys()
        assert (copy.topic, copy.flag, copy.born_ms, copy.born_host) == (
            "orders",
            9,
            original.born_ms,
            ("127.0.0.1", 50000),
        )


def test_a_level_above_the_ladder_is_the_highest(tmp_path, clock):
    """Level 99 waits as long as level 18."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 99)
        assert broker.store.existing_queue("SCHEDULE_TOPIC_XXXX", 17).max_offset == 1


@pytest.mark.parametrize("level", ["0", "-3", "abc", "9" * 50])
def test_what_is_no_level_does_not_delay(tmp_path, clock, level):
    """A DELAY that is no number, or not above 0, is stored like any other property."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"now", level)
        assert bodies(broker) == [b"now"]


def test_an_own_ladder(tmp_path, clock):
    """messageDelayLevel decides how many levels there are and how long they wait."""
    with open_broker(tmp_path, clock, {"message_delay_level": "2s 1m"}) as broker:
        assert broker.topics.require("SCHEDULE_TOPIC_XXXX").write_queues == 2
        send(broker, b"later", 1)
        clock.advance(2)
        broker.tick()
        assert bodies(broker) == [b"later"]


@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_survives_a_restart(tmp_path, clock, clean):
    """Nothing is lost and nothing is delivered twice, after a stop in order and after a crash without saved positions."""
    with open_broker(tmp_path, clock) as broker:
        for n, level in enumerate((1, 2, 3)):
            send(broker, b"%d" % n, level)
        clock.advance(1)
        broker.tick()
        if not clean:
            broker.ladder.positions.close = lambda: None
    with open_broker(tmp_path, clock) as broker:
        clock.advance(20)
        broker.tick()
        assert bodies(broker) == [b"0", b"1", b"2"]


def test_positions_are_saved_every_ten_seconds(tmp_path, clock):
    """delayOffset.json holds the level and the next position, in RocketMQ's form, and how long the log was then."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 1)
        for _ in range(12):
            clock.advance(1)
            broker.tick()
            broker.store.flush()
        broker.tick()
        text = ConfigFile(tmp_path / "config" / "delayOffset.json").load()
        assert fastjson.loads(text) == {"offsetTable": {1: 1}, "metaqLogOffset": broker.store.log_end}
        assert '"offsetTable":{1:1' in text


def test_one_tick_delivers_a_bounded_number(tmp_path, clock):
    """A flood of due messages is spread over ticks, in order, so that the event loop is not held up."""
    with open_broker(tmp_path, clock) as broker:
        for n in range(delay.DELIVERIES_PER_TICK + 10):
            send(broker, b"%d" % n, 1)
        clock.advance(1)
        assert broker.ladder.tick() == delay.DELIVERIES_PER_TICK
        assert broker.ladder.tick() == 10
        assert broker.ladder.tick() == 0
        queue = broker.store.queue("orders", 0)
        assert queue.max_offset == delay.DELIVERIES_PER_TICK + 10


def test_a_full_disk_holds_the_ladder_up_and_loses_nothing(tmp_path, clock, monkeypatch):
    """A delivery that cannot be stored is tried again at the next tick."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 1)
        clock.advance(1)

        def full() -> None:
            raise StoreFull("full")

        monkeypatch.setattr(broker.store, "_check_writable", full)
        assert broker.ladder.tick() == 0
        monkeypatch.undo()
        assert broker.ladder.tick() == 1
        assert bodies(broker) == [b"later"]


def test_a_clock_set_back_does_not_strand_messages(tmp_path, clock):
    """A due time later than any delay can explain counts as due."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 2)
        clock.set_wall(clock.now_ms() - 3_600_000)
        broker.tick()
        assert bodies(broker) == [b"later"]


def test_a_delivery_wakes_who_waits(tmp_path, clock):
    """Held pulls hear of delivered messages as of any other append."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 1)
        from metaq.broker.hold import HeldPull
        from tests.broker.support import FakeChannel

        broker.hold.hold(HeldPull(FakeChannel(), ("orders", 0), 0, clock.monotonic() + 100, None))
        clock.advance(1)
        broker.tick()
        assert [pull.key for pull in broker.hold.ready()] == [("orders", 0)]


def test_a_broken_position_file_stops_the_start(tmp_path, clock):
    """delayOffset.json that cannot be read is named; starting without it would deliver everything again."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "delayOffset.json").write_text("{broken")
    with pytest.raises(ConfigError, match=r"delayOffset\.json"), open_broker(tmp_path, clock):
        pass
