"""Delayed messages and retention: a log file that holds some that wait goes, and they come at their time all the same."""

from __future__ import annotations

import pytest

from metaq.broker.delays.positions import CARRIED
from metaq.broker.delays.schedule import TURN_SECONDS
from metaq.broker.requests import Send
from metaq.clock import FakeClock
from metaq.model import properties as props
from metaq.testing.faults import FaultyDisk
from tests.broker.delays.test_schedule import bodies, send
from tests.broker.support import BORN_HOST, open_broker
from tests.broker.transactions.test_service import stored

STORE = {"file_reserved_time": 0, "mapped_file_size_commit_log": 256 << 10, "message_delay_level": "10s 600s"}
LEVEL, SECONDS = 2, 600


@pytest.fixture
def clock():
    return FakeClock()


def fill(broker, files=3):
    end = broker.store.log.end + files * (256 << 10)
    while broker.store.log.end < end:
        broker.sends.send(Send(topic="others", body=bytes(50_000), born_ms=1, born_host=BORN_HOST, queue_id=0))


def turns(broker, count=50):
    for _ in range(count):
        broker.deliver()


def let_go(broker, clock):
    """Have the files go that hold what waits."""
    fill(broker)
    before = broker.store.log.min
    for _ in range(3):
        broker.store.keeper.retain(clock.now_ms() + 1, at_once=True)
        turns(broker)
    assert broker.store.log.min > before


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("used", [10, 88, 91])
def test_delayed_messages_are_written_anew_before_their_file_goes(tmp_path, clock, used, times):
    """However often; each comes once, in order, at its own time, as it was sent; also from a disk that takes nothing else."""
    disk = FaultyDisk()
    with open_broker(tmp_path, clock, STORE, disk) as broker:
        for number in range(30):
            send(broker, b"%d" % number, LEVEL)
            clock.advance(1)
        for _ in range(times):
            disk.used = 10
            broker.store.keeper.retain(clock.now_ms())
            fill(broker)
            disk.used = used
            for _ in range(3):
                broker.store.keeper.retain(clock.now_ms() + 1, at_once=True)
                turns(broker)
            clock.advance(100)
        disk.used = 10
        broker.store.keeper.retain(clock.now_ms() + 1, at_once=True)
        assert broker.store.reader.existing_queue("SCHEDULE_TOPIC_XXXX", CARRIED + LEVEL - 1).max_offset == 30 * times
        assert broker.schedule.positions.next(LEVEL) == 30
        send(broker, b"later", LEVEL)
        clock.advance(SECONDS - 30 - 100 * times - 0.5)
        turns(broker)
        assert bodies(broker) == []
        for number in range(30):
            clock.advance(1)
            turns(broker)
            assert bodies(broker) == [b"%d" % one for one in range(number + 1)]
        (first, *_) = stored(broker, "orders", 0)
        assert first.properties[props.DELAY] == str(LEVEL)
        assert props.DUE not in first.properties
        clock.advance(SECONDS)
        turns(broker)
        assert bodies(broker)[30:] == [b"later"]
        assert broker.schedule.oldest() is None


def test_a_file_that_holds_what_waits_goes_before_it_is_due(tmp_path, clock):
    """It stays for no longer than it takes to write that anew."""
    with open_broker(tmp_path, clock, STORE) as broker:
        sent = send(broker, b"waits", LEVEL)
        let_go(broker, clock)
        assert broker.store.log.min > sent.put.log_offset
        assert bodies(broker) == []


@pytest.mark.parametrize("delivered", [False, True])
def test_a_crash_multiplies_nothing_that_was_carried(tmp_path, clock, delivered):
    """Though no position was saved: each copy names in the log what it stands for."""
    with pytest.raises(KeyboardInterrupt), open_broker(tmp_path, clock, STORE) as broker:
        for number in range(20):
            send(broker, b"%d" % number, LEVEL)
            clock.advance(1)
        broker.schedule.positions.save()
        broker.store.flusher.flush()
        broker.schedule.positions.settle()
        let_go(broker, clock)
        clock.advance(SECONDS - 20)
        if delivered:
            clock.advance(10)
            turns(broker)
            assert 8 < len(bodies(broker)) < 12
        broker.store.flusher.flush()
        raise KeyboardInterrupt
    with open_broker(tmp_path, clock, STORE) as broker:
        clock.advance(30)
        turns(broker)
        assert bodies(broker) == [b"%d" % number for number in range(20)]


