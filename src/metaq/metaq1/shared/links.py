"""The connections of one session factory: one per server, counted, kept alive and made anew.

A link dials when somebody first needs its server, and again after a loss, with `ConnectionPace.reconnect_pause` between two tries. Commands
wait for a first try, and for the one that follows a loss; between two tries that fail they fail at once, so that no caller waits for
a server that is known to be away. After 10 idle seconds a link asks for the server's version; three such questions without a good answer in a
row end the connection. All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.address import split_address
from metaq.errors import ClientClosed, ConfigError, ConnectionFailed, MetaqError, RemoteProtocolError, RequestTimeout
from metaq.log import when_dead
from metaq.metaq1.conversation.pipeline import Make
from metaq.metaq1.shared.connection import Call, Connection, Outcome, Request
from metaq.metaq1.shared.deadlines import Deadlines
from metaq.net.address import LOOPBACK, join_address, local_address
from metaq.net.dialer import dial
from metaq.net.peer import Peer
from metaq.wire.metaq1.commands import Answer, Code, ResultLine, TooLong, VersionLine

log = logging.getLogger("metaq.client")


CLOSE_SECONDS: Final = 2.0
"""Longest wait for a connection to be closed, so that what was written goes out."""
PART_SECONDS: Final = 5.0
"""Longest wait for answers of a server that nobody needs any more."""
_LOOK_SECONDS: Final = 0.05


class ConnectionPace(Struct, frozen=True, kw_only=True):
    """Times of a link, s, as Java's client has them."""

    connect: float = 10.0
    """Longest try to connect; Java's ends after 80 s, of which publish waits for 10."""
    idle: float = 10.0
    """Silence after which a heartbeat is sent."""
    heartbeat: float = 5.0
    """Longest wait for its answer."""
    heartbeat_failures: int = 3
    """Heartbeats in a row without a good answer that end a connection."""
    reconnect_pause: float = 2.0
    """From a failed try to the next one."""
    reconnect_times: int = 350
    """Failed tries in a row after which the link rests until a command needs it."""


