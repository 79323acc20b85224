"""What a broker remembers of the filters of consumer groups that are no tags."""

from __future__ import annotations

from msgspec import Struct


class GroupFilter(Struct, frozen=True):
    """What a group wanted of a topic, and since when. Times in ms."""

    topic: str
    group: str
    expression: str
    expression_type: str = "SQL92"
    version: int = 0
    """Of the subscription that said so."""
    born_ms: int = 0
    dead_ms: int = 0
    """When the group went offline, or stopped wanting it; 0: it has not."""

    @property
    def dead(self) -> bool:
        return self.dead_ms >= self.born_ms
