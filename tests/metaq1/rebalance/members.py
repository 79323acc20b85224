"""Consumers without fetches: their balance is real, and what it asks for is recorded and held against the protocol."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import threading
from collections.abc import Collection, Coroutine, Iterator, Mapping
from typing import Any

from metaq.errors import ClientError
from metaq.metaq1 import ConsumerConfig, MetaClientConfig, MetaMessageSessionFactory, Partition, ZKConfig
from metaq.metaq1.rebalance.fetching import Held
from metaq.metaq1.rebalance.zookeeper import ZookeeperBalance
from metaq.registry.zookeeper.layout import BrokerPlace, Layout, Metaq1Broker, topic_text
from metaq.testing import eventually
from tests.interop.metaq1 import Nodes, Zookeeper
from tests.support import PATIENCE


class Recorder:
    """A `Fetching` that fetches nothing. `steps` are the calls so far; breaking the protocol fails the test at `check`."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.loaded: set[Held] = set()
        self.servers: dict[Held, str] = {}
        """What is fetched now."""
        self.loads: collections.Counter[Held] = collections.Counter()
        self.refusals = 0
        """Loads that are still to fail."""
        self.stopping: threading.Event | None = None
        """What `stop` waits for."""
        self.faults: list[str] = []
        self.lock = threading.Lock()

    def _must(self, what: bool, why: str) -> None:
        if not what:
            self.faults.append(f"{why} behind {self.steps[-5:]}")

    async def stop(self) -> None:
        self.steps.append("stop")
        while self.stopping is not None and not self.stopping.is_set():
            await asyncio.sleep(0.01)
        self.servers = {}

    async def commit(self) -> None:
        self.steps.append("commit")

    async def load(self, partitions: Collection[Held]) -> None:
        self.steps.append("load")
        self._must(self.loaded.isdisjoint(partitions), "loaded twice")
        if self.refusals:
            self.refusals -= 1
            raise ClientError("the storage is away")
        self.loaded |= set(partitions)
        self.loads.update(partitions)

    def forget(self, partitions: Collection[Held]) -> None:
        self.steps.append("forget")
        self._must(self.loaded.issuperset(partitions), "forgotten what was not loaded")
        self._must(self.servers.keys().isdisjoint(partitions), "forgotten what is fetched")
        self.loaded -= set(partitions)

    async def start(self, servers: Mapping[Held, str]) -> None:
        self.steps.append("start")
        self._must(not self.servers, "started twice")
        self._must(self.loaded.issuperset(servers), "started what is not loaded")
        self.servers = dict(servers)

    @property
    def partitions(self) -> list[str]:
        """What is fetched now, as `topic 0-1`."""
        return sorted(f"{held.topic} {held.partition}" for held in dict(self.servers))


class Member:
    """One consumer of a group, in a factory (a ZooKeeper session) of its own."""

    def __init__(
        self, zookeeper: Zookeeper, root: str, config: ConsumerConfig, topics: Collection[str] = ("t",), **more: float
    ) -> None:
        times = {"zk_sync_time": 0.2, **more}
        zk = ZKConfig(zk_connect=zookeeper.address, zk_root=root, **times)
        self.factory = MetaMessageSessionFactory(MetaClientConfig(zk_config=zk))
        self.fetching = Recorder()
        self.config, self.topics = config, topics
        self.core = self.factory._core
        self.balance = self.core.run(self._make)

    async def _make(self) -> ZookeeperBalance:
        return ZookeeperBalance(self.core, self.config, self.fetching)

    def begin(self) -> None:
        self.core.run(lambda: self.balance.begin(self.topics))

    def end(self) -> None:
        self.core.run(self.balance.end)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.core.run(lambda: work)

    @property
    def partitions(self) -> list[str]:
        return self.fetching.partitions

    @property
    def credentials(self) -> tuple[int, bytes]:
        return self.balance._client.session.credentials

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.end()
        self.factory.shutdown()


@contextlib.contextmanager
def group(zookeeper: Zookeeper, root: str) -> Iterator[Group]:
    """Members that are closed at the end, and held against the protocol."""
    with zookeeper.nodes() as nodes:
        made = Group(zookeeper, root, nodes)
        try:
            yield made
        finally:
            for member in made.members:
                member.close()
        assert [fault for member in made.members for fault in member.fetching.faults] == []


class Group:
    def __init__(self, zookeeper: Zookeeper, root: str, nodes: Nodes) -> None:
        self.zookeeper, self.root, self.nodes = zookeeper, root, nodes
        self.layout = Layout(root)
        self.members: list[Member] = []
        self._ids = (f"m{number:02}" for number in itertools.count())

    def member(self, consumer_id: str | None = None, topics: Collection[str] = ("t",), **options: Any) -> Member:
        """Not begun. `options`: of ConsumerConfig, and `zk_...` of ZKConfig."""
        times = {name: options.pop(name) for name in list(options) if name.startswith("zk_")}
        config = ConsumerConfig("g", consumer_id or next(self._ids), **options)
        made = Member(self.zookeeper, self.root, config, topics, **times)
        self.members.append(made)
        return made

    def joined(self, consumer_id: str | None = None, **options: Any) -> Member:
        made = self.member(consumer_id, **options)
        made.begin()
        return made

    def broker(self, broker_id: int, slave: int | None = None, address: str = "", **topics: int) -> None:
        """Register a server that serves these topics, as long as the test's own session lives."""
        uri = f"meta://{address or f'10.0.0.{broker_id}:{8123 + (-1 if slave is None else slave)}'}"
        broker = Metaq1Broker(broker_id, uri, slave)
        client = self.nodes.client
        nodes = {self.layout.server(BrokerPlace(broker_id, slave)): uri}
        nodes |= {
            self.layout.topic("topics-sub", topic, broker): topic_text(count, broker) for topic, count in topics.items()
        }
        for path, text in nodes.items():
            if client.exists(path):
                client.set(path, text.encode())
            else:
                client.create(path, text.encode(), ephemeral=True, makepath=True)

    def gone(self, broker_id: int, topic: str = "t", slave: int | None = None) -> None:
        """Take such a server's nodes away."""
        self.nodes.client.delete(self.layout.server(BrokerPlace(broker_id, slave)))
        self.nodes.client.delete(self.layout.topic("topics-sub", topic, Metaq1Broker(broker_id, "", slave)))

    def owners(self, topic: str = "t") -> dict[str, str]:
        """Partition → name of its owner, as ZooKeeper has it."""
        parent = self.layout.owners("g", topic)
        tree = self.nodes.tree(parent)
        return {path.rpartition("/")[2]: node.text or "" for path, node in tree.items() if path != parent}

    def shared(self, count: int, *members: Member, broker: int = 0) -> None:
        """Wait until all partitions of a broker are fetched by exactly one of the members, whose owner nodes say the same."""
        everything = sorted(f"{broker}-{number}" for number in range(count))

        def settled() -> bool:
            owners = self.owners()
            fetched = {
                str(held.partition): member.balance.name for member in members for held in dict(member.fetching.servers)
            }
            total = sum(len(member.fetching.servers) for member in members)
            return sorted(owners) == everything and owners == fetched and total == count

        eventually(settled, PATIENCE, what="every partition has one owner, who fetches it")


def place(number: int, topic: str = "t", broker: int = 0) -> Held:
    return Held(topic, Partition(broker, number))
