"""A message queue: the unit of order and of allocation."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of one topic on one broker. Sorts by topic, broker, queue id, as the allocation strategies expect."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"