class Link:
    """The connection to one server. `users` holds how many producers and consumers want it."""

    def __init__(self, address: str, dialled: str, pace: ConnectionPace) -> None:
        """Args: address: as the cluster names it. dialled: where to connect."""
        self.address, self._dialled, self._pace = address, dialled, pace
        self._loop = asyncio.get_running_loop()
        self.users = 0
        self.connection: Connection | None = None
        """The present connection; None: there is none."""
        self._number = 0
        self._dialling = False
        """A try is under way or due whose outcome is waited for."""
        self._waiting: deque[Request] = deque()
        self._deadlines: Deadlines[Request] = Deadlines(self._loop, self._expire)
        self._ready: list[asyncio.Future[None]] = []
        self._why = ""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.start()

    @property
    def up(self) -> Connection | None:
        """The present connection, if it is not lost."""
        return self.connection if self.connection is not None and not self.connection.lost.done() else None

    @property
    def _may_wait(self) -> bool:
        # With a connection that is lost `_keep` wakes in this turn of the loop.
        return self._dialling or self.connection is not None

    def start(self) -> None:
        """Begin to connect, unless that is going on."""
        if self._task is None and not self._closed:
            self._dialling = True
            self._task = self._loop.create_task(self._keep(), name=f"MetaQ 1.x connection to {self.address}")
            self._task.add_done_callback(when_dead(log, f"{self.address} is not connected to any more"))

    def send(self, request: Request, timeout: float, number: int | None = None) -> None:
        """Send a command, now or when the try to connect that is under way has succeeded. Its outcome may be any answer;
        ConnectionFailed: `sent` says whether the server may have the command; RequestTimeout; ClientClosed.

        Args:
            timeout: seconds for all.
            number: of the connection that it must go to, which a local transaction has.
        """
        connection = self.up
        if self._closed:
            request.end(self._gone())
        elif number is not None and (connection is None or connection.number != number):
            request.end(self._not_sent(f"the connection to {self.address} that the transaction belongs to has ended"))
        elif connection is not None:
            self._deadlines.add(request, timeout)
            connection.send(request)
        else:
            self.start()
            if self._may_wait:
                self._deadlines.add(request, timeout)
                self._waiting.append(request)
            else:
                request.end(self._not_sent(f"{self._why}; the next try comes within {self._pace.reconnect_pause:g} s"))

    async def ask(self, make: Make, action: str, timeout: float, number: int | None = None) -> Answer | TooLong:
        """Send a command and return its answer, whatever its code. Arguments as of `send`; its outcomes that are errors are
        raised."""
        future: asyncio.Future[Answer | TooLong] = self._loop.create_future()

        def settle(outcome: Outcome) -> None:
            if future.done():  # cancelled
                return
            if isinstance(outcome, MetaqError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        request = Call(make, settle, action)
        self.send(request, timeout, number)
        try:
            return await future
        finally:
            request.abandon()

    async def connected(self, timeout: float) -> Connection:
        """Wait for a connection. Raises ConnectionFailed, ClientClosed."""
        if self.up is None and not self._closed:
            self.start()
            if not self._may_wait:
                raise self._not_sent(self._why)
            ready: asyncio.Future[None] = self._loop.create_future()
            self._ready.append(ready)
            try:
                async with asyncio.timeout(timeout):
                    await ready
            except TimeoutError:
                raise self._not_sent(f"no connection to {self.address} within {timeout:g} s") from None
            finally:
                self._ready.remove(ready)
        if self._closed:
            raise self._gone()
        connection = self.up
        if connection is None:
            raise self._not_sent(self._why)
        return connection

    def end(self) -> None:
        """Take no more commands; what waits for a connection gets ClientClosed. `close` follows."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._tried(self._gone)

    async def close(self, patience: float = 0.0) -> None:
        """Close the connection when what is under way is answered, or after `patience` seconds; then it gets ClientClosed."""
        self.end()
        connection, self.connection = self.connection, None
        if connection is None or connection.lost.done():
            return
        until = self._loop.time() + patience
        while connection.under_way and self._loop.time() < until and not connection.lost.done():
            await asyncio.wait((connection.lost,), timeout=_LOOK_SECONDS)
        connection.close(self._gone)
        await asyncio.wait((connection.lost,), timeout=CLOSE_SECONDS)

    def _gone(self) -> ClientClosed:
        return ClientClosed(
            f"the connection to {self.address} was closed by the session factory, which needs it no more"
        )

    async def _keep(self) -> None:
        """Connect again and again; return when it is hopeless for now."""
        failures = 0
        while True:
            tried_at = self._loop.time()
            try:
                connection = await self._dial()
            except (ConnectionFailed, ConfigError, RemoteProtocolError) as error:
                failures, self._why, self._dialling = failures + 1, str(error), False
                self._tried(lambda: self._not_sent(self._why))
            else:
                await self._serve(connection)
                self.connection = None
                self._why = f"the connection to {self.address} broke: {connection.lost.result()}"
                # A server that takes connections and says nothing is no better than none.
                failures = 0 if connection.heard else failures + 1
                self._dialling = True  # a try is due, and may be waited for
            if failures > self._pace.reconnect_times and not self._waiting:
                log.error("%s; %d tries were in vain, the next is made when it is needed", self._why, failures)
                self._task, self._dialling = None, False
                self._tried(lambda: self._not_sent(self._why))  # for `connected`
                return
            if failures <= 1:
                log.warning("%s; trying on, each %g s", self._why, self._pace.reconnect_pause)
            await asyncio.sleep(max(0.0, tried_at + self._pace.reconnect_pause - self._loop.time()))
            self._dialling = True

    async def _dial(self) -> Connection:
        made: list[Connection] = []

        def make(peer: Peer) -> Connection:
            self._number += 1
            made.append(Connection(self.address, self._number, peer))
            return made[0]

        await dial(self._dialled, make, self._pace.connect)
        connection = made[0]
        if connection.lost.done():
            raise ConnectionFailed(f"{self.address} closed the connection at once: {connection.lost.result()}")
        return connection

    async def _serve(self, connection: Connection) -> None:
        """Use a connection until it is lost; send heartbeats while it is idle."""
        self.connection, self._dialling = connection, False
        self._tried(None)
        failures, pace = 0, self._pace
        while not connection.lost.done():
            quiet = self._loop.time() - connection.last_active
            if quiet < pace.idle:
                await asyncio.wait((connection.lost,), timeout=pace.idle - quiet)
                continue
            failures = 0 if await self._is_alive() else failures + 1
            if failures >= pace.heartbeat_failures:
                connection.peer.close(f"{failures} heartbeats in a row had no good answer")
                await asyncio.wait((connection.lost,), timeout=pace.heartbeat)
                if not connection.lost.done():
                    connection.connection_lost("it does not even close")

    async def _is_alive(self) -> bool:
        try:
            answer = await self.ask(VersionLine, "tell its version", self._pace.heartbeat)
        except (RequestTimeout, ConnectionFailed):
            return False
        return isinstance(answer, ResultLine) and answer.code == Code.SUCCESS

    def _tried(self, why: Callable[[], MetaqError] | None) -> None:
        """Send what has waited for a connection, or end it with an error of its own; wake `connected`."""
        for ready in self._ready:
            if not ready.done():
                ready.set_result(None)
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if request.done:
                continue
            if why is not None:
                request.end(why())
            else:
                assert self.connection is not None, "the try has succeeded"
                self.connection.send(request)

    def _expire(self, request: Request) -> None:
        request.end(self.late(request.action, request.timeout, sent=request.connection is not None))

    def late(self, action: str, timeout: float, *, sent: bool) -> RequestTimeout:
        """Return the error of a command whose time is up."""
        error = RequestTimeout(
            f"{self.address} did not answer within {timeout:g} s; to {action}, it may have done it or not"
            if sent
            else f"no connection to {self.address} within {timeout:g} s, to {action}"
        )
        error.sent = sent
        return error

    @staticmethod
    def _not_sent(why: str) -> ConnectionFailed:
        error = ConnectionFailed(why)
        error.sent = False
        return error


class Links:
    """The links of one factory. `acquire` and `release` come in pairs; the last user of a link closes it."""

    def __init__(self, pace: ConnectionPace, *, loopback: bool = False) -> None:
        self._pace, self._loopback = pace, loopback
        self._links: dict[str, Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._links)

    def get(self, address: str) -> Link | None:
        """Return the link to a server that somebody uses; None: nobody does."""
        return self._links.get(address)

    @property
    def connected(self) -> list[Link]:
        """Those that have a connection."""
        return [link for link in self._links.values() if link.up is not None]

    def acquire(self, address: str) -> Link:
        """Return the link to `host:port`, with one user more. It begins to connect. Pair with `release`."""
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._make_link(address)
        link.users += 1
        return link

    def _make_link(self, address: str) -> Link:
        return Link(address, self._to_dial(address), self._pace)

    def release(self, link: Link) -> None:
        """Count one user less; the last one closes the link."""
        link.users -= 1
        if link.users <= 0 and self._links.get(link.address) is link:
            del self._links[link.address]
            link.end()
            task = asyncio.get_running_loop().create_task(link.close(PART_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all, whoever uses them."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), *self._closing)

    def _to_dial(self, address: str) -> str:
        if self._loopback:
            host, port = split_address(address)
            if host == local_address():
                return join_address(LOOPBACK, port)
        return address
