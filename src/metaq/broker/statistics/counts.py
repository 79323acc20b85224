"""Counts of one key, and of all keys of one kind, with the samples that make windows of a minute, an hour and a day."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from metaq.log import RateLimitedLog
from metaq.model.statistics import StatisticFigures, WindowFigures

log = logging.getLogger(__name__)

KEYS_MAX: Final = 20_000
"""Keys of one kind: some 35 MB where all of them are counted for a day. Others are not counted while these are there."""


class Window(NamedTuple):
    """A window: it has a sample each `every_ms`, and `samples` of them at most."""

    every_ms: int
    samples: int


WINDOWS: Final = (Window(10_000, 7), Window(600_000, 7), Window(3_600_000, 25))
"""Minute, hour and day. RocketMQ has the same."""
DAY: Final = 2
_FIELDS: Final = 4
"""Numbers of a sample: monotonic ms, calls, messages, bytes."""

K = TypeVar("K", bound=Hashable)


class SampledCounts:
    """Counts since the key was first counted, and samples of them.

    A counter is added to by whoever knows: `calls` of puts or pulls, their `messages` and `size`, bytes.
    """

    __slots__ = ("_samples", "calls", "messages", "size")

    def __init__(self) -> None:
        self.calls = self.messages = self.size = 0
        # Arrays: as tuples, the samples of ten thousand topics would take ten times the memory.
        self._samples = tuple(array("q") for _ in WINDOWS)

    def add(self, calls: int, messages: int, size: int) -> None:
        self.calls += calls
        self.messages += messages
        self.size += size

    def sample(self, window: int, now_ms: int) -> None:
        """Take a sample for the window of this number. The first one counts from an interval before it, as in RocketMQ."""
        samples, (every_ms, most) = self._samples[window], WINDOWS[window]
        if not samples:
            samples.extend((now_ms - every_ms, 0, 0, 0))
        samples.extend((now_ms, self.calls, self.messages, self.size))
        if len(samples) > most * _FIELDS:
            del samples[:_FIELDS]

    @property
    def is_idle(self) -> bool:
        """Whether a whole day's window has nothing of it."""
        samples = self._samples[DAY]
        return len(samples) == WINDOWS[DAY].samples * _FIELDS and samples[2] == samples[-2] == self.messages

    def of_messages(self) -> StatisticFigures:
        """Return the figures of messages."""
        return self._figures(2)

    def of_bytes(self) -> StatisticFigures:
        """Return the figures of bytes."""
        return self._figures(3)

    def _figures(self, field: int) -> StatisticFigures:
        return StatisticFigures(*(_between(samples, field) for samples in self._samples))


def _between(samples: array[int], field: int) -> WindowFigures:
    if not samples:
        return WindowFigures()
    last = len(samples) - _FIELDS
    total, calls = samples[last + field] - samples[field], samples[last + 1] - samples[1]
    passed_ms = samples[last] - samples[0]
    return WindowFigures(
        total, total * 1000.0 / passed_ms if passed_ms > 0 else 0.0, total / calls if calls > 0 else 0.0
    )


class KeyedCounts(Generic[K]):
    """Counts by key.

    Args:
        what: names the keys in the log.
        keys_max: most keys; further ones are not counted, and the log says so.
    """

    def __init__(self, what: str, warnings: RateLimitedLog, keys_max: int = KEYS_MAX) -> None:
        self.table: dict[K, SampledCounts] = {}
        self._what, self._warnings, self._keys_max = what, warnings, keys_max

    def add(self, key: K, calls: int, messages: int, size: int) -> None:
        """Count under a key, which is made if there is none."""
        counts = self.table.get(key)
        if counts is None:
            if len(self.table) >= self._keys_max:
                self._warnings.warning(
                    self._what, "no statistics of %.255s: there are %d %s already", key, self._keys_max, self._what
                )
                return
            counts = self.table[key] = SampledCounts()
        counts.calls += calls
        counts.messages += messages
        counts.size += size

    def drop(self, which: Callable[[K], bool]) -> None:
        """Forget the keys of what was deleted."""
        for key in [key for key in self.table if which(key)]:
            del self.table[key]
