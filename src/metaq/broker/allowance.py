"""Token buckets: what a client may make the broker spend, so much at once and the rest evenly over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.clock import Clock

PEERS_MAX: Final = 4096
"""Peers whose use is remembered. Beyond that those are forgotten whose allowance is whole again."""

SHARES: Final = 4
"""One client, which is a host or a signer (`Caller.client`), gets a quarter of each table that clients fill."""
SHARE_MIN: Final = 64
"""Topics, and groups, that one client may make in any case."""


def share_of(limit: int, least: int = 1) -> int:
    """Return one client's share of a table of at most `limit` entries. `least`: what it gets of a small table."""
    return max(least, limit // SHARES)


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


MayMake = Callable[[str, str, int], str]
"""(`topics` or `groups`, client, how many it has made) → "", or the quota that refuses one more."""


def anybody_may(_what: str, _client: str, _made: int) -> str:
    """Return "": there are no quotas."""
    return ""


class _Maker(Struct):
    """What one client has made."""

    bucket: Bucket
    count: int = 0
    """Of those that are there."""


class Quota:
    """A cap on topics or groups that clients can make the broker create: so many in all, so many a minute.

    One client makes at most a quarter of all. And once it has made a quarter of what may be made in a minute, it leaves as
    much of that to the others.

    Args:
        limits: how many may exist in all, whoever made them, and how many may be made in a minute, as they are now.
        may_make: (client, how many it has made) → "", or the quota that refuses one more.
    """

    __slots__ = ("_bucket", "_clock", "_limits", "_maker_of", "_makers", "_may_make")

    def __init__(
        self,
        clock: Clock,
        limits: Callable[[], tuple[int, int]],
        may_make: Callable[[str, int], str] = lambda _client, _made: "",
    ) -> None:
        self._clock, self._limits, self._may_make = clock, limits, may_make
        self._bucket = Bucket(limits()[1], clock.monotonic())
        self._makers: dict[str, _Maker] = {}
        self._maker_of: dict[str, str] = {}
        """Name of what was made in this run → client."""

    def take(self, name: str, existing: int, client: str = "") -> str:
        """Claim one creation. Returns "" if granted, else which limit refuses it and when to try again.

        `client`: who asks for it; "": the broker itself, which has no share.
        """
        total_max, per_minute = self._limits()
        if existing >= total_max:
            return f"the limit of {total_max} is reached"
        now, rate = self._clock.monotonic(), Rate(per_minute, per_minute / 60)
        if self._bucket.refill(rate, now) < 1:
            return f"the limit of {per_minute} a minute is reached, try again later"
        if client:
            share, own = share_of(total_max, SHARE_MIN), Rate(per_minute // SHARES, per_minute / 60 / SHARES)
            maker = self._makers.get(client) or _Maker(Bucket(own.burst, now))
            if refused := self._may_make(client, maker.count):
                return refused
            if maker.count >= share:
                return f"the client {client} has made {maker.count}, its share of the limit of {total_max}"
            if maker.bucket.refill(own, now) >= 1:
                maker.bucket.left -= 1
            elif self._bucket.left < 1 + own.burst:
                return f"the client {client} has had its share of the limit of {per_minute} a minute, try again later"
            maker.count += 1
            self._makers[client], self._maker_of[name] = maker, client
            self._forget(own, now)
        self._bucket.left -= 1
        return ""

    def give_back(self, name: str) -> None:
        """Return what was granted: nothing was made after all."""
        self._bucket.left = min(self._limits()[1], self._bucket.left + 1)
        self.gone(name)

    def gone(self, name: str) -> None:
        """Count it for nobody any more: it was deleted."""
        if (client := self._maker_of.pop(name, None)) is not None:
            self._makers[client].count -= 1

    def _forget(self, own: Rate, now: float) -> None:
        """Forget clients of whom nothing is left that counts, when there are many."""
        if len(self._makers) > PEERS_MAX:
            self._makers = {
                client: maker
                for client, maker in self._makers.items()
                if maker.count or maker.bucket.refill(own, now) < own.burst
            }
