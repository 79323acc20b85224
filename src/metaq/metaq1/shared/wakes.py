"""Waking what awaits in other event loops: all that becomes ready at about the same time costs one hand-over."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

log = logging.getLogger("metaq.client")


class _Loop:
    """Those that wait in one loop."""

    __slots__ = ("loop", "posted", "ready")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ready: deque[asyncio.Future[None]] = deque()
        self.posted = False

    def release(self) -> None:
        self.posted = False
        ready = self.ready
        while ready:
            waiter = ready.popleft()
            if not waiter.done():
                waiter.set_result(None)


class Wakes:
    """Of one factory."""

    def __init__(self) -> None:
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Any thread: have a future's own loop settle it soon. No effect if that loop is closed."""
        loop = waiter.get_loop()
        known = self._loops.get(loop)
        if known is None:
            for one in [one for one in self._loops if one.is_closed()]:
                self._loops.pop(one, None)
            known = self._loops.setdefault(loop, _Loop(loop))
        known.ready.append(waiter)
        # A release that runs now has either seen this one or has cleared the flag before.
        if not known.posted:
            known.posted = True
            try:
                loop.call_soon_threadsafe(known.release)
            except RuntimeError:
                log.debug("a loop was closed with a send awaited in it")
