"""Rates of a running consumer, with a clock of the test's own."""

from __future__ import annotations

from metaq.client.consumer.telling.rates import HOUR_SECONDS, SAMPLE_SECONDS, TIMED_MAX, Rates
from metaq.model.inspection import MemberRates


class Seconds:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_topic_of_which_nothing_came():
    assert Rates(Seconds()).of(["t"], {}) == {"t": MemberRates()}


def test_what_is_finished_was_consumed():
    """Pulled, less what is unfinished, given back, or gone to another member."""
    clock = Seconds()
    rates = Rates(clock)
    rates.pulled("t", 0.25, 60)
    rates.pulled("t", 0.75, 40)
    rates.failed("t", given_back=True)
    rates.failed("t", given_back=False)
    rates.gone("t", 9)
    rates.timed("t", 0.002)
    rates.timed("t", 0.004)
    clock.now += 10
    assert rates.of(["t"], {"t": 30})["t"] == MemberRates(
        pull_ms=500.0, pulled=10.0, consume_ms=3.0, consumed=6.0, failed=0.2, failed_messages=2
    )


def test_only_the_last_minute_counts():
    """And the last hour for failed messages."""
    clock = Seconds()
    rates = Rates(clock)
    rates.sample({})
    rates.pulled("t", 1.0, 600)
    rates.failed("t", given_back=True)
    for _ in range(int(50 / SAMPLE_SECONDS)):
        clock.now += SAMPLE_SECONDS
        rates.sample({})
    assert rates.of(["t"], {})["t"].pulled == 12.0
    for _ in range(3):
        clock.now += SAMPLE_SECONDS
        rates.sample({})
    assert rates.of(["t"], {})["t"] == MemberRates(failed_messages=1)
    for _ in range(int(HOUR_SECONDS / SAMPLE_SECONDS) + 6):
        clock.now += SAMPLE_SECONDS
        rates.sample({})
    assert rates.of(["t"], {})["t"] == MemberRates()


def test_samples_are_bounded():
    """Whatever comes between two looks, and however long the member lives."""
    clock = Seconds()
    rates = Rates(clock)
    for _ in range(TIMED_MAX + 5):
        rates.timed("t", 1.0)
    assert len(rates._timed) == TIMED_MAX
    for _ in range(2000):
        clock.now += SAMPLE_SECONDS
        rates.sample({})
    assert len(rates._minute) <= 8
    assert len(rates._hour) <= 63
