"""Routes by ZooKeeper: read anew whenever the brokers of a published topic change.

As in the registrar, everything is read in rounds: a change during a round causes another. While ZooKeeper is away the last routes
stay in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from metaq.errors import ClientClosed, ConfigError, ConnectionFailed, MetaqError
from metaq.log import when_dead
from metaq.metaq1.config import ZKConfig
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.shared.links import Link, Links
from metaq.metaq1.shared.routes import CONNECT_SECONDS, NOWHERE, Registry, TopicRoute

try:
    from metaq.registry.zookeeper.client import ZookeeperClient
    from metaq.registry.zookeeper.layout import Layout
    from metaq.registry.zookeeper.publishing import read_publishable
except ImportError as missing:
    raise ConfigError(
        f"zk_config needs kazoo ({missing}): install pymetaq[zookeeper], or give server_url of one server"
    ) from missing

log = logging.getLogger("metaq.client")

RETRY_SECONDS: Final = 1.0
"""Pause before another round after one that failed."""


class ZookeeperRoutes:
    """A `Routes` for `MetaClientConfig.zk_config`. The client of ZooKeeper is made when a topic is first asked for."""

    def __init__(self, links: Links, config: ZKConfig) -> None:
        self._links, self._config = links, config
        self.layout = Layout(config.zk_root)
        self._client: ZookeeperClient | None = None
        self._published: Counter[str] = Counter()
        self._routes: Mapping[str, TopicRoute] = {}
        """Replaced as a whole: read in any thread."""
        self._used: dict[str, Link] = {}
        self._wake = asyncio.Event()
        self._rounds: list[asyncio.Future[None]] = []
        """Of those who wait for the end of a round that has not begun."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def registry(self) -> Registry:
        return Registry(self._zookeeper(), self.layout)

    def _zookeeper(self) -> ZookeeperClient:
        """In the loop. Raises ClientClosed."""
        if self._closed:
            raise ClientClosed("the session factory is closed")
        if self._client is None:
            config = self._config
            self._client = ZookeeperClient(
                config.zk_connect,
                config.zk_session_timeout,
                config.zk_connection_timeout,
                undone="no topic is published, and none is consumed",
            )
            self._client.listen(self._wake.set)
        return self._client

    async def publish(self, topic: str) -> None:
        self._zookeeper()
        self._published[topic] += 1
        if topic in self._routes:
            return
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name="MetaQ 1.x routes")
            self._task.add_done_callback(when_dead(log, "routes of MetaQ 1.x are not followed any more"))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rounds.append(done)
        self._wake.set()
        try:
            await done
        except BaseException:
            await self.unpublish(topic)
            raise
        addresses = set(self._routes.get(topic, NOWHERE).addresses.values())
        waits = (self._connected(topic, link) for address, link in self._used.items() if address in addresses)
        await asyncio.gather(*waits)

    @staticmethod
    async def _connected(topic: str, link: Link) -> None:
        try:
            await link.connected(CONNECT_SECONDS)
        except ConnectionFailed as error:
            log.warning("topic %s is published, and one of its servers is away: %s", topic, error)

    async def unpublish(self, topic: str) -> None:
        self._published[topic] -= 1
        if self._published[topic] <= 0:
            del self._published[topic]
            self._take({name: route for name, route in self._routes.items() if name != topic})

    def route(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    async def transactional(self, topic: str) -> TopicRoute | None:
        return self.route(topic)

    async def partitions(self, topic: str) -> tuple[Partition, ...]:
        found = await self._zookeeper().ask(
            lambda session: read_publishable(session, self.layout, [topic], watch=False)
        )
        return _route_of(found[topic]).partitions

    async def servers(self) -> list[Link]:
        return self._links.connected

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._settle(ClientClosed("the session factory was closed"))
        if self._client is not None:
            await self._client.close()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()  # before anything is read: a change during the round must cause another
            waiting, self._rounds = self._rounds, []
            try:
                await self._round()
            except ConnectionFailed as error:
                self._settle(error, waiting)
                if self._published:
                    log.warning("routes of MetaQ 1.x stay as they are: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                    self._wake.set()
            except asyncio.CancelledError:
                self._settle(ClientClosed("the session factory was closed"), waiting)
                raise
            else:
                self._settle(None, waiting)

    async def _round(self) -> None:
        topics = list(self._published)
        found = await self._zookeeper().ask(lambda session: read_publishable(session, self.layout, topics, watch=True))
        self._take({topic: _route_of(brokers) for topic, brokers in found.items() if topic in self._published})

    def _take(self, routes: Mapping[str, TopicRoute]) -> None:
        """Use these routes from now on: connect to new servers, and part with those that no topic needs."""
        for topic in routes.keys() & self._routes.keys():
            if routes[topic] != self._routes[topic]:
                log.info("topic %s has %d partitions now", topic, len(routes[topic].partitions))
        needed = {address for route in routes.values() for address in route.addresses.values()}
        for address in needed - self._used.keys():
            self._used[address] = self._links.acquire(address)
        self._routes = routes
        for address in self._used.keys() - needed:
            self._links.release(self._used.pop(address))

    def _settle(self, error: MetaqError | None, waiting: list[asyncio.Future[None]] | None = None) -> None:
        if waiting is None:
            waiting, self._rounds = self._rounds, []
        for done in waiting:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)


def zookeeper_routes(links: Links, config: ZKConfig) -> ZookeeperRoutes:
    """Return the routes by this ZooKeeper. Any thread. Raises ConfigError: kazoo is missing."""
    return ZookeeperRoutes(links, config)


def _route_of(brokers: Mapping[int, tuple[str, int]]) -> TopicRoute:
    partitions = (Partition(broker_id, number) for broker_id, (_, count) in brokers.items() for number in range(count))
    return TopicRoute(tuple(sorted(partitions)), {broker_id: address for broker_id, (address, _) in brokers.items()})
