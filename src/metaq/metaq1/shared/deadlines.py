"""Time-outs of commands under way: one timer for all that end at about the same time, since one for each costs more than the rest of
what a command needs from the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

_PARTS: Final = 64


class Timed(Protocol):
    """What may run out of time. Who ends it earlier discards it from its bucket."""

    timeout: float
    """Seconds that it was given."""
    bucket: set[Any] | None


Item = TypeVar("Item", bound=Timed)


class Deadlines(Generic[Item]):
    """Ends items when their time is up, late by a 64th of it at most. Belongs to one event loop.

    Args: expire: ends one, unless it has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Item], object]) -> None:
        self._loop, self._expire = loop, expire
        self._buckets: dict[float, set[Item]] = {}
        """Loop time → those whose time is up then."""
        self._timeout = self._width = 0.0

    def add(self, item: Item, timeout: float) -> None:
        """Have an item end `timeout` seconds from now."""
        if timeout <= 0:
            item.timeout = timeout
            self._loop.call_soon(self._expire, item)
            return
        if timeout != self._timeout:
            # A power of two: buckets of all widths begin at multiples of it.
            self._timeout, self._width = timeout, math.ldexp(1 / _PARTS, math.frexp(timeout)[1] - 1)
        width = self._width
        end = ((self._loop.time() + timeout) // width + 1) * width
        bucket = self._buckets.get(end)
        if bucket is None:
            bucket = self._buckets[end] = set()
            self._loop.call_at(end, self._fire, end)
        bucket.add(item)
        item.timeout, item.bucket = timeout, bucket

    def _fire(self, end: float) -> None:
        for item in list(self._buckets.pop(end)):
            self._expire(item)
