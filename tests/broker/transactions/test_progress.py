"""Which half messages are done: the bits, the op queue's runs, and the memory they take."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.transactions import progress as transactions_progress
from metaq.broker.transactions.progress import PAGE_BITS, OpRuns, Slots


@given(
    first=st.integers(0, 3 * PAGE_BITS),
    steps=st.lists(st.integers(0, 3 * PAGE_BITS), max_size=60),
    spans=st.lists(st.tuples(st.integers(0, 2 * PAGE_BITS), st.integers(1, PAGE_BITS)), max_size=3),
)
def test_slots_are_a_set_of_numbers(first, steps, spans):
    """Whatever the order in which they are finished: the lowest open one, each one's state, and their number."""
    slots, done = Slots(first), set()
    wanted = [first + step for step in steps] + [first + low + more for low, size in spans for more in range(size)]
    for number in wanted:
        assert slots.finish(number) is (number not in done)
        done.add(number)
    lowest = first
    while lowest in done:
        lowest += 1
    assert slots.first == lowest
    assert slots.done_above == sum(number > lowest for number in done)
    after: dict[int, int] = {}  # of each that is done, the first open one behind it
    for number in sorted(done, reverse=True):
        after[number] = after.get(number + 1, number + 1)
    for number in {*wanted, *(number + 1 for number in wanted), 0, first}:
        assert slots.is_done(number) is (number in done or number < first)
        begin = max(number, lowest)
        assert slots.next_open(number) == after.get(begin, begin)


def test_slots_that_end_in_their_order_take_no_memory():
    """Nor do pages in which all are done behind an old open one."""
    slots = Slots(0)
    for number in range(3 * PAGE_BITS):
        slots.finish(number)
    assert (slots.first, slots._pages) == (3 * PAGE_BITS, {})
    for number in range(slots.first + 1, slots.first + 20 * PAGE_BITS):
        slots.finish(number)
    whole = [page for page in slots._pages.values() if isinstance(page, bytearray)]
    assert len(whole) <= 2
    slots.finish(slots.first)
    assert (slots.first, slots.done_above) == (23 * PAGE_BITS, 0)
    assert len(slots._pages) <= 1


@given(st.lists(st.integers(0, 3000), max_size=3000), st.integers(0, 3000), st.integers(0, 100))
def test_op_position_passes_nothing_that_is_needed(named, first_open, start):
    """Every op record below it names a half message below the first open one."""
    runs = OpRuns(start)
    for number, slot in enumerate(named):
        runs.add(start + number, slot)
        if number % 700 == 300:
            runs.position(0)
    position = runs.position(first_open)
    assert start <= position <= start + len(named)
    assert all(slot < first_open for slot in named[: position - start])
    assert runs.position(3001) == start + len(named)


@pytest.mark.parametrize("count", [100_000])
def test_op_runs_are_bounded(monkeypatch, count):
    """With one old transaction open, their number does not grow with the number of ends."""
    monkeypatch.setattr(transactions_progress, "RUNS_MAX", 64)
    runs, chance = OpRuns(0), random.Random(1)
    for number in range(count):
        runs.add(number, number + 1)
        if chance.random() < 0.1:
            assert runs.position(1) == 0
    assert len(runs._runs) <= 66
    assert runs.position(count + 1) == count
