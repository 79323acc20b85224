"""One multiplexed connection per address; requests in flight are matched with responses by their `opaque`.

A connection is dialled by the first request that needs it, and by one only: the others wait for the same attempt. When
it breaks, every request outstanding on it fails with ConnectionFailed; the next request dials again. An answer that
comes after its request has timed out is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from metaq.clock import SYSTEM, Clock
from metaq.errors import ClientClosed, ConnectionFailed, RemoteProtocolError, RequestTimeout
from metaq.model.acl.secret import Credentials
from metaq.net.dialer import dial
from metaq.net.peer import Peer, Session
from metaq.wire.codes import request_name
from metaq.wire.command import LENGTH_BYTES, ONEWAY_FLAG, RESPONSE_FLAG, Command, decode, encode, frame_bytes
from metaq.wire.extensions import WAIT_FIELD
from metaq.wire.signing import sign

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls  # loaded only where it is on

log = logging.getLogger("metaq.client")

CONNECT_SECONDS = 3.0
"""Connect time-out, s; RocketMQ's connectTimeoutMillis."""
CLOSE_SECONDS = 1.0
"""Time for which a closing client waits for written bytes to be sent, s: the last commits and unregistrations."""
_OPAQUE_MASK = 0x7FFFFFFF


WAIT_SECONDS_MAX = 60.0
"""Longest wait that a broker's word is taken for, s."""


class Waits:
    """Brokers that have told this client to wait, since it is above a quota (docs/limits.md). For any thread.

    Args: monotonic: the clock, s.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.until: dict[str, float] = {}
        """Address → time before which nothing is to be sent there. Empty almost always: ask that first."""

    def told(self, address: str, wait_ms: str) -> None:
        """Note the word of an answer. What is no number counts for nothing."""
        if wait_ms.isdecimal() and len(wait_ms) < 10:
            self.until[address] = self._monotonic() + min(int(wait_ms) / 1000, WAIT_SECONDS_MAX)

    def left(self, address: str) -> float:
        """Return the seconds that are left to wait."""
        until = self.until.get(address)
        left = 0.0 if until is None else until - self._monotonic()
        if until is not None and left <= 0:
            self.until.pop(address, None)
        return max(0.0, left)


class OnRequest(Protocol):
    """Handles broker-initiated requests (39, 40, 220, 307, 326 ...). Returns the response, one that comes later, or None for
    none. It may not wait: the other messages of the connection come after it."""

    def __call__(self, address: str, command: Command) -> Command | asyncio.Future[Command] | None: ...


class ClientSession(Session):
    """One connection, as a session of `metaq.net`."""

    def __init__(self, transport: Transport, address: str, peer: Peer) -> None:
        self._transport, self.address, self.peer = transport, address, peer
        self._needed = 0
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._heard = False
        self.lost: str | None = None

    def data_received(self, data: memoryview) -> int:
        self._heard = True
        start, end = 0, len(data)
        while size := frame_bytes(data, start, end):
            if start + size > end:
                break
            self._received(decode(data[start + LENGTH_BYTES : start + size]))
            start += size
        self._needed = size
        return start

    def frame_needed(self) -> int:
        return self._needed

    def connection_lost(self, why: str) -> None:
        self.lost = why or "closed by the peer"
        # Swapped first: a callback of a failed future may send again on this session.
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(self._broken())
        self._transport.forget(self)

    def request(self, command: Command) -> asyncio.Future[Command]:
        """Send `command`; the future gets its response. Raises ConnectionFailed, `sent` False: the connection is lost."""
        self._check()
        frame = encode(command)  # before the future is registered: it may raise
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._pending[command.opaque] = future
        self.peer.write(frame)
        return future

    def send_oneway(self, command: Command) -> None:
        """Send `command` one-way. Raises ConnectionFailed, `sent` False: the connection is lost."""
        self._check()
        self.peer.write(encode(command))

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    def abandon(self, opaque: int) -> None:
        """Stop waiting for the response to a request."""
        self._pending.pop(opaque, None)

    def _check(self) -> None:
        """Raise ConnectionFailed if the connection is lost, perhaps between the end of the dial and the waiters' next turn."""
        if self.lost is not None:
            error = self._broken()
            error.sent = False
            raise error

    def _broken(self) -> ConnectionFailed:
        if self._heard or not self.peer.plain:
            return ConnectionFailed(f"the connection to {self.address} broke: {self.lost}")
        return ConnectionFailed(
            f"the connection to {self.address} broke before it answered anything: {self.lost} "
            "(a port that takes TLS only does so: tls=True, --tls; so does a server whose limit of connections is reached)"
        )

    def _received(self, command: Command) -> None:
        if command.flag & RESPONSE_FLAG:
            future = self._pending.pop(command.opaque, None)
            if future is None or future.done():  # its caller has timed out
                log.debug("dropped a late answer from %s (code %d)", self.address, command.code)
            else:
                future.set_result(command)
            if WAIT_FIELD in command.ext:
                self._transport.waits.told(self.address, command.ext[WAIT_FIELD])
            return
        # Brokers number their own requests independently: only the response flag tells them from responses.
        answer = self._transport.on_request(self.address, command)
        if answer is None or command.flag & ONEWAY_FLAG:
            return
        if isinstance(answer, Command):
            self._respond(command, answer)
        else:
            answer.add_done_callback(lambda done: None if done.cancelled() else self._respond(command, done.result()))

    def _respond(self, command: Command, answer: Command) -> None:
        """Answer a request of the broker, unless the connection broke meanwhile: nobody waits for it then."""
        if self.lost is None:
            answer.opaque, answer.flag = command.opaque, answer.flag | RESPONSE_FLAG
            self.peer.write(encode(answer))


