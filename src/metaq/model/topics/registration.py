"""A broker's registration at a name server, and the answer."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from metaq.model.topics.advertised import Advertised
from metaq.model.topics.topic import DataVersion, TopicConfig


class BrokerIdentity(Struct, frozen=True):
    """A broker's names and addresses (`host:port`)."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    ha_address: str
    """Address from which its slaves replicate."""
    advertised: Advertised = Advertised()
    """Addresses that clients of some origins are told in place of `address`."""
    advertised_ha: Advertised = Advertised()
    """Addresses that slaves of some origins are told in place of `ha_address`."""

    @property
    def addresses(self) -> frozenset[str]:
        """All addresses under which a name server may name this broker to somebody."""
        return self.advertised.addresses | {self.address}


class Registration(Struct, frozen=True):
    """Registration of one broker."""

    who: BrokerIdentity
    version: DataVersion
    """Version of the broker's topic table."""
    topics: Mapping[str, TopicConfig]
    """The whole table, or its changed entries: a registration never removes a topic."""


class Registered(Struct, frozen=True):
    """Answer to a registration. The addresses are for a slave whose master is alive."""

    master: str | None = None
    master_ha_address: str | None = None
    order: Mapping[str, str] | None = None
    """Topic → fixed layout, of strictly ordered topics."""
    replaced: str | None = None
    """Address that had the broker's name and id until now, and is still connected."""
    has_changed_role: bool = False
    """Whether the broker had another id until now, as one that is promoted."""


class VersionCheck(Struct, frozen=True):
    """Answer to QUERY_DATA_VERSION: whether the broker must register again, and the version known of it."""

    changed: bool
    known: DataVersion | None
