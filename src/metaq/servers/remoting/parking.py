"""Requests that wait for a change to be saved: a send to a topic that is being made, a heartbeat with a new group.

A service that needs such a change raises `Saving` before it has done anything. The request is kept here and handled once
more when the change is there, or answered with the refusal. Those that wait for one change go on in the order in which
they came, before anything newer: so the sends of one connection to one topic keep their order. Nobody else is held up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.options import MIB
from metaq.saved import Pending, Saving
from metaq.wire.command import Command

BYTES_MAX = 64 * MIB
"""Of all requests that wait."""
PEER_BYTES_MAX = 16 * MIB
REQUEST_BYTES = 2048
"""What a request is counted with beside its body."""
ATTEMPTS_MAX = 8
"""A heartbeat may need its groups and then their topics; more than this means that somebody deletes what it makes."""
WAIT_SECONDS = 5.0


class ParkedSession(Protocol):
    """A connection whose request waits."""

    parked: Parked

    @property
    def gone(self) -> bool:
        """The connection is closed."""
        ...

    def resume(self, command: Command, work: Callable[[], Command | None] | None) -> None:
        """Handle a request again, or answer it by `work`."""
        ...

    def refuse(self, command: Command, error: Refused) -> None:
        """Answer a request with an error."""
        ...


class Parked:
    """What one connection has waiting."""

    __slots__ = ("bytes", "last")

    def __init__(self) -> None:
        self.bytes = 0
        self.last: tuple[Pending, ...] = ()
        """What its newest request waits for."""

    def in_turn(self) -> None:
        """Raises Saving while a request of this connection waits: for one that must not overtake it."""
        waiting = [pending for pending in self.last if not pending.done]
        if waiting:
            raise Saving(*waiting)


class _Request(Struct, eq=False):
    session: ParkedSession
    command: Command
    then: Callable[[], Any] | None
    left: int
    """Changes that it still waits for."""
    deadline: float
    size: int
    over: bool = False


class Parking:
    """All requests of one server that wait for a change."""

    def __init__(self, clock: Clock, bytes_max: int = BYTES_MAX, peer_bytes_max: int = PEER_BYTES_MAX) -> None:
        self._clock, self._bytes_max, self._peer_bytes_max = clock, bytes_max, peer_bytes_max
        self._requests: deque[_Request] = deque()
        self._attempt = 0
        self.bytes = 0

    def park(self, session: ParkedSession, command: Command, saving: Saving) -> None:
        """Keep a request until what it needs is there. Raises Refused BUSY: too much waits already."""
        size = len(command.body) + REQUEST_BYTES
        if self._attempt >= ATTEMPTS_MAX:
            raise Refused(
                Reason.BUSY,
                "[PCBUSY_CLEAN_QUEUE]broker busy: what the request needs is deleted as often as it is made",
            )
        if self.bytes + size > self._bytes_max or session.parked.bytes + size > self._peer_bytes_max:
            raise Refused(
                Reason.BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: {session.parked.bytes} bytes of your "
                f"requests, {self.bytes} of all, wait for topics and groups to be saved",
            )
        request = _Request(
            session, command, saving.then, len(saving.pending), self._clock.monotonic() + WAIT_SECONDS, size
        )
        attempt = self._attempt + 1
        self.bytes += size
        session.parked.bytes += size
        session.parked.last = saving.pending
        self._requests.append(request)
        for pending in saving.pending:
            pending.when_done(lambda error: self._saved(request, error, attempt))

    def _saved(self, request: _Request, error: Refused | None, attempt: int) -> None:
        request.left -= 1
        if request.over or (request.left and error is None):
            return
        self._remove(request)
        if error is not None:
            request.session.refuse(request.command, error)
            return
        before, self._attempt = self._attempt, attempt
        try:
            request.session.resume(request.command, request.then)
        finally:
            self._attempt = before

    def _remove(self, request: _Request) -> None:
        request.over = True
        self.bytes -= request.size
        request.session.parked.bytes -= request.size
        while self._requests and self._requests[0].over:
            self._requests.popleft()

    def expire(self) -> None:
        """Answer those who waited too long: nothing was done for them, and nothing will be."""
        now = self._clock.monotonic()
        while self._requests and self._requests[0].deadline <= now:
            request = self._requests[0]
            self._remove(request)
            outcome = (
                "Nothing was done for it, try again"
                if request.then is None
                else "It may still take effect: look, and repeat it if it has not"
            )
            text = f"[TIMEOUT_CLEAN_QUEUE]broker busy: a change that the request needs was not saved within {WAIT_SECONDS:g} s"
            request.session.refuse(request.command, Refused(Reason.BUSY, f"{text}. {outcome}"))
