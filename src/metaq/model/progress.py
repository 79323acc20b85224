"""How far something has come that goes on after a restart."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class DelayProgress(Struct, frozen=True):
    """How far delayed messages have been delivered."""

    offsets: Mapping[int, int]
    """Level → QueueOffset of the next record to deliver."""
    log_offset: int | None = None
    """The log's end when the positions were taken; None: a RocketMQ saved them, and did not say."""
