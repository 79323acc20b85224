"""A lapse of a leader is waited out for a moment, and then told."""

from __future__ import annotations

import pytest

from metaq.broker.failover.lapse import HOLD_SECONDS, Lapse
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lapse(clock) -> Lapse:
    return Lapse(clock)


def test_requests_go_on_when_it_is_over(lapse, clock):
    first, second = lapse.wait(), lapse.wait()
    clock.advance(HOLD_SECONDS / 2)
    lapse.look("ZooKeeper does not answer")
    assert (first is second, first.done) == (True, False)
    lapse.look("")
    first.settle()
    clock.advance(HOLD_SECONDS)
    assert lapse.wait() is not None  # another one


def test_one_that_lasts_is_told_and_nobody_waits_any_more(lapse, clock):
    waiting = lapse.wait()
    clock.advance(HOLD_SECONDS)
    lapse.look("ZooKeeper does not answer")
    with pytest.raises(Refused, match="ZooKeeper does not answer") as caught:
        waiting.settle()
    assert caught.value.reason is Reason.NOT_LEADING
    assert lapse.wait() is None
    lapse.look("")
    assert lapse.wait() is not None


def test_without_a_lapse_nothing_is_told(lapse, clock):
    lapse.look("")
    clock.advance(HOLD_SECONDS)
    lapse.look("nobody has asked for anything")
    assert lapse.wait() is not None
