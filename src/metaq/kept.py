"""Memory that a client makes a process keep in one table, told to the client's connection, which counts it.

It is told in steps: what comes and goes with each request, such as a held pull, would cost a call each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP_BYTES: Final = 4096
SLACK_BYTES: Final = 64 * 1024
"""What may have gone again before that is told."""


class Kept:
    """What one connection makes one table keep.

    Args: keep: gets the bytes that have come, or gone (below 0), as `Channel.keep`.
    """

    __slots__ = ("_keep", "bytes", "told")

    def __init__(self, keep: Callable[[int], None]) -> None:
        self._keep = keep
        self.bytes = self.told = 0

    def add(self, size: int) -> None:
        """Count bytes that come, or go (below 0)."""
        self.bytes += size
        if self.bytes > self.told or self.bytes < self.told - SLACK_BYTES:
            self.tell()

    def tell(self) -> None:
        """Tell the connection. A caller that counts by itself does so when `told` is too little, or by `SLACK_BYTES` too much."""
        wanted = -(-self.bytes // STEP_BYTES) * STEP_BYTES
        more, self.told = wanted - self.told, wanted
        self._keep(more)

    def clear(self) -> None:
        """Count nothing any more."""
        self.bytes = 0
        if self.told:
            self.tell()
