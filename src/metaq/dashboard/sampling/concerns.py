"""What needs somebody's attention and changes slowly: dead letters, and transactions that nobody has decided."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from metaq.admin import topics, transactions
from metaq.admin.figures.activity import Activity
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.errors import MetaqError
from metaq.model.topics.topic import DEAD_LETTER_PREFIX
from metaq.model.transactions.staging import Phase

TOPICS_MAX: Final = 64
"""Dead-letter topics that one look asks about; of more, those whose turn it is."""
TRANSACTIONS_MAX: Final = 200
_AT_ONCE: Final = 8


class DeadLetters(Struct, frozen=True):
    """Dead letters of a group. `ever`: that it has had; `more`: since the look before; None: there was none. `at`: when, monotonic."""

    group: str
    stored: int
    ever: int
    more: int | None
    at: float


class Undecided(Struct, frozen=True):
    """A staged transaction that nobody has decided."""

    transaction: str
    phase: str
    messages: int
    age_seconds: float | None


class Concerns(Struct, frozen=True):
    """`undecided`: None: no broker tells, as RocketMQ's. `complete`: they are all. `notes`: what could not be found out."""

    dead: Mapping[str, DeadLetters] = field(default_factory=dict)
    undecided: tuple[Undecided, ...] | None = None
    complete: bool = True
    notes: tuple[str, ...] = ()


async def look_at_concerns(core: ClientCore, look: Activity, before: Concerns | None) -> Concerns:
    """Look once. Never raises what a cluster may cause: that is in the notes, and what was known before goes on to hold."""
    notes = list[str]()
    dead = before.dead if before is not None else {}
    try:
        dead = await _dead(core, dead)
    except MetaqError as error:
        notes.append(f"dead letters: {error}")
    undecided, complete = None, True
    if any(not one.error for one in look.brokers):
        try:
            undecided, complete = await _undecided(core)
        except MetaqError as error:
            notes.append(f"transactions: {error}")
    return Concerns(dead, undecided, complete, tuple(notes))


async def _dead(core: ClientCore, before: Mapping[str, DeadLetters]) -> dict[str, DeadLetters]:
    names = [name for name in await topics.names(core, system=True) if name.startswith(DEAD_LETTER_PREFIX)]
    groups = [name.removeprefix(DEAD_LETTER_PREFIX) for name in names]
    found = {group: before[group] for group in groups if group in before}
    now = core.clock.monotonic()
    # Those that were never asked about, then those whose turn is the oldest.
    turn = sorted(groups, key=lambda group: found[group].at if group in found else -1.0)[:TOPICS_MAX]
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(group: str) -> None:
        async with places:
            try:
                details = await topics.describe(core, DEAD_LETTER_PREFIX + group)
            except (topics.TopicNotFound, *FAULTS):
                return
        ever = sum(stats.max_offset for stats in details.queues.values())
        last = found.get(group)
        found[group] = DeadLetters(
            group, details.messages, ever, None if last is None else max(0, ever - last.ever), now
        )

    await asyncio.gather(*map(one, turn))
    return found


async def _undecided(core: ClientCore) -> tuple[tuple[Undecided, ...] | None, bool]:
    listed = await transactions.listing(core, broker=None, limit=TRANSACTIONS_MAX)
    if not listed.transactions and listed.unreached and set(listed.unreached.values()) == {transactions.UNSUPPORTED}:
        return None, True
    open_ones = [one for one in listed.transactions if one.phase in {Phase.OPEN, Phase.PREPARED}]
    return tuple(
        Undecided(one.transaction, one.phase.value, one.rows, one.age_seconds) for one in open_ones
    ), listed.complete
