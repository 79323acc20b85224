"""Waiting for changes in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from metaq.errors import MetaqError, Reason, Refused
from metaq.saved import Pending, PendingOutcome
from metaq.servers.server import CallSoon
from metaq.store.message_store import MessageStore

T = TypeVar("T")

log = logging.getLogger(__name__)


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


async def carry_out(change: PendingOutcome[T], work: Callable[[], Coroutine[Any, Any, T]], what: str) -> None:
    """Do the work of a change, and finish the change with what becomes of that.

    Args:
        work: begins it. It is called here, so that nothing was begun if the broker stops before this task runs.
        what: is to be changed, for people.
    """
    try:
        outcome = await work()
    except Refused as error:
        change.finish(error)
    except MetaqError as error:
        change.finish(Refused(Reason.UNAVAILABLE, str(error)))
    except Exception as error:
        log.exception("%s could not be changed", what)
        change.finish(Refused(Reason.UNAVAILABLE, f"{what} could not be changed: {error!r}"))
    else:
        change.succeed(outcome)


async def durable(store: MessageStore, call_soon: CallSoon) -> None:
    """Return when the log is on the disk, up to where it ends now. Raises Refused: it never will be."""
    pending, end = Pending(), store.log.end

    def flushed(good: bool) -> None:
        text = f"the log is not durable up to its end at {end}: {store.state.failed or 'the store was closed'}"
        call_soon(lambda: pending.finish(None if good else Refused(Reason.NOT_STORED, text)))

    store.flusher.when_flushed(end, flushed)
    await ended(pending)
