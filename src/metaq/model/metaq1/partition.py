"""What clients of MetaQ 1.x ask of a partition, and what they get.

A *partition* is a queue of this broker. A *position* is a byte offset in the partition's frames: 20 bytes of header and
the body, back to back, as `metaq.wire.metaq1.commands` writes them. What a service refuses is `metaq.errors.Refused`; the MetaQ 1.x server
makes 403 of NO_PERMISSION and 404 of NOT_FOUND, and 400 of INVALID for a get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from msgspec import Struct

ANY_PARTITION: Final = -1
POSITION_MAX: Final = (1 << 63) - 1
"""A get from here asks for the end, wherever that is."""
FRAME_HEADER_BYTES: Final = 20
HAS_ATTRIBUTE: Final = 1
"""Bit of a flag: the body begins with a block that holds the attribute, its length in 4 bytes before it."""
CHECKSUM_UNKNOWN: Final = -1
ID_EPOCH_MS: Final = 1_303_895_660_503
"""From where the time in message ids counts."""
BROKER_ID_BITS: Final = 10
SEQUENCE_BITS: Final = 12
_FOREIGN: Final = 1 << 62
_LOG_OFFSET_BITS: Final = 52


class PartitionPut(Struct, frozen=True, kw_only=True):
    """Store a message. `flag` and `body` are as the client sent them, with an attribute's block in the body."""

    topic: str
    partition: int
    """`ANY_PARTITION`: the broker takes one that is open."""
    body: bytes
    flag: int = 0
    """Signed, 32 bits."""
    checksum: int = CHECKSUM_UNKNOWN
    """CRC-32 of the body, 31 bits of it."""
    born_host: bytes
    """4 or 16 address bytes, then 4 of the port."""


class PartitionMessage(Struct, frozen=True):
    """A message as a group's filter sees it: `accept(group, message)`."""

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
    """A message as it is to be stored, with its id: what a put comes to before the log is asked."""

    topic: str
    queue_id: int
    message_id: int
    flag: int
    body: bytes
    properties: dict[str, str]


class PartitionGet(Struct, frozen=True, kw_only=True):
    """Give a group frames from a position on."""

    topic: str
    group: str
    partition: int
    position: int
    size_max: int
    """Bytes."""


class Frames(Struct, frozen=True):
    """Frames back to back, from the position asked for; the last one may be cut, and the first one begin before it."""

    body: bytes | memoryview


class Moved(Struct, frozen=True):
    """Nothing can be read there: go on at `position`."""

    position: int


Got: TypeAlias = Frames | Moved


class Later(Struct, frozen=True):
    """A get whose frames are not in memory, or are to be expanded: run `job` in a thread, and give what it returns to `finish`,
    back in the thread that asked; that returns what was got. Either raises as `get` does, but Saving.
    """

    job: Callable[[], Any]
    finish: Callable[[Any], Any]
    """Returns `Got`; of a group that has a filter, `Judged`."""


class Judging(Struct, frozen=True):
    """A get of a group that has a filter: `begin(done)` has the frames judged. `done` is called once, later, in the thread that
    asked, with what was got, or why not; never, if the connection has closed. Raises as `get` does, but Saving.
    """

    begin: Callable[[Callable[[Any], None]], None]


Judged: TypeAlias = Got | Later | Judging


class Published(Struct, frozen=True):
    """What ZooKeeper and statistics say of a topic."""

    partitions: int
    publish: bool
    """Whether it takes messages."""
    subscribe: bool
    """Whether it hands out messages."""


class PartitionFigures(Struct, frozen=True):
    """What a partition holds: messages by number, positions in bytes."""

    topic: str
    partition: int
    messages: int
    min_position: int | None
    """None: no 1.x client has touched the partition, so that it has no positions yet."""
    max_position: int | None


def foreign_id(broker_id: int, log_offset: int) -> int:
    """The id of a message that no 1.x client put: the same whenever it is read, and no broker's ids for puts are alike."""
    return _FOREIGN | broker_id << _LOG_OFFSET_BITS | log_offset


def born_id(time_ms: int, broker_id: int, sequence: int) -> int:
    """The id of a message that a 1.x client put: time, broker and a number within the millisecond."""
    return time_ms - ID_EPOCH_MS << BROKER_ID_BITS + SEQUENCE_BITS | broker_id << SEQUENCE_BITS | sequence
