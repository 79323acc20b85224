"""Work in pieces: generators that yield between pieces of some tenths of a millisecond, and return their result.

A report over 65 000 queues, or a heartbeat of a thousand groups, would hold the event loop for seconds. A server runs such
work in turns with other connections' requests (`metaq.servers.slices`); who needs the result at once, `finish`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
InPieces: TypeAlias = Generator[None, None, T]


def finish(pieces: InPieces[T]) -> T:
    """Run all pieces. Returns the result."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: T = end.value
            return result
