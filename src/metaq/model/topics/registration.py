"""What a broker tells name servers of itself, and what it is told in return."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from metaq.model.topics.topic import DataVersion, TopicConfig


class BrokerIdentity(Struct, frozen=True):
    """Which broker it is. Addresses are `host:port`."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    ha_address: str
    """Where its slaves replicate from."""


class Registration(Struct, frozen=True):
    """What one broker says of itself."""

    who: BrokerIdentity
    version: DataVersion
    """Of the broker's topic table."""
    topics: Mapping[str, TopicConfig]
    """The whole table, or what of it has changed."""


class Registered(Struct, frozen=True):
    """What a broker is told. The addresses are for a slave whose master is alive."""

    master: str | None = None
    master_ha_address: str | None = None
    order: Mapping[str, str] | None = None
    """Topic → fixed layout, of strictly ordered topics."""


class VersionCheck(Struct, frozen=True):
    """Whether a broker must tell its table again, and the version that is known of it."""

    changed: bool
    known: DataVersion | None
