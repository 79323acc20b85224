"""One TCP connection to a server of MetaQ 1.x, over which any number of commands are under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from metaq.clock import SYSTEM
from metaq.errors import ConnectionFailed, MetaqError
from metaq.metaq1.conversation.pipeline import ANSWER_BYTES_MAX, Make, Pipeline
from metaq.net.lent import POSSIBLE, Lent
from metaq.net.peer import Peer, Session
from metaq.wire.metaq1.commands import Answer, Command, ResultLine, TooLong, whole_result

FLUSH_BYTES: Final = 256 * 1024
"""Bytes of commands that are gathered in one turn of the loop, at most."""
WISHES: Final = 10
"""Sends, each alone on its connection, after which it is lent to threads. So a program that sends now and then has no more to do."""
Outcome: TypeAlias = Answer | TooLong | MetaqError


class Request:
    """One command, from before it is sent until its answer has come, or cannot come any more."""

    __slots__ = ("bucket", "connection", "done", "opaque", "timeout")

    def __init__(self) -> None:
        self.done = False
        self.timeout = 0.0
        self.bucket: set[Any] | None = None
        """Of `Deadlines`, which sets both."""
        self.connection: Connection | None = None
        """Where it was sent; None: it was not, so far."""
        self.opaque = 0

    @property
    def action(self) -> str:
        """What the command is to do, for errors: "send to topic t"."""
        raise NotImplementedError

    def make(self, opaque: int) -> Command | bytes:
        """Return the command, or its bytes."""
        raise NotImplementedError

    def settle(self, outcome: Outcome) -> None:
        """Called once, in the loop. Raises nothing."""
        raise NotImplementedError

    def end(self, outcome: Outcome) -> None:
        """Settle it, unless it is."""
        if not self.done:
            self.abandon()
            self.settle(outcome)

    def abandon(self) -> None:
        """Nobody waits for the outcome any more."""
        self.done = True
        if self.bucket is not None:
            self.bucket.discard(self)
        if self.connection is not None:
            self.connection.forget(self)


class Call(Request):
    """A command whose answer a function takes.

    Args:
        make: makes the command.
        settle: called once, in the loop, with the outcome. Raises nothing.
        action: what the command is to do, for errors.
    """

    __slots__ = ("_action", "_make", "_settle")

    def __init__(self, make: Make, settle: Callable[[Outcome], object], action: str) -> None:
        super().__init__()
        self._make, self._settle, self._action = make, settle, action

    @property
    def action(self) -> str:
        return self._action

    def make(self, opaque: int) -> Command | bytes:
        return self._make(opaque)

    def settle(self, outcome: Outcome) -> None:
        self._settle(outcome)


class Connection(Session):
    """A connection, as a session of `metaq.net`.

    Args:
        address: of the server, for errors.
        number: tells it from the connections before it: a local transaction ends with its connection.
        peer: what to write to.
    """

    def __init__(self, address: str, number: int, peer: Peer) -> None:
        self.address, self.number, self.peer = address, number, peer
        self._loop = asyncio.get_running_loop()
        self._pipeline: Pipeline[Request] = Pipeline()
        self.last_active = self._loop.time()
        """Loop time of the last read or write."""
        self.heard = False
        """Something has come from the server."""
        self._last_opaque: int | None = None
        """Of the command that was written last."""
        self.lent: Lent | None = None
        """Set while threads may use it by themselves (`Direct`)."""
        self.wishes = 0
        """Sends that would have done so since it was not."""
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done when the connection is lost; says why."""

    def send(self, request: Request) -> None:
        """Send a command; its request is settled when the answer comes, or the connection is lost."""
        if self.lost.done():
            error = self._broken(self.lost.result())
            error.sent = False
            request.end(error)
            return
        try:
            request.opaque, data = self._pipeline.send(request.make, request)
        except MetaqError as error:  # a word that cannot be written
            request.end(error)
            return
        request.connection = self
        self._last_opaque = request.opaque
        # Commands of one turn of the loop go out together: a system call costs more than all else that a command needs.
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        lent, self.lent = self.lent, None
        if lent is not None:
            lent.take_back()
        if self._unsent:
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent, self._unsent_bytes = [], 0
            self.last_active = self._loop.time()
            self.peer.write(data)

    def forget(self, request: Request) -> None:
        self._pipeline.forget(request.opaque)

    @property
    def under_way(self) -> int:
        """Commands whose answers are waited for."""
        return len(self._pipeline)

    def close(self, why: Callable[[], MetaqError]) -> None:
        """Close; what is under way ends with an error that `why` makes for each."""
        self._flush()
        self.peer.close(str(why()))
        for request in self._pipeline.end():
            request.end(why())

    def data_received(self, data: memoryview) -> int:
        self.heard = True
        self.last_active = self._loop.time()
        found, used = self._pipeline.receive(bytes(data))
        if self.wishes >= WISHES and found:
            self._lend(found[-1][0])
        for request, answer in found:
            request.end(answer)
        if self._pipeline.broken is not None:
            raise self._pipeline.broken
        return used

    def _lend(self, answered: Request) -> None:
        """Let threads use the connection, if nothing is under way on it."""
        # The answer to the last command: so everything before it is with the server, too, and nothing waits to be written.
        if POSSIBLE and not self._pipeline and not self._unsent and answered.opaque == self._last_opaque:
            lent = Lent(self._take_rest)
            self.wishes = 0
            if self.peer.join(lent, None):
                self.lent = lent

    def _take_rest(self, rest: bytes) -> None:
        """In a thread that has the connection: write what the socket did not take, before all else."""
        self._unsent.insert(0, rest)
        with contextlib.suppress(RuntimeError):  # the interpreter exits
            self._loop.call_soon_threadsafe(self._flush)

    def exchange(self, lent: Lent, request: Request, seconds: float) -> ResultLine | None:
        """Any thread: send a command and read its answer by itself, `lent` being what `self.lent` was.

        Returns None if that was not the end of it: with `request.connection` None nothing was sent, since others use the connection;
        else the loop goes on with the request, which is settled there if it is not `seconds` old already.
        """

        def make() -> bytes:
            request.opaque, data = self._pipeline.send(request.make, request)
            request.connection = self
            return data

        try:
            if not lent.begin(make):
                return None
            now = self.last_active = SYSTEM.monotonic()
            end = now + seconds
            data = b""
            while not data and now < end:
                data = lent.receive(end - now)
                now = SYSTEM.monotonic()
            if data:
                self.heard, self.last_active = True, now
                whole = whole_result(data, 0, ANSWER_BYTES_MAX)
                if whole is not None and whole[0].opaque == request.opaque and whole[1] == len(data):
                    lent.end()
                    self.forget(request)
                    return whole[0]
            lent.end(data)
        except EOFError:
            lent.end(b"")
        except BaseException:  # an interrupt
            lent.abandon()
            if request.connection is not None:
                self.forget(request)
            raise
        return None

    def frame_needed(self) -> int:
        return self._pipeline.needed

    def connection_lost(self, why: str) -> None:
        why = why or "closed by the server, as it does after a command that it cannot read, and when it stops"
        if not self.lost.done():
            self.lost.set_result(why)
        for request in self._pipeline.end():
            request.end(self._broken(why))

    def _broken(self, why: str) -> ConnectionFailed:
        return ConnectionFailed(f"the connection to {self.address} broke: {why}")
