"""Connections of brokers, as the route table sees them."""

from __future__ import annotations


class Link:
    """A connection that counts what is kept for it. `room`: bytes that it may still keep; None: any amount."""

    def __init__(self, room: int | None = None) -> None:
        self.room, self.kept = room, 0

    def keep(self, more: int) -> None:
        self.kept += more

    def may_keep(self, more: int) -> bool:
        return self.room is None or self.kept + more <= self.room
