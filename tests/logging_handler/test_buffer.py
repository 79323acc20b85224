"""The buffer: bounded whatever happens, nothing lost uncounted, in order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metaq.logging_handler.buffer import CLOSED, FULL, REFUSED, Buffer, Entry

RECORDS_MAX, BYTES_MAX = 5, 60


class BufferMachine(RuleBasedStateMachine):
    """Beside a plain list: what waits, and what became of the rest."""

    def __init__(self):
        super().__init__()
        self.buffer = Buffer(RECORDS_MAX, BYTES_MAX)
        self.waiting: list[bytes] = []
        self.put, self.sent, self.full, self.refused = 0, 0, 0, 0

    @rule(size=st.integers(1, 40))
    def puts(self, size):
        self.put += 1
        body = b"%d" % self.put * size
        body = body[:size]
        if len(self.waiting) >= RECORDS_MAX or sum(map(len, self.waiting)) + size > BYTES_MAX:
            self.full += 1
        else:
            self.waiting.append(body)
        self.buffer.put(Entry(body))

    @rule(
        count=st.integers(1, 4), size=st.integers(0, 60), fates=st.lists(st.sampled_from("sar"), min_size=5, max_size=5)
    )
    def sends(self, count, size, fates):
        entries = self.buffer.first(count, size)
        assert [entry.body for entry in entries] == self.waiting[: len(entries)]
        assert len(entries) <= count
        assert len(entries) <= 1 or sum(entry.size for entry in entries) <= size
        assert entries or not self.waiting
        fates = fates[: len(entries)]
        again = [entry for entry, fate in zip(entries, fates, strict=True) if fate == "a"]
        self.buffer.settle(len(entries), again, fates.count("r"))
        self.waiting[: len(entries)] = [entry.body for entry in again]
        self.sent += fates.count("s")
        self.refused += fates.count("r")

    @invariant()
    def counts_agree(self):
        buffer = self.buffer
        assert buffer.count == len(self.waiting) <= RECORDS_MAX
        assert buffer.bytes == sum(map(len, self.waiting)) <= BYTES_MAX
        assert buffer.added - buffer.left == buffer.count
        assert (buffer.dropped[FULL], buffer.dropped[REFUSED]) == (self.full, self.refused)
        assert self.put == self.sent + self.full + self.refused + buffer.count
        assert buffer.wait(0) == (not self.waiting)


TestBuffer = BufferMachine.TestCase


class Noisy(Buffer):
    """Somebody logs in the middle of a put, in the same thread: a signal handler, or a finalizer."""

    noise: tuple[Entry, ...] = ()

    def _add(self, entry):
        noise, self.noise = self.noise, ()
        for one in noise:
            self.put(one)
        super()._add(entry)


def test_a_put_in_the_middle_of_a_put_is_added_behind_it():
    """Once each, within the bounds, and counted."""
    buffer = Noisy(3, 100)
    buffer.noise = (Entry(b"b"), Entry(b"c"), Entry(b"d"))
    buffer.put(Entry(b"a"))
    assert [entry.body for entry in buffer.first(10, 100)] == [b"a", b"b", b"c"]
    assert (buffer.count, buffer.bytes, buffer.dropped) == (3, 3, {FULL: 1})


class Interrupted(Buffer):
    """Ctrl-C strikes within a put."""

    def _add(self, entry):
        if entry.body == b"x":
            raise KeyboardInterrupt
        super()._add(entry)


def test_an_interrupt_within_a_put_leaves_the_buffer_whole():
    """What comes after is added as ever."""
    buffer = Interrupted(3, 100)
    try:
        buffer.put(Entry(b"x"))
    except KeyboardInterrupt:
        buffer.put(Entry(b"a"))
    assert [entry.body for entry in buffer.first(10, 100)] == [b"a"]


def test_a_closed_buffer_takes_nothing_and_counts_it():
    """What is abandoned counts too; what is told of it later changes nothing."""
    buffer = Buffer(10, 100)
    buffer.put(Entry(b"a"))
    buffer.put(Entry(b"b"))
    taken = buffer.first(1, 100)
    buffer.close()
    buffer.put(Entry(b"c"))
    assert buffer.abandon() == 2
    buffer.settle(len(taken), [])
    assert (buffer.count, buffer.dropped, buffer.wait(0)) == (0, {CLOSED: 3}, True)
