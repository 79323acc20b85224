"""Bases of byte positions in the log: records that say which position a queue offset has (docs/formats/positions.md).

They lie in queue 0 of `rmq_sys_METAQ_POSITIONS`. With one of them for a queue, and the records around it, every position
of that queue is known.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from metaq.errors import RemoteProtocolError
from metaq.model.topics.system import POSITIONS_TOPIC
from metaq.store.message_store import MessageStore
from metaq.store.metaq1.position_files import POSITIONS_END
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.queues.table import QueueKey
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

VERSION: Final = 1
KIND_BASES: Final = 0
KIND_COMPLETE: Final = 1
"""All queues that had a base when the round began have one behind that LogOffset."""
KIND_DROPPED: Final = 2
"""The topics were deleted: what bases before this record say of them is over."""
_HEAD: Final = struct.Struct(">BBq")
_ENTRY: Final = struct.Struct(">iqq")
BODY_BYTES_MAX: Final = 60_000
ANEW_STEP: Final = 1 << 30
"""Positions of a topic that is made anew begin at a multiple of this, and by more than this behind those of the one before."""
_EXPANSION_MAX: Final = 1032
"""Bytes of frames that a byte of the log can hold: what deflate reaches."""


class Base(NamedTuple):
    """The message at `queue_offset`, or the next one to come there, is at byte `position`."""

    queue_offset: int
    position: int
    log_offset: int
    """LogOffset of the record that says so."""


class Told(NamedTuple):
    """The content of one record of bases."""

    kind: int
    began: int
    """KIND_COMPLETE: the LogOffset at which the round began."""
    bases: dict[QueueKey, tuple[int, int]]
    """KIND_BASES: (topic, queue id) → (queue offset, position)."""
    topics: tuple[str, ...]
    """KIND_DROPPED."""


def encode_bases(entries: Iterable[tuple[QueueKey, int, int]]) -> bytes:
    """The body of a record with these (queue, queue offset, position)."""
    parts = [_HEAD.pack(VERSION, KIND_BASES, 0)]
    for (topic, queue_id), offset, position in entries:
        name = topic.encode()
        parts.append(bytes([len(name)]) + name + _ENTRY.pack(queue_id, offset, position))
    return b"".join(parts)


def encode_complete(began: int) -> bytes:
    """The body of the record that ends a round."""
    return _HEAD.pack(VERSION, KIND_COMPLETE, began)


def encode_dropped(topics: Iterable[str]) -> bytes:
    """The body of a record about deleted topics."""
    names = [topic.encode() for topic in topics]
    return _HEAD.pack(VERSION, KIND_DROPPED, 0) + b"".join(bytes([len(name)]) + name for name in names)


def decode(body: bytes) -> Told | None:
    """Decode a record's body; None: it is of a later version of this format. Raises ValueError: it is malformed."""
    try:
        version, kind, began = _HEAD.unpack_from(body)
        if version != VERSION or kind > KIND_DROPPED:
            return None
        bases: dict[QueueKey, tuple[int, int]] = {}
        topics = list[str]()
        at = _HEAD.size
        while at < len(body):
            end = at + 1 + body[at]
            name = body[at + 1 : end].decode()
            at = end
            if kind == KIND_DROPPED:
                topics.append(name)
            else:
                queue_id, offset, position = _ENTRY.unpack_from(body, at)
                at += _ENTRY.size
                bases[name, queue_id] = offset, position
        if at != len(body):
            raise ValueError("it is cut short")  # noqa: TRY301  the same for all of it
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{len(body)} bytes are no record of byte positions: {error}") from None
    return Told(kind, began, bases, tuple(topics))


def told_newest_first(store: MessageStore) -> Iterator[tuple[int, Told | None]]:
    """Yield (LogOffset, content) of each record of bases in the log, the newest first; None: it cannot be read."""
    queue = store.reader.existing_queue(POSITIONS_TOPIC, 0)
    if queue is None:
        return
    for offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
        yield _told_at(store, queue, offset)


