"""What a broker tells a client without being asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metaq.model.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members of a consumer group are others than before: its queues are to be shared out anew."""

    group: str


@dataclass(frozen=True, slots=True)
class OffsetsReset:
    """An administrator moved a group's progress: each queue is to be consumed from its offset on."""

    group: str
    offsets: Mapping[MessageQueue, int]
