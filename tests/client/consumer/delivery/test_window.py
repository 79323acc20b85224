"""The sliding window: what may be committed is the smallest unfinished offset, whatever finishes in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.client.consumer.delivery.window import Window
from metaq.model import MessageQueue, StoredMessage

QUEUE = MessageQueue("t", "b", 0)


def messages(*offsets: int) -> list[StoredMessage]:
    return [StoredMessage(topic="t", body=b"x", queue_offset=offset) for offset in offsets]


def finish(chunk, offset: int) -> None:
    chunk.flags[offset - chunk.base] = 1


def test_gap_holds_the_commit_back():
    """3 and 5 finished, 4 not: 4 is what may be committed; finishing it releases all."""
    window = Window(QUEUE, 3)
    chunk = window.add(messages(3, 4, 5), 6)
    finish(chunk, 3)
    finish(chunk, 5)
    assert window.finished_offset() == 4
    assert window.unfinished == 1
    assert window.span == 2
    finish(chunk, 4)
    assert window.finished_offset() == 6
    assert window.unfinished == 0


def test_filtered_offsets_need_no_ack():
    """A pull that covered 0..9 and brought 2 and 7: after those two, 10 may be committed."""
    window = Window(QUEUE, 0)
    chunk = window.add(messages(2, 7), 10)
    assert window.finished_offset() == 2
    finish(chunk, 7)
    finish(chunk, 2)
    assert window.finished_offset() == 10


def test_empty_pull_moves_the_end_but_not_past_unfinished():
    """Nothing matched: the next pull begins further on, the commit waits for what is unfinished."""
    window = Window(QUEUE, 0)
    chunk = window.add(messages(0), 1)
    assert window.add([], 50) is None
    assert window.next_offset == 50
    assert window.finished_offset() == 0
    finish(chunk, 0)
    assert window.finished_offset() == 50


def test_message_handed_out_again_finishes_under_its_old_flag():
    """A local redelivery is no new offset."""
    window = Window(QUEUE, 0)
    chunk = window.add(messages(0, 1), 2)
    finish(chunk, 1)
    again = chunk.again(chunk.messages[0])
    assert again.end == chunk.end
    finish(again, 0)
    assert window.finished_offset() == 2


def test_rest_of_a_chunk_keeps_its_flags():
    """What a taker left finishes where it always was."""
    window = Window(QUEUE, 10)
    chunk = window.add(messages(10, 11, 12), 13)
    finish(chunk, 10)
    rest = chunk.rest(1)
    assert [message.queue_offset for message in rest.messages] == [11, 12]
    finish(rest, 11)
    finish(rest, 12)
    assert window.finished_offset() == 13


@given(st.data())
def test_commit_is_the_smallest_unfinished_offset(data):
    """Random pulls, gaps and finishing orders against a plain set."""
    window, unfinished, chunks = Window(QUEUE, 0), set(), {}
    for _ in range(data.draw(st.integers(1, 6))):
        start = window.next_offset
        end = start + data.draw(st.integers(1, 12))
        offsets = sorted(data.draw(st.sets(st.integers(start, end - 1))))
        chunk = window.add(messages(*offsets), end)
        unfinished |= set(offsets)
        chunks |= dict.fromkeys(offsets, chunk)
        for offset in data.draw(st.permutations(sorted(unfinished)))[: data.draw(st.integers(0, 8))]:
            finish(chunks[offset], offset)
            unfinished.discard(offset)
        assert window.finished_offset() == min(unfinished, default=window.next_offset)
        assert window.unfinished == len(unfinished)


def test_signal_handler_may_shut_a_window_in_the_thread_that_is_just_opening_it():
    """`stop` in a handler of SIGTERM, while the main thread is in `resume` or a message's `pause`."""
    window = Window(MessageQueue("orders", "broker-a", 0), 0)
    with window._shutting:
        assert window._shutting.acquire(blocking=False), "it would wait for itself"
        window._shutting.release()
        window.dropped = True
    assert window.dropped
