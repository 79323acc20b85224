"""Clients and their groups (35, 38, 40, 203, 204)."""

from __future__ import annotations

from msgspec import field

from metaq.wire.headers.codec import Header


class UnregisterClientHeader(Header, kw_only=True):
    """35."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(Header, kw_only=True):
    """38, 40, 203."""

    consumer_group: str


class ProducerGroupHeader(Header, kw_only=True):
    """204."""

    producer_group: str
