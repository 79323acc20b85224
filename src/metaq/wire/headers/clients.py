"""Clients and their groups (35, 38, 40, 203, 204)."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.wire.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class UnregisterClientHeader(Header):
    """35."""

    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerGroupHeader(Header):
    """38, 40, 203."""

    consumer_group: str


@dataclass(slots=True, kw_only=True)
class ProducerGroupHeader(Header):
    """204."""

    producer_group: str
