"""When the name servers are asked for the leader of a broker."""

from __future__ import annotations

import itertools

from metaq.client.conversation.leaders import DOUBT_SECONDS, LeaderSearch


def asked(search: LeaderSearch, now: float, until: float, *, is_led: bool) -> list[float]:
    """When it asks, from `now` on."""
    times = []
    while now < until and (pause := search.pause(now, is_led=is_led)) is not None:
        now += pause
        times.append(now)
    return times


def test_it_asks_at_once_and_not_more_than_ten_times_a_second():
    times = asked(LeaderSearch(100.0), 100.0, 103.0, is_led=False)
    assert times[0] == 100.0
    assert min(later - before for before, later in itertools.pairwise(times)) >= 0.0999
    assert len([at for at in times if at < 101.0]) <= 11


def test_it_goes_on_while_nobody_leads_within_a_second_and_slower_with_the_time():
    search = LeaderSearch(0.0)
    times = asked(search, 0.0, 3600.0, is_led=False)
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert max(gap for gap, at in zip(gaps, times, strict=False) if at < 100.0) <= 0.5
    assert max(gaps) < 2.1
    assert len(times) < 2200


def test_it_ends_some_seconds_after_the_last_failure_if_somebody_leads():
    search = LeaderSearch(0.0)
    times = asked(search, 0.0, 100.0, is_led=True)
    assert DOUBT_SECONDS - 0.3 < times[-1] < DOUBT_SECONDS + 0.3
    search.doubt(10.0)
    assert search.pause(10.0, is_led=True) is not None
    assert search.pause(10.0 + DOUBT_SECONDS, is_led=True) is None
