"""Decisions about quotas: never more than the bound, fair among connections, and nobody starves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.quota.meter import BURST_SECONDS, SLICE_SECONDS, Meter, QuotaVerdict, judge
from metaq.model.quota import QuotaKind, QuotaLimits

WAIT_MAX = 2.0
SUBJECT = (QuotaKind.ADDRESS, "10.0.0.1")


def meter(**limits: int) -> Meter:
    return Meter(SUBJECT, QuotaLimits(**limits), 0.0)


def asked(meters: Sequence[Meter], now: float, sizes: Sequence[int]) -> QuotaVerdict:
    return judge(meters, now, len(sizes), sum(sizes), sizes.__getitem__, WAIT_MAX)


EVENTS = st.lists(st.tuples(st.floats(0, 3), st.lists(st.integers(1, 5000), min_size=1, max_size=40)), max_size=60)


@given(EVENTS, st.integers(1, 200), st.integers(1, 20_000))
def test_no_time_sees_more_than_the_bound_whatever_is_asked(
    events: list[tuple[float, list[int]]], requests: int, size: int
) -> None:
    """Also of connections that do not wait: what they are told is not relied on."""
    one, now, taken = meter(requests_per_second=requests, bytes_in_per_second=size), 0.0, list[tuple[float, int, int]]()
    for pause, sizes in events:
        now += pause
        rows = asked([one], now, sizes).rows
        taken.append((now, rows, sum(sizes[:rows])))
    for first, (began, _, _) in enumerate(taken):
        seconds = now - began + BURST_SECONDS + WAIT_MAX
        later = taken[first:]
        assert sum(rows for _, rows, _ in later) <= requests * seconds + 1 + 1e-6
        assert sum(bytes_in for _, _, bytes_in in later) <= size * seconds + 5000 + 1e-6


@given(EVENTS, st.integers(1, 200))
def test_a_connection_that_waits_as_told_is_never_refused(events: list[tuple[float, list[int]]], requests: int) -> None:
    one, now = meter(requests_per_second=requests), 0.0
    for pause, sizes in events:
        verdict = asked([one], now + pause, sizes)
        assert verdict.rows >= 1
        now += pause + verdict.wait


@given(st.lists(st.integers(1, 400), min_size=2, max_size=8), st.integers(20, 500))
def test_connections_of_one_subject_that_always_ask_get_the_same_however_much_they_ask(
    greed: list[int], requests: int
) -> None:
    """A simulation of connections that wait as they are told, and ask again at once."""
    one, seconds = meter(requests_per_second=requests), 65.0
    next_at, got, waits = [0.0] * len(greed), [0] * len(greed), [False] * len(greed)
    while (now := min(next_at)) < seconds:
        who = next_at.index(now)
        one.waiting -= waits[who]
        verdict = asked([one], now, [1] * greed[who])
        waits[who] = bool(verdict.wait)
        one.waiting += waits[who]
        next_at[who] = now + max(verdict.wait, 0.001)
        if now > 5:  # behind the burst
            got[who] += verdict.rows
    # A connection that asks for one at a time gets that in each turn: what it does not use is for the others.
    fair = min(requests / len(greed), min(greed) / SLICE_SECONDS / 2) * 60
    assert min(got) >= 0.4 * fair
    assert sum(got) >= 0.9 * requests * 60, "and nothing is lost"
    assert sum(got) <= requests * (60 + BURST_SECONDS + WAIT_MAX)


def test_another_subject_has_buckets_of_its_own() -> None:
    greedy, other = meter(requests_per_second=10), meter(requests_per_second=10)
    while asked([greedy], 0.0, [1]).rows:
        pass
    assert asked([other], 0.0, [1]) == QuotaVerdict(1, 0.0, None)


def test_a_request_waits_for_the_slowest_of_its_meters_and_is_charged_to_all() -> None:
    account, address = meter(requests_per_second=1000), meter(requests_per_second=4)
    verdict = asked([account, address], 0.0, [1] * 4)
    assert verdict == QuotaVerdict(4, 0.0, None)
    verdict = asked([account, address], 0.0, [1])
    assert (verdict.rows, verdict.wait, verdict.meter) == (1, 0.25, address)
    assert account.requests == address.requests == 5


def test_a_request_larger_than_a_second_of_the_rate_is_taken_and_paid_for() -> None:
    one = meter(bytes_in_per_second=1000)
    assert asked([one], 0.0, [10_000]) == QuotaVerdict(1, WAIT_MAX, one)
    assert asked([one], 6.9, [1]).rows == 0, "above the bound: it is not paid for yet"
    assert asked([one], 8.0, [1]).rows == 1


def test_what_is_refused_is_not_charged() -> None:
    one = meter(requests_per_second=1)
    while asked([one], 0.0, [1]).rows:
        pass
    owed = one.wait(0.0)
    for _ in range(100):
        assert asked([one], 0.0, [1]).rows == 0
    assert one.wait(0.0) == owed
    assert one.refused == 101


def test_answers_count_against_the_next_requests() -> None:
    one = meter(bytes_out_per_second=1000)
    assert asked([one], 0.0, [1]).wait == 0
    one.wrote(2000, 0.0)
    assert one.wait(0.0) == pytest.approx(1.0)
    assert asked([one], 0.5, [1]).wait == pytest.approx(0.5)


def test_a_new_limit_keeps_what_is_owed_in_seconds() -> None:
    one = meter(requests_per_second=10)
    for _ in range(15):
        asked([one], 0.0, [1])
    assert one.wait(0.0) == pytest.approx(0.5)
    one.limit(QuotaLimits(requests_per_second=1000), 0.0)
    assert one.wait(0.0) == pytest.approx(0.5)
    one.limit(QuotaLimits(), 0.0)
    assert one.wait(0.0) == 0