def test_old_ones_are_read_in_a_thread(tmp_path, clock):
    """Nothing is carried on, or delivered, before the thread is done; then it goes on."""
    jobs = []
    with open_broker(
        tmp_path, clock, {**STORE, "hot_bytes": 0}, read_cold=lambda job, done: jobs.append((job, done))
    ) as broker:
        send(broker, b"waits", LEVEL)
        fill(broker)
        broker.store.keeper.retain(clock.now_ms() + 1, at_once=True)
        turns(broker)
        assert len(jobs) == 1
        assert broker.store.reader.existing_queue("SCHEDULE_TOPIC_XXXX", CARRIED + LEVEL - 1) is None
        clock.advance(SECONDS + 1)
        for _ in range(4):
            while jobs:
                job, done = jobs.pop()
                done(job())
            turns(broker)
        assert bodies(broker) == [b"waits"]


def test_messages_of_a_deleted_topic_are_not_carried(tmp_path, clock):
    """They are dead with it."""
    with open_broker(tmp_path, clock, STORE) as broker:
        send(broker, b"waits", LEVEL)
        broker.delete_topic("orders")
        broker.store.flusher.flush()
        broker.tick()
        let_go(broker, clock)
        assert broker.schedule.oldest() is None
        assert broker.store.reader.existing_queue("SCHEDULE_TOPIC_XXXX", CARRIED + LEVEL - 1) is None


def test_message_whose_properties_leave_no_room_is_carried_too(tmp_path, clock):
    """It holds up neither those behind it nor other levels, and comes at its time."""
    with open_broker(tmp_path, clock, STORE) as broker:
        room = props.PROPERTIES_BYTES_MAX - len("DELAY_2_x__CLUSTER_DefaultCluster_REAL_TOPIC_orders_REAL_QID_0_")
        pairs = props.join({props.DELAY: str(LEVEL), "x": "y" * room})
        long = Send(topic="orders", body=b"long", born_ms=1, born_host=BORN_HOST, queue_id=0, properties=pairs)
        broker.sends.send(long)
        (waits,) = stored(broker, "SCHEDULE_TOPIC_XXXX", LEVEL - 1)
        assert len(waits.properties_raw) > props.PROPERTIES_BYTES_MAX - len(props.DUE)
        send(broker, b"behind", LEVEL)
        let_go(broker, clock)
        assert broker.schedule.positions.next(LEVEL) == 2
        fill(broker)
        let_go(broker, clock)
        clock.advance(SECONDS - 1)
        turns(broker)
        assert bodies(broker) == []
        clock.advance(1)
        turns(broker)
        assert bodies(broker) == [b"long", b"behind"]


def test_carrying_and_its_deliveries_go_on_without_a_pause(tmp_path, clock, monkeypatch):
    """When the time of a turn is over and not the work, the next turn comes as soon as others had theirs."""
    with open_broker(tmp_path, clock, STORE) as broker:
        for number in range(900):
            send(broker, b"%d" % number, LEVEL)
        fill(broker)
        broker.store.keeper.retain(clock.now_ms() + 1, at_once=True)
        times = iter(range(1 << 60))
        monkeypatch.setattr(broker.schedule, "stopwatch", lambda: next(times) * TURN_SECONDS / 20)
        pauses = []
        while broker.schedule.positions.next(LEVEL) < 900:
            pauses.append(broker.schedule.step())
        clock.advance(SECONDS)
        while len(bodies(broker)) < 900:
            pauses.append(broker.schedule.step())
        assert len(pauses) > 80
        assert len([pause for pause in pauses if pause]) <= 2
        assert bodies(broker) == [b"%d" % number for number in range(900)]
