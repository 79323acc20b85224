"""Opens a queue's files of byte positions: which units are valid, and where to go on (docs/formats/positions.md)."""

from __future__ import annotations

import logging
from typing import NamedTuple

from metaq.store.metaq1.position_bases import Base
from metaq.store.metaq1.position_files import PositionFiles
from metaq.store.metaq1.position_fill import Filler
from metaq.store.queues.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """Positions of [low, offset] are known, and that of `offset` is `position`."""

    low: int
    offset: int
    position: int
    synced: int = -1
    """Units up to this one are durable."""
    rebased: bool = False
    """No base in the log leads there: a new one has to be written before a client sees a position."""


def opened(files: PositionFiles, queue: ConsumeQueue, filler: Filler, base: Base | None) -> Opened:
    """Find the files, and check them against the newest base and the log; make them anew if they do not fit.

    `base`: None: the log has none. Raises StoreFull, OSError.
    """
    there = files.load()
    if base is None:
        return _adopted(files, queue, filler, there=there) or _begun(files, queue, there=there)
    offset, position = base.queue_offset, base.position
    if _has_restarted(queue, base):
        return _at(files, queue.min_offset, position, rebased=True)
    if there and offset < queue.min_offset:
        # Retention has taken the messages behind the base: nothing leads from it to those that are left, but the files.
        adopted = _adopted(files, queue, filler, there=there)
        if adopted is not None and adopted.offset >= offset and adopted.position >= position:
            return adopted
    first = min(offset, queue.min_offset)
    if there and files.read(offset) == position and filler.agrees(offset):
        low = files.lowest(first, offset)
        if low <= queue.min_offset or files.first <= first:
            return Opened(low, offset, position, synced=offset)
    if there:
        log.warning(
            "the byte positions of queue %d of topic %s do not fit its log: they are computed anew",
            queue.queue_id, queue.topic,
        )  # fmt: skip
    files.create(first, offset)
    files.write_one(offset, position)
    return Opened(offset, offset, position)


def _at(files: PositionFiles, offset: int, position: int, *, rebased: bool) -> Opened:
    files.create(offset, offset)
    files.write_one(offset, position)
    return Opened(offset, offset, position, rebased=rebased)


def _has_restarted(queue: ConsumeQueue, base: Base) -> bool:
    """Whether the queue counts from 0 again since the base was written; its positions go on all the same."""
    # A replica that copied the log when no message of the queue was left in it knows nothing of the queue's offsets.
    if base.queue_offset > queue.max_offset:
        return True
    unit = queue.unit(base.queue_offset - 1) if base.queue_offset > queue.min_offset else None
    return unit is not None and not unit.is_fill and unit.log_offset > base.log_offset


def _adopted(files: PositionFiles, queue: ConsumeQueue, filler: Filler, *, there: bool) -> Opened | None:
    """Take over files that fit the messages, when no base of the queue leads to them. Returns None if they do not fit."""
    # A RocketMQ may have run on the folder for longer than its retention: it deletes log files with bases in them.
    highest = files.highest() if there else None
    if highest is None or highest < queue.min_offset:
        return None
    offset = min(highest, queue.max_offset)
    position = files.read(offset)
    if position is None or not filler.agrees(offset):
        return None
    return Opened(files.lowest(queue.min_offset, offset), offset, position, rebased=True)


def _begun(files: PositionFiles, queue: ConsumeQueue, *, there: bool) -> Opened:
    position = files.last_position() if there else 0
    log.error(
        "queue %d of topic %s: no base of its byte positions is left in the log, and no file that fits: they go on with %d at "
        "queue offset %d, and may be others than were told", queue.queue_id, queue.topic, position, queue.min_offset,
    )  # fmt: skip
    return _at(files, queue.min_offset, position, rebased=True)
