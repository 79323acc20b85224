"""Pipelining: requests to one broker, several in flight, that must arrive in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from metaq.client.conversation.call import Call
from metaq.client.conversation.retry import Patience, Purpose
from metaq.errors import MetaqError
from metaq.spark.cluster.courier import Courier
from metaq.spark.cluster.link import Link

CALLS_MAX = 64
BYTES_MAX = 4 * 1024 * 1024
"""Most requests and bytes in flight: enough that neither side waits for the other."""


class _Posted(Struct, frozen=True):
    """A request that is not answered yet."""

    call: Call[Any]
    size: int
    check: Callable[[Any], None] | None


class PipelinedRequests:
    """Requests in flight to one broker. After a fault, all that were not answered are sent again, in order."""

    def __init__(self, courier: Courier, broker: str, purpose: Purpose, seconds: float) -> None:
        """
        Args:
            courier: whose connection is used.
            broker: name of the broker whose master gets the requests.
            purpose: which faults are worth a retry.
            seconds: how long to retry, from the last success.
        """
        self._courier, self._broker = courier, broker
        self._patience = Patience(purpose, seconds, courier.now())
        self._waiting: deque[_Posted] = deque()
        self._bytes = 0
        self._link: Link | None = None
        self._numbers: deque[int] = deque()
        """Opaques of the first requests of `_waiting`, those that were sent on the current link."""

    def post(self, call: Call[Any], size: int, check: Callable[[Any], None] | None = None) -> None:
        """Send a request; wait for answers only if too much is in flight.

        Args:
            size: bytes of the request.
            check: called with the outcome; may raise.

        Raises: what the broker refused for good, of this request or an earlier one; the last fault once the time is over.
        """
        # A request above BYTES_MAX is sent all the same, when nothing else is in flight.
        while self._waiting and (len(self._waiting) >= CALLS_MAX or self._bytes + size > BYTES_MAX):
            self._settle()
        self._waiting.append(_Posted(call, size, check))
        self._bytes += size
        while not self._sent():
            pass

    def finish(self) -> None:
        """Wait until everything is answered. Raises as `post`."""
        while self._waiting:
            self._settle()

    def _settle(self) -> None:
        """Wait for one answer."""
        while not (self._sent() and self._answered()):
            pass

    def _sent(self) -> bool:
        """Send all that is not in flight. False: a fault, after its pause."""
        try:
            if self._link is None:
                self._link = self._courier.link_to(self._broker)
            while len(self._numbers) < len(self._waiting):
                self._numbers.append(self._link.post(self._waiting[len(self._numbers)].call))
        except MetaqError as fault:
            self._broken(fault)
            return False
        return True

    def _answered(self) -> bool:
        """Take the answer to the first request. False: a fault, after its pause."""
        assert self._link is not None
        posted = self._waiting[0]
        try:
            outcome = self._link.outcome(self._numbers[0], posted.call)
        except MetaqError as fault:
            self._broken(fault)
            return False
        if posted.check is not None:
            posted.check(outcome)
        self._bytes -= self._waiting.popleft().size
        self._numbers.popleft()
        # A broker that is slow but answers is never given up.
        self._patience.renew(self._courier.now())
        return True

    def _broken(self, fault: MetaqError) -> None:
        # Order counts: what follows a refused request is refused too, so all of it is sent again, over a new connection.
        self._link = None
        self._numbers.clear()
        self._courier.forget(self._broker)
        threading.Event().wait(self._patience.pause(fault, self._courier.now()))
