"""Which brokers a producer avoids because they were slow: RocketMQ's `sendLatencyFaultEnable` (reference, section 5.3).

Decisions only: times come in as arguments.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection

from msgspec import Struct

LATENCIES_MS = (50, 100, 550, 1000, 2000, 3000, 15000)  # RocketMQ's `latencyMax`, and `notAvailableDuration` below.
AVOIDED_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""How long a broker is avoided whose answer took at least the latency of the same index; a quicker one is not."""
FAILURE_MS = 30_000
"""Latency that a failed request counts as."""


def avoided_seconds(latency: float) -> float:
    """For how long a broker is avoided after a request that took `latency` seconds."""
    at = bisect.bisect_right(LATENCIES_MS, latency * 1000) - 1
    return AVOIDED_MS[at] / 1000 if at >= 0 else 0.0


class _Latency(Struct, frozen=True):
    """The latency of a broker's newest request, and when the broker is used again. In seconds."""

    latency: float
    available_from: float


class BrokerLatencies:
    """The newest latency of each broker that a producer has sent to."""

    def __init__(self) -> None:
        self._seen: dict[str, _Latency] = {}
        self._picked = 0

    def answered(self, broker: str, latency: float, now: float) -> None:
        """A request to `broker` was answered after `latency` seconds."""
        self._seen[broker] = _Latency(latency, now + avoided_seconds(latency))

    def failed(self, broker: str, latency: float, now: float) -> None:
        """A request to `broker` failed after so long."""
        self._seen[broker] = _Latency(latency, now + avoided_seconds(FAILURE_MS / 1000))

    def available(self, broker: str, now: float) -> bool:
        seen = self._seen.get(broker)
        return seen is None or seen.available_from <= now

    def pick(self, brokers: Collection[str]) -> str:
        """Choose among brokers that are all avoided: in turn one of the better half, the quickest first, then those
        free soonest."""
        ranked = sorted(brokers, key=lambda name: (self._seen[name].latency, self._seen[name].available_from))
        half = len(ranked) // 2
        if half == 0:
            return ranked[0]
        self._picked += 1
        return ranked[self._picked % half]
