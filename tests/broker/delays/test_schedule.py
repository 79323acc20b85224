"""Scheduled delivery: when messages come out, where, and what a restart does to it."""

from __future__ import annotations

import pytest

from metaq.broker.delays import schedule
from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreFull
from metaq.model import properties as props
from metaq.servers.remoting.messages import send_of
from metaq.store.config_file import ConfigFile
from metaq.testing.faults import FaultyDisk
from metaq.wire import fastjson, hot
from metaq.wire.record import decode_record
from tests.broker.support import BORN_HOST, JAVA, open_broker
from tests.servers.support import send_header
from tests.support import eventually

LEVELS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def send(broker, body, level, topic="orders", queue_id=0, **more):
    header = send_header(topic, queue_id, "paid", properties={"DELAY": str(level)}, **more)
    return broker.sends.send(send_of(header, body, BORN_HOST, JAVA))


def bodies(broker, topic="orders", queue_id=0):
    queue = broker.store.reader.existing_queue(topic, queue_id)
    if queue is None:
        return []
    return [decode_record(broker.store.reader.record_at(unit.log_offset)).body for unit in queue.units(0, 1000)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.mark.parametrize("level", range(1, 19))
def test_each_level_waits_as_long_as_it_says(tmp_path, clock, level):
    """A message of level n is delivered after the n-th delay, not before."""
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
        waiting = broker.store.reader.queue("SCHEDULE_TOPIC_XXXX", 0).units(0, 1)[0]
        assert waiting.tags_code == clock.now_ms() + 1000
        original = decode_record(broker.store.reader.record_at(waiting.log_offset))
        clock.advance(1)
        broker.tick()
        unit = broker.store.reader.queue("orders", 0).units(0, 1)[0]
        copy = decode_record(broker.store.reader.record_at(unit.log_offset))
        assert unit.tags_code == hot.java_hash(b"paid")
        assert copy.properties == original.properties
        assert {props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID, props.WAIT} <= copy.properties.keys()
        assert (copy.topic, copy.flag, copy.born_ms, copy.born_host) == (
            "orders",
            9,
            original.born_ms,
            ("127.0.0.1", 50000),
        )


def test_a_level_above_the_highest_is_the_highest(tmp_path, clock):
    """Level 99 waits as long as level 18."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"later", 99)
        assert broker.store.reader.existing_queue("SCHEDULE_TOPIC_XXXX", 17).max_offset == 1


@pytest.mark.parametrize("level", ["0", "-3", "abc", "9" * 50])
def test_what_is_no_level_does_not_delay(tmp_path, clock, level):
    """A DELAY that is no number, or not above 0, is stored like any other property."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"now", level)
        assert bodies(broker) == [b"now"]


def test_delays_of_ones_own(tmp_path, clock):
    """messageDelayLevel decides how many levels there are and how long they wait."""
    with open_broker(tmp_path, clock, {"message_delay_level": "2s 1m"}) as broker:
        assert broker.topics.require("SCHEDULE_TOPIC_XXXX").write_queues == 2
        send(broker, b"later", 1)
        clock.advance(2)
        broker.tick()
        assert bodies(broker) == [b"later"]


def test_what_waits_at_a_level_that_is_removed_is_told(tmp_path, clock, caplog):
    """At the start and by `metaq cluster`; delivered once the level is back."""
    with open_broker(tmp_path, clock, {"message_delay_level": "1s 2s 3s"}) as broker:
        for level in (1, 2, 3, 3):
            send(broker, b"%d" % level, level)
        assert broker.reports.facts().trouble == ""
    clock.advance(20)
    with open_broker(tmp_path, clock, {"message_delay_level": "1s"}) as broker:
        broker.tick()
        assert bodies(broker) == [b"1"]
        assert "3 delayed messages wait at level 2, 3, and messageDelayLevel has 1 levels" in caplog.text
        assert broker.reports.facts().trouble in caplog.text
    with open_broker(tmp_path, clock, {"message_delay_level": "1s 2s 3s"}) as broker:
        broker.tick()
        assert sorted(bodies(broker)) == [b"1", b"2", b"3", b"3"]
        assert broker.reports.facts().trouble == ""


@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_survives_a_restart(tmp_path, clock, clean):
    """Nothing is lost and nothing is delivered twice, after a stop in order and after a crash without saved positions."""
    with open_broker(tmp_path, clock) as broker:
        for n, level in enumerate((1, 2, 3)):
            send(broker, b"%d" % n, level)
        clock.advance(1)
        broker.tick()
        if not clean:
            broker.schedule.positions.close = lambda: None
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
            broker.store.flusher.flush()
        broker.tick()
        text = ConfigFile(tmp_path / "config" / "delayOffset.json").load()
        assert fastjson.loads(text) == {"offsetTable": {1: 1}, "metaqLogOffset": broker.store.log.end}
        assert '"offsetTable":{1:1' in text


class Stopwatch:
    """Each look at it takes as long as a slice."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def test_a_turn_ends_when_its_time_is_spent(tmp_path, clock):
    """A flood of due messages is spread over turns, in order, so that the event loop is not held up."""
    with open_broker(tmp_path, clock) as broker:
        broker.schedule.stopwatch = Stopwatch(schedule.TURN_SECONDS / 2)
        for n in range(5 * schedule.SLICE):
            send(broker, b"%d" % n, 1)
        clock.advance(1)
        turns, pauses = [], []
        while len(turns) < 4:
            pauses.append(broker.schedule.step())
            turns.append(len(bodies(broker)))
        assert turns == [2 * schedule.SLICE, 4 * schedule.SLICE, 5 * schedule.SLICE, 5 * schedule.SLICE]
        assert pauses[:2] == [0, 0]
        assert pauses[-1] == schedule.PAUSE_SECONDS_MAX
        assert bodies(broker) == [b"%d" % n for n in range(5 * schedule.SLICE)]


@pytest.mark.parametrize("flooded", [1, 3, 18])
def test_a_flood_on_one_level_keeps_no_other_waiting(tmp_path, clock, flooded):
    """Each level has a slice before any has its second: the first retry (level 3) comes in time beside a flood on level 1."""
    with open_broker(tmp_path, clock) as broker:
        broker.schedule.stopwatch = Stopwatch(schedule.TURN_SECONDS)
        others = [level for level in range(1, 19) if level != flooded]
        for level in others:
            send(broker, b"%d" % level, level, "others")
        for n in range(40 * schedule.SLICE):
            send(broker, b"%d" % n, flooded)
        clock.advance(7200)
        for _ in range(18):
            broker.schedule.step()
        assert sorted(int(body) for body in bodies(broker, "others")) == others
        assert len(bodies(broker)) == schedule.SLICE * 1
        for _ in range(39):
            assert broker.schedule.step() == 0
        assert broker.schedule.step() > 0
        assert broker.store.reader.queue("orders", 0).max_offset == 40 * schedule.SLICE


def test_the_next_look_is_when_the_next_message_is_due(tmp_path, clock):
    """No sooner than it pays, no later than a tenth of a second."""
    with open_broker(tmp_path, clock) as broker:
        assert broker.schedule.step() == schedule.PAUSE_SECONDS_MAX
        send(broker, b"later", 1)
        assert broker.schedule.step() == schedule.PAUSE_SECONDS_MAX
        clock.advance(0.95)
        assert broker.schedule.step() == pytest.approx(0.05)
        clock.advance(0.049)
        assert broker.schedule.step() == schedule.PAUSE_SECONDS_MIN
        clock.advance(0.001)
        broker.schedule.step()
        assert bodies(broker) == [b"later"]


def test_files_that_fill_up_under_a_flood(tmp_path, clock):
    """Deliveries cross the ends of log, queue and index files; every message comes once, in order, and is found by key."""
    sizes = {
        "mapped_file_size_commit_log": 256 << 10, "mapped_file_size_consume_queue": 20 * 300, "max_index_num": 1000,
        "hot_bytes": 1 << 30,
    }  # fmt: skip
    with open_broker(tmp_path, clock, sizes) as broker:
        for n in range(3000):
            send(broker, b"%d" % n, 1, f"topic-{n % 3}")
        clock.advance(1)
        while broker.schedule.step() == 0:
            pass
        for topic in range(3):
            assert bodies(broker, f"topic-{topic}") == [b"%d" % n for n in range(topic, 3000, 3)][:1000]


def test_a_full_disk_holds_delivery_up_and_loses_nothing(tmp_path, clock):
    """A delivery that cannot be stored is tried again at the next look, which is not at once."""
    disk = FaultyDisk()
    with open_broker(tmp_path, clock, disk=disk) as broker:
        for n in range(3):
            send(broker, b"%d" % n, 1)
        clock.advance(1)
        disk.used = 91
        broker.store.keeper.retain(clock.now_ms())
        assert broker.schedule.step() == schedule.PAUSE_SECONDS_MAX
        assert bodies(broker) == []
        disk.used = 50
        broker.store.keeper.retain(clock.now_ms())
        broker.schedule.step()
        assert bodies(broker) == [b"0", b"1", b"2"]


def test_a_disk_that_fills_up_in_the_middle(tmp_path, clock, monkeypatch):
    """What was delivered before stays delivered, and is not delivered again."""
    sizes = {"mapped_file_size_commit_log": 64 << 10}
    with open_broker(tmp_path, clock, sizes) as broker:
        for n in range(300):
            send(broker, b"%d" % n + b"x" * 200, 1)
        clock.advance(1)

        def full() -> None:
            raise StoreFull("full")

        monkeypatch.setattr(broker.store.log, "roll", full)
        broker.schedule.step()
        first = len(bodies(broker))
        assert 0 < first < 300
        broker.schedule.step()
        assert len(bodies(broker)) == first
        monkeypatch.undo()
        broker.schedule.step()
        assert [int(body.rstrip(b"x")) for body in bodies(broker)] == list(range(300))


def test_a_message_whose_topic_is_gone_holds_nobody_up(tmp_path, clock, caplog):
    """It was not deleted, but is not in the table any more: the message is stored under its topic's name all the same, for
    the day when the topic is there again, and that is told.
    """
    with open_broker(tmp_path, clock) as broker:
        for n in range(6):
            send(broker, b"%d" % n, 1, ("orders", "gone")[n % 2])
        broker.topics.delete("gone").settle()
        clock.advance(1)
        broker.schedule.step()
        assert bodies(broker) == [b"0", b"2", b"4"]
        assert bodies(broker, "gone") == [b"1", b"3", b"5"]
        assert caplog.text.count("queue 0 of topic gone, which has no such queue now") == 1


def test_a_flood_for_a_topic_that_is_gone_gives_the_loop_its_turn(tmp_path, clock):
    """What goes one by one ends the turn in the middle of a slice."""
    with open_broker(tmp_path, clock) as broker:
        for n in range(50):
            send(broker, b"%d" % n, 1, "gone")
        broker.topics.delete("gone").settle()
        broker.schedule.stopwatch = Stopwatch(schedule.TURN_SECONDS / 4)
        clock.advance(1)
        assert broker.schedule.step() == 0
        assert 0 < len(bodies(broker, "gone")) < 10
        while broker.schedule.step() == 0:
            pass
        assert bodies(broker, "gone") == [b"%d" % n for n in range(50)]


def test_nothing_is_delivered_to_a_topic_while_it_is_being_deleted(tmp_path, clock):
    """It would go with the queues, or outlive the topic: its level waits until the deletion is over."""
    with open_broker(tmp_path, clock) as broker:
        send(broker, b"0", 1)
        clock.advance(1)
        broker.schedule.step()
        for n in range(1, 4):
            send(broker, b"%d" % n, 1)
        clock.advance(1)
        broker.topics.close("orders")
        broker.gates.close("orders")
        broker.schedule.step()
        assert bodies(broker) == [b"0"]
        broker.topics.reopen("orders")
        broker.schedule.step()
        assert bodies(broker) == [b"0", b"1", b"2", b"3"]


def test_a_damaged_record_is_passed_over_and_told(tmp_path, clock, caplog):
    """A body that does not fit its checksum is not delivered: its copy would cut the log at the next recovery."""
    with open_broker(tmp_path, clock) as broker:
        for n in range(3):
            send(broker, b"body-%d" % n, 1)
        place = broker.store.reader.queue("SCHEDULE_TOPIC_XXXX", 0).units(1, 1)[0].log_offset
        file = broker.store.log.run.find(place)
        at = file.buffer.find(b"body-1")
        file.buffer[at] ^= 1
        clock.advance(1)
        broker.schedule.step()
        assert bodies(broker) == [b"body-0", b"body-2"]
        assert f"log offset {place}" in caplog.text


def test_a_record_that_a_start_finds_damaged_holds_its_level_up_no_longer_than_it_is_looked_for(
    tmp_path, clock, caplog
):
    """What the store knows to be lost is passed over and told; nor does the log keep its files for it."""
    with open_broker(tmp_path, clock) as broker:
        for n in range(4):
            send(broker, b"body-%d" % n, 1)
        places = [unit.log_offset for unit in broker.store.reader.queue("SCHEDULE_TOPIC_XXXX", 0).units(0, 4)]
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(places[1])
        file.write(bytes(places[3] - places[1]))
    clock.advance(1)
    with open_broker(tmp_path, clock) as broker:
        broker.schedule.step()
        assert broker.schedule.oldest() == places[1]
        broker.store.reader.repairs.step()

        def delivered() -> bool:
            broker.schedule.step()
            return bodies(broker) == [b"body-0", b"body-3"]

        eventually(delivered)
        assert broker.schedule.oldest() is None
        assert "2 delayed messages of level 1, from queue offset 1 on" in caplog.text


def test_old_records_are_read_by_another_thread(tmp_path, clock):
    """While one level's records are fetched from the disk, the others go on; what cannot be read is tried again."""
    jobs = []
    with open_broker(
        tmp_path, clock, {"hot_bytes": 20_000}, read_cold=lambda job, done: jobs.append((job, done))
    ) as broker:
        for n in range(500):
            send(broker, b"%d" % n, 2, "old")
        clock.advance(4)
        for _ in range(100):
            send(broker, b"plain", 0, "plain")
        send(broker, b"young", 1, "young")
        clock.advance(1)
        broker.schedule.step()
        assert (len(jobs), bodies(broker, "young"), bodies(broker, "old")) == (1, [b"young"], [])
        broker.schedule.step()
        assert len(jobs) == 1
        jobs.pop()[1](None)
        broker.schedule.step()
        assert len(jobs) == 1
        while jobs:
            job, done = jobs.pop()
            done(job())
            broker.schedule.step()
        assert bodies(broker, "old") == [b"%d" % n for n in range(500)]


def test_retention_leaves_messages_in_the_log_that_are_still_to_be_delivered(tmp_path, clock):
    """Until they are delivered or written anew, though their time is up and the disk is rather full."""
    disk, small = FaultyDisk(), {"mapped_file_size_commit_log": 64 << 10, "file_reserved_time": 0}
    with open_broker(tmp_path, clock, small, disk=disk) as broker:
        store = broker.store
        disk.used = 88
        for level in (2, 1):
            for n in range(300):
                send(broker, b"%d" % n + b"x" * 200, level, f"level-{level}")
        for _ in range(3):
            assert store.keeper.retain(clock.now_ms() + 1) == 0
        clock.advance(1)
        while broker.schedule.step() == 0:
            pass
        assert store.keeper.retain(clock.now_ms() + 1) == 1, (
            "level 2 has the older ones, some of them are in the next file too"
        )
        clock.advance(4)
        while broker.schedule.step() == 0:
            pass
        assert [int(body.rstrip(b"x")) for body in bodies(broker, "level-2")] == list(range(300))
        assert broker.schedule.oldest() is None
        assert store.keeper.retain(clock.now_ms() + 1) > 1


def test_what_has_left_the_log_is_told_and_passed_over(tmp_path, clock, caplog):
    """Retention takes a message that waits only from a full disk; the rest of its level is delivered."""
    with open_broker(tmp_path, clock, {"mapped_file_size_commit_log": 64 << 10}) as broker:
        for n in range(1000):
            send(broker, b"%d" % n, 1)
        broker.store.log.run.drop_before(3 * (64 << 10))
        kept = [
            unit
            for unit in broker.store.reader.queue("SCHEDULE_TOPIC_XXXX", 0).units(0, 1000)
            if unit[0] >= 3 * (64 << 10)
        ]
        clock.advance(1)
        for _ in range(10):
            broker.schedule.step()
        assert [int(body) for body in bodies(broker)] == list(range(1000 - len(kept), 1000))
        assert "have left the log" in caplog.text


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
        from metaq.broker.log.long_polling import HeldPull
        from tests.broker.support import FakeChannel

        broker.held_pulls.hold(HeldPull(FakeChannel(), ("orders", 0), 0, clock.monotonic() + 100, None))
        clock.advance(1)
        broker.schedule.step()
        assert [pull.key for pull in broker.held_pulls.ready()] == [("orders", 0)]


def test_a_broken_position_file_stops_the_start(tmp_path, clock):
    """delayOffset.json that cannot be read is named; starting without it would deliver everything again."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "delayOffset.json").write_text("{broken")
    with pytest.raises(ConfigError, match=r"delayOffset\.json"), open_broker(tmp_path, clock):
        pass
