"""What a power cut may have torn of a log is compared with another replica's before it is relied on.

A record's body has a checksum; its topic, its properties and its fixed fields have none. A page of them that never reached the disk
leaves a record that looks right. The replica that kept its power has the right one; where neither did, the master's counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from metaq.app.role.both_logs import AskBoth, next_call
from metaq.app.role.pending import all_ended
from metaq.broker.broker import Broker
from metaq.client.conversation.scrubbing.comparison import Comparison
from metaq.model.leadership import Found, ReplicaState, parting

log = logging.getLogger(__name__)

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


def slaves_of(broker: Broker, others: Iterable[Found]) -> list[Found]:
    """Return those of the others that have copied this master's log, and nothing else. Pure."""
    kept, end = broker.roles.kept, broker.store.log.end
    return [
        (address, state)
        for address, state in others
        # Of the same newest epoch: what another has beyond the begin of this master's epoch may be of the leader before.
        if not state.leads
        and state.rank == kept.rank
        and parting(kept.epochs, end, state.epochs, state.log_end) == min(end, state.log_end)
    ]


def longest(slaves: Iterable[Found]) -> Found | None:
    """Return the one with the longest log; None: there is none. Pure."""
    return max(slaves, key=lambda one: one[1].log_end, default=None)


def untorn(broker: Broker, slaves: Iterable[Found]) -> Found | None:
    """Return the slave with the longest log that is right where this master's may be torn; None: there is none. Pure.

    `slaves`: as `slaves_of` returns them.
    """
    return longest(one for one in slaves if not is_torn(one[1]) and to_compare(broker, one[1]))


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
    steps, outcomes, place = comparison.steps(), None, comparison.place
    while not comparison.differences and (call := await next_call(steps, outcomes)) is not None:
        if comparison.place > place:
            place = comparison.place
            patience.reschedule(asyncio.get_running_loop().time() + SYNC_SECONDS)
        outcomes = await ask_both(call)


async def cut_torn(broker: Broker, place: int, torn: str, source: str) -> None:
    """Cut this log where the two differ, keep aside what lies behind, and say so: it is to be copied anew.

    Args: torn: whose log the power cut has torn. source: from where it is copied.
    Raises StoreError, OSError, Refused: it could not be cut, or not kept.
    """
    end = broker.store.log.end
    aside = await asyncio.to_thread(broker.store.writer.keep_behind, place)
    await cut(broker, place)
    log.error(
        "a power cut has torn %s at log offset %d, where the two differ: %d bytes with %d records are copied anew from %s; what was here "
        "is kept in %s",
        torn, place, end - place, aside.records, source, aside.kept.folder if aside.kept else "no file: it was empty",
    )  # fmt: skip


async def cut(broker: Broker, place: int) -> None:
    """Cut a log that nothing is appended to, and take the tables back with it. Raises StoreError, OSError, Refused."""
    await asyncio.to_thread(broker.store.writer.truncate, place)
    await all_ended(broker.log_was_cut())
