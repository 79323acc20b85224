"""Counts of a key, and their windows."""

from __future__ import annotations

import logging

import pytest

from metaq.broker.statistics.counts import DAY, WINDOWS, KeyedCounts, SampledCounts
from metaq.clock import FakeClock
from metaq.log import RateLimitedLog
from metaq.model.statistics import StatisticFigures, WindowFigures

MINUTE = 0


def keyed(keys_max: int) -> KeyedCounts[str]:
    return KeyedCounts("topics", RateLimitedLog(logging.getLogger("metaq.broker.stats"), FakeClock()), keys_max)


def test_nothing_is_known_before_the_first_sample():
    """As in RocketMQ: the figures are those of samples."""
    counts = SampledCounts()
    counts.add(1, 5, 50)
    assert counts.of_messages() == counts.of_bytes() == StatisticFigures()


def test_the_first_sample_counts_from_an_interval_before_it():
    """So ten seconds of a minute are known at once; the longer windows have nothing yet."""
    counts = SampledCounts()
    counts.add(2, 10, 500)
    counts.sample(MINUTE, 100_000)
    assert counts.of_messages() == StatisticFigures(minute=WindowFigures(10, 1.0, 5.0))
    assert counts.of_bytes().minute == WindowFigures(500, 50.0, 250.0)


def test_a_window_moves_on():
    """A minute has seven samples: what came in the ten seconds before the oldest is gone."""
    counts = SampledCounts()
    counts.add(1, 100, 0)
    for at in range(7):
        counts.sample(MINUTE, 10_000 * at)
    assert counts.of_messages().minute == WindowFigures(0, 0.0, 0.0)
    counts.add(3, 30, 0)
    counts.sample(MINUTE, 70_000)
    assert counts.of_messages().minute == WindowFigures(30, 0.5, 10.0)


@pytest.mark.parametrize(("window", "seconds"), [(0, 60), (1, 3600), (2, 86_400)])
def test_windows_are_a_minute_an_hour_and_a_day(window, seconds):
    """One message in each interval: as many as fit."""
    counts = SampledCounts()
    every = WINDOWS[window].every_ms
    for number in range(100):
        counts.add(1, 1, 0)
        counts.sample(window, number * every)
    figures = counts.of_messages()[window]
    assert figures.total == seconds * 1000 // every
    assert figures.per_second == pytest.approx(1000 / every)
    assert figures.per_call == 1.0


def test_what_is_not_counted_for_a_day_is_idle():
    """With every sample that a day has, and no sooner."""
    counts = SampledCounts()
    counts.add(1, 1, 1)
    idle = []
    for hour in range(30):
        counts.sample(DAY, hour * 3_600_000)
        idle.append(counts.is_idle)
    assert idle == [False] * 24 + [True] * 6
    counts.add(1, 1, 1)
    assert not counts.is_idle


def test_keys_have_an_end(caplog):
    """Those that are there go on; the log names what is not counted."""
    counts = keyed(2)
    for topic in ("a", "b", "c", "a"):
        counts.add(topic, 1, 2, 3)
    assert {key: (one.calls, one.messages, one.size) for key, one in counts.table.items()} == {
        "a": (2, 4, 6),
        "b": (1, 2, 3),
    }
    assert "no statistics of c: there are 2 topics already" in caplog.text
    counts.drop(lambda topic: topic == "a")
    counts.add("c", 1, 2, 3)
    assert list(counts.table) == ["b", "c"]
