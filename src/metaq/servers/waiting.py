"""Requests that wait for a change to be saved: a send to a topic that is being made, a heartbeat with a new group.

A service that needs such a change raises `Saving` before it has done anything. The server parks the request here, and
resumes it when the change is saved, or answers with the refusal. Requests for one change are resumed in the order in
which they came, before newer ones: so the sends of one connection to one topic keep their order. Whether a connection's
later requests wait behind a parked one is up to the protocol: in MetaQ 1.x all do, in RocketMQ's only those that must
not overtake it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.kept import Kept
from metaq.options import MIB
from metaq.saved import Pending, Saving

BYTES_MAX = 64 * MIB
"""Most bytes of all parked requests."""
PEER_BYTES_MAX = 16 * MIB
"""Most bytes of one connection's parked requests."""
REQUEST_BYTES = 2048
"""Bytes that a request counts for beside its body."""
ATTEMPTS_MAX = 8
"""Most times that a request waits: a heartbeat may need its groups and then their topics; more means that somebody
deletes them."""
WAIT_SECONDS = Pending.wait_seconds
"""Longest wait of a parked request, but for those whose change takes longer."""

Then: TypeAlias = Callable[[], Any] | None
Resume: TypeAlias = Callable[[Then], None]
"""Handles a request again once what it needs is saved, or calls its argument (`Saving.then`) instead."""
Refuse: TypeAlias = Callable[[Refused], None]
"""Answers a request with an error."""


class Wording(NamedTuple):
    """A protocol's texts for requests that waited in vain.

    `too_many` is formatted with `connection` and `total`, the parked bytes; `too_late` with `seconds`, followed by
    `undone` if nothing was done and nothing will be, else by `uncertain`.
    """

    too_often: str = "busy: what the request needs is deleted as often as it is made"
    too_many: str = "busy: {connection} bytes of your requests, {total} of all, wait for changes to be saved"
    too_late: str = "busy: a change that the request needs was not saved within {seconds:g} s. "
    undone: str = "Nothing was done for it, try again"
    uncertain: str = "It may still take effect: look, and repeat it if it has not"


class Parked:
    """The parked requests of one connection."""

    __slots__ = ("kept", "last")

    def __init__(self, keep: Callable[[int], None]) -> None:
        """Args: keep: `Peer.keep` of the connection."""
        self.kept = Kept(keep)
        self.last: tuple[Pending, ...] = ()
        """Changes that its newest request waits for."""

    def in_turn(self) -> None:
        """Raise Saving while a request of this connection is parked. For requests that must not overtake it."""
        waiting = [pending for pending in self.last if not pending.done]
        if waiting:
            raise Saving(*waiting)


class ParkedRequest(Struct, eq=False):
    """One parked request."""

    resume: Resume
    refuse: Refuse
    then: Then
    parked: Parked
    left: int
    """Number of changes that it still waits for."""
    seconds: float
    """How long it waits."""
    deadline: float
    size: int
    over: bool = False
    """It was resumed, refused or withdrawn."""


class Parking:
    """The parked requests of one server.

    Args:
        clock: of the deadlines.
        wording: of refusals.
        bytes_max: most bytes of all parked requests.
        peer_bytes_max: most bytes of one connection's.
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
        self._requests: defaultdict[float, deque[ParkedRequest]] = defaultdict(deque)
        """How long requests wait → those that do, in the order of their deadlines."""
        self._attempt = 0
        """How often the request being resumed has waited."""
        self.bytes = 0

    def park(
        self, saving: Saving, parked: Parked, resume: Resume, refuse: Refuse, body_bytes: int = 0
    ) -> ParkedRequest:
        """Keep a request until what it needs is saved. Then `resume` or `refuse` is called, once, perhaps before this
        returns.

        Raises Refused BUSY: too much waits already, or it has waited too often.
        """
        size, wording = body_bytes + REQUEST_BYTES, self._wording
        if self._attempt >= ATTEMPTS_MAX:
            raise Refused(Reason.BUSY, wording.too_often)
        if self.bytes + size > self._bytes_max or parked.kept.bytes + size > self._peer_bytes_max:
            raise Refused(Reason.BUSY, wording.too_many.format(connection=parked.kept.bytes, total=self.bytes))
        seconds = max(pending.wait_seconds for pending in saving.pending)
        deadline = self._clock.monotonic() + seconds
        request = ParkedRequest(resume, refuse, saving.then, parked, len(saving.pending), seconds, deadline, size)
        # Not 0 while `resume` runs: a request that parks again from within it goes on counting its attempts.
        attempt = self._attempt + 1
        self.bytes += size
        parked.kept.add(size)
        # The field is set before the loop: a change that is saved already resumes the request at once, and that may
        # park it anew and set this again.
        parked.last = saving.pending
        self._requests[seconds].append(request)
        for pending in saving.pending:
            pending.when_done(lambda error: self._saved(request, error, attempt))
        return request

    def withdraw(self, request: ParkedRequest) -> None:
        """Drop a request that nobody wants any more. No effect if it is over."""
        if not request.over:
            self._remove(request)

    def _saved(self, request: ParkedRequest, error: Refused | None, attempt: int) -> None:
        request.left -= 1
        # One refused change decides; the outcomes of the others then meet a request that is over.
        if request.over or (request.left and error is None):
            return
        self._remove(request)
        if error is not None:
            request.refuse(error)
            return
        # The old value is restored: `resume` may nest, where a request parks again for a change that is saved by then.
        before, self._attempt = self._attempt, attempt
        try:
            request.resume(request.then)
        finally:
            self._attempt = before

    def _remove(self, request: ParkedRequest) -> None:
        request.over = True
        self.bytes -= request.size
        request.parked.kept.add(-request.size)
        # Requests end in any order. Only the front is cleaned up, so that removing one costs no walk through the
        # others.
        requests = self._requests[request.seconds]
        while requests and requests[0].over:
            requests.popleft()

    def expire(self) -> None:
        """Refuse requests that have waited too long: nothing was done for them, and nothing will be, unless they have a
        `then`."""
        now, wording = self._clock.monotonic(), self._wording
        for seconds, requests in list(self._requests.items()):
            while requests and requests[0].deadline <= now:
                request = requests[0]
                self._remove(request)
                outcome = wording.undone if request.then is None else wording.uncertain
                request.refuse(Refused(Reason.BUSY, wording.too_late.format(seconds=seconds) + outcome))
