"""Partitions of the master of a pair, each with what of it was sent to the slave, and where the slave has it."""

from __future__ import annotations

import enum
import struct
from typing import Final

from msgspec import Struct

from metaq.model.metaq1.pair import SyncMessage
from metaq.model.metaq1.partition import FRAME_HEADER_BYTES
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.wire.hot import QueueTail, crc31

_HEAD: Final = struct.Struct(">iiqi")
HEAD_BYTES: Final = 16
"""Length, checksum and id of a frame: by these it is known again."""
TEST_BODY: Final = b"test"
REFUSED_SECONDS: Final = 1.0
"""Pause before a partition of which the slave has refused a message is tried again."""


class LaneState(enum.Enum):
    """What is known of the slave's copy of a partition."""

    UNKNOWN = "the slave is to be asked where its copy ends"
    ASKING = "it is being asked"
    OPEN = "messages are sent"
    REFUSED = "it has refused a message, and is asked again later"


class Lane(Struct, eq=False):
    """One partition. Queue offsets up to `next` were sent."""

    queue: ConsumeQueue
    tail: QueueTail
    state: LaneState = LaneState.UNKNOWN
    next: int = 0
    """QueueOffset of the next message to send."""
    position: int | None = None
    """Byte position that it gets at the slave; None: it is not known."""
    given_up: int = 0
    """QueueOffset up to which putters were told that the slave lacks their messages."""
    reading: bool = False
    under_way: int = 0
    """Messages that were sent and not answered."""
    waking: bool = False
    woken: bool = False
    """The slave has been made to open its copy: 1.4.6.2 says that a partition is not there until something was to be stored in it."""
    checked: bool = False
    """A message lies at the position where it was expected: more are sent without waiting for each."""
    differs: bool = False
    """The slave's copy has other byte positions than the partition here."""
    again_at: float = 0.0
    """Monotonic seconds, of REFUSED."""
    opaque: int | None = None
    """Of the question under way."""
    asked: tuple[int, int, bytes] | None = None
    """While the slave is asked for a frame's header: (QueueOffset behind that frame, its end, the header here)."""

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def partition(self) -> int:
        return self.queue.queue_id

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def left(self) -> bool:
        """Whether there is something to send."""
        return self.tail.next_offset > self.next

    def pause(self, now: float) -> None:
        """Send nothing for a while, and ask again then. `now`: monotonic seconds."""
        self.state, self.again_at = LaneState.REFUSED, now + REFUSED_SECONDS


def messages_of(topic: str, partition: int, frames: bytes) -> list[SyncMessage]:
    """Return the whole messages of frames that lie back to back."""
    found: list[SyncMessage] = []
    start, end = 0, len(frames)
    while end - start >= FRAME_HEADER_BYTES:
        size, checksum, message_id, flag = _HEAD.unpack_from(frames, start)
        stop = start + FRAME_HEADER_BYTES + size
        if stop > end:
            break
        body = frames[start + FRAME_HEADER_BYTES : stop]
        found.append(SyncMessage(topic, partition, flag, message_id, body, checksum))
        start = stop
    return found


class UnderWay(Struct, eq=False):
    """A message that the slave has not answered."""

    lane: Lane
    queue_offset: int
    place: int
    """LogOffset of its record."""
    message_id: int
    size: int
    position: int | None
    deadline: float


def waking(lane: Lane) -> SyncMessage:
    """Return a message that the slave refuses, since its checksum is wrong, and opens its copy for."""
    return SyncMessage(lane.topic, lane.partition, 0, 0, TEST_BODY, crc31(TEST_BODY) ^ 1)
