"""Requests that wait for a change to be saved: a send to a topic that is being made, a heartbeat with a new group.

A service that needs such a change raises `Saving` before it has done anything. The server parks the request here: it is
resumed when the change is there, or answered with the refusal. Those that wait for one change go on in the order in which
they came, before anything newer: so the sends of one connection to one topic keep their order. Whether a connection's later
requests wait behind a parked one is its protocol's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.options import MIB
from metaq.saved import Pending, Saving

BYTES_MAX = 64 * MIB
"""Of all requests that wait."""
PEER_BYTES_MAX = 16 * MIB
REQUEST_BYTES = 2048
"""What a request is counted with beside its body."""
ATTEMPTS_MAX = 8
"""A heartbeat may need its groups and then their topics; more than this means that somebody deletes what it makes."""
WAIT_SECONDS = 5.0

Then: TypeAlias = Callable[[], Any] | None
Resume: TypeAlias = Callable[[Then], None]
"""Handles a request again, now that what it needs is there, or does what it is given (`Saving.then`) in its place."""
Refuse: TypeAlias = Callable[[Refused], None]
"""Answers a request with an error."""


class Wording(NamedTuple):
    """How clients of a protocol are told that a request was not done because it waited in vain.

    `too_many` is formatted with `connection` and `total`, the bytes that wait, `too_late` with `seconds`; behind it comes
    `undone` if nothing was done and nothing will be, else `uncertain`.
    """

    too_often: str = "busy: what the request needs is deleted as often as it is made"
    too_many: str = "busy: {connection} bytes of your requests, {total} of all, wait for changes to be saved"
    too_late: str = "busy: a change that the request needs was not saved within {seconds:g} s. "
    undone: str = "Nothing was done for it, try again"
    uncertain: str = "It may still take effect: look, and repeat it if it has not"


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


class ParkedRequest(Struct, eq=False):
    """One request that waits."""

    resume: Resume
    refuse: Refuse
    then: Then
    parked: Parked
    left: int
    """Changes that it still waits for."""
    deadline: float
    size: int
    over: bool = False
    """It was resumed, refused or withdrawn."""


class Parking:
    """All requests of one server that wait for a change.

    Args: bytes_max: of all requests that wait. peer_bytes_max: of those of one connection.
    """

    def __init__(
        self,
        clock: Clock,
        wording: Wording | None = None,
        *,
        bytes_max: int = BYTES_MAX,
        peer_bytes_max: int = PEER_BYTES_MAX,
    ) -> None:
        self._clock, self._wording = clock, wording or Wording()
        self._bytes_max, self._peer_bytes_max = bytes_max, peer_bytes_max
        self._requests: deque[ParkedRequest] = deque()
        """In the order of their deadlines: all wait equally long."""
        self._attempt = 0
        """How often the request that is being resumed has waited."""
        self.bytes = 0

    def park(
        self, saving: Saving, parked: Parked, resume: Resume, refuse: Refuse, body_bytes: int = 0
    ) -> ParkedRequest:
        """Keep a request until what it needs is there; then `resume` or `refuse` is called, once, perhaps before this returns.

        Raises Refused BUSY: too much waits already, or it has waited too often.
        """
        size, wording = body_bytes + REQUEST_BYTES, self._wording
        if self._attempt >= ATTEMPTS_MAX:
            raise Refused(Reason.BUSY, wording.too_often)
        if self.bytes + size > self._bytes_max or parked.bytes + size > self._peer_bytes_max:
            raise Refused(Reason.BUSY, wording.too_many.format(connection=parked.bytes, total=self.bytes))
        deadline = self._clock.monotonic() + WAIT_SECONDS
        request = ParkedRequest(resume, refuse, saving.then, parked, len(saving.pending), deadline, size)
        attempt = self._attempt + 1
        self.bytes += size
        parked.bytes += size
        parked.last = saving.pending
        self._requests.append(request)
        for pending in saving.pending:
            pending.when_done(lambda error: self._saved(request, error, attempt))
        return request

    def withdraw(self, request: ParkedRequest) -> None:
        """Drop a request that nobody wants any more; one that is over already may be dropped, too."""
        if not request.over:
            self._remove(request)

    def _saved(self, request: ParkedRequest, error: Refused | None, attempt: int) -> None:
        request.left -= 1
        if request.over or (request.left and error is None):
            return
        self._remove(request)
        if error is not None:
            request.refuse(error)
            return
        before, self._attempt = self._attempt, attempt
        try:
            request.resume(request.then)
        finally:
            self._attempt = before

    def _remove(self, request: ParkedRequest) -> None:
        request.over = True
        self.bytes -= request.size
        request.parked.bytes -= request.size
        while self._requests and self._requests[0].over:
            self._requests.popleft()

    def expire(self) -> None:
        """Answer those who waited too long: nothing was done for them, and nothing will be."""
        now, wording = self._clock.monotonic(), self._wording
        while self._requests and self._requests[0].deadline <= now:
            request = self._requests[0]
            self._remove(request)
            outcome = wording.undone if request.then is None else wording.uncertain
            request.refuse(Refused(Reason.BUSY, wording.too_late.format(seconds=WAIT_SECONDS) + outcome))
