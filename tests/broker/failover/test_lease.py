"""The lease of a leader, against a ZooKeeper whose leader hears of sessions as late as it may."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metaq.broker.failover.lease import APART, BEFORE, LEASE_SHARE, RENEWALS, Lease
from metaq.clock import FakeClock

TIMEOUT = 12.0
"""s: parts of it are whole numbers."""


def steady(clock: FakeClock, lease: Lease, count: int, timeout: float = TIMEOUT) -> float:
    """Renew so often, a sixth apart. Returns when the last one was sent."""
    for _ in range(count - 1):
        lease.renewed(clock.elapsed(), timeout)
        clock.advance(timeout / RENEWALS)
    lease.renewed(clock.elapsed(), timeout)
    return clock.elapsed()


def test_without_a_renewal_there_is_no_lease():
    lease = Lease(FakeClock())
    assert not lease.valid
    assert lease.seconds == 0.0


def test_a_lease_that_is_renewed_each_sixth_holds_for_half_of_the_time_out():
    clock = FakeClock()
    lease = Lease(clock)
    steady(clock, lease, 6)
    assert lease.seconds == pytest.approx(TIMEOUT * LEASE_SHARE)
    clock.advance(TIMEOUT * LEASE_SHARE - 0.01)
    assert lease.valid
    clock.advance(0.02)
    assert not lease.valid
    assert lease.seconds == 0.0


def test_it_counts_from_when_the_renewal_was_sent():
    clock = FakeClock()
    lease = Lease(clock)
    sent = steady(clock, lease, 6) + TIMEOUT / RENEWALS
    clock.advance(TIMEOUT / 2)
    lease.renewed(sent, TIMEOUT)
    assert lease.seconds == pytest.approx(TIMEOUT / RENEWALS)


def test_the_first_renewals_leave_no_gap():
    """A new leader acknowledges from its first renewal on, and does not come to doubt before the second or third."""
    clock = FakeClock()
    lease = Lease(clock)
    for _ in range(8):
        lease.renewed(clock.elapsed(), TIMEOUT)
        assert lease.seconds > TIMEOUT / RENEWALS
        clock.advance(TIMEOUT / RENEWALS)


def test_behind_a_gap_one_renewal_is_not_enough():
    """ZooKeeper's leader may have heard of nothing since before the gap, and end the session at any moment."""
    clock = FakeClock()
    lease = Lease(clock)
    steady(clock, lease, 6)
    clock.advance(TIMEOUT * 0.95)  # SIGSTOP
    assert not lease.valid
    lease.renewed(clock.elapsed(), TIMEOUT)
    assert not lease.valid
    clock.advance(TIMEOUT / RENEWALS)
    lease.renewed(clock.elapsed(), TIMEOUT)
    assert not lease.valid
    clock.advance(TIMEOUT / RENEWALS)
    lease.renewed(clock.elapsed(), TIMEOUT)
    assert lease.valid


def test_an_older_answer_does_not_count_behind_a_newer_one():
    clock = FakeClock()
    lease = Lease(clock)
    sent = steady(clock, lease, 6)
    before = lease.seconds
    lease.renewed(sent - 1, 10 * TIMEOUT)
    assert lease.seconds == before


def test_what_an_earlier_session_was_promised_is_over():
    """Its time-out was longer, say."""
    clock = FakeClock()
    lease = Lease(clock)
    steady(clock, lease, 6, 100 * TIMEOUT)
    lease.lose()
    assert not lease.valid
    clock.advance(1)
    lease.renewed(clock.elapsed(), TIMEOUT)
    assert 0 < lease.seconds <= TIMEOUT * LEASE_SHARE


def test_a_shorter_time_out_counts_at_once():
    """The session has moved to a server that allows less."""
    clock = FakeClock()
    lease = Lease(clock)
    steady(clock, lease, 6, 100 * TIMEOUT)
    clock.advance(1)
    lease.renewed(clock.elapsed(), TIMEOUT)
    assert lease.seconds <= TIMEOUT * LEASE_SHARE


def end_of_session(renewals: list[float], timeout: float, tick: float, phase: float) -> float:
    """When ZooKeeper ends a session of which it hears no more right behind the last of these.

    Its server tells the leader twice a tick whether it has heard of the session since it told last.
    """
    heard, at, last = renewals[0], renewals[0] + phase, renewals[0]
    while at < renewals[-1]:
        if any(last < one <= at for one in renewals):
            heard = at
        last, at = at, at + tick / 2
    return heard + timeout


@given(
    st.lists(st.floats(0.01, 1.5), min_size=1, max_size=12),
    st.floats(0.05, 0.5),
    st.floats(0.001, 1),
)
def test_the_lease_ends_before_the_session_does(gaps, tick, phase):
    """Whenever renewals were sent, and whenever servers tell of them."""
    clock = FakeClock()
    start = clock.elapsed()
    lease, renewals = Lease(clock), [start - BEFORE, start]
    lease.renewed(start, 1.0)
    for gap in gaps:
        clock.advance(gap)
        renewals.append(clock.elapsed())
        assume(end_of_session(renewals, 1.0, tick, phase * tick / 2) > clock.elapsed())
        lease.renewed(clock.elapsed(), 1.0)
        if lease.valid:
            end = end_of_session(renewals, 1.0, tick, phase * tick / 2)
            assert clock.elapsed() + lease.seconds <= end - APART + 1e-9
