"""What may go of a broker's store, and what goes of a topic: previews and outcomes of cleaning by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""ms since the epoch, up to the year 9999."""


class CleanableFiles(Struct, frozen=True):
    """Files of one kind that would go."""

    files: Number = 0
    """How many."""
    bytes: Number = 0
    """Their size."""


class Cleanable(Struct, frozen=True, rename="camel"):
    """What cleaning by hand (329, 306, 316) would remove now."""

    log_files: CleanableFiles = CleanableFiles()
    """Log files whose time is up."""
    queue_files: CleanableFiles = CleanableFiles()
    """Files of consume queues that point below the log's begin, or to messages that their topics have let go of."""
    topics: tuple[str, ...] = ()
    """Topics in no table that have queues; at most a thousand."""
    topic_files: CleanableFiles = CleanableFiles()
    """Files of their queues."""


class QueueTrim(Struct, frozen=True, rename="camel"):
    """One queue [min_offset, max_offset) of a trimmed topic: it begins at `new_min` then."""

    queue_id: Number
    """Number of the queue."""
    min_offset: Number
    """Offset of its oldest message now."""
    max_offset: Number
    """Offset that its next message will have."""
    new_min: Number
    oldest_ms: Moment = 0
    """Store time of the oldest message that goes; 0: none goes, or it cannot be read."""
    newest_ms: Moment = 0
    """Store time of the newest message that goes."""

    @property
    def messages(self) -> int:
        """How many messages go."""
        return self.new_min - self.min_offset


class UnreadInQueue(Struct, frozen=True, rename="camel"):
    """Messages that go and that a group has not read."""

    group: str
    """The group."""
    queue_id: Number
    """Number of the queue."""
    messages: Number
    """How many."""


class TopicTrim(Struct, frozen=True, rename="camel"):
    """What a trim does with a topic at one broker, or would do."""

    topic: str
    """The topic."""
    queues: tuple[QueueTrim, ...]
    """Its queues at this broker."""
    unread: tuple[UnreadInQueue, ...] = ()
    """What of it groups have not read."""
    done: bool = False
    """It was done, durably."""


def unread_by_group(trims: Iterable[TopicTrim]) -> dict[str, int]:
    """Return group → how many of the messages that go it has not read."""
    found: dict[str, int] = {}
    for trim in trims:
        for one in trim.unread:
            found[one.group] = found.get(one.group, 0) + one.messages
    return found
