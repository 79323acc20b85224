"""Avoidance of slow brokers by producers: RocketMQ's `sendLatencyFaultEnable`.

No clock of its own: times come in as arguments.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection

from msgspec import Struct

LATENCIES_MS = (50, 100, 550, 1000, 2000, 3000, 15000)  # RocketMQ's `latencyMax`, and `notAvailableDuration` below.
AVOIDED_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""Time for which a broker is avoided after a latency of at least the entry of the same index, ms."""
FAILURE_MS = 30_000
"""Latency that a failed request counts as, ms."""


def avoided_seconds(latency: float) -> float:
    """Return for how long a broker is avoided after a request of `latency` seconds, s."""
    at = bisect.bisect_right(LATENCIES_MS, latency * 1000) - 1
    return AVOIDED_MS[at] / 1000 if at >= 0 else 0.0


class _Latency(Struct, frozen=True):
    """Latency of a broker's newest request, and the end of its avoidance, s."""

    latency: float
    available_from: float


class BrokerLatencies:
    """The newest latency of each broker that a producer has sent to."""

    def __init__(self) -> None:
        self._seen: dict[str, _Latency] = {}
        self._picked = 0

    def answered(self, broker: str, latency: float, now: float) -> None:
        """Note that a request to `broker` was answered after `latency` seconds."""
        self._seen[broker] = _Latency(latency, now + avoided_seconds(latency))

    def failed(self, broker: str, latency: float, now: float) -> None:
        """Note that a request to `broker` failed after `latency` seconds."""
        # As RocketMQ: a failure counts as 30 s, however quickly it failed, and isolates the broker for ten minutes.
        self._seen[broker] = _Latency(latency, now + avoided_seconds(FAILURE_MS / 1000))

    def available(self, broker: str, now: float) -> bool:
        seen = self._seen.get(broker)
        return seen is None or seen.available_from <= now

    def pick(self, brokers: Collection[str]) -> str:
        """Choose among brokers that are all avoided: in turn one of the better half, by latency, then by end of avoidance."""
        # RocketMQ's pickOneAtLeast.
        # Every one of them was seen: a broker without an entry is available, and not asked for here.
        ranked = sorted(brokers, key=lambda name: (self._seen[name].latency, self._seen[name].available_from))
        half = len(ranked) // 2
        if half == 0:
            return ranked[0]
        self._picked += 1
        return ranked[self._picked % half]
