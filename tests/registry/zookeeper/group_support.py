"""What the tests of a group's nodes have in common: nodes that are closed again, values, and waiting in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from tests.support import PATIENCE

from metaq.model.failover import GroupState, Member, Place
from metaq.registry.zookeeper.group import GroupNodes

SESSION_SECONDS = 20.0
"""Far beyond what a starved machine needs."""

Value = TypeVar("Value")


class Group:
    """Nodes of one broker, and how often they have changed."""

    def __init__(self, connect: str, name: str, *, seconds: float = SESSION_SECONDS, auth: str = "") -> None:
        self.changes = 0
        self.nodes = GroupNodes(connect, "cluster", name, seconds, self._changed, auth)

    def _changed(self) -> None:
        self.changes += 1


@contextlib.asynccontextmanager
async def group(connect: str, name: str, *, seconds: float = SESSION_SECONDS, auth: str = "") -> AsyncIterator[Group]:
    """Open nodes, and close them behind the block."""
    found = Group(connect, name, seconds=seconds, auth=auth)
    found.nodes.open()
    try:
        yield found
    finally:
        await found.nodes.close()


def run(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a test's coroutine, bounded."""

    async def bounded() -> Value:
        async with asyncio.timeout(PATIENCE):
            return await work

    return asyncio.run(bounded())


async def until(condition: Callable[[], Value]) -> Value:
    """Return what `condition` returns once that is true. The test's own limit ends it."""
    while not (found := condition()):
        await asyncio.sleep(0.005)
    return found


def a_member(number: int = 1, incarnation: str = "one", **fields: Any) -> Member:
    defaults: dict[str, Any] = {
        "store": f"store{number}", "address": f"127.0.0.1:{10000 + number}", "whole": True, "log_end": 0, "epoch": 0,
    }  # fmt: skip
    return Member(number, incarnation, **defaults | fields)


def a_state(epoch: int = 1, leader: int = 1, incarnation: str = "one") -> GroupState:
    return GroupState("history", epoch, leader, incarnation, (Place(leader, f"store{leader}"),))
