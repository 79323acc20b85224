"""What `Bases` keeps of each queue with byte positions, and of a round that writes new bases for many."""

from __future__ import annotations

from msgspec import Struct

from metaq.store.metaq1.position_bases import Base
from metaq.store.metaq1.queue_positions import QueuePositions
from metaq.store.queues.table import QueueKey


class KeptPositions(Struct):
    """A queue with positions."""

    positions: QueuePositions
    base: Base | None
    """The newest base; None: it is to be written."""
    debt: int
    """LogOffset of the oldest record that is needed to compute its positions."""
    settled: int = 0
    """QueueOffset of the newest base that is known to be durable."""


class BaseRound(Struct):
    """A round that writes new bases for many queues."""

    began: int
    """The log's end when it began."""
    before: int
    """LogOffset below which nothing is to be needed after it."""
    left: list[QueueKey]
    whole: bool
    """Whether it has all queues with positions."""
    working: bool = False
    """Whether the thread is working on some of them."""
    failed: bool = False
