"""Pending requests (request-reply) of all producers of a client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from metaq.errors import BufferFull, ClientClosed, ClientError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.model.notices import RequestReplied

log = logging.getLogger("metaq.client")

REQUESTS_MAX = 64 * 1024
"""Pending requests of one client at most."""


AwaitedReply = concurrent.futures.Future[StoredMessage]
"""The reply to a request, awaited in the requester's own thread: it is settled as soon as the reply is read, without a
turn of the loop."""

_Waiting: TypeAlias = tuple[object, AwaitedReply, asyncio.Future[None] | None]
"""A pending request: producer, future of the reply, and the loop's future that is done with it."""


class Requests:
    """Matches replies, which arrive on the background loop, with requests, which wait in any thread."""

    def __init__(self, limited_log: RateLimitedLog) -> None:
        self._limited_log = limited_log
        self._waiting: dict[str, _Waiting] = {}
        """Correlation id → pending request."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def awaiting(
        self, owner: object, correlation_id: str, reply: AwaitedReply, done: asyncio.Future[None] | None = None
    ) -> Iterator[None]:
        """Register a request until the block is left; `done`, of the loop, is done when `reply` is.

        Raises BufferFull: too many wait.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            raise BufferFull(f"{len(self._waiting)} requests of this client wait for replies: send them more slowly")
        self._waiting[correlation_id] = owner, reply, done
        try:
            yield
        finally:
            del self._waiting[correlation_id]

    def replied(self, what: RequestReplied) -> None:
        """Settle the request of a reply. The first reply counts."""
        waiting = self._waiting.get(what.correlation_id)
        if waiting is None:
            self._limited_log.warning(
                "late reply",
                "a reply to request %.100s came when nobody waited for it any more: it took longer than the timeout",
                what.correlation_id,
            )
        elif what.broken:
            _settle(waiting, ClientError(f"the reply to a request came, and its body cannot be read: {what.broken}"))
        else:
            _settle(waiting, what.reply)

    def give_up(self, owner: object) -> None:
        """Fail the requests of a producer that is closed."""
        # A copy: who is woken here leaves its block, in another thread, and so the dict.
        for waiting in list(self._waiting.values()):
            if waiting[0] is owner:
                _settle(waiting, ClientClosed("the producer was closed before the reply came"))


def settle(future: AwaitedReply, outcome: StoredMessage | BaseException) -> None:
    """Any thread: settle a reply's future, unless it is settled or its waiter has given up."""
    # A reply, a failed send and a closing producer may all settle it: the first counts.
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _settle(waiting: _Waiting, outcome: StoredMessage | BaseException) -> None:
    _, reply, done = waiting
    settle(reply, outcome)
    if done is not None and not done.done():
        done.set_result(None)


def fails_with(reply: AwaitedReply, work: concurrent.futures.Future[None]) -> None:
    """Pass an error of the sending task on to the reply's future."""

    def ended(done: concurrent.futures.Future[None]) -> None:
        if done.cancelled():
            settle(reply, ClientClosed("the client was closed before the reply came"))
        elif (error := done.exception()) is not None:
            settle(reply, error)

    work.add_done_callback(ended)
