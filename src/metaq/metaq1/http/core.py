"""The core of a session factory over HTTP."""

from __future__ import annotations

from metaq.errors import ClientError
from metaq.metaq1.http.config import HttpClientConfig
from metaq.metaq1.http.links import HttpLinks
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.links import Link, Links
from metaq.metaq1.shared.routes import Registry, Routes, TopicRoute


class HttpCore(FactoryCore):
    """A `FactoryCore` whose servers are behind one URL."""

    config: HttpClientConfig

    def _make_links(self) -> Links:
        return HttpLinks(self.config, self.pace)

    def _make_routes(self) -> Routes:
        return UnknownRoutes()

    def address_of(self, topic: str, partition: Partition) -> str:
        """Return URL and broker id of a partition, which whoever asks knows."""
        del topic
        return f"{self.config.address}/{partition.broker_id}"


class UnknownRoutes:
    """A `Routes` of a gateway, which tells no partitions."""

    async def publish(self, topic: str) -> None:
        """Nothing is to be learned."""

    async def unpublish(self, topic: str) -> None:
        """Nothing was learned."""

    def route(self, topic: str) -> TopicRoute | None:
        del topic
        return None

    async def transactional(self, topic: str) -> TopicRoute | None:
        del topic
        return None

    async def partitions(self, topic: str) -> tuple[Partition, ...]:
        raise ClientError(f"a gateway of MetaQ 1.x does not tell the partitions of topic {topic}: name them")

    async def servers(self) -> list[Link]:
        return []

    def registry(self) -> Registry | None:
        return None

    async def close(self) -> None:
        """Nothing is kept."""
