"""How long a leader may take it for certain that ZooKeeper has not given its place away."""

from __future__ import annotations

from typing import Final

from metaq.clock import Clock

LEASE_SHARE: Final = 0.5
"""Part of the session time-out for which a renewal holds, counted from when it was sent.

ZooKeeper ends a session its whole time-out after it has last heard of it. What it has heard may be older than the renewal that it
answered: by the interval of renewals, and by half a tick, since servers tell their leader of their clients twice a tick; and a time-out
is two ticks at least. So a sixth and a quarter of it may have passed already. The rest is for clocks that run apart.
"""
RENEWALS: Final = 6
"""Renewals in a session time-out."""


class Lease:
    """The lease of one leader. `valid` is asked before each acknowledgement; for one thread.

    Time that the process, or the machine, has slept counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._elapsed = clock.elapsed
        self._until = 0.0
        self._held = False

    @property
    def valid(self) -> bool:
        return self._held and self._elapsed() < self._until

    @property
    def seconds(self) -> float:
        """Seconds for which it still holds; 0: it does not."""
        return max(0.0, self._until - self._elapsed()) if self._held else 0.0

    def renewed(self, sent: float, session_timeout: float) -> None:
        """Note a renewal that ZooKeeper has answered. Args: sent: when it was sent, `Clock.elapsed`. session_timeout: s."""
        self._held, self._until = True, max(self._until, sent + session_timeout * LEASE_SHARE)

    def lose(self) -> None:
        """Note that somebody else may lead from now on."""
        self._held = False
