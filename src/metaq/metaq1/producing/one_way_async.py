"""Producers that do not wait for the server, for asyncio."""

from __future__ import annotations

from typing import Self

from metaq.metaq1.producing.one_way import OneWayBase


class AsyncMessageProducer(OneWayBase):
    """`metaq.metaq1.AsyncMessageProducer` for asyncio. Its sends are no coroutines: they return at once and block nothing."""

    async def publish(self, topic: str) -> None:
        """Learn where the topic's messages go. As `metaq.metaq1.MessageProducer.publish`."""
        name = self._checked_topic(topic)
        if name not in self._topics:
            await self._core.awaited(lambda: self._publish(name))

    async def set_default_topic(self, topic: str) -> None:
        """Publish the topic for what is not published. As `metaq.metaq1.MessageProducer.set_default_topic`."""
        name = self._checked_topic(topic)
        await self._core.awaited(lambda: self._set_default(name))

    async def shutdown(self) -> None:
        """Give up the topics. Sends under way still end, or are kept."""
        if not self._closed and self._core.in_own_process:
            self._closed = True
            self._tell_closed(self)
            if not self._core.closed:
                await self._core.awaited(self._end)

    close = shutdown

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()
