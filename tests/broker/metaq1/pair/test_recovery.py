"""Where consumers go on at the slave that has become master."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.metaq1.pair.recovery import Mark, Search, moved
from metaq.model.metaq1.pair import NO_ID
from metaq.model.metaq1.partition import foreign_id

FOREIGN = foreign_id(7, 100)


def search(wanted: list[int], messages: list[tuple[int, int]]) -> Search:
    """Messages are (id, position behind it), the oldest first."""
    found = Search(Mark(one, 0) for one in wanted)
    for message_id, behind in reversed(messages):
        found.look(message_id, behind)
    return found


def test_a_message_that_is_here_is_found_at_its_place() -> None:
    messages = [(10, 25), (FOREIGN, 50), (-7, 75), (20, 100)]
    found = search([10, FOREIGN, -7, 20], messages).found
    assert {key: mark.position for key, mark in found.items()} == {10: 25, FOREIGN: 50, -7: 75, 20: 100}


def test_of_a_message_that_is_not_here_the_newest_one_before_it_counts() -> None:
    assert search([15], [(10, 25), (20, 50)]).found == {15: Mark(10, 25)}


def test_a_message_of_another_protocol_stands_for_no_other() -> None:
    assert search([FOREIGN], [(10, 25), (20, 50)]).found == {}


def test_an_empty_partition_is_begun_anew_in_the_original_s_words() -> None:
    assert moved(Mark(10, 500), Search(()), 0, 0) == Mark(-1, 0)


def test_a_message_older_than_all_that_is_here_moves_to_the_begin() -> None:
    assert moved(Mark(5, 500), search([5], [(10, 125)]), 100, 125) == Mark(NO_ID, 100)


def test_an_id_without_time_that_is_not_here_stays_as_in_the_original() -> None:
    assert moved(Mark(-55, 500), search([-55], [(10, 25)]), 0, 25) is None


def test_who_has_consumed_nothing_stays() -> None:
    assert moved(Mark(NO_ID, 500), Search(()), 0, 0) is None


@given(st.lists(st.integers(1, 60), unique=True).map(sorted), st.integers(1, 60))
def test_nothing_is_passed_over(ids: list[int], wanted: int) -> None:
    """Whatever is missing here: a consumer never goes on behind a message that was put after the one it has consumed last."""
    messages = [(message_id, 25 * number) for number, message_id in enumerate(ids, 1)]
    there = moved(Mark(wanted, 10_000), search([wanted], messages), 0, 25 * len(ids))
    assert there is not None
    later = [25 * number for number, message_id in enumerate(ids, 1) if message_id > wanted]
    assert not later or there.position < later[0]
    # And it does not begin anew where it need not.
    before = [25 * number for number, message_id in enumerate(ids, 1) if message_id <= wanted]
    assert there.position == (before[-1] if before else 0)
