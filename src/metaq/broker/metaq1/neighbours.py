"""What the pages of MetaQ 1.x tell of ZooKeeper: other brokers, and who has the partitions of this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Neighbour(Struct, frozen=True):
    """A broker that is registered."""

    broker_id: int
    slave: int | None
    """Number among the slaves of its id; None: it is the master."""
    uri: str
    """Its own words: `meta://host:port`."""


class GroupShare(Struct, frozen=True):
    """One partition of this broker, as a group has it."""

    partition: int
    owner: str
    """Consumer that has it now; "": nobody."""
    position: int | None
    """Byte position to which it is consumed; None: nothing is stored."""


class Neighbours(Protocol):
    """Looks into the registry. Each raises Refused UNAVAILABLE: it does not answer."""

    async def brokers(self) -> list[Neighbour]:
        """Return all brokers, by id, masters first."""
        ...

    async def shares(self, group: str, topic: str, partitions: Sequence[int]) -> list[GroupShare] | None:
        """Return a group's shares of this broker's partitions; None: there is no such group."""
        ...

    async def skip(self, group: str, topic: str, partition: int, position: int) -> None:
        """Store a group's position. Raises Refused STALE: a consumer has the partition, which would store its own; nothing is done."""
        ...
