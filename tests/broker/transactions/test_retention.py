"""Half messages and retention: a log file that holds an open one goes, and the transaction does not."""

from __future__ import annotations

import pytest

from metaq.broker.log.records import put_record
from metaq.broker.requests import Send
from metaq.clock import FakeClock
from metaq.errors import Reason
from metaq.model import TransactionOutcome
from metaq.model import properties as props
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC
from metaq.testing.faults import FaultyDisk
from tests.broker.support import BORN_HOST, open_broker
from tests.broker.transactions.test_service import bodies, end, half, producer, refused, stored

STORE = {"file_reserved_time": 0, "mapped_file_size_commit_log": 256 << 10}
SELDOM = {"transaction_check_interval": 1 << 30}
"""So that no round of checks writes anything anew."""
PRESSED = {"mapped_file_size_commit_log": 256 << 10}


def full_disk():
    """One that makes files go before their time."""
    disk = FaultyDisk()
    disk.used = 88
    return disk


@pytest.fixture
def clock():
    return FakeClock()


def fill(broker, files=3):
    while len(broker.store.log.run.files) < files:
        broker.sends.send(Send(topic="others", body=bytes(50_000), born_ms=1, born_host=BORN_HOST, queue_id=0))


def retain(broker, clock):
    clock.advance(1)
    return broker.store.keeper.retain(clock.now_ms(), at_once=True)


def turns(broker):
    for _ in range(20):
        broker.deliver()


@pytest.mark.parametrize("used", [10, 88, 91])
@pytest.mark.parametrize("outcome", [TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK])
def test_open_half_messages_are_written_anew_before_their_file_goes(tmp_path, clock, used, outcome):
    """When its time is up, and when the disk is too full to take other messages; the send's own offsets still end them."""
    disk = FaultyDisk()
    with open_broker(tmp_path, clock, STORE, disk, **SELDOM) as broker:
        ids = [f"{number:032X}" for number in range(40)]
        sent = [half(broker, b"%d" % number, **{props.UNIQUE_ID: ids[number]}) for number in range(40)]
        for number in range(0, 40, 2):
            end(broker, sent[number], TransactionOutcome.ROLLBACK)
        fill(broker)
        disk.used = used
        assert retain(broker, clock) == 0, "the file stays"
        turns(broker)
        assert retain(broker, clock) > 0
        assert broker.store.log.min > sent[-1].put.log_offset
        anew = [
            message for message in stored(broker, HALF_TOPIC, 0) if props.PREPARED_QUEUE_OFFSET in message.properties
        ]
        assert sorted(int(message.body) for message in anew) == list(range(1, 40, 2))
        assert all(props.CHECK_TIMES not in message.properties for message in anew)
        disk.used = 10
        retain(broker, clock)
        for number in range(1, 40, 2):
            assert end(broker, sent[number], outcome, message_id=ids[number]) == ""
            assert "ended before" in end(broker, sent[number], outcome, message_id=ids[number])
        assert sorted(map(int, bodies(broker))) == (
            list(range(1, 40, 2)) if outcome is TransactionOutcome.COMMIT else []
        )


def test_half_record_that_cannot_be_written_anew_holds_up_no_other(tmp_path, clock):
    """One of a foreign store, on a disk that takes nothing else: it is kept for the administrator."""
    disk = FaultyDisk()
    with open_broker(tmp_path, clock, STORE, disk, **SELDOM) as broker:
        pairs, now = {props.PRODUCER_GROUP: "payers"}, clock.now_ms()
        record = put_record(HALF_TOPIC, 0, b"lost", pairs, flag=0, sys_flag=0, born_ms=now, born_host=BORN_HOST)
        broker.appender.put([record])
        sent = half(broker)
        fill(broker)
        disk.used = 91
        for _ in range(3):
            retain(broker, clock)
            turns(broker)
        assert broker.store.log.min > sent.put.log_offset
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"lost"]
        (anew,) = stored(broker, HALF_TOPIC, 0)
        assert anew.body == b"hello"


def test_client_without_unique_ids_is_asked_instead(tmp_path, clock):
    """Its end names a place that the log has left: it is refused, and the next check brings the new one."""
    with open_broker(tmp_path, clock, PRESSED, full_disk()) as broker:
        channel = producer(broker)
        sent = half(broker)
        fill(broker)
        retain(broker, clock)
        turns(broker)
        assert retain(broker, clock) > 0
        assert "Find prepared" in refused(Reason.INVALID, lambda: end(broker, sent))
        clock.advance(61)
        turns(broker)
        (check,) = channel.told
        end(broker, sent, slot=check.half.queue_offset, log_offset=check.half.log_offset)
        assert bodies(broker) == [b"hello"]


def test_what_was_carried_is_known_after_a_crash(tmp_path, clock):
    """The generation before it is done, though no position was saved."""
    with pytest.raises(KeyboardInterrupt), open_broker(tmp_path, clock, STORE, **SELDOM) as broker:
        half(broker)
        fill(broker)
        retain(broker, clock)
        turns(broker)
        broker.store.flusher.flush()
        raise KeyboardInterrupt
    with open_broker(tmp_path, clock, STORE, **SELDOM) as broker:
        assert broker.transactions.progress.first_open == 1
        assert retain(broker, clock) > 0


def test_transactions_go_on_while_their_rounds_write_them_anew(tmp_path, clock):
    """With the usual interval of checks a file waits a minute at most."""
    with open_broker(tmp_path, clock, PRESSED, full_disk()) as broker:
        channel = producer(broker)
        half(broker)
        fill(broker)
        clock.advance(61)
        turns(broker)
        assert len(channel.told) == 1
        assert retain(broker, clock) > 0
