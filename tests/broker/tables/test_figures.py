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
    assert [quota.take("T", 0) for _ in range(60)] == [""] * 60
    assert "60 a minute" in quota.take("T", 0)
    clock.advance(2)
    assert [bool(quota.take("T", 0)) for _ in range(3)] == [False, False, True]
    clock.advance(3600)
    assert sum(not quota.take("T", 0) for _ in range(100)) == 60


def test_a_quota_has_a_ceiling():
    """Whoever made them: at the total nothing more is granted."""
    assert "limit of 5" in Quota(FakeClock(), lambda: (5, 100)).take("T", 5)


def test_one_client_makes_a_quarter_of_all():
    """What was deleted, or could not be saved, counts no more; the broker itself has no share."""
    quota = Quota(FakeClock(), lambda: (1000, 100_000))
    assert [quota.take(f"a{number}", number, "10.0.0.1") for number in range(250)] == [""] * 250
    assert "10.0.0.1 has made 250, its share of the limit of 1000" in quota.take("b", 250, "10.0.0.1")
    assert [quota.take("c", 250, "10.0.0.2"), quota.take("d", 251)] == ["", ""]
    quota.gone("a7")
    quota.gone("d")
    quota.give_back("a8")
    assert [bool(quota.take(f"e{number}", 250, "10.0.0.1")) for number in range(3)] == [False, False, True]


def test_one_client_leaves_others_a_quarter_of_what_may_be_made_in_a_minute():
    """Alone, it gets the other three; the others always find theirs."""
    clock = FakeClock()
    quota = Quota(clock, lambda: (100_000, 60))
    made = [quota.take(f"a{number}", 0, "10.0.0.1") for number in range(60)]
    assert made[:45] == [""] * 45
    assert "has had its share of the limit of 60 a minute" in made[45]
    assert [quota.take(f"b{number}", 0, "10.0.0.2") for number in range(15)] == [""] * 15
    clock.advance(60)
    assert not quota.take("c", 0, "10.0.0.1")


def test_small_limits_are_not_shared():
    """A quarter of little is nothing."""
    quota = Quota(FakeClock(), lambda: (3, 3))
    assert [bool(quota.take(f"a{number}", number, "10.0.0.1")) for number in range(4)] == [False, False, False, True]


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
    stats.got("G", "T", 1, 32, 3200)
    stats.missed()
    assert (stats.get_hits, stats.get_misses, stats.got_messages, stats.got_bytes) == (1, 1, 32, 3200)


def test_midnights_of_a_clock_on_the_wall():
    """What was counted up to the last midnight, and up to the one before; local time."""
    clock = FakeClock()
    stats = Stats(clock)

    def day() -> None:
        clock.advance(86_400)
        stats.tick()

    assert (stats.put_mornings, stats.got_mornings) == ((0, 0), (0, 0))
    stats.grew((), 5, 1, 0, 1)
    stats.got("G", "T", 1, 3, 30)
    clock.advance(1)
    stats.tick()
    assert stats.put_mornings == (0, 0)
    day()
    assert (stats.put_mornings, stats.got_mornings) == ((0, 5), (0, 3))
    stats.grew((), 2, 1, 0, 1)
    assert stats.put_mornings == (0, 5)
    day()
    day()
    assert (stats.put_mornings, stats.got_mornings) == ((7, 7), (3, 3))
