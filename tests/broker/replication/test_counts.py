"""Progress that counts records of the log, where these are cut off, or a queue begins anew at a replica."""

from __future__ import annotations

import pathlib

import pytest

from metaq.broker.broker import Broker
from metaq.broker.transactions.progress import LOG_POSITION
from metaq.clock import FakeClock
from metaq.model import DelayProgress, TopicConfig, TransactionOutcome
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from metaq.servers.remoting.messages import send_of
from tests.broker.support import BORN_HOST, JAVA, open_broker
from tests.broker.transactions.test_service import end, half
from tests.servers.support import send_header
from tests.store.log.test_raw import raw_log
from tests.store.support import message, read_all

FILE = 256 << 10
STORE = {"mapped_file_size_commit_log": FILE}
COUNTED = (HALF_TOPIC, OP_TOPIC, LOG_POSITION)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def send_later(broker: Broker) -> None:
    broker.sends.send(send_of(send_header("orders", 0, properties={"DELAY": "1"}), b"later", BORN_HOST, JAVA))


def deliver(broker: Broker, clock: FakeClock) -> list[bytes]:
    """What consumers have of the topic when all that waited has come."""
    clock.advance(10)
    broker.tick()
    return read_all(broker.store, "orders", 0)


def led(root: pathlib.Path, clock: FakeClock) -> int:
    """A folder whose broker has led. Returns where its log is cut: behind it what waited was delivered, and what was open ended."""
    with open_broker(root, clock, STORE) as broker:
        sent = half(broker, b"half", queue_id=0)
        send_later(broker)
        place = broker.store.log.end
        assert deliver(broker, clock) == [b"later"]
        end(broker, sent, TransactionOutcome.ROLLBACK)
        broker.store.flusher.flush()
        for _ in range(3):
            broker.tick()
        assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 1
    return place


def test_what_was_delivered_or_ended_in_what_is_cut_off_is_owed_again(tmp_path, clock):
    """An old master follows its successor, which has none of that, and is promoted before it was told how far that one is."""
    place = led(tmp_path, clock)
    with open_broker(tmp_path, clock, STORE, leading=False, broker_id=1) as broker:
        broker.store.writer.truncate(place)
        broker.log_was_cut()
        broker.lead()
        assert broker.transactions.progress.is_open(0)
        assert deliver(broker, clock) == [b"later"]


def test_a_kill_behind_the_cut_changes_nothing_of_that(tmp_path, clock):
    """The files say that the log went on: before others come there, the start forgets what they count."""
    place = led(tmp_path, clock)
    with open_broker(tmp_path, clock, STORE, leading=False, broker_id=1) as broker:
        broker.store.writer.truncate(place)
    with open_broker(tmp_path, clock, STORE, leading=False, broker_id=1) as broker:
        assert [broker.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in COUNTED] == [None] * 3
        assert broker.followed._delay.read() == DelayProgress({}, 0)


def test_a_cut_behind_what_was_counted_changes_nothing(tmp_path, clock):
    """It is still as far as the files say."""
    led(tmp_path, clock)
    with open_broker(tmp_path, clock, STORE) as broker:
        before = [broker.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in COUNTED]
        place = broker.store.log.end
        broker.appender.put([message("others", 0, b"x")])
    with open_broker(tmp_path, clock, STORE, leading=False, broker_id=1) as broker:
        broker.store.writer.truncate(place)
        broker.log_was_cut()
        assert [broker.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in COUNTED] == before


@pytest.mark.parametrize("comes", ["after the promotion", "before it"])
def test_a_queue_that_begins_anew_is_not_taken_for_done(tmp_path, clock, comes):
    """The replica has begun with a log whose first files were gone, and was told how far the queues had come before."""
    with open_broker(tmp_path / "master", clock, STORE) as master:
        while master.store.log.end < FILE:
            master.appender.put([message("others", 0, bytes(50_000))])
        place = master.store.log.end
        if comes == "before it":
            sent = half(master, b"half", queue_id=0)
            send_later(master)
        log_end = master.store.log.end
        data = raw_log(tmp_path / "master", FILE, log_end)
    with open_broker(tmp_path / "slave", clock, STORE, leading=False, broker_id=1) as slave:
        slave.store.writer.append_raw(data, FILE, partial=True)
        slave.store.flusher.flush()
        slave.followed.take_topics({"orders": TopicConfig("orders", 1, 1)}, log_end)
        slave.followed.take_delays({1: 1}, place)
        for topic, told in zip(COUNTED, (1, 1, place), strict=True):
            slave.offsets.take(TRANSACTION_GROUP, topic, 0, told)
        slave.lead()
        if comes != "before it":
            sent = half(slave, b"half", queue_id=0)
            send_later(slave)
        assert slave.transactions.progress.is_open(sent.put.queue_offset)
        end(slave, sent, TransactionOutcome.COMMIT)
        assert sorted(deliver(slave, clock)) == [b"half", b"later"]
        slave.store.flusher.flush()
        slave.tick()
        slave.tick()
        assert slave.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 1


def test_an_end_of_a_queue_before_is_none_of_the_queue_now(tmp_path, clock):
    """Its op record is here, and the half message that it names was gone: another one has that queue offset now."""
    with open_broker(tmp_path / "master", clock, STORE) as master:
        gone = half(master, b"gone", queue_id=0)
        while master.store.log.end < FILE:
            master.appender.put([message("others", 0, bytes(50_000))])
        end(master, gone, TransactionOutcome.ROLLBACK)
        data = raw_log(tmp_path / "master", FILE, master.store.log.end)
    with open_broker(tmp_path / "slave", clock, STORE, leading=False, broker_id=1) as slave:
        slave.store.writer.append_raw(data, FILE, partial=True)
        slave.lead()
        slave.topics.update(TopicConfig("orders", 1, 1))
        sent = half(slave, b"half", queue_id=0)
        assert sent.put.queue_offset == gone.put.queue_offset
    with open_broker(tmp_path / "slave", clock, STORE) as broker:
        assert broker.transactions.progress.is_open(sent.put.queue_offset)
        end(broker, sent, TransactionOutcome.COMMIT)
        assert not broker.transactions.progress.is_open(sent.put.queue_offset)
