"""Requests for pieces of a log that this broker and another replica are both asked, as a `Comparison` wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar, cast

from metaq.app.role.pending import outcome_of
from metaq.broker.broker import Broker
from metaq.client.conversation.call import Call
from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.scrubbing.calls import GetLogBytes, GetLogChecksums
from metaq.client.conversation.scrubbing.comparison import Steps

T = TypeVar("T")

AskBoth: TypeAlias = Callable[[Call[Any]], Awaitable[tuple[Any, Any]]]
"""Has both replicas answer: the other one's outcome, and this broker's. Raises FAULTS, Refused."""


def asking(broker: Broker, caller: Caller, address: str) -> AskBoth:
    """Return what asks the broker at an address and this one."""

    async def ask_both(call: Call[Any]) -> tuple[Any, Any]:
        return await asyncio.gather(ask(caller, address, call), _own_outcome(broker, call))

    return ask_both


async def next_call(steps: Steps[None], outcomes: tuple[Any, Any] | None) -> Call[Any] | None:
    """Return what `Comparison.steps` asks next; None: it has ended. Raises NotComparable.

    In a thread: where logs differ, megabytes are compared. `outcomes`: of the call before; None: there was none.
    """

    def advance() -> Call[Any] | None:
        try:
            return next(steps) if outcomes is None else steps.send(outcomes)
        except StopIteration:
            return None

    return await asyncio.to_thread(advance)


async def _own_outcome(broker: Broker, call: Call[T]) -> T:
    """Return the broker's own outcome of GetLogChecksums or GetLogBytes, as it would answer it. Raises Refused."""
    ranges = broker.log_ranges
    if isinstance(call, GetLogChecksums):
        return cast("T", await outcome_of(ranges.checksums(call.offset, call.stop)))
    assert isinstance(call, GetLogBytes)
    return cast("T", await outcome_of(ranges.piece(call.offset, call.size)))
