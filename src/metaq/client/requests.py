"""Requests that wait for their replies, of all producers of a client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from metaq.errors import BufferFull, ClientClosed, ClientError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.model.notices import RequestReplied

log = logging.getLogger("metaq.client")

REQUESTS_MAX = 64 * 1024
"""Of one client. What each of them costs is small, but nobody reads so many replies at once."""


AwaitedReply = concurrent.futures.Future[StoredMessage]
"""Whoever asks waits for it in a thread of its own: it is settled as soon as the reply is there, past the loop."""


class Requests:
    """In the background loop."""

    def __init__(self, told: RateLimitedLog) -> None:
        self._told = told
        self._waiting: dict[str, tuple[object, AwaitedReply]] = {}
        """By correlation id: whose request it is, and what gets its reply."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def awaiting(self, owner: object, correlation_id: str, reply: AwaitedReply) -> Iterator[None]:
        """A request that waits until this is left. Raises BufferFull: too many do."""
        if len(self._waiting) >= REQUESTS_MAX:
            raise BufferFull(f"{len(self._waiting)} requests of this client wait for replies: send them more slowly")
        self._waiting[correlation_id] = owner, reply
        try:
            yield
        finally:
            del self._waiting[correlation_id]

    def replied(self, what: RequestReplied) -> None:
        """A reply came. The first one counts."""
        _, future = self._waiting.get(what.correlation_id, (None, None))
        if future is None:
            self._told.warning(
                "late reply",
                "a reply to request %.100s came when nobody waited for it any more: it took longer than the timeout",
                what.correlation_id,
            )
        elif what.broken:
            settle(future, ClientError(f"the reply to a request came, and its body cannot be read: {what.broken}"))
        else:
            settle(future, what.reply)

    def give_up(self, owner: object) -> None:
        """Its producer is closed: nobody replies to it any more."""
        for whose, future in list(self._waiting.values()):
            if whose is owner:
                settle(future, ClientClosed("the producer was closed before the reply came"))


def settle(future: AwaitedReply, outcome: StoredMessage | BaseException) -> None:
    """Any thread: unless it is settled, or whoever waited has given up."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


async def replied(reply: AwaitedReply) -> None:
    """Return when there is a reply. Raises its error. Giving up leaves it to whoever else waits."""
    waiter = asyncio.wrap_future(reply)
    waiter.add_done_callback(lambda done: done.cancelled() or done.exception())  # Seen, also when nobody waits here.
    await asyncio.shield(waiter)


def fails_with(reply: AwaitedReply, work: concurrent.futures.Future[None]) -> None:
    """Let an error of the work that waits for a reply be the reply's."""

    def ended(done: concurrent.futures.Future[None]) -> None:
        if done.cancelled():
            settle(reply, ClientClosed("the client was closed before the reply came"))
        elif (error := done.exception()) is not None:
            settle(reply, error)

    work.add_done_callback(ended)
