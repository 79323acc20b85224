"""How long a leader may take it for certain that ZooKeeper has not given its place away."""

from __future__ import annotations

from collections import deque
from typing import Final

from metaq.clock import Clock

LEASE_SHARE: Final = 1 / 2
"""Most of the session time-out for which a renewal holds, counted from when it was sent."""
RENEWALS: Final = 6
"""Renewals in a session time-out."""
UNHEARD: Final = 1 / 4
"""Part of the time-out for which a server may keep to itself that it has heard of a client: it tells the leader of ZooKeeper twice a
tick, and a time-out is two ticks at least. The leader ends sessions, a whole time-out after it has heard of them. That a change was made
does not tell it."""
BEFORE: Final = 1 / 3
"""Part of the time-out that may pass between two signs of life of a session without renewals: kazoo's pings."""
APART: Final = 1 / 12
"""Part of the time-out by which the clocks of this machine and of ZooKeeper's leader may run apart in one."""


class Lease:
    """The lease of one leader. `valid` is asked before each acknowledgement; for one thread.

    A renewal was sent, and ZooKeeper has answered it. So its leader has heard of what was sent a quarter of a time-out before that, and
    ends the session a whole one after that at the earliest. With six renewals in a time-out this is 1/4 + 1/6 before the newest was
    sent: 7/12 are left, less 1/12 for the clocks, which is a half. It is less behind a gap in the renewals. Time that the process, or the
    machine, has slept counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._elapsed = clock.elapsed
        self._until = 0.0
        self._held = False
        self._sent = deque[float](maxlen=4 * RENEWALS)
        """When the renewals of this session were sent that it has answered, ascending."""

    @property
    def valid(self) -> bool:
        return self._held and self._elapsed() < self._until

    @property
    def seconds(self) -> float:
        """Seconds for which it still holds; 0: it does not."""
        return max(0.0, self._until - self._elapsed()) if self._held else 0.0

    def renewed(self, sent: float, session_timeout: float) -> None:
        """Note a renewal that ZooKeeper has answered. Args: sent: when it was sent, `Clock.elapsed`. session_timeout: s."""
        if self._sent and sent <= self._sent[-1]:
            return  # a newer one was answered before
        self._sent.append(sent)
        told = sent - session_timeout * UNHEARD
        heard = max((one for one in self._sent if one <= told), default=told - session_timeout * BEFORE)
        self._held = True
        self._until = min(sent + session_timeout * LEASE_SHARE, heard + session_timeout * (1 - APART))

    def lose(self) -> None:
        """Note that somebody else may lead from now on, or that the session is another one."""
        self._held = False
        self._sent.clear()
