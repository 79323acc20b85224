"""Which partitions a topic has, and where: by ZooKeeper, or by one fixed server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import Struct

from metaq.metaq1.model.partition import Partition
from metaq.metaq1.shared.links import Link

if TYPE_CHECKING:
    from metaq.registry.zookeeper.client import ZookeeperClient  # needs kazoo, an extra
    from metaq.registry.zookeeper.layout import Layout

CONNECT_SECONDS: Final = 10.0
"""Longest wait of `publish` for one server, as in Java."""


class TopicRoute(Struct, frozen=True):
    """Where a topic's messages go. `partitions` in the order of producers: by broker id and number."""

    partitions: tuple[Partition, ...]
    addresses: Mapping[int, str]
    """Broker id → `host:port`."""


class Registry(NamedTuple):
    """A factory's ZooKeeper."""

    client: ZookeeperClient
    layout: Layout


NOWHERE: Final = TopicRoute((), {})


class Routes(Protocol):
    """Routes of the topics that somebody publishes. Coroutines belong to the background loop; `route` and `transactional` may be
    called in any thread."""

    async def publish(self, topic: str) -> None:
        """Learn a topic's route and follow its changes; pair with `unpublish`. Connects to its servers, and waits for each up to
        `CONNECT_SECONDS`; one that is away is logged, and connected to when it is back.

        Raises ConnectionFailed: ZooKeeper does not answer; ClientClosed.
        """
        ...

    async def unpublish(self, topic: str) -> None: ...

    def route(self, topic: str) -> TopicRoute | None:
        """Return where sends go now; None: the topic is not published here."""
        ...

    async def transactional(self, topic: str) -> TopicRoute | None:
        """Return the same for sends in a transaction, which must name their partition."""
        ...

    async def partitions(self, topic: str) -> tuple[Partition, ...]:
        """Return the partitions that may be published to, published here or not. Raises ConnectionFailed, RequestTimeout."""
        ...

    async def servers(self) -> list[Link]:
        """Return the links to the servers in use, or to the fixed one."""
        ...

    def registry(self) -> Registry | None:
        """In the loop: return the factory's ZooKeeper, which consumers and tools use, too; None: there is one fixed server.

        Raises ClientClosed.
        """
        ...

    async def close(self) -> None: ...
