"""The plan of a recovery: where reading begins, where log, queues and index will end, and what has to be done for it.

`choose_start` and `plan_index` decide by the facts alone and touch nothing; `metaq.store.recovery` completes the plan by
reading the log.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from metaq.store.checkpoint import IndexMark
from metaq.store.log.broken import DamagedPlace
from metaq.store.queues.consume_queue import Unit
from metaq.store.survey import Facts

Key: TypeAlias = tuple[str, int]
"""Of a consume queue: topic and queue id."""


class Start(Struct, frozen=True):
    """The LogOffset from which the log is read and checked. Everything below is durable in log and queues."""

    log_offset: int
    why: str
    last_ms: int = 0


class Plan(Struct, frozen=True):
    """Where log, queues and index will end, and what has to be done for it."""

    start: Start
    log_end: int
    why_end: str
    dispatch_from: int
    queue_ends: dict[Key, int]
    """Queue offset with which each existing queue goes on, before dispatch."""
    rebuild: frozenset[Key]
    """Queues that are emptied first."""
    index: IndexPlan
    records: int = 0
    last_ms: int = 0
    """Store time of the newest record."""
    places: tuple[DamagedPlace, ...] = ()
    """Damaged places of the log that are stepped over."""
    missing: dict[Key, tuple[range, ...]] = field(default_factory=dict)
    """Queue offsets of the messages that they have cost, as far as they are known."""
    lost: dict[Key, dict[int, Unit]] = field(default_factory=dict)
    """Units of some of these."""
    in_order: bool = False
    """The last run ended in order: nothing lies behind the ends of log, queues and index."""
    kept: bool = True
    """Whether the log has all that it had: the last run ended in order, or the machine has not ended since."""
    torn_from: int = 0
    """LogOffset from which the end of the machine, not of the process alone, may have torn what no checksum covers, as
    properties; `log_end`: nothing is torn."""


class IndexPlan(Struct, frozen=True):
    """Which index files are deleted, and which records are indexed again."""

    drop: frozenset[str]
    """Names of files to delete."""
    first: int
    """LogOffset from which records are indexed anew."""
    rewind: IndexMark | None = None
    """The durable moment to go back to."""


def choose_start(facts: Facts) -> Start:
    """Where reading must begin. Pure."""
    if facts.checkpoint.log_ms == 0:  # RocketMQ leaves zeros in a young store, and reads all of it then, too
        return Start(facts.log_min, "the checkpoint is young: the whole log is read")
    if facts.tails is not None:
        # After a crash the newest record is looked at once more: its index entries may have been cut short.
        place = facts.tails.log_end if facts.clean else facts.tails.last_record
        return Start(place, "all is known to be durable up to here", facts.tails.last_store_ms)
    for start, first_ms in reversed(facts.first_ms):
        if 0 < first_ms <= facts.checkpoint.safe_ms:
            return Start(start, "the newest file that begins before the checkpoint")
    return Start(facts.log_min, "no file begins before the checkpoint: the whole log is read")


def plan_index(facts: Facts, start: Start, log_end: int) -> IndexPlan:
    """Decide how much of the index is valid: after a stop in order all, else what was synced by tails or checkpoint. Pure."""
    # That entries can be read is no proof: a page of a mapping that nobody synced may be lost while those around it are not.
    if facts.index is None:
        return IndexPlan(frozenset(), log_end)
    headers = dict(facts.index)
    mark = facts.tails.index if facts.tails is not None else None
    lost = mark is not None and any(name not in headers for name in mark.files)
    if facts.index_unfit or lost:
        return IndexPlan(frozenset((*headers, *facts.index_unfit)), facts.log_min)
    if facts.tails is not None and not (facts.clean and mark is None):
        kept = mark if mark is not None and mark.log <= log_end else None
        drop = frozenset(headers) - frozenset(kept.files if kept else ())
        first = max(kept.log if kept else 0, facts.log_min)
        if kept is None or not kept.files:
            return IndexPlan(drop, first)
        # Also without a crash: a broker that knows nothing of the tails may have gone on writing.
        as_marked = facts.clean and not drop and headers[kept.files[-1]] == kept.header
        return IndexPlan(drop, first, None if as_marked else kept)
    if facts.tails is None and facts.checkpoint.log_ms == 0:
        # Nothing tells how the last run ended: somebody may have removed `abort` as well. The whole log is read anyway.
        return IndexPlan(frozenset(headers), facts.log_min)
    # Without tails RocketMQ's rule: after a crash it deletes index files that are newer than the checkpoint's third time.
    bad = [
        name
        for name, header in facts.index
        if header.end_log >= log_end
        or (not facts.clean and (header.end_ms > facts.checkpoint.index_ms or header.next_ordinal <= 1))
    ]
    dropped = frozenset(name for name in headers if bad and name >= bad[0])
    ends = [header.end_log for name, header in facts.index if name not in dropped and header.next_ordinal > 1]
    newest = max(ends, default=facts.log_min)
    if facts.clean and not bad and facts.tails is not None:
        newest = max(newest, start.log_offset)  # below the start all is indexed, also what has no key
    # The newest record counts as not indexed: it may have been cut short between two of its keys.
    return IndexPlan(dropped, max(newest, facts.log_min))
