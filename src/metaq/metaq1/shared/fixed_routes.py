"""The routes of one fixed server, which are the same for each topic: the server chooses the partition."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import Final

from metaq.errors import ConnectionFailed, RemoteProtocolError
from metaq.metaq1.conversation import answers
from metaq.metaq1.model.partition import RANDOM_PARTITION, Partition
from metaq.metaq1.shared.figures import ask_stats
from metaq.metaq1.shared.links import Link, Links
from metaq.metaq1.shared.routes import CONNECT_SECONDS, Registry, TopicRoute
from metaq.wire.metaq1.stats import topic_parts

log = logging.getLogger("metaq.client")

_ACTION: Final = "tell its topics"


class FixedRoutes:
    """A `Routes` for `MetaClientConfig.server_url`. The id of the broker is unknown: -1, as in Java."""

    def __init__(self, links: Links, address: str) -> None:
        self._links, self._address = links, address
        self._published: Counter[str] = Counter()
        self._link: Link | None = None
        self._random = TopicRoute((RANDOM_PARTITION,), {RANDOM_PARTITION.broker_id: address})

    def _server(self) -> Link:
        if self._link is None:
            self._link = self._links.acquire(self._address)
        return self._link

    async def publish(self, topic: str) -> None:
        try:
            await self._server().connected(CONNECT_SECONDS)
        except ConnectionFailed as error:
            log.warning("topic %s is published, and its server is away: %s", topic, error)
        self._published[topic] += 1

    async def unpublish(self, topic: str) -> None:
        self._published[topic] -= 1
        if self._published[topic] <= 0:
            del self._published[topic]

    def route(self, topic: str) -> TopicRoute | None:
        return self._random if topic in self._published else None

    async def transactional(self, topic: str) -> TopicRoute | None:
        """The original refuses -1 in a transaction: so the server is asked which partitions it has."""
        if topic not in self._published:
            return None
        found: tuple[Partition, ...] = ()
        with contextlib.suppress(RemoteProtocolError):
            found = await self.partitions(topic)
        return TopicRoute(found, self._random.addresses)

    async def partitions(self, topic: str) -> tuple[Partition, ...]:
        """As the server's `stats offsets` has them, which names those that have been written to."""
        lines = answers.lines_of(await ask_stats(self._server(), "offsets", _ACTION), self._address, _ACTION)
        try:
            numbers = topic_parts(lines).get(topic, [])
        except ValueError:
            raise RemoteProtocolError(f"the figures of {self._address} cannot be read") from None
        return tuple(Partition(RANDOM_PARTITION.broker_id, number) for number in sorted(numbers))

    async def servers(self) -> list[Link]:
        return [self._server()]

    def registry(self) -> Registry | None:
        return None

    async def close(self) -> None:
        self._published.clear()
