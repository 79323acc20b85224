"""Ids that are given once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.metaq1.ids import RUN_MAX, MessageIds
from metaq.clock import FakeClock
from metaq.model.metaq1.partition import ID_EPOCH_MS, born_id, foreign_id

NOW = 1_700_000_000_000


def log(store_ms: int = 0) -> SimpleNamespace:
    """The end of a log whose newest record was stored then."""
    return SimpleNamespace(store_ms=store_ms)


def test_an_id_says_time_broker_and_number() -> None:
    ids = MessageIds(FakeClock(NOW), 1023, log())
    first = ids.take()
    assert first == (NOW - ID_EPOCH_MS) << 22 | 1023 << 12
    assert ids.take() == first + 1
    assert 0 < first < 1 << 62


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, RUN_MAX)), max_size=40))
def test_ids_ascend_whatever_the_clock_does_and_however_many_are_taken(steps: list[tuple[int, int]]) -> None:
    clock = FakeClock(NOW)
    ids, last = MessageIds(clock, 5, log()), 0
    for step, count in steps:
        clock.set_wall(clock.now_ms() + step)
        first = ids.take(count)
        assert first > last
        last = first + count - 1
        assert last >> 12 & 1023 == 5, "a run stays within its broker"


def test_a_broker_whose_clock_was_set_back_over_a_restart_gives_no_id_again() -> None:
    """Nor if it was set back before, and ids ran ahead of it: the log's time follows them."""
    clock = FakeClock(NOW)
    first = MessageIds(clock, 5, log()).take()
    clock.set_wall(NOW - 60_000)
    tail = log(NOW)
    ids = MessageIds(clock, 5, tail)
    assert ids.take() > first + RUN_MAX - 1
    last = [ids.take(RUN_MAX) for _ in range(10)][-1] + RUN_MAX - 1
    assert MessageIds(clock, 5, log(tail.store_ms)).take() > last


def test_ids_that_were_taken_and_not_given_are_taken_again() -> None:
    """So that a run of few does not use up a millisecond's."""
    ids = MessageIds(FakeClock(NOW), 5, log())
    first = ids.take(100)
    ids.give_back(90)
    assert ids.take() == first + 10


@pytest.mark.parametrize("broker_id", [0, 1, 1023])
def test_ids_of_other_servers_messages_are_never_those_of_puts(broker_id: int) -> None:
    """Positive, and apart for each broker and place of the log."""
    assert foreign_id(broker_id, 0) > born_id(ID_EPOCH_MS + (1 << 40) - 1, 1023, 4095)
    last = foreign_id(broker_id, (1 << 52) - 1)
    assert last < (foreign_id(broker_id + 1, 0) if broker_id < 1023 else 1 << 63)
