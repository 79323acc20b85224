"""Progress that counts records of the log, where these are cut off, or a queue begins anew at a replica."""

from __future__ import annotations

import pathlib

import pytest

from metaq.broker.broker import Broker
from metaq.broker.transactions.progress import LOG_POSITION
from metaq.clock import FakeClock
from metaq.model import DelayProgress, TransactionOutcome
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from metaq.servers.remoting.messages import send_of
from tests.broker.support import BORN_HOST, JAVA, open_broker
from tests.broker.transactions.test_service import end, half
from tests.servers.support import send_header
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
        broker.store.writer.cut_off(place)
        broker.log_was_cut()
        broker.lead()
        assert broker.transactions.progress.is_open(0)
        assert deliver(broker, clock) == [b"later"]


def test_a_kill_behind_the_cut_changes_nothing_of_that(tmp_path, clock):
    """The files say that the log went on: before others come there, the start forgets what they count."""
    place = led(tmp_path, clock)
    with open_broker(tmp_path, clock, STORE, leading=False, broker_id=1) as broker:
        broker.store.writer.cut_off(place)
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
        broker.store.writer.cut_off(place)
        broker.log_was_cut()
        assert [broker.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in COUNTED] == before
