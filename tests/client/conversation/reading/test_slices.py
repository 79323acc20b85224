"""Which pulls read a slice: a queue in memory answers, over connections that may break."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.client.conversation.reading.pulling import Pull, PullResult, PullStatus
from metaq.client.conversation.reading.slices import (
    PULLS_UNDER_WAY,
    Gone,
    Post,
    Receive,
    Records,
    Sifted,
    SliceReading,
    TooShort,
)
from metaq.errors import RemoteProtocolError
from metaq.model import MessageQueue
from metaq.model.filters.subscription import subscribe
from tests.effort import repeats

QUEUE = MessageQueue("orders", "broker-a", 0)


class Broker:
    """A queue of messages of 10 bytes each, [low, high). `limit`: messages of one answer."""

    def __init__(self, low: int, high: int, limit: int) -> None:
        self.low, self.high, self.limit = low, high, limit

    def answer(self, pull: Pull) -> PullResult:
        if not self.low <= pull.offset <= self.high:
            to = self.low if pull.offset < self.low else self.high
            return PullResult(PullStatus.OUT_OF_RANGE, b"", to, self.low, self.high)
        stop = min(self.high, pull.offset + min(pull.count, self.limit))
        status = PullStatus.FOUND if stop > pull.offset else PullStatus.NOTHING_NEW
        return PullResult(status, b"0123456789" * (stop - pull.offset), stop, self.low, self.high)


def run(reading: SliceReading, broker: Broker, steps_max: int = 10_000) -> list[object]:
    """What one connection brings."""
    found, posted = [], {}
    steps, said = reading.pulls(), None
    for _ in range(steps_max):
        try:
            step = steps.send(said)
        except StopIteration:
            assert not posted or isinstance(found[-1], TooShort), "an answer was left on the connection"
            return found
        said = None
        if isinstance(step, Post):
            said = len(posted) + 1000 * step.pull.offset
            assert said not in posted
            posted[said] = broker.answer(step.pull)
            assert len(posted) <= PULLS_UNDER_WAY + 1
        elif isinstance(step, Receive):
            said = posted.pop(step.number)
        else:
            found.append(step)
    return found


@given(
    st.integers(0, 50),
    st.integers(0, 200),
    st.integers(1, 300),
    st.integers(1, 40),
    st.lists(st.integers(0, 9), max_size=5),
)
@settings(max_examples=repeats(200), deadline=None)
def test_every_offset_is_read_or_told_gone_once_in_order(low, start, size, limit, breaks):
    """Whatever the peer's limit and wherever the connection breaks."""
    broker = Broker(low, start + size, limit)
    reading = SliceReading(QUEUE, start, start + size, group="g", pull_bytes=500)
    found = [piece for steps in breaks for piece in run(reading, broker, steps)] + run(reading, broker)
    at = start
    for piece in found:
        assert piece.start == at
        at = piece.stop
        if isinstance(piece, Records):
            assert len(piece.body) == 10 * (piece.stop - piece.start)
            assert piece.start >= low
        else:
            assert isinstance(piece, Gone)
            assert piece.stop <= max(low, start)
    assert at == start + size
    assert reading.next_offset == reading.end


def test_a_queue_that_ends_before_the_slice_is_no_loss():
    """Its broker may know more later: then it is read on."""
    broker = Broker(0, 30, 32)
    reading = SliceReading(QUEUE, 0, 50, group="g", pull_bytes=500)
    assert run(reading, broker)[-1] == TooShort(range(30))
    assert reading.next_offset == 30
    broker.high = 50
    assert sum(piece.stop - piece.start for piece in run(reading, broker)) == 20


def test_counts_follow_what_fills_the_wanted_bytes():
    """From 1024 down to some fifty messages of 10 bytes for 500, with room for twice as many bytes."""
    reading = SliceReading(QUEUE, 0, 100_000, group="g", pull_bytes=500)
    broker, asked = Broker(0, 100_000, 50_000), []
    steps, said, posted = reading.pulls(), None, {}
    for number in range(30):
        step = steps.send(said)
        said = None
        if isinstance(step, Post):
            asked.append(step.pull)
            said, posted[number] = number, broker.answer(step.pull)
        elif isinstance(step, Receive):
            said = posted[step.number]
    assert [pull.count for pull in asked[:4]] == [1024, 1024, 50, 50]
    assert asked[0].bytes_max == 1000


def test_an_answer_that_goes_backwards_is_refused():
    reading = SliceReading(QUEUE, 5, 10, group="g", pull_bytes=500)
    steps = reading.pulls()
    steps.send(None)
    steps.send(1)
    with pytest.raises(RemoteProtocolError, match="goes on at 3"):
        steps.send(PullResult(PullStatus.FOUND, b"x", 3, 0, 10))


class Sieve(Broker):
    """Lets every third message through, looks at `look` of them a pull, and does not heed where the slice ends."""

    def __init__(self, low: int, high: int, look: int) -> None:
        super().__init__(low, high, 1 << 30)
        self.look = look

    def answer(self, pull: Pull) -> PullResult:
        if not self.low <= pull.offset < self.high:
            return super().answer(pull)
        stop = min(self.high, pull.offset + self.look)
        matched = [offset for offset in range(pull.offset, stop) if offset % 3 == 0]
        status = PullStatus.FOUND if matched else PullStatus.NOTHING_MATCHED
        return PullResult(status, bytes(matched), stop, self.low, self.high)


@given(st.integers(0, 90), st.integers(0, 90), st.integers(0, 60), st.integers(1, 40))
def test_a_filter_brings_what_it_lets_through_and_ends_where_the_slice_does(start, end, low, look):
    """However far each pull looks; what has left the log is told, and a queue that is too short."""
    reading = SliceReading(QUEUE, start, end, group="g", pull_bytes=100, subscription=subscribe("orders", "a"))
    found = run(reading, Sieve(low, 95, look))
    gone = [offset for step in found if isinstance(step, Gone) for offset in range(step.start, step.stop)]
    seen = [offset for step in found if isinstance(step, Sifted) for offset in step.body if offset < step.stop]
    assert gone == list(range(start, min(low, end)))
    assert seen == [offset for offset in range(max(start, low), end) if offset % 3 == 0]
    assert reading.done


def test_a_filtered_slice_of_a_queue_that_is_too_short_says_so():
    """Its broker may be restarting."""
    reading = SliceReading(QUEUE, 0, 20, group="g", pull_bytes=100, subscription=subscribe("orders", "a"))
    assert run(reading, Sieve(0, 10, 5))[-1] == TooShort(range(10))
    assert reading.next_offset == 10
