"""Time that a wall clock which jumps does not make pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.clock import CONFIRMED_SECONDS, FakeClock, SteadyTime

YEAR = 365 * 86_400
STEP = 3.0


def test_steady_time_is_the_wall_clock_while_that_keeps_pace():
    clock = FakeClock()
    steady = SteadyTime(clock)
    for seconds in (0.0, 0.001, 5.0, 86_400.0, 10 * YEAR):
        clock.advance(seconds)
        assert steady.now_ms() == clock.now_ms()


def test_a_jump_ahead_is_believed_after_a_day_and_until_then_by_half_of_the_time_that_passes():
    clock = FakeClock()
    steady, start = SteadyTime(clock), clock.now_ms()
    clock.set_wall(start + YEAR * 1000)
    assert steady.now_ms() == start
    for passed in range(1, 1000):
        clock.advance(STEP)
        assert steady.now_ms() == start + passed * STEP * 1500
    clock.advance(CONFIRMED_SECONDS - 1000 * STEP)
    assert steady.now_ms() < clock.now_ms()
    clock.advance(STEP)
    assert steady.now_ms() == clock.now_ms()


def test_a_jump_ahead_that_is_taken_back_leaves_nothing():
    clock = FakeClock()
    steady, start = SteadyTime(clock), clock.now_ms()
    clock.set_wall(start + YEAR * 1000)
    clock.advance(2)
    steady.now_ms()
    clock.set_wall(start + 2000)
    assert steady.now_ms() == start + 2000


def test_a_clock_that_is_set_back_is_followed_at_once():
    clock = FakeClock()
    steady, start = SteadyTime(clock), clock.now_ms()
    clock.set_wall(start - YEAR * 1000)
    assert steady.now_ms() == start - YEAR * 1000


@given(st.lists(st.tuples(st.floats(0, 3600), st.integers(-YEAR, YEAR)), max_size=30))
def test_steady_time_is_never_ahead_of_the_clock_nor_faster_than_its_gain(steps):
    clock = FakeClock()
    steady = SteadyTime(clock)
    before = steady.now_ms()
    for seconds, jump in steps:
        clock.advance(seconds)
        clock.set_wall(clock.now_ms() + jump * 1000)
        now = steady.now_ms()
        assert now <= clock.now_ms()
        assert now <= before + 1500 * seconds + 1 or clock.monotonic() >= CONFIRMED_SECONDS
        before = now
