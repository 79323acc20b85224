"""The records with which epochs begin in the log."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.failover.epochs import append_epoch, epochs_in, merged
from metaq.broker.log.records import put_record
from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model.leadership import Epoch
from metaq.model.topics.system import EPOCHS_TOPIC
from metaq.wire.record import decode_record
from tests.broker.support import BORN_HOST, STORE_HOST, open_broker

FIRST = Epoch(3, 4096, "0f8e3c", 1_700_000_000_000, 2, 7)
FIRST_BODY = b'{"number":3,"start":4096,"leader":"0f8e3c","sinceMs":1700000000000,"brokerId":2,"term":7}'
SECOND = Epoch(4, 8192, "77aa01", 1_700_000_060_000, 1, 8)

epochs = st.builds(
    Epoch, st.integers(1, 1 << 40), st.integers(0, 1 << 60), st.text("0123456789abcdef", min_size=1, max_size=32),
    st.integers(0, 1 << 41), st.integers(0, 64), st.integers(0, 1 << 30),
)  # fmt: skip


@pytest.fixture
def broker(tmp_path):
    with open_broker(tmp_path, FakeClock()) as opened:
        yield opened


def put(broker, body: bytes) -> None:
    broker.appender.put([put_record(EPOCHS_TOPIC, 0, body, {}, flag=0, sys_flag=0, born_ms=1, born_host=BORN_HOST)])


def test_an_epoch_is_a_record_that_is_found_again(broker, tmp_path):
    assert epochs_in(broker.store) == ()
    append_epoch(broker.appender, FIRST, STORE_HOST)
    append_epoch(broker.appender, SECOND, STORE_HOST)
    assert epochs_in(broker.store) == (FIRST, SECOND)
    queue = broker.store.reader.existing_queue(EPOCHS_TOPIC, 0)
    message = decode_record(broker.store.reader.record_at(queue.unit(0).log_offset))
    assert (message.topic, message.queue_id, message.queue_offset, message.body, message.tag, message.born_ms) == (
        EPOCHS_TOPIC, 0, 0, FIRST_BODY, "epoch", FIRST.since_ms,
    )  # fmt: skip


def test_they_are_there_after_a_restart(tmp_path):
    with open_broker(tmp_path, FakeClock()) as broker:
        append_epoch(broker.appender, FIRST, STORE_HOST)
    with open_broker(tmp_path, FakeClock()) as broker:
        assert epochs_in(broker.store) == (FIRST,)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"{}", b"[]", b'{"number":"3"}', FIRST_BODY[:-1], b"[" * 100_000],
    ids=["empty", "no text", "no fields", "a list", "wrong type", "cut", "nested"],
)  # fmt: skip
def test_what_cannot_be_read_is_passed_over_and_said(broker, caplog, body):
    put(broker, body)
    append_epoch(broker.appender, SECOND, STORE_HOST)
    with caplog.at_level(logging.ERROR):
        assert epochs_in(broker.store) == (SECOND,)
    assert (
        "queue offset 0 of queue 0 of topic rmq_sys_METAQ_EPOCHS, the beginning of an epoch, cannot be read"
        in caplog.text
    )


def test_a_record_that_is_damaged_is_passed_over(broker, tmp_path, caplog):
    append_epoch(broker.appender, FIRST, STORE_HOST)
    append_epoch(broker.appender, SECOND, STORE_HOST)
    place = broker.store.reader.existing_queue(EPOCHS_TOPIC, 0).unit(0).log_offset
    (file,) = (tmp_path / "commitlog").iterdir()
    with file.open("r+b") as damaged:
        damaged.seek(place + 4)
        damaged.write(b"\0\0\0\0")  # not the magic of a record
    with caplog.at_level(logging.ERROR):
        assert epochs_in(broker.store) == (SECOND,)
    assert "cannot be read" in caplog.text


def test_an_epoch_is_refused_while_the_store_takes_nothing(broker):
    """Its leader tries again; the file beside the log has it meanwhile."""
    broker.step_down("not now")
    with pytest.raises(Refused, match="not now"):
        append_epoch(broker.appender, FIRST, STORE_HOST)


@given(epochs)
def test_any_epoch_comes_back(opened_for_all, epoch):
    append_epoch(opened_for_all.appender, epoch, STORE_HOST)
    assert epochs_in(opened_for_all.store)[-1] == epoch


@pytest.fixture(scope="module")
def opened_for_all(tmp_path_factory):
    with open_broker(tmp_path_factory.mktemp("epochs"), FakeClock()) as opened:
        yield opened


def test_the_file_beside_the_log_and_the_log_complete_each_other():
    """What was saved counts: the log may have the same epoch with another end of a crashed start."""
    other = Epoch(4, 9000, "another", 5, 2, 8)
    assert merged((), ()) == ()
    assert merged((FIRST,), (SECOND,)) == merged((SECOND,), (FIRST,)) == (FIRST, SECOND)
    assert merged((SECOND,), (FIRST, other)) == (FIRST, SECOND)
