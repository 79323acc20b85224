"""Open pages that follow the cluster: what has changed of each is sent to all who look at it, as server-sent events.

A page is made again once after a look at the cluster, however many look at it. A viewer who does not read keeps no more than the
newest of each part, and is ended after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

import msgspec

from metaq.clock import Clock
from metaq.dashboard.rendering.renderer import digest
from metaq.log import RateLimitedLog
from metaq.servers.http.connection import ClientGone, HttpConnection

log = logging.getLogger(__name__)

VIEWERS_MAX: Final = 100
KEEP_ALIVE_SECONDS: Final = 15.0
UNREAD_SECONDS: Final = 20.0
"""A viewer who reads nothing for this long is ended."""
SHARE_MAX: Final = 0.1
"""Most of the time that making one page again may take."""

Make = Callable[[], Awaitable[Mapping[str, str] | None]]
"""Returns the parts of a page as they are now, by id; None: it is to be ended, the visitor has to log in again."""


class Viewer:
    """One open page."""

    __slots__ = ("news", "over", "woken")

    def __init__(self) -> None:
        self.news: dict[str, str] = {}
        """Parts that are to be sent, only the newest of each."""
        self.over = False
        self.woken = asyncio.Event()


class _Watched:
    """A page that somebody looks at."""

    def __init__(self) -> None:
        self.viewers = set[Viewer]()
        self.parts: dict[str, str] = {}
        self.looked = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Live:
    """All open pages."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._faults = RateLimitedLog(log, clock)
        self._watched: dict[Hashable, _Watched] = {}

    @property
    def viewers(self) -> int:
        """Open pages."""
        return sum(len(one.viewers) for one in self._watched.values())

    @property
    def pages(self) -> int:
        """Different ones among them."""
        return len(self._watched)

    def looked(self) -> None:
        """Have all pages made again: there was a look at a cluster."""
        for watched in self._watched.values():
            watched.looked.set()

    def enter(self, key: Hashable, make: Make) -> Viewer:
        """Begin to follow a page. `key`: the same for viewers who see the same."""
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched()
            watched.looked.set()
            watched.task = asyncio.create_task(self._follow(watched, make))
        viewer = Viewer()
        viewer.news = dict(watched.parts)
        viewer.woken.set()
        watched.viewers.add(viewer)
        return viewer

    def leave(self, key: Hashable, viewer: Viewer) -> None:
        """End to follow a page."""
        watched = self._watched.get(key)
        if watched is None:
            return
        watched.viewers.discard(viewer)
        if not watched.viewers:
            del self._watched[key]
            assert watched.task is not None
            watched.task.cancel()

    async def close(self) -> None:
        """End all."""
        tasks = [one.task for one in self._watched.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, watched: _Watched, make: Make) -> None:
        while True:
            await watched.looked.wait()
            watched.looked.clear()
            began = self._clock.monotonic()
            try:
                parts = await make()
            except Exception as error:  # noqa: BLE001  the next look may find it well again
                self._faults.warning("page", "an open page cannot be made again: %s", error)
                parts = {}
            for name, html in (parts or {}).items():
                if watched.parts.get(name) != html:
                    watched.parts[name] = html
                    for viewer in watched.viewers:
                        viewer.news[name] = html
            for viewer in watched.viewers:
                viewer.over = parts is None
                if viewer.news or viewer.over:
                    viewer.woken.set()
            await asyncio.sleep((self._clock.monotonic() - began) / SHARE_MAX)


class EventStream:
    """The answer to a browser that follows a page: an ASGI application."""

    def __init__(self, live: Live, key: Hashable, make: Make, connection: HttpConnection) -> None:
        self._live, self._key, self._make, self._connection = live, key, make, connection

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        fields = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        # Browsers that leave close their side, and mean both: they would be noticed by the next write only.
        self._connection.peer.on_half_closed = _ends
        viewer = self._live.enter(self._key, self._make)
        try:
            with contextlib.suppress(ClientGone):
                await self._send_all(viewer, send)
        except TimeoutError:
            self._connection.peer.close("it does not read what it follows")
        finally:
            self._live.leave(self._key, viewer)

    async def _send_all(self, viewer: Viewer, send: Any) -> None:
        await _write(send, b"retry: 3000\n\n")
        while not viewer.over:
            if not await self._news(viewer):
                await _write(send, b": still here\n\n")
                continue
            viewer.woken.clear()
            news, viewer.news = viewer.news, {}
            for name, html in news.items():
                data = msgspec.json.encode({"id": name, "is": digest(html), "html": html})
                await _write(send, b"event: part\ndata: " + data + b"\n\n")
            if news:
                await _write(send, b"event: seen\ndata: {}\n\n")
        await _write(send, b"event: over\ndata: {}\n\n")
        await send({"type": "http.response.body", "body": b""})

    async def _news(self, viewer: Viewer) -> bool:
        """Wait for some. Raises ClientGone. Return whether there are any."""
        waiting = asyncio.ensure_future(viewer.woken.wait())
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await self._connection.unless_gone(waiting)
            return True
        except TimeoutError:
            return False
        finally:
            waiting.cancel()


def _ends() -> bool:
    return False


async def _write(send: Any, data: bytes) -> None:
    """Send bytes. Raises TimeoutError: the viewer does not read."""
    async with asyncio.timeout(UNREAD_SECONDS):
        await send({"type": "http.response.body", "body": data, "more_body": True})
