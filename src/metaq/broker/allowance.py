"""Token buckets: what a client may make the broker spend, so much at once and the rest evenly over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.clock import Clock

PEERS_MAX: Final = 4096
"""Peers whose use is remembered. Beyond that those are forgotten whose allowance is whole again."""


class Rate(Struct, frozen=True):
    """Amount that may be taken at once, and amount that becomes available again per second."""

    burst: int
    per_second: float


class Bucket(Struct):
    """Amount that was available at the monotonic time `since`."""

    left: float
    since: float

    def refill(self, rate: Rate, now: float) -> float:
        """Add what has come back by `now`. Returns what may be taken."""
        self.left = min(rate.burst, self.left + (now - self.since) * rate.per_second)
        self.since = now
        return self.left


class Allowances:
    """A bucket for each peer, and one for all of them together."""

    def __init__(self, clock: Clock, each: Rate, together: Rate) -> None:
        self._clock, self._each, self._together = clock, each, together
        self._all = Bucket(together.burst, clock.monotonic())
        self._peers: dict[str, Bucket] = {}

    def take(self, peer: str, amount: int) -> bool:
        """Use up so much. False: that is more than there is, and nothing was used."""
        now = self._clock.monotonic()
        own = self._peers.get(peer)
        if own is None:
            if len(self._peers) >= PEERS_MAX:
                self._forget(now)
            own = Bucket(self._each.burst, now)
        if amount > min(own.refill(self._each, now), self._all.refill(self._together, now)):
            return False
        own.left -= amount
        self._all.left -= amount
        # Only now: a peer whose first request is refused takes no place in the table.
        self._peers[peer] = own
        return True

    def _forget(self, now: float) -> None:
        """Forget peers whose bucket is full; if none is, all of them: the bucket for all together still holds."""
        burst = self._each.burst
        self._peers = {peer: own for peer, own in self._peers.items() if own.refill(self._each, now) < burst}
        if len(self._peers) >= PEERS_MAX:
            self._peers.clear()


class Quota:
    """A cap on topics or groups that clients can make the broker create: so many in all, so many a minute.

    Args: limits: how many may exist in all, whoever made them, and how many may be made in a minute, as they are now.
    """

    __slots__ = ("_bucket", "_clock", "_limits")

    def __init__(self, clock: Clock, limits: Callable[[], tuple[int, int]]) -> None:
        self._clock, self._limits = clock, limits
        self._bucket = Bucket(limits()[1], clock.monotonic())

    def take(self, existing: int) -> str:
        """Claim one creation. Returns "" if granted, else which limit refuses it and when to try again."""
        total_max, per_minute = self._limits()
        if existing >= total_max:
            return f"the limit of {total_max} is reached"
        if self._bucket.refill(Rate(per_minute, per_minute / 60), self._clock.monotonic()) < 1:
            return f"the limit of {per_minute} a minute is reached, try again later"
        self._bucket.left -= 1
        return ""

    def give_back(self) -> None:
        """Return what was granted: nothing was made after all."""
        self._bucket.left = min(self._limits()[1], self._bucket.left + 1)
