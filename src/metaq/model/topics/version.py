"""The version of a configuration table, by which its copies elsewhere know that it moved."""

from __future__ import annotations

from typing import NamedTuple


class DataVersion(NamedTuple):
    """Two versions are the same only if both parts are; neither orders them."""

    timestamp: int = 0
    """When the table last changed, ms."""
    counter: int = 0
    """How often it changed."""

    def next(self, now_ms: int) -> DataVersion:
        """The version after a change at `now_ms`."""
        return DataVersion(now_ms, self.counter + 1)
