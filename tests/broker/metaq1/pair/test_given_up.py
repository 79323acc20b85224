"""What is remembered of messages that the slave did not take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.metaq1.pair.given_up import KEPT_SECONDS, TAKEN_MAX, Outcomes


def test_a_record_is_lacking_in_the_ranges_that_hold_it() -> None:
    outcomes = Outcomes()
    outcomes.gave_up(100, "test", 7, 0.0)
    assert outcomes.lacks(100, 101)
    assert outcomes.lacks(0, 200)
    assert not outcomes.lacks(0, 100)
    assert not outcomes.lacks(101, 200)
    assert outcomes.topic_of(7) == "test"


def test_what_is_old_is_forgotten() -> None:
    outcomes = Outcomes()
    outcomes.gave_up(100, "test", 7, 0.0)
    outcomes.gave_up(200, "test", None, 1.0)
    outcomes.forget_old(KEPT_SECONDS + 0.5)
    assert not outcomes.lacks(0, 150)
    assert outcomes.topic_of(7) is None
    assert outcomes.lacks(150, 250)


def test_only_so_many_messages_are_known_to_be_taken() -> None:
    outcomes = Outcomes()
    for message_id in range(TAKEN_MAX + 1):
        outcomes.taken(message_id)
    assert not outcomes.has(0)
    assert outcomes.has(TAKEN_MAX)


@given(st.lists(st.integers(0, 50)), st.integers(0, 50), st.integers(0, 50))
def test_ranges_are_looked_up_as_if_one_by_one(places: list[int], begin: int, end: int) -> None:
    outcomes = Outcomes()
    for place in places:
        outcomes.gave_up(place, "t", None, 0.0)
    assert outcomes.lacks(begin, end) == any(begin <= place < end for place in places)
