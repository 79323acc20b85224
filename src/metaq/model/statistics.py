"""Figures about queues and about how far a group has come in them."""

from __future__ import annotations

from msgspec import Struct


class QueueStats(Struct, frozen=True):
    """What one queue holds, [min, max). `last_ms`: store time of its newest message, 0 if it has none."""

    min_offset: int
    max_offset: int
    last_ms: int


class ConsumeStats(Struct, frozen=True):
    """How far a group has come in one queue. `last_ms`: store time of the newest message that it has consumed."""

    broker_offset: int
    """The queue's end."""
    consumer_offset: int
    last_ms: int
