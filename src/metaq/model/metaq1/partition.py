"""Requests of MetaQ 1.x clients to a partition, and their results.

A *partition* is a queue of this broker. A *position* is a byte offset in the partition's frames
(`metaq.wire.metaq1.frame`), which follow each other without a gap. A refusal is a `metaq.errors.Refused`, of which the
MetaQ 1.x server makes 403 (NO_PERMISSION), 404 (NOT_FOUND) and, for a get, 400 (INVALID).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from msgspec import Struct

ANY_PARTITION: Final = -1
POSITION_MAX: Final = (1 << 63) - 1
"""Position by which a 1.x client asks for the end."""
FRAME_HEADER_BYTES: Final = 20
HAS_ATTRIBUTE: Final = 1
"""Bit of a flag: the body begins with the attribute, its length in 4 bytes before it."""
CHECKSUM_UNKNOWN: Final = -1
ID_EPOCH_MS: Final = 1_303_895_660_503
"""Epoch of the time in message ids, ms since 1970: as in 1.x, so that ids of both have the same scale."""
BROKER_ID_BITS: Final = 10
SEQUENCE_BITS: Final = 12
FOREIGN: Final = 1 << 62
"""Bit of the ids of messages that no client of MetaQ 1.x put."""
_LOG_OFFSET_BITS: Final = 52


class PartitionPut(Struct, frozen=True, kw_only=True):
    """Store a message. `flag` and `body` are as the client sent them, with the attribute in the body."""

    topic: str
    partition: int
    """`ANY_PARTITION`: the broker takes one that is open."""
    body: bytes
    flag: int = 0
    """Signed, 32 bits."""
    checksum: int = CHECKSUM_UNKNOWN
    """CRC-32 of the body, its lower 31 bits. Clients before 1.4.4 send none."""
    born_host: bytes
    """4 or 16 address bytes, then 4 of the port."""


class PartitionMessage(Struct, frozen=True):
    """A message as the filter of a group gets it: `accept(group, message)`."""

    topic: str
    message_id: int
    flag: int
    attribute: str | None
    """None: it has none."""
    body: bytes
    """Without the attribute."""


class PartitionStored(Struct, frozen=True):
    """A message that was stored."""

    message_id: int
    partition: int
    position: int
    """Of the first byte of its frame."""
    log_end: int
    """LogOffset behind its record: what an answer that waits for the disk waits for."""


class PartitionEntry(Struct, frozen=True):
    """A put that is checked and has its id, ready for the log."""

    topic: str
    queue_id: int
    message_id: int
    flag: int
    body: bytes
    properties: dict[str, str]


class PartitionGet(Struct, frozen=True, kw_only=True):
    """Read frames from a position on, for a group."""

    topic: str
    group: str
    partition: int
    position: int
    size_max: int
    """Bytes."""


class Frames(Struct, frozen=True):
    """Frames back to back, from the position asked for, which may lie within the first one; the last one may be cut
    off."""

    body: bytes | memoryview


class Moved(Struct, frozen=True):
    """Nothing can be read there; the client is to go on at `position` (301)."""

    position: int


Got: TypeAlias = Frames | Moved


class Later(Struct, frozen=True):
    """A get whose frames are not in memory or must be expanded. Run `job` in a thread, and pass its result to `finish`
    in the thread that asked, which returns the result of the get. Either raises what `get` raises, except Saving.
    """

    job: Callable[[], Any]
    finish: Callable[[Any], Any]
    """Returns `Got`; `Judged` for a group with a filter."""


class Judging(Struct, frozen=True):
    """A get of a group with a filter. `begin(done)` has the filter judge the frames. `done` is called once, later, in
    the thread that asked, with the result or the error; never if the connection has closed. Raises what `get` raises,
    except Saving.
    """

    begin: Callable[[Callable[[Any], None]], None]


Judged: TypeAlias = Got | Later | Judging


class Published(Struct, frozen=True):
    """A topic as ZooKeeper and `stats` show it."""

    partitions: int
    publish: bool
    """1.x clients may put."""
    subscribe: bool
    """1.x clients may get."""


class PartitionFigures(Struct, frozen=True):
    """Content of a partition: number of messages, positions in bytes."""

    topic: str
    partition: int
    messages: int
    min_position: int | None
    """None: no 1.x client has put or got anything yet, so positions have not been computed."""
    max_position: int | None


def foreign_id(broker_id: int, log_offset: int) -> int:
    """Return the id of a message that no 1.x client put: the same at each read, and never that of a put at any broker.

    1.x consumers drop a message whose id is among the last 4096 that they have seen.
    """
    return FOREIGN | broker_id << _LOG_OFFSET_BITS | log_offset


def born_id(time_ms: int, broker_id: int, sequence: int) -> int:
    """Return the id of a message that a 1.x client put: time, broker and a number within the millisecond, as in 1.x."""
    return time_ms - ID_EPOCH_MS << BROKER_ID_BITS + SEQUENCE_BITS | broker_id << SEQUENCE_BITS | sequence


def time_of(message_id: int) -> int:
    """Return the time in the id of a message that a 1.x client put, ms since 1970."""
    return (message_id >> BROKER_ID_BITS + SEQUENCE_BITS) + ID_EPOCH_MS
