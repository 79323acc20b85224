"""What a power cut may have torn of a log is compared with another replica's before it is relied on.

A record's body has a checksum; its topic, its properties and its fixed fields have none. A page of them that never reached the disk
leaves a record that looks right. The replica that kept its power has the right one; where neither did, the master's counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, cast

from metaq.app.role.own_log import own_outcome
from metaq.broker.broker import Broker
from metaq.client.conversation.call import Call
from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.scrubbing.comparison import Comparison
from metaq.model.leadership import ReplicaState, parting

log = logging.getLogger(__name__)

AskBoth: TypeAlias = Callable[[Call[Any]], Awaitable[tuple[Any, Any]]]
"""Has both replicas answer: the other one's outcome, and this broker's."""

LONG_BYTES: Final = 1 << 30
"""A comparison of more than that is announced: it takes seconds, and nothing is copied meanwhile."""
SYNC_SECONDS: Final = 10.0
"""Longest wait for a replica that has not synced its log so far."""
LOOK_SECONDS: Final = 0.2


def to_compare(broker: Broker, state: ReplicaState) -> range:
    """Return the LogOffsets that either this broker or another replica may have torn, and both have. Pure."""
    roles, own = broker.roles, broker.store.log
    torn = [part for part in (roles.torn, range(state.torn_from, state.torn_end)) if part]
    if not torn:
        return range(0)
    start = max(own.min, state.log_min, min(part.start for part in torn))
    return range(start, min(own.end, state.log_end, max(part.stop for part in torn)))


def is_torn(state: ReplicaState) -> bool:
    """Whether a replica's own log may be torn, and was not compared with another's yet. Pure."""
    return state.torn_from < state.torn_end


def untorn(broker: Broker, others: Sequence[tuple[str, ReplicaState]]) -> tuple[str, ReplicaState] | None:
    """Return the slave with the longest log that is right where this master's may be torn; None: there is none. Pure."""
    kept, end = broker.roles.kept, broker.store.log.end
    right = [
        (address, state)
        for address, state in others
        if not state.leads
        and state.rank == kept.rank
        and not is_torn(state)
        and to_compare(broker, state)
        and parting(kept.epochs, end, state.epochs, state.log_end) == min(end, state.log_end)
    ]
    return max(right, key=lambda one: one[1].log_end, default=None)


def asking(broker: Broker, caller: Caller, address: str) -> AskBoth:
    """Return what asks this broker and the one at an address."""

    async def ask_both(call: Call[Any]) -> tuple[Any, Any]:
        return await asyncio.gather(ask(caller, address, call), own_outcome(broker, call))

    return ask_both


async def first_difference(ask_both: AskBoth, part: range) -> int | None:
    """Return where the first record begins in which two logs differ; None: they are the same there.

    Raises: what `ask_both` raises; NotComparable; TimeoutError: one of the two does not sync its log up to there.
    """
    if len(part) > LONG_BYTES:
        log.info(
            "a power cut may have torn %.1f GB of the log from offset %d on: they are compared with another replica's first",
            len(part) / 1e9, part.start,
        )  # fmt: skip
    start = part.start
    async with asyncio.timeout(SYNC_SECONDS) as patience:
        while start < part.stop:
            comparison = Comparison(part.stop, start=start)
            await _walk(ask_both, comparison, patience)
            if comparison.differences:
                return comparison.differences[0].log_offset
            if comparison.place == start:  # not durable so far, at one of the two
                await asyncio.sleep(LOOK_SECONDS)
            start = comparison.place
    return None


async def _walk(ask_both: AskBoth, comparison: Comparison, patience: asyncio.Timeout) -> None:
    """Compare up to the first difference, or as far as both are durable."""
    steps, outcomes = comparison.steps(), cast("Any", None)

    def advance() -> Call[Any] | None:
        try:
            return steps.send(outcomes)
        except StopIteration:
            return None

    while not comparison.differences and (call := await asyncio.to_thread(advance)) is not None:
        before = comparison.place
        outcomes = await ask_both(call)
        if comparison.place > before:
            patience.reschedule(asyncio.get_running_loop().time() + SYNC_SECONDS)
