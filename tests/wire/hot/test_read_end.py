"""The end of a queue for clients that may not read all of the log yet."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import repeats
from tests.wire.hot.support import FALLBACK, NATIVE, Tails, both, needs_native, send
from tests.wire.hot.test_answer import NEWEST, Place, pull

FILL = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


def ends_of(tails: Tails, queue_id: int) -> list[int]:
    """LogOffsets where the records of a queue end."""
    tail = tails.queues[queue_id]
    return [
        offset + size
        for offset, size, _ in struct.iter_unpack(">qiq", tails.queue_bytes[queue_id][: 20 * tail.next_offset])
    ]


@both
def test_a_log_is_read_to_its_end_at_first(hot):
    """Only a master whose sends wait for slaves sets another end."""
    assert hot.LogTail(bytes(8), b"", 1).read_end == NEWEST


@both
def test_the_end_of_a_queue_below_a_place_of_the_log(hot):
    """Of each record, to the byte: it is there from where it ends."""
    place = Place(hot)
    tail, ends = place.tails.queues[1], ends_of(place.tails, 1)
    for number, end in enumerate(ends):
        assert [tail.end_below(end - 1), tail.end_below(end)] == [number or -1, number + 1]
        assert tail.record_end(number) == end
    assert tail.end_below(NEWEST) == len(ends)
    assert tail.end_below(0) == -1


@both
def test_fill_units_are_below_every_place(hot):
    """They stand for messages that retention has taken, and what they say of the log is no place in it."""
    tail, memory = hot.QueueTail(b"TopicA", 0), bytearray(20 * 10)
    memory[: 20 * 5] = FILL * 5
    tail.attach(memory, 0, 10)
    tail.next_offset = 5
    tail.put(1000, 100, 0)
    assert [tail.end_below(place) for place in (0, 1099, 1100)] == [5, 5, 6]


@both
def test_what_lies_in_older_files_is_not_told(hot):
    """Nor where no file is attached, as behind a start; all of the queue is told without looking."""
    tail = hot.QueueTail(b"TopicA", 0)
    tail.next_offset, tail.log_end = 7, 1000
    assert [tail.end_below(999), tail.end_below(1000)] == [-1, 7]
    tail.attach(bytearray(20 * 10), 7, 10)
    assert tail.end_below(999) == -1
    tail.put(1000, 100, 0)
    assert [tail.end_below(999), tail.end_below(1099), tail.end_below(1100)] == [-1, -1, 8]
    assert [tail.record_end(offset) for offset in (-1, 6, 7, 8)] == [-1, -1, 1100, -1]


@both
@pytest.mark.parametrize("binary", [False, True])
def test_a_pull_is_answered_up_to_there(hot, binary):
    """With the queue's end as it is for clients; behind it, the pull is left to those who hold it."""
    place = Place(hot)
    ends = ends_of(place.tails, 1)
    place.tails.log.read_end = ends[2]
    frames = [pull(queueOffset=str(number), opaque=number, binary=binary) for number in range(4)]
    assert place.answer(*frames) == 3
    answers = place.replies.take()
    place.tails.queues[1].next_offset = 3  # as if there were no more
    place.tails.log.read_end = NEWEST
    assert answers == b"".join(place.by_hand(number, opaque=number, binary=binary) for number in range(3))


@needs_native
@settings(max_examples=repeats(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 300)), max_size=40),
    st.lists(st.integers(0, 12_000), min_size=1, max_size=4),
    st.integers(0, 40),
)
def test_what_is_readable_is_what_ends_at_or_before_the_limit(messages, read_ends, offset):
    """Exactly these records, by both twins, from whatever offset; and the queue ends behind the last one of them."""
    told = []
    for hot in (FALLBACK, NATIVE):
        place = Place(hot, 0, count_max=100)
        for queue_id, body_bytes in messages:
            place.tails.append(send(bytes(body_bytes), e=str(queue_id)))
        place.tails.replies.take()
        ends, tail = ends_of(place.tails, 1), place.tails.queues[1]
        for read_end in read_ends:
            place.tails.log.read_end = read_end
            readable = sum(end <= read_end for end in ends)
            assert tail.end_below(read_end) == (readable or (-1 if ends else 0))
            answered = hot.answer_held(place.fast_path, place.gate, offset, 100, 5, True, place.replies)
            assert answered == (offset < readable)
            if answered:
                tail.next_offset = readable
                expected = place.by_hand(offset, 100, binary=True)
                tail.next_offset = len(ends)
                answer = place.replies.take()
                assert answer == expected
                told.append((hot is FALLBACK, answer))
    assert [answer for of_fallback, answer in told if of_fallback] == [
        answer for of_fallback, answer in told if not of_fallback
    ]
