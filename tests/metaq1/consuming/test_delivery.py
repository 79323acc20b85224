"""One fetched block: what the listener gets of it, and how far that counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.errors import ClientError
from metaq.metaq1 import LruMessageIdCache, Partition, ReceivedMessage
from metaq.metaq1.consuming.delivery import Batch, Delivery
from metaq.wire.metaq1.frame import HAS_ATTRIBUTE, frame, with_attribute
from tests.effort import repeats

PARTITION = Partition(0, 3)


def delivery(data: bytes, ids: LruMessageIdCache | None = None, **values: object) -> Delivery:
    return Delivery("g", "t", PARTITION, 1000, data, ids or LruMessageIdCache(), bytes_max=2048, **values)


def three() -> bytes:
    return frame(1, 0, b"one") + frame(2, HAS_ATTRIBUTE, with_attribute("a", b"two")) + frame(3, 0, b"three")


def test_messages_have_their_places() -> None:
    one = delivery(three())
    got = list(one)
    assert [(message.message_id, message.data, message.attribute, message.offset, message.size) for message in got] == [
        (1, b"one", None, 1000, 23),
        (2, b"two", "a", 1023, 28),
        (3, b"three", None, 1051, 25),
    ]
    assert {(message.topic, message.partition) for message in got} == {("t", PARTITION)}
    assert (one.position, one.message_id, one.whole, one.is_failed, one.damage) == (76, 3, 3, False, None)


def test_a_message_that_is_cut_off_waits_for_the_next_fetch() -> None:
    for cut in (1, 5, 24):
        one = delivery(three()[:-cut])
        assert len(list(one)) == 2
        assert (one.position, one.damage) == (51, None)
    assert list(delivery(three()[:10])) == []


def test_a_failure_stops_at_its_message() -> None:
    one = delivery(three())
    for message in one:
        if message.message_id == 2:
            one.fail(ValueError())
            break
    assert (one.position, one.message_id, one.is_failed) == (23, 1, True)


def test_rollback_only_is_a_failure() -> None:
    one = delivery(three())
    for message in one:
        if message.message_id == 2:
            message.set_rollback_only()
    assert (one.position, one.message_id, one.is_failed) == (23, 1, True)


def test_repetitions_are_left_out_and_count_as_consumed() -> None:
    ids = LruMessageIdCache()
    list(delivery(three(), ids))
    again = delivery(three() + frame(4, 0, b"four"), ids)
    assert [message.message_id for message in again] == [4]
    assert again.position == 100


def test_a_failed_message_is_no_repetition() -> None:
    ids = LruMessageIdCache()
    one = delivery(three(), ids)
    for _ in one:
        one.fail(None)
        break
    assert len(list(delivery(three(), ids))) == 3


def test_what_the_filter_refuses_counts_as_consumed() -> None:
    ids = LruMessageIdCache()
    one = delivery(three(), ids, accept=lambda group, message: group == "g" and message.message_id != 2)
    assert [message.message_id for message in one] == [1, 3]
    assert one.position == 76
    assert ids.seen("g", 2)


def test_an_error_of_the_filter_refuses() -> None:
    def broken(group: str, message: ReceivedMessage) -> bool:
        raise ValueError(message.message_id)

    one = delivery(three(), accept=broken)
    assert list(one) == []
    assert (one.position, str(one.filter_error)) == (76, "1")


@pytest.mark.parametrize(("at", "what"), [(4, "checksum"), (22, "checksum"), (0, "bytes"), (1, "bytes")])
def test_damage_is_said_and_those_before_it_are_delivered(at: int, what: str) -> None:
    data = bytearray(three())
    data[23 + at] ^= 0x80
    one = delivery(bytes(data))
    assert [message.message_id for message in one] == [1]
    assert one.position == 23
    assert what in str(one.damage)


def test_a_message_above_the_limit_is_damage() -> None:
    one = delivery(frame(1, 0, bytes(2049)))
    assert list(one) == []
    assert "max_read_buffer=2048" in str(one.damage)


def test_a_wrong_attribute_leaves_the_body_as_it_is() -> None:
    got = list(delivery(frame(1, HAS_ATTRIBUTE, b"\x7f\xff\xff\xffx") + frame(2, HAS_ATTRIBUTE, b"ab")))
    assert [(message.attribute, message.data) for message in got] == [(None, b"\x7f\xff\xff\xffx"), (None, b"ab")]


def test_a_stop_ends_between_two_messages() -> None:
    one = delivery(three())
    for _ in one:
        one.is_stopped = True
    assert (one.position, one.is_failed) == (23, False)


def test_ack_ends_the_batch_behind_its_message() -> None:
    ids, unsettled = LruMessageIdCache(), list[int]()
    first = delivery(three(), ids, batch=Batch(), unsettled=unsettled)
    for message in first:
        if message.message_id == 2:
            message.ack()
    assert first.position == 51
    assert not ids.seen("g", 1)
    first.acknowledge()
    assert ids.seen("g", 1)
    assert ids.seen("g", 2)
    assert unsettled == []


def test_a_rolled_back_message_is_no_repetition() -> None:
    ids, unsettled = LruMessageIdCache(), list[int]()
    list(delivery(three(), ids, batch=Batch(), unsettled=unsettled))
    assert unsettled == [1, 2, 3]
    one = delivery(frame(4, 0, b""), ids, batch=Batch(), unsettled=unsettled)
    for message in one:
        message.rollback()
    one.forget()
    assert len(list(delivery(three(), ids, batch=Batch()))) == 3


def test_ack_and_rollback_exclude_each_other_and_need_a_batch() -> None:
    batch = Batch()
    (message,) = list(delivery(frame(1, 0, b""), batch=batch))
    message.ack()
    message.ack()
    with pytest.raises(ClientError, match="acknowledged"):
        message.rollback()
    (other,) = list(delivery(frame(1, 0, b""), batch=Batch()))
    other.rollback()
    with pytest.raises(ClientError, match="rolled back"):
        other.ack()
    (plain,) = list(delivery(frame(1, 0, b"")))
    for call in (plain.ack, plain.rollback):
        with pytest.raises(ClientError, match="auto_ack=False"):
            call()


def test_the_oldest_ids_are_forgotten() -> None:
    ids = LruMessageIdCache(3)
    for number in (1, 2, 3):
        ids.add("g", number)
    assert ids.seen("g", 1)
    ids.add("g", 4)
    assert [number for number in (1, 2, 3, 4) if ids.seen("g", number)] == [1, 3, 4]
    assert not ids.seen("other", 1)
    none = LruMessageIdCache(0)
    none.add("g", 1)
    assert not none.seen("g", 1)


MESSAGES = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40)), max_size=8, unique_by=lambda one: one[0]
)


@settings(max_examples=repeats(200))
@given(MESSAGES, st.data())
def test_blocks_cut_anywhere_deliver_each_message_once(messages: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = b"".join(frame(message_id, 0, body) for message_id, body in messages)
    ids, got, position = LruMessageIdCache(), [], 0
    size = data.draw(st.integers(60, 200))
    while position < len(whole):
        one = Delivery("g", "t", PARTITION, position, whole[position : position + size], ids, bytes_max=2048)
        got += [(message.message_id, message.data) for message in one]
        assert one.position > 0
        position += one.position
    assert got == messages


@settings(max_examples=repeats(100))
@given(st.binary(max_size=300))
def test_any_bytes_are_messages_damage_or_an_unfinished_frame(data: bytes) -> None:
    one = delivery(data)
    for message in one:
        assert message.size <= len(data)
    assert one.position <= len(data)
