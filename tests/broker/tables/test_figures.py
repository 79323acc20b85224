"""Quotas and rates: the broker's arithmetic over time."""

from __future__ import annotations

import pytest

from metaq.broker.allowance import Quota
from metaq.broker.stats import Stats
from metaq.clock import FakeClock


def test_a_quota_refills_evenly():
    """A minute's allowance may be used at once and comes back over a minute."""
    clock = FakeClock()
    quota = Quota(clock, lambda: (1000, 60))
    assert [quota.take(0) for _ in range(60)] == [""] * 60
    assert "60 a minute" in quota.take(0)
    clock.advance(2)
    assert [bool(quota.take(0)) for _ in range(3)] == [False, False, True]
    clock.advance(3600)
    assert sum(not quota.take(0) for _ in range(100)) == 60


def test_a_quota_has_a_ceiling():
    """Whoever made them: at the total nothing more is granted."""
    assert "limit of 5" in Quota(FakeClock(), lambda: (5, 100)).take(5)


def test_rates_over_three_windows():
    """100 messages a second for 20 s, then silence: the windows forget at their own pace."""
    clock = FakeClock()
    stats = Stats(clock)
    for _ in range(20):
        stats.grew((), 100, 1, 0, 1)
        clock.advance(1)
        stats.tick()
    assert stats.rates("puts") == pytest.approx((100, 100, 100))
    for _ in range(20):
        clock.advance(1)
        stats.tick()
    ten_seconds, minute, _ = stats.rates("puts")
    assert (ten_seconds, minute) == pytest.approx((0, 50))


def test_a_pull_without_messages_is_a_miss():
    """Hits and misses are counted apart."""
    stats = Stats(FakeClock())
    stats.got(32, 3200)
    stats.got(0, 0)
    assert (stats.get_hits, stats.get_misses, stats.got_messages, stats.got_bytes) == (1, 1, 32, 3200)
