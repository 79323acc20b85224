"""One connection of the HTTP server: uvicorn's parser and request cycle, on a peer of our listener.

What the listener limits is limited for HTTP too: connections, idle ones, answers that nobody reads, memory over all peers.
Here come the limits that only HTTP has. A head has a size and a time; a body must keep coming; the requests that one
connection has sent ahead are few, because the parser gets the input in pieces, and none while it asks for a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from metaq.broker.quota.service import Quotas
from metaq.clock import Clock
from metaq.errors import MetaqError
from metaq.log import RateLimitedLog
from metaq.net.address import join_address
from metaq.net.peer import Peer
from metaq.servers.http.metering import HttpMetering
from metaq.servers.http.problems import Problem
from metaq.servers.http.transport import PeerTransport

log = logging.getLogger(__name__)

T = TypeVar("T")
_SILENT = logging.getLogger(f"{__name__}.uvicorn")
"""What uvicorn would say of bad requests is said here, with the peer's address and at a bounded rate."""
_SILENT.disabled = True

KEEP_ALIVE_SECONDS: Final = 75
"""Silence that a connection may keep behind an answer. Proxies keep theirs for 60 s, and should be the first to end it."""
LINGER_BYTES: Final = 32 * 1024 * 1024
"""Bytes of a body that are still read when the request was answered without it: a client that is cut off while it sends
may never see the answer."""
AHEAD_MAX: Final = 16
"""Requests that a connection may have sent ahead of the one being answered. Then nothing is read, which uvicorn alone does
not keep to; the piece in which they came may hold some more."""
DIRECT_BYTES_MAX: Final = 64 * 1024
"""Longest body of a request that is answered without the application: larger ones gain nothing by it."""
_HEAD_PIECE: Final = 4096
"""Bytes that the parser gets at once where requests may begin: some 200 of the shortest."""
_BODY_PIECE: Final = 64 * 1024


class ClientGone(MetaqError):
    """Nobody reads the answer any more."""


class Direct(Protocol):
    """Answers short requests as soon as their last byte has come, without a task and the application: the fast path of sends."""

    def wants(self, url: bytes) -> bool:
        """Return whether a POST of this URL may be answered so."""
        ...

    def answer(
        self, connection: HttpConnection, url: bytes, head: list[tuple[bytes, bytes]], body: bytes
    ) -> bytes | None:
        """Return the body of the answer, JSON of status 200; None: nothing was done, and the application is to answer.

        Args: head: fields of the request, names in lower case.
        """
        ...


_DIRECT_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "


class RequestLimits(NamedTuple):
    """What a request may take before the application sees it.

    `head_seconds`: from the first byte of a request to the end of its head. `body_seconds`: interval in which a body must
    have grown by `body_bytes`, or have ended.
    """

    head_bytes: int = 32 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 20.0
    body_bytes: int = 10_000


class _Awaited(NamedTuple):
    """A request of which more must have come by a time."""

    due: float
    connection: HttpConnection
    request: int
    """Its number on the connection."""
    seen: int
    """Bytes of its body that had come."""


