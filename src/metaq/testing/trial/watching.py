"""A thread that looks all the time who leads, and notes it in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from types import TracebackType
from typing import Final, Self

from metaq.admin import Admin
from metaq.errors import MetaqError
from metaq.testing.checking import LeaderSeen, Ledger
from metaq.testing.checking.leaders import ZOOKEEPER
from metaq.testing.cluster import Cluster

_PAUSE_SECONDS: Final = 0.1
_SESSION_SECONDS: Final = 10.0
CLUSTER_NAME: Final = "DefaultCluster"


def state_path(cluster: str, broker: str) -> str:
    """Return the path of ZooKeeper's node that has who leads a broker."""
    return f"/metaq-failover/{cluster}/{broker}/state"


class LeaderWatch:
    """Asks all replicas of all brokers, past all networks, and ZooKeeper's nodes where brokers elect their leaders there."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster, self._ledger = cluster, ledger
        self._over = threading.Event()
        self._seen: set[tuple[str, int, str, str]] = set()
        self._newest: dict[str, tuple[int, str]] = {}
        works = [self._watch_brokers]
        if cluster.zookeeper and any(broker.options.get("failover") == ZOOKEEPER for broker in cluster.brokers):
            works.append(self._watch_nodes)
        self._threads = [threading.Thread(target=work, name="leader-watch", daemon=True) for work in works]

    def _watch_brokers(self) -> None:
        brokers = range(len(self._cluster.brokers) // self._cluster.replicas)
        with Admin(self._cluster.name_servers[0].listens) as admin:
            while not self._over.wait(_PAUSE_SECONDS):
                for broker in brokers:
                    # A process may be killed or paused while it is asked.
                    with contextlib.suppress(MetaqError):
                        for number, state in self._cluster.states(broker, admin).items():
                            if state.leads:
                                leader = self._cluster.brokers[number]
                                self._note(
                                    LeaderSeen(
                                        self._ledger.now(), leader.broker_name, state.epoch, leader.name, leader.name
                                    )
                                )

    def _watch_nodes(self) -> None:
        asyncio.run(self._watch_all_nodes())

    async def _watch_all_nodes(self) -> None:
        from metaq.registry.zookeeper.client import ZookeeperClient  # only of brokers with failover: it is an extra

        paths = {
            state_path(
                str(broker.options.get("brokerClusterName", CLUSTER_NAME)), broker.broker_name
            ): broker.broker_name
            for broker in self._cluster.brokers
        }
        client = ZookeeperClient(self._cluster.zookeeper, _SESSION_SECONDS, _SESSION_SECONDS)
        try:
            while not self._over.is_set():
                await asyncio.sleep(_PAUSE_SECONDS)
                with contextlib.suppress(MetaqError):  # it is away
                    texts = await client.ask(lambda session: session.texts(paths))
                    for path, text in texts.items():
                        self._note_node(paths[path], text)
        finally:
            await client.close()

    def _note_node(self, broker: str, text: str) -> None:
        try:
            state = json.loads(text)
            member, epoch, history = state["leader"], int(state["epoch"]), str(state.get("history", ""))
        except (ValueError, KeyError, TypeError) as error:
            self._ledger.tell(f"ZooKeeper's node of {broker} cannot be read: {error}: {text[:200]}")
            return
        if not member:  # nobody leads
            return
        leader = next(
            (
                one.name
                for one in self._cluster.brokers
                if one.broker_name == broker and one.options.get("brokerId") == member
            ),
            str(member),
        )
        self._note(LeaderSeen(self._ledger.now(), broker, epoch, leader, ZOOKEEPER, history))

    def _note(self, event: LeaderSeen) -> None:
        known = (event.broker, event.epoch, event.leader, event.source)
        newest = self._newest.get(event.source)
        # Each once, and again where it comes back after another one: a history of ten looks a second would hide the rest.
        if known not in self._seen or newest != (event.epoch, event.leader):
            self._seen.add(known)
            self._newest[event.source] = event.epoch, event.leader
            self._ledger.write(event)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
