"""Waiting for changes in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar

from metaq.errors import Reason, Refused
from metaq.saved import Pending, PendingOutcome
from metaq.servers.server import CallSoon
from metaq.store.message_store import MessageStore

T = TypeVar("T")


async def ended(pending: Pending) -> None:
    """Return when a change has taken effect. Raises Refused: it has not."""
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: Refused | None) -> None:
        if waiting.done():  # cancelled
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    pending.when_done(settle)
    await waiting


async def all_ended(changes: Iterable[Pending]) -> None:
    """Return when all changes have taken effect. Raises Refused: one has not."""
    for change in changes:
        await ended(change)


async def outcome_of(pending: PendingOutcome[T]) -> T:
    """Return the outcome of work when it has ended. Raises Refused."""
    await ended(pending)
    return pending.outcome()


async def durable(store: MessageStore, call_soon: CallSoon) -> None:
    """Return when the log is on the disk, up to where it ends now. Raises Refused: it never will be."""
    pending, end = Pending(), store.log.end

    def flushed(good: bool) -> None:
        text = f"the log is not durable up to its end at {end}: {store.state.failed or 'the store was closed'}"
        call_soon(lambda: pending.finish(None if good else Refused(Reason.NOT_STORED, text)))

    store.flusher.when_flushed(end, flushed)
    await ended(pending)
