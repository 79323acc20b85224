"""Where a moment lies in a queue: against the obvious search, whatever has left the queue meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.reading.time_search import TimeSearch

TIMES = st.lists(st.integers(0, 40), max_size=60).map(sorted)


def run(times: list[int], first: int, moment: int, gaps: set[int] = frozenset(), leaving: list[int] = ()) -> int:
    """Search a queue whose offsets begin at `first`. `leaving`: how many of the oldest leave before each look."""
    begin, end, leaving = first, first + len(times), list(leaving)
    search = TimeSearch(begin, end, moment)
    looks = 0
    while (probe := search.probe) is not None:
        looks += 1
        begin = min(end, begin + (leaving.pop(0) if leaving else 0))
        if probe < begin:
            search.gone(begin, begin)
        elif probe in gaps:
            search.gone(begin, probe + 1)
        else:
            search.stored(probe, times[probe - first])
    assert looks <= 8 + 8 * len(gaps)
    return search.low


@given(TIMES, st.integers(0, 1000), st.integers(-5, 45))
def test_it_finds_the_first_message_stored_then_or_later_or_the_end(times, first, moment):
    """Also with many messages in one millisecond, before the first and behind the last."""
    expected = next((i for i, at in enumerate(times) if at >= moment), len(times))
    assert run(times, first, moment) == first + expected


@given(TIMES, st.sets(st.integers(0, 60)), st.integers(-5, 45))
def test_a_message_that_cannot_be_read_is_no_hole_in_the_search(times, gaps, moment):
    """From the answer on, the first message that is there is the first one stored then or later."""
    there = [i for i in range(len(times)) if i not in gaps]
    expected = [i for i in there if times[i] >= moment]
    assert [i for i in there if i >= run(times, 0, moment, gaps)] == expected


@given(TIMES, st.integers(-5, 45), st.lists(st.integers(0, 20), max_size=8))
def test_messages_that_leave_while_it_is_searched_do_not_mislead_it(times, moment, leaving):
    """What is still there and young enough lies at the answer or behind it; what is too old, before it."""
    found = run(times, 0, moment, leaving=leaving)
    begin = min(len(times), sum(leaving))
    assert all(found <= i for i in range(begin, len(times)) if times[i] >= moment)
    assert all(times[i] >= moment for i in range(found, len(times)))
