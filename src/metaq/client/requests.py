"""Requests that wait for their replies, of all producers of a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from metaq.errors import BufferFull, ClientClosed, ClientError
from metaq.log import RateLimitedLog
from metaq.model import StoredMessage
from metaq.model.notices import RequestReplied

log = logging.getLogger("metaq.client")

REQUESTS_MAX = 64 * 1024
"""Of one client. What each of them costs is small, but nobody reads so many replies at once."""


class Awaited(NamedTuple):
    """A request that is about to be sent."""

    correlation_id: str
    reply: asyncio.Future[StoredMessage]


class Requests:
    """In the background loop."""

    def __init__(self, told: RateLimitedLog) -> None:
        self._told = told
        self._waiting: dict[str, tuple[object, asyncio.Future[StoredMessage]]] = {}
        """By correlation id: whose request it is, and what gets its reply."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def awaiting(self, owner: object, correlation_id: str) -> Iterator[Awaited]:
        """A request that waits until this is left. Raises BufferFull: too many do."""
        if len(self._waiting) >= REQUESTS_MAX:
            raise BufferFull(f"{len(self._waiting)} requests of this client wait for replies: send them more slowly")
        future: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = owner, future
        try:
            yield Awaited(correlation_id, future)
        finally:
            del self._waiting[correlation_id]
            future.cancel()

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
            if not future.done():
                future.set_exception(
                    ClientError(f"the reply to a request came, and its body cannot be read: {what.broken}")
                )
        elif not future.done():
            future.set_result(what.reply)

    def give_up(self, owner: object) -> None:
        """Its producer is closed: nobody replies to it any more."""
        for whose, future in list(self._waiting.values()):
            if whose is owner and not future.done():
                future.set_exception(ClientClosed("the producer was closed before the reply came"))
