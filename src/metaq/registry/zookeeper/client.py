"""One client's connection to ZooKeeper, for the event loop: work in a thread, and news of changes.

A session that has expired is followed by another by itself. After `HOPELESS_SESSIONS` time-outs without a connection a new client
is made, as the registrar does. Whoever keeps ephemeral nodes compares `Session.id` with that of the session in which he made them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from metaq.errors import ConnectionFailed
from metaq.log import FIRST_SECONDS, when_dead
from metaq.registry.zookeeper.absence import NO_ANSWER, Absence
from metaq.registry.zookeeper.session import Failures, Session, close_within
from metaq.worker import Worker

log = logging.getLogger(__name__)

HOPELESS_SESSIONS: Final = 1.5
"""Session time-outs without a connection after which a new client is made."""
LEAVE_SECONDS: Final = 5.0
"""Longest wait for the end of a session."""

Result = TypeVar("Result")


class ZookeeperClient:
    """A client of its own for one session factory. Made, used and closed in one event loop.

    Args:
        connect: `host:port`, `,`-separated.
        session_timeout: seconds.
        connection_timeout: seconds that `ask` waits for a connection, and that a lost one is missing before the log says so. Of the first
            one it says so after `FIRST_SECONDS`, if that is less.
        undone: what is not done before the first connection, for the log: "nothing is copied".
        digest, connect_seconds, in_order: as of `Session`.
    """

    def __init__(
        self,
        connect: str,
        session_timeout: float,
        connection_timeout: float,
        *,
        undone: str = "",
        digest: str = "",
        connect_seconds: float | None = None,
        in_order: bool = False,
    ) -> None:
        self._undone = undone
        self._why = ""
        """kazoo's last word of the sessions before this one, since the last connection."""
        self.connect, self._session_timeout, self._connection_timeout = connect, session_timeout, connection_timeout
        self._digest, self._connect_seconds, self._in_order = digest, connect_seconds, in_order
        self._listeners: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()
        self.worker = Worker("zookeeper")
        """The client's thread."""
        self.closed = False
        self.names: list[str] = []
        """Names of consumers that have their nodes in this session."""
        self.session = self._open()
        """The present session. Its number is 0 before the first, and changes when one has expired."""
        self._task = asyncio.create_task(self._watch(), name="ZooKeeper client")
        self._task.add_done_callback(when_dead(log, "changes in ZooKeeper are not followed any more"))

    def _open(self) -> Session:
        session = Session(
            self.connect,
            self._session_timeout,
            self._on_change,
            digest=self._digest,
            connect_seconds=self._connect_seconds,
            in_order=self._in_order,
        )
        session.open()
        return session

    def listen(self, function: Callable[[], None]) -> Callable[[], None]:
        """Have `function` called in the loop whenever a watch fires or the connection comes or goes. Returns what ends that."""
        self._listeners.append(function)
        return lambda: self._listeners.remove(function)

    async def ask(self, work: Callable[[Session], Result]) -> Result:
        """Run `work` in the client's thread, behind what others have it do, once there is a connection. Returns its result.

        Raises ConnectionFailed: there is none within the time, or it broke; then the work may have been done.
        """
        session = await self.connection()
        try:
            return await self.worker.run(lambda: work(session))
        except Failures as error:
            raise ConnectionFailed(self.away(f"lost or refused a request: {error!r}")) from error

    async def connection(self) -> Session:
        """Return the session, once there is a connection. Raises ConnectionFailed: there is none within the time."""
        try:
            async with asyncio.timeout(self._connection_timeout):
                await self._connected.wait()
        except TimeoutError:
            raise ConnectionFailed(self.away(f"cannot be reached within {self._connection_timeout:g} s")) from None
        return self.session

    async def close(self, seconds: float = LEAVE_SECONDS) -> None:
        """End the session, and with it every ephemeral node of ours; at most for `seconds`."""
        if self.closed:
            return
        self.closed = True
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        # A request that gets no answer ends with the session.
        self.worker.end()
        await close_within(self.session, seconds)

    def _on_change(self) -> None:
        if self.session.connected:
            self._connected.set()
        else:
            self._connected.clear()
        self._changed.set()
        for listener in tuple(self._listeners):
            listener()

    async def _watch(self) -> None:
        """Complain about a connection that is missing; make a new client when the old one is hopeless."""
        loop = asyncio.get_running_loop()
        away_since = loop.time()
        absence = Absence(away_since, min(FIRST_SECONDS, self._connection_timeout))
        undone = f": {self._undone} before it is" if self._undone else ""
        while True:
            self._changed.clear()
            if self.session.connected:
                self._why = ""
                if absence.told:
                    log.info("ZooKeeper %s is connected", self.connect)
                await self._changed.wait()
                away_since = loop.time()
                absence, undone = Absence(away_since, self._connection_timeout), ""
                continue
            hopeless_at = away_since + self._session_timeout * HOPELESS_SESSIONS
            now = loop.time()
            if absence.due(now):
                log.warning("%s%s; trying on", self.away("cannot be reached"), undone)
            if now >= hopeless_at:
                self._why = self.why
                old, self.session = self.session, self._open()
                await close_within(old, LEAVE_SECONDS)
                away_since = loop.time()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(min(absence.next, hopeless_at) - now, 0.01)):
                    await self._changed.wait()

    @property
    def why(self) -> str:
        """kazoo's last word about a failed connection."""
        return self.session.why or self._why

    def away(self, what: str) -> str:
        """Return a sentence about this ZooKeeper, with kazoo's last word on it."""
        why = self.why or ("" if self.session.connected else NO_ANSWER)
        return f"ZooKeeper {self.connect} {what}{f' ({why})' if why else ''}"