def told_since(store: MessageStore, since: int) -> Iterator[tuple[int, Told | None]]:
    """Yield as `told_newest_first` those from queue offset `since` on, the oldest first."""
    queue = store.reader.existing_queue(POSITIONS_TOPIC, 0)
    if queue is not None:
        for offset in range(max(since, queue.min_offset), queue.max_offset):
            yield _told_at(store, queue, offset)


def _told_at(store: MessageStore, queue: ConsumeQueue, offset: int) -> tuple[int, Told | None]:
    unit = queue.unit(offset)
    place = unit.log_offset if unit is not None else 0
    record = store.reader.record_at(place)
    told = None
    if record is not None:
        with contextlib.suppress(RemoteProtocolError, ValueError):
            message = decode_record(record)
            if (message.topic, message.queue_offset) == (POSITIONS_TOPIC, offset):
                told = decode(message.body)
    if record is None and unit is not None and not unit.is_fill and place >= store.log.min:
        file = store.log.run.find(place)
        log.error(
            "the record of byte positions in %s at byte %d (log offset %d), queue offset %d of queue 0 of topic %s, cannot be "
            "read: older ones stand in for it", file.path if file else "", place - file.start if file else 0, place, offset,
            POSITIONS_TOPIC,
        )  # fmt: skip
    return place, told


def bound_of(base: Base, log_end: int) -> int:
    """Return a position that no message of the queue lies behind, whatever came to the log between its base and `log_end`."""
    return base.position + _EXPANSION_MAX * max(0, log_end - base.log_offset)


def anew_behind(position: int) -> int:
    """Return where a queue of a topic that is made anew begins, if its last position was this one: no old one is good there."""
    begin = (position // ANEW_STEP + 2) * ANEW_STEP
    return begin if begin < POSITIONS_END // 2 else 0


class Known(NamedTuple):
    """The bases of all queues, as the log has them."""

    bases: dict[QueueKey, Base]
    """The newest of each queue that has one."""
    dropped: frozenset[str]
    """Topics that were deleted with their positions, and have no base since."""
    ended: dict[QueueKey, tuple[Base, int]]
    """Of queues of these: the newest base, and the LogOffset at which the topic was deleted."""
    dropped_at: dict[str, int]
    """Topic → LogOffset of its last deletion, whether or not it is there again."""


def newest_bases(store: MessageStore) -> Known:
    """Return the newest base of each queue. Reads back to where the last complete round began, no further."""
    found: dict[QueueKey, Base] = {}
    ended: dict[QueueKey, tuple[Base, int]] = {}
    dropped = dict(store.deleted)
    """Topic → LogOffset of its last deletion."""
    stop, whole = -1, True
    for log_offset, told in told_newest_first(store):
        if whole and log_offset < stop:
            break
        if told is None:
            whole = False  # a damaged record: its queues may only have an older base, so read all of them
            continue
        if told.kind == KIND_COMPLETE and stop < 0:
            stop = told.began
        for topic in told.topics:
            dropped[topic] = max(dropped.get(topic, 0), log_offset)
        for key, (offset, position) in told.bases.items():
            base = Base(offset, position, log_offset)
            if key in found or key in ended:
                continue
            if log_offset < (place := dropped.get(key[0], 0)):
                ended[key] = base, place
            else:
                found[key] = base
    gone = {topic for topic in dropped if not any(key[0] == topic for key in found)}
    return Known(found, frozenset(gone), ended, dropped)


def bases_below(store: MessageStore, key: QueueKey, queue_offset: int) -> Base | None:
    """Return the base nearest at or below a queue offset, of all in the log: needed where a lost message hides its size."""
    best: Base | None = None
    for log_offset, told in told_newest_first(store):
        if told is None:
            continue
        if key[0] in told.topics or log_offset < store.deleted.get(key[0], 0):
            break
        offset, position = told.bases.get(key, (-1, 0))
        if 0 <= offset <= queue_offset and (best is None or offset > best.queue_offset):
            best = Base(offset, position, log_offset)
    return best
