"""What a broker tells a client without being asked."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from metaq.model.queue import MessageQueue


class MembersChanged(Struct, frozen=True):
    """The members of a consumer group are others than before: its queues are to be shared out anew."""

    group: str


class OffsetsReset(Struct, frozen=True):
    """An administrator moved a group's progress: each queue is to be consumed from its offset on."""

    group: str
    offsets: Mapping[MessageQueue, int]
