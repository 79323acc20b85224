"""A message queue, the unit of order and of allocation, and how far it and its readers have come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct


class MessageQueue(NamedTuple):
    """One queue of one topic on one broker. Sorts by topic, broker, queue id, as the allocation strategies expect."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class DelayProgress(Struct, frozen=True):
    """How far delayed messages have been delivered (`delayOffset.json`)."""

    offsets: Mapping[int, int]
    """Delay level → QueueOffset of the next record to deliver."""
    log_offset: int | None = None
    """LogOffset of the log's end when the positions were taken; None if RocketMQ saved them, which does not tell it."""


class QueueStats(Struct, frozen=True):
    """Offsets of one queue, [min, max). `last_ms`: store time of its newest message, 0 if it is empty."""

    min_offset: int
    max_offset: int
    last_ms: int


class ConsumeStats(Struct, frozen=True):
    """A group's position in one queue. `last_ms`: store time of the newest message that it has consumed."""

    broker_offset: int
    """The queue's end."""
    consumer_offset: int
    last_ms: int
