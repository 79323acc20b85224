"""So much at once, and so much a second: for each peer, and for all of them together."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.clock import Clock

PEERS_MAX: Final = 4096
"""Of whom it is remembered what they used. Beyond that only those count who have not come by it again."""


class Rate(Struct, frozen=True):
    """What may be used up at once, and what comes back in a second."""

    burst: int
    per_second: int


class _Left(Struct):
    amount: float
    since: float


class Allowances:
    """Who has used how much."""

    def __init__(self, clock: Clock, each: Rate, together: Rate) -> None:
        self._clock, self._each, self._together = clock, each, together
        self._all = _Left(together.burst, clock.monotonic())
        self._peers: dict[str, _Left] = {}

    def take(self, peer: str, amount: int) -> bool:
        """Use up so much. False: that is more than there is, and nothing was used."""
        now = self._clock.monotonic()
        left = self._peers.get(peer)
        if left is None:
            if len(self._peers) >= PEERS_MAX:
                self._forget(now)
            left = _Left(self._each.burst, now)
        _refill(left, self._each, now)
        _refill(self._all, self._together, now)
        if amount > left.amount or amount > self._all.amount:
            return False
        left.amount -= amount
        self._all.amount -= amount
        self._peers[peer] = left
        return True

    def _forget(self, now: float) -> None:
        """Those whose allowance is whole again; if there are none, all: then the one for all together holds."""
        for left in self._peers.values():
            _refill(left, self._each, now)
        self._peers = {peer: left for peer, left in self._peers.items() if left.amount < self._each.burst}
        if len(self._peers) >= PEERS_MAX:
            self._peers.clear()


def _refill(left: _Left, rate: Rate, now: float) -> None:
    left.amount = min(rate.burst, left.amount + (now - left.since) * rate.per_second)
    left.since = now
