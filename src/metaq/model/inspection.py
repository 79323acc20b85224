"""What administrators see of queues and clients in detail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from metaq.model.filters.subscription import GroupFilter, SubscriptionData
from metaq.model.queue import MessageQueue


class QueueTimeSpan(Struct, frozen=True):
    """Store times (ms) of one queue, and how far a group has come in it."""

    queue: MessageQueue
    oldest_ms: int
    """Of the oldest message; -1 in an empty queue."""
    newest_ms: int
    consumed_ms: int
    """Of the newest message that the group has consumed; of the oldest if it has consumed none."""
    delay_ms: int
    """Age of the oldest message that the group has not consumed; 0 if there is none."""


class QueueUnit(NamedTuple):
    """Where in the log one message of a queue is. `tags_code`: hash of its tag; of a delayed message, its delivery time, ms."""

    log_offset: int
    size: int
    tags_code: int


class QueueUnits(Struct, frozen=True):
    """Some units of one queue [min_offset, max_offset), and what a group gets of it."""

    min_offset: int
    max_offset: int
    units: Sequence[QueueUnit]
    group: str | None = None
    """Group that was asked about; None: none was."""
    subscription: SubscriptionData | None = None
    """Its subscription; None: it is not online, or does not subscribe to the topic."""
    filter: GroupFilter | None = None
    """Its filter, if that is not by tags."""


class ProducerClient(Struct, frozen=True):
    """A member of a producer group, as administrators see it."""

    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int
    """Time of its newest heartbeat, ms."""
