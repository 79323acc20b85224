"""A connection to the ZooKeeper of MetaQ 1.x that only reads. Needs kazoo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from metaq.admin.zookeeper.nodes import read_node, read_registered, read_topic
from metaq.admin.zookeeper.seen import Metaq1Nodes, NodeNotFound, ReadPartition, TreeNode
from metaq.errors import BadRequest, RequestTimeout
from metaq.registry.zookeeper.client import ZookeeperClient
from metaq.registry.zookeeper.layout import SLASH, Layout
from metaq.registry.zookeeper.session import Session

T = TypeVar("T")

ROOT: Final = "/meta"
SESSION_SECONDS: Final = 30.0


class Metaq1Zookeeper:
    """Made, used and closed in one event loop.

    Methods raise ConnectionFailed: ZooKeeper is away; RequestTimeout: it has not answered in time.

    Args:
        connect: `host:port`, `,`-separated.
        root: under which MetaQ's nodes are; nothing beside it is read.
        seconds: longest wait for a connection; half as long again for the answers.
    """

    def __init__(self, connect: str, root: str = ROOT, seconds: float = 1.0) -> None:
        self.connect, self._seconds = connect, seconds * 1.5
        self._layout = Layout(root)
        self._client = ZookeeperClient(connect, SESSION_SECONDS, seconds)

    @property
    def root(self) -> str:
        return self._layout.root or SLASH

    async def registered(self) -> Metaq1Nodes:
        """Return brokers, topics and groups."""
        return await self._ask(lambda session: read_registered(session, self._layout))

    async def topic(self, topic: str) -> tuple[list[ReadPartition], int]:
        """Return which groups read a topic, partition by partition; and how many more there are. Raises BadRequest: no name."""
        if SLASH in topic or topic in {"", ".", ".."} or not topic.isprintable():
            raise BadRequest(f"{topic[:100]!r} is no name of a topic of MetaQ 1.x in ZooKeeper")
        return await self._ask(lambda session: read_topic(session, self._layout, topic))

    async def node(self, path: str) -> TreeNode:
        """Return a node under the root. Raises NodeNotFound; BadRequest: no path, or not under the root."""
        parts = path.strip(SLASH).split(SLASH)
        place = SLASH + SLASH.join(parts) if parts != [""] else SLASH
        if any(part in {"", ".", ".."} for part in parts if parts != [""]) or not path.isprintable():
            raise BadRequest(f"{path[:200]!r} is no path of a node")
        if not f"{place}/".startswith(f"{self._layout.root}/"):
            raise BadRequest(f"{place[:200]} is not under {self._layout.root}: the nodes of others are not shown")
        found = await self._ask(lambda session: read_node(session, place))
        if found is None:
            raise NodeNotFound(f"there is no node {place[:300]} in ZooKeeper {self.connect}")
        return found

    async def close(self) -> None:
        """End the session."""
        await self._client.close()

    async def _ask(self, work: Callable[[Session], T]) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._client.ask(work)
        except TimeoutError:
            raise RequestTimeout(f"ZooKeeper {self.connect} has not answered within {self._seconds:g} s") from None
