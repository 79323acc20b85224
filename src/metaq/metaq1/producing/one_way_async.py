"""Producers that do not wait for the server, for asyncio."""

from __future__ import annotations

from metaq.metaq1.producing.one_way import OneWayBase
from metaq.metaq1.producing.publishing import AsyncPublishingProducer


class AsyncMessageProducer(OneWayBase, AsyncPublishingProducer):
    """`metaq.metaq1.AsyncMessageProducer` for asyncio. Made by `AsyncMetaMessageSessionFactory.create_async_producer`. Its
    sends are no coroutines: they return at once and block nothing."""
