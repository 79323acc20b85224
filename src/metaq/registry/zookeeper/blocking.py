"""A cluster of MetaQ 1.x in ZooKeeper, for callers without an event loop: where a topic can be read, and a group's offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Self, TypeVar

from metaq.errors import ConnectionFailed
from metaq.registry.zookeeper.client import ZookeeperClient
from metaq.registry.zookeeper.layout import Layout, OffsetNode
from metaq.registry.zookeeper.offsets import advance_offsets, read_offsets
from metaq.registry.zookeeper.session import Session
from metaq.registry.zookeeper.subscribing import read_servers

SESSION_SECONDS: Final = 30.0

Result = TypeVar("Result")


class Place(NamedTuple):
    """Where one partition can be read."""

    servers: tuple[str, ...]
    """`host:port`; the master, if it is there, then slaves by their numbers."""
    has_master: bool


class BlockingRegistry:
    """One connection to ZooKeeper, made when it is first needed and kept. Not thread-safe.

    Its loop runs only within calls; kazoo keeps the session alive between them.
    """

    def __init__(self, connect: str, root: str, seconds: float) -> None:
        """
        Args:
            connect: `host:port`, `,`-separated.
            root: of MetaQ's nodes, `/meta` by default.
            seconds: time to reach ZooKeeper.
        """
        self._connect, self._layout, self._seconds = connect, Layout(root), seconds
        self._runner = asyncio.Runner()
        self._client: ZookeeperClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        client, self._client = self._client, None
        if client is not None:
            self._runner.run(client.close())
        self._runner.close()

    # Each raises ConnectionFailed: ZooKeeper was not reached within `seconds` (None: the registry's), or the connection broke.

    def places(self, topic: str, seconds: float | None = None) -> dict[str, Place]:
        """Return partition `B-n` → its servers, of those that have one."""
        counts, addresses = self._ask(lambda session: read_servers(session, self._layout, topic), seconds)
        found: dict[str, Place] = {}
        for broker_id in sorted({place.broker_id for place in counts}):
            there = [place for place in addresses if place.broker_id == broker_id]
            there.sort(key=lambda place: -1 if place.slave is None else place.slave)
            if there:
                known = Place(tuple(addresses[place] for place in there), there[0].slave is None)
                count = max(count for place, count in counts.items() if place.broker_id == broker_id)
                found |= {f"{broker_id}-{number}": known for number in range(count)}
        return found

    def offsets(self, topic: str, group: str, seconds: float | None = None) -> dict[str, OffsetNode]:
        """Return partition `B-n` → the offset that the group has stored."""
        found = self._ask(lambda session: read_offsets(session, self._layout, group, topic), seconds)
        return {partition: node for (_, partition), node in found.items()}

    def members(self, group: str, seconds: float | None = None) -> list[str]:
        """Return the group's consumers."""
        return self._ask(lambda session: session.children([self._layout.members(group)])[0], seconds)

    def advance_offsets(
        self, topic: str, group: str, positions: Mapping[str, int], seconds: float | None = None
    ) -> None:
        """Store a group's positions, partition `B-n` → byte offset; where it has come further, it stays there."""
        self._ask(lambda session: advance_offsets(session, self._layout, topic, group, positions), seconds)

    def _ask(self, work: Callable[[Session], Result], seconds: float | None) -> Result:
        limit = self._seconds if seconds is None else seconds

        async def ask() -> Result:
            if self._client is None:
                self._client = ZookeeperClient(
                    self._connect, SESSION_SECONDS, self._seconds, undone="no partition and no offset is known"
                )
            try:
                async with asyncio.timeout(limit):
                    return await self._client.ask(work)
            except TimeoutError:
                raise ConnectionFailed(f"ZooKeeper {self._connect} does not answer within {limit:g} s") from None

        return self._runner.run(ask())
