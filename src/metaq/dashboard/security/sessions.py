"""Visitors who have logged in. Their keys stay in memory, with a client of theirs; the cookie is only a number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from metaq.clock import Clock
from metaq.dashboard.cluster import Cluster

SESSIONS_MAX: Final = 64
"""Sessions at a time. Of more, the one that has been idle longest ends."""
IDLE_SECONDS: Final = 30 * 60.0
TOTAL_SECONDS: Final = 12 * 3600.0
FAILURES_MAX: Final = 5
"""Failed logins of an address, and of all together ten times as many, in `FAILURE_SECONDS`. Then nobody is asked for a while."""
FAILURE_SECONDS: Final = 60.0
ADDRESSES_MAX: Final = 1024


class Session:
    """A visitor. `account`: access key. `cluster`: connections that sign with it."""

    __slots__ = ("account", "began", "cluster", "used")

    def __init__(self, account: str, cluster: Cluster, now: float) -> None:
        self.account, self.cluster = account, cluster
        self.began = self.used = now


class Sessions:
    """Sessions by their cookies."""

    def __init__(self, clock: Clock, close: Callable[[Cluster], Awaitable[None]]) -> None:
        self._clock, self._close = clock, close
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, cookie: str) -> Session | None:
        """Return a visitor's session, and note that it is used; None: there is none, or it has ended."""
        session = self._sessions.get(cookie)
        if session is None or self._is_over(session):
            return None
        session.used = self._clock.monotonic()
        return session

    def lasts(self, cookie: str) -> bool:
        """Return whether there is a session, without using it: an open page that follows the cluster is not a visitor at work."""
        session = self._sessions.get(cookie)
        return session is not None and not self._is_over(session)

    async def begin(self, account: str, cluster: Cluster) -> str:
        """Begin a session. Returns its cookie, a new one: whoever knew the visitor's before cannot come along."""
        await self.expire()
        while len(self._sessions) >= SESSIONS_MAX:
            await self.end(min(self._sessions, key=lambda cookie: self._sessions[cookie].used))
        cookie = self._clock.token()
        self._sessions[cookie] = Session(account, cluster, self._clock.monotonic())
        return cookie

    async def end(self, cookie: str) -> None:
        """End a session, if there is one."""
        session = self._sessions.pop(cookie, None)
        if session is not None:
            await self._close(session.cluster)

    async def expire(self) -> None:
        """End those that were idle, or have lasted, too long."""
        for cookie in [cookie for cookie, session in self._sessions.items() if self._is_over(session)]:
            await self.end(cookie)

    async def close(self) -> None:
        """End all."""
        for cookie in list(self._sessions):
            await self.end(cookie)

    def _is_over(self, session: Session) -> bool:
        now = self._clock.monotonic()
        return now - session.used > IDLE_SECONDS or now - session.began > TOTAL_SECONDS


class Failures:
    """Failed logins of the last minute, by address."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: dict[str, list[float]] = {}

    def too_many(self, address: str) -> bool:
        """Return whether nobody at this address may try now."""
        self._forget()
        everybody = sum(map(len, self._times.values()))
        return len(self._times.get(address, ())) >= FAILURES_MAX or everybody >= FAILURES_MAX * 10

    def add(self, address: str) -> None:
        """Note a failure, or that a try begins: whoever tries a thousand at once is counted, too."""
        if len(self._times) < ADDRESSES_MAX or address in self._times:
            self._times.setdefault(address, []).append(self._clock.monotonic())

    def forgive(self, address: str) -> None:
        """Take the newest one back: it was none."""
        times = self._times.get(address)
        if times:
            times.pop()

    def _forget(self) -> None:
        since = self._clock.monotonic() - FAILURE_SECONDS
        for address, times in list(self._times.items()):
            times[:] = [one for one in times if one > since]
            if not times:
                del self._times[address]
