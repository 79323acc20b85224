"""A message queue, the unit of order and of allocation, and how far it and its readers have come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct


class MessageQueue(NamedTuple):
    """One queue of one topic on one broker. Sorts by topic, broker, queue id, as the allocation strategies expect."""

    topic: str
    """Name of the topic."""
    broker: str
    """Name of the broker; a master and its slaves have one name."""
    queue_id: int
    """Number of the queue at that broker, from 0 on."""

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class DelayProgress(Struct, frozen=True):
    """How far delayed messages have been delivered (`delayOffset.json`)."""

    offsets: Mapping[int, int]
    """Delay level → QueueOffset of the next record to deliver."""
    log_offset: int | None = None
    """LogOffset of the log's end when the positions were taken; None if RocketMQ saved them, which does not tell it."""


class QueueStats(Struct, frozen=True):
    """Offsets of one queue, [min, max). `last_ms`: store time of its newest message, ms since 1970; 0 if it is empty."""

    min_offset: int
    """QueueOffset of the first message that it keeps."""
    max_offset: int
    """Its end: the QueueOffset that the next message gets."""
    last_ms: int


class ConsumeStats(Struct, frozen=True):
    """A group's position in one queue. `last_ms`: store time of the newest message that it has consumed, ms since 1970."""

    broker_offset: int
    """The queue's end."""
    consumer_offset: int
    """QueueOffset of the message that the group consumes next."""
    last_ms: int