def _nobody(address: str, command: Command | None = None) -> None:
    """Nothing is to be done."""


class Transport:
    """All connections of one client core, on one event loop."""

    def __init__(
        self,
        on_request: OnRequest = _nobody,
        on_connected: Callable[[str], None] = _nobody,
        on_lost: Callable[[str], None] = _nobody,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Args:
        on_request: see there.
        on_connected: called with the address; a task that it starts is the first to send on the connection.
        on_lost: called with the address of a connection that broke.
        credentials: what all requests are signed with; None: they are not signed.
        tls: how connections are made; None: without TLS.
        clock: of the waits that brokers tell.
        """
        self._credentials, self.tls = credentials, tls
        self.waits = Waits(clock.monotonic)
        self.on_request, self._on_connected, self._on_lost = on_request, on_connected, on_lost
        self._sessions: dict[str, ClientSession] = {}
        self._dialling: dict[str, asyncio.Task[ClientSession]] = {}
        self._opaque = itertools.count()
        self._closed = False
        self._forgot = asyncio.Event()

    @property
    def addresses(self) -> list[str]:
        """Addresses with a connection."""
        return list(self._sessions)

    def peer_of(self, address: str) -> tuple[str, int] | None:
        """Return the numeric address of the peer at `address`, for a second connection to it, of the same kind.

        None: not connected, or by a layer other than TLS, which the second connection would lack.
        """
        session = self._sessions.get(address)
        if session is None or session.peer.closed:
            return None
        if not session.peer.plain and self.tls is None:
            return None
        return session.peer.address

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request and wait for its response, whatever its code.

        Raises: ConnectionFailed: not connected, or the connection broke: then it is unknown whether the request took
        effect, see `sent`. RequestTimeout: no answer within `timeout` seconds, dialling included. ClientClosed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        session = self._sessions.get(address) or await self._connect(address, min(timeout, CONNECT_SECONDS))
        self._complete(command)
        future = session.request(command)
        timer = loop.call_at(deadline, _expire, future, address, command.code, timeout)
        try:
            return await future
        finally:
            timer.cancel()
            # Also after a time-out: the late response is dropped, and the connection stays; Java closes it.
            session.abandon(command.opaque)

    async def send_oneway(self, address: str, command: Command, timeout: float = CONNECT_SECONDS) -> None:
        """Send a request one-way. Returns when it is handed to the connection.

        Raises ConnectionFailed, `sent` False: it was not; ClientClosed.
        """
        session = self._sessions.get(address) or await self._connect(address, timeout)
        self._complete(command)
        command.flag |= ONEWAY_FLAG
        session.send_oneway(command)

    def _complete(self, command: Command) -> None:
        """Give a request its number and its signature."""
        command.opaque = next(self._opaque) & _OPAQUE_MASK  # Java reads it as a signed 32-bit number.
        if self._credentials is not None:
            command.ext = dict(command.ext)  # the caller's own, which others may have too
            sign(command, self._credentials)

    def keep_only(self, addresses: set[str]) -> None:
        """Close connections to addresses that no route mentions, unless a response is awaited there."""
        for address in set(self._sessions) - addresses:
            # The next poll of routes closes it, when its responses are in.
            if not self._sessions[address].busy:
                self._sessions[address].peer.close("no route needs this connection")

    def give_up(self, address: str, why: str) -> None:
        """End the connection to an address, and attempts to connect there. What waits for answers gets ConnectionFailed."""
        if (task := self._dialling.get(address)) is not None:
            task.cancel()
        if (session := self._sessions.get(address)) is not None:
            session.peer.abort(why)

    async def close(self) -> None:
        self._closed = True
        for task in self._dialling.values():
            task.cancel()
        for session in list(self._sessions.values()):
            session.peer.close("the client was closed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._sessions:
                    # One-way commits and unregistrations may still be in the write buffers.
                    self._forgot.clear()
                    await self._forgot.wait()

    def forget(self, session: ClientSession) -> None:
        """Remove a session whose connection is lost."""
        if self._sessions.get(session.address) is session:
            del self._sessions[session.address]
            self._forgot.set()
            if not self._closed:
                self._on_lost(session.address)

    async def _connect(self, address: str, timeout: float) -> ClientSession:
        """Raises ConnectionFailed, `sent` False; ClientClosed."""
        try:
            return await self._dialled_session(address, timeout)
        except ConnectionFailed as error:
            error.sent = False
            raise

    async def _dialled_session(self, address: str, timeout: float) -> ClientSession:
        if self._closed:
            raise ClientClosed("the client was closed")
        task = self._dialling.get(address)
        if task is None:
            # The task, and not its first waiter, owns the dial: the others go on waiting if that one gives up.
            task = asyncio.get_running_loop().create_task(self._dial(address, timeout))
            self._dialling[address] = task
            task.add_done_callback(lambda done: self._dialled(address, done))
        try:
            async with asyncio.timeout(timeout):
                # Shielded: one waiter that gives up must not end the attempt that others wait for.
                return await asyncio.shield(task)
        except TimeoutError:
            raise ConnectionFailed(f"no connection to {address} within {timeout:.1f} s") from None
        except asyncio.CancelledError:
            if self._closed:
                raise ClientClosed("the client was closed") from None
            caller = asyncio.current_task()
            if task.cancelled() and (caller is None or not caller.cancelling()):
                raise ConnectionFailed(f"the attempt to connect to {address} was given up") from None
            raise

    async def _dial(self, address: str, timeout: float) -> ClientSession:
        made: list[ClientSession] = []

        def make(peer: Peer) -> ClientSession:
            made.append(ClientSession(self, address, peer))
            return made[0]

        try:
            await dial(address, make, timeout, tls=self.tls)
        except (OSError, TimeoutError, RemoteProtocolError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"cannot connect to {address}: {reason}") from error
        session = made[0]
        if session.lost is not None:
            # As a broker with tls.server.mode=enforcing does with plain connections.
            raise ConnectionFailed(f"{address} closed the connection at once: {session.lost}")
        self._sessions[address] = session
        self._on_connected(address)
        return session

    def _dialled(self, address: str, task: asyncio.Task[ClientSession]) -> None:
        del self._dialling[address]
        if not task.cancelled():
            task.exception()  # Fetched, so that a failure whose waiters have all given up is not reported as lost.


def _expire(future: asyncio.Future[Command], address: str, code: int, timeout: float) -> None:
    if not future.done():
        text = f"{address} did not answer {request_name(code)} within {timeout:.1f} s"
        future.set_exception(RequestTimeout(text))
