"""What a rebalance asks of its consumer, and what a consumer asks of its rebalance. All in the background loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from metaq.metaq1.model.partition import Partition


class Held(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: Partition


class Fetching(Protocol):
    """The fetches of one consumer."""

    async def stop(self) -> None:
        """Begin no fetch any more, and return when every listener has returned and no fetch is under way. Harmless twice."""
        ...

    async def commit(self) -> None:
        """Save the offsets of what was consumed since the last commit. An error is logged, not raised."""
        ...

    async def load(self, partitions: Collection[Held]) -> None:
        """Learn where to begin in partitions that are new here, while others are fetched. Raises MetaqError: the storage does not
        answer; nothing is taken then."""
        ...

    def forget(self, partitions: Collection[Held]) -> None:
        """Take note that these belong to somebody else from now on. They are committed, unless the
        ZooKeeper session had ended: others may have gone further by then."""
        ...

    async def start(self, servers: Mapping[Held, str]) -> None:
        """Fetch from now on: partition → `host:port` of its server. Exactly these, which are loaded."""
        ...


class Balance(Protocol):
    """Gives a consumer its partitions, and takes them away again, until it is ended."""

    async def begin(self, topics: Collection[str]) -> None:
        """Take partitions of these topics, once. Returns when they are there, or when it goes on trying in the background.

        Raises ConnectionFailed: ZooKeeper or the fixed server does not answer; ConfigError: another session has this consumer id
        (`refuse_shared_consumer_id`).
        """
        ...

    async def end(self) -> None:
        """Stop fetching, commit, give everything back. The consumer's last call; bounded, whoever is away."""
        ...