class HttpSpace:
    """What the connections of one server share.

    Args: app: an ASGI application. clock: of the limits. direct: answers some requests in its place. quotas: what connections are
    charged for; None: nothing.
    """

    def __init__(
        self,
        app: Any,
        clock: Clock,
        limits: RequestLimits | None = None,
        direct: Direct | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.clock, self.limits, self.direct, self.quotas = clock, limits or RequestLimits(), direct, quotas
        self.faults = RateLimitedLog(log, clock)
        self.state = ServerState()
        # No lifespan, WebSockets, access log or logging of uvicorn's: the process has its own.
        self.config = Config(
            app, lifespan="off", ws="none", http="httptools", interface="asgi3", log_config=None, access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS, server_header=False, date_header=False, proxy_headers=False,
        )  # fmt: skip
        self.config.load()
        self._heads, self._bodies = deque[_Awaited](), deque[_Awaited]()

    def await_head(self, connection: HttpConnection, request: int) -> None:
        """Have `head_is_due` called if the head of this request has not ended in time."""
        self._heads.append(_Awaited(self.clock.monotonic() + self.limits.head_seconds, connection, request, 0))

    def await_body(self, connection: HttpConnection, request: int, seen: int) -> None:
        """Have `body_is_due` called after an interval."""
        self._bodies.append(_Awaited(self.clock.monotonic() + self.limits.body_seconds, connection, request, seen))

    def tick(self) -> None:
        """End the connections whose requests come too slowly."""
        now = self.clock.monotonic()
        while self._heads and self._heads[0].due <= now:
            awaited = self._heads.popleft()
            awaited.connection.head_is_due(awaited.request)
        while self._bodies and self._bodies[0].due <= now:
            awaited = self._bodies.popleft()
            awaited.connection.body_is_due(awaited.request, awaited.seen)
        self.faults.tick()


class HttpConnection(HttpToolsProtocol):
    """A connection: a `metaq.net.peer.Session`. The application finds it as `state["connection"]` of the scope."""

    def __init__(self, peer: Peer, space: HttpSpace) -> None:
        super().__init__(space.config, space.state, {"connection": self})
        self.peer, self._space = peer, space
        self.logger, self.access_log = _SILENT, False
        self._shim = PeerTransport(peer, self._close, self.pause_writing)
        self._in_head = self._in_body = self._lingers = self._half = self._waits = False
        """`_half`: the client sends no more. `_waits`: the answer may take long, see `will_wait`."""
        self._head_bytes = self._body_bytes = self._requests = 0
        """Bytes of the unfinished head, an upper bound; of the request's body; requests begun."""
        self._awaited_head = self._awaited_body = 0
        """Requests of which more is awaited."""
        self._direct: bytearray | None = None
        """Body of a request that may be answered without the application, as far as it has come."""
        self._gone: asyncio.Future[None] | None = None
        self.metering = HttpMetering(self, space.quotas) if space.quotas is not None else None
        peer.on_writable = self.resume_writing
        peer.on_half_closed = self._half_closed
        self.connection_made(self._shim)

    # -------------------------------------------------------------- metaq.net.peer.Session

    def data_received(self, data: memoryview) -> int:  # type: ignore[override]  # asyncio's of this name returns nothing
        """Give the parser what came, until it asks for a pause. Return the bytes used."""
        start, size = 0, len(data)
        self._unset_keepalive_if_required()
        while start < size and not (self._shim.stopped or self.peer.closed):
            end = min(size, start + (_BODY_PIECE if self._in_body else _HEAD_PIECE))
            if not self._feed(data[start:end]):
                return size  # nothing behind it is looked at
            start = end
            if len(self.pipeline) >= AHEAD_MAX:
                self._shim.hold(held=True)
        self._await_rest()
        return start

    def _await_rest(self) -> None:
        """Have the rest of an unfinished request come in time: of those that came as a whole nothing is remembered."""
        if self._in_head and self._awaited_head != self._requests:
            self._awaited_head = self._requests
            self._space.await_head(self, self._requests)
        elif self._in_body and self._awaited_body != self._requests:
            self._awaited_body = self._requests
            self._space.await_body(self, self._requests, 0)

    def _feed(self, piece: memoryview) -> bool:
        """Give the parser a piece. Return whether it takes what comes behind."""
        request = self._requests if self._in_head else 0
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # An upgrade may be passed over: the request is answered, and what comes behind it is no HTTP.
            self._answer_last()
            return False
        except httptools.HttpParserError as error:
            self.refuse(Problem(400, "the request is no HTTP/1.1", f"{error.__context__ or error}"))
            return False
        if self._in_head:
            self._head_bytes = self._head_bytes + len(piece) if request == self._requests else len(piece)
            if self._head_bytes > self._space.limits.head_bytes:
                limit = self._space.limits.head_bytes
                self.refuse(Problem(431, f"the head of the request is longer than {limit} bytes"))
                return False
        return True

    def frame_needed(self) -> int:
        """Return 0: what is left is presented again when the parser goes on, whatever its size."""
        return 0

    def will_wait(self) -> None:
        """Begin an answer that may take long. From now on a client that sends no more is one that has gone: most clients that
        end their connection look like that, and an answer is only noticed not to be read when there is one.

        Raises ClientGone: the client has gone, or will send no more.
        """
        self._waits = True
        if self._half or self.peer.closed:
            raise ClientGone("the client has ended the connection")

    async def unless_gone(self, future: asyncio.Future[T]) -> T:
        """Wait for a future, see `will_wait`. Raises ClientGone: the connection has ended before."""
        self.will_wait()
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        first: set[asyncio.Future[Any]] = {future, self._gone}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ClientGone("the connection has ended")
        return future.result()

    def connection_lost(self, why: str) -> None:  # type: ignore[override]  # asyncio's gets an exception
        self._in_head = self._in_body = False
        if self.metering is not None:
            self.metering.close()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        super().connection_lost(ConnectionResetError(why) if why else None)

    def _half_closed(self) -> bool:
        """Handle the end of the client's sending. Return whether an answer is still to come."""
        self._answer_last()
        self._half = True
        return self._answers and not (self._in_head or self._in_body or self._waits)

    @property
    def _answers(self) -> bool:
        """A request has come as a whole, or its head, and is not answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _answer_last(self) -> None:
        """Close behind the answers to the requests that have come."""
        last = self.pipeline[0][0] if self.pipeline else self.cycle
        if last is not None:
            last.keep_alive = False

    # -------------------------------------------------------------- httptools' callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._requests += 1

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._body_bytes = False, True, 0
        if (direct := self._space.direct) is not None and self._may_be_direct() and direct.wants(self.url):
            self._direct = bytearray()
        else:
            super().on_headers_complete()

    def _may_be_direct(self) -> bool:
        """Return whether nothing about the request needs the application: it is short, and nothing is before it."""
        parser = self.parser
        if self._answers or self.expect_100_continue or self.peer.congested or parser.get_method() != b"POST":
            return False
        size = next((value for name, value in self.headers if name == b"content-length"), b"")
        # No number is no length: the parser has refused it, or the body is chunked.
        return (
            size.isdigit()
            and int(size) <= DIRECT_BYTES_MAX
            and parser.should_keep_alive()
            and not parser.should_upgrade()
        )

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._direct is not None:
            self._direct += body
            return
        super().on_body(body)
        if self._lingers and self._body_bytes > LINGER_BYTES:
            self._end()

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._direct is not None:
            body, self._direct = self._direct, None
            direct = self._space.direct
            assert direct is not None, "it wanted the request"
            answer = direct.answer(self, self.url, self.headers, bytes(body))
            if answer is not None:
                self._shim.write(b"%b%d\r\n\r\n%b" % (_DIRECT_HEAD, len(answer), answer))
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
                return
            super().on_headers_complete()
            super().on_body(bytes(body))
        super().on_message_complete()
        if self._lingers:
            self._end()

    def on_response_complete(self) -> None:
        self._waits = False
        super().on_response_complete()
        if len(self.pipeline) < AHEAD_MAX:
            self._shim.hold(held=False)

    # -------------------------------------------------------------- the end

    def head_is_due(self, request: int) -> None:
        """End the connection if the head of this request is still unfinished."""
        if self._in_head and request == self._requests:
            seconds = self._space.limits.head_seconds
            self.refuse(Problem(408, f"the head of the request did not come within {seconds:g} s"))

    def body_is_due(self, request: int, seen: int) -> None:
        """End the connection if the body of this request comes too slowly; what the server does not read is not waited for."""
        if not self._in_body or request != self._requests:
            return
        limits = self._space.limits
        if self._lingers or not (self._shim.stopped or self._body_bytes - seen >= limits.body_bytes):
            text = f"the body of the request came with less than {limits.body_bytes} bytes in {limits.body_seconds:g} s"
            self.refuse(Problem(408, text))
            return
        self._space.await_body(self, request, self._body_bytes)

    def refuse(self, problem: Problem) -> None:
        """Answer what cannot be read as a request, if no other answer is under way, and close."""
        self._space.faults.warning(
            (problem.status, problem.title), "a request of %s is refused: %s %s", join_address(*self.peer.address),
            problem.title, problem.detail,
        )  # fmt: skip
        if self._may_answer:
            self.peer.write(problem.answer())
        self._end()

    @property
    def _may_answer(self) -> bool:
        """Nothing else is being answered, or the request whose body is to come."""
        if self._in_body:
            return self._direct is not None or not (self.pipeline or self.cycle.response_started)
        return not self._answers

    def _close(self) -> None:
        """Close behind an answer. While a body is still coming, it is read on: see `LINGER_BYTES`."""
        if self._in_body and self._body_bytes <= LINGER_BYTES and not self.peer.closed:
            self._lingers = True
            self._shim.resume_reading()
        else:
            self._end()

    def _end(self) -> None:
        self._in_head = self._in_body = False
        self.peer.close()
