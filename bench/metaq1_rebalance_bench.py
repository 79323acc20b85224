"""Rebalance of 1.x consumers: one joins a topic with 1 000 partitions, another joins, the first leaves; beside it Java's client.

    python bench/metaq1_rebalance_bench.py                    # ours and the original client 1.4.6.2, in turn, three times
    python bench/metaq1_rebalance_bench.py --partitions 100 --runs 1 --alone

Both are at our broker, registered in a ZooKeeper of its own, with the default times of either client. Figures of each step:
  value       seconds from the call until the owner nodes of all partitions are those of the members; of ours, all are fetched
              then, too
  requests    packets that ZooKeeper has received meanwhile, without the bench's own
Ours fetches nothing (`tests/metaq1/rebalance/members.py`), and loads offsets from ZooKeeper; Java's fetches. Prints one line a step and
run, and at the end one JSON object: step → medians of both.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Protocol

import processes

sys.path.insert(0, str(processes.ROOT))

import pytest
from tests.interop.metaq1 import Metaq1Client, OurServer, Zookeeper, metaq1_client
from tests.metaq1.rebalance.members import Group, Recorder, group

from metaq.metaq1.rebalance.fetching import Held
from metaq.metaq1.storages.storage import load_all
from metaq.metaq1.storages.zookeeper import ZookeeperOffsetStorage

ROOT, TOPIC, GROUP = "/meta", "t", "g"
STEPS = ("join", "second", "leave")
SYNC_SECONDS = 5.0
"""Default of zkSyncTimeMs."""
Figures = dict[str, float]


class Loading(Recorder):
    """Loads offsets, as a consumer does."""

    def __init__(self, storage: ZookeeperOffsetStorage) -> None:
        super().__init__()
        self._storage = storage

    async def load(self, partitions: Collection[Held]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, load_all, self._storage, GROUP, partitions)
        await super().load(partitions)


class Consumers(Protocol):
    """Consumers `a` and `b` of one kind."""

    def join(self, name: str) -> None: ...

    def leave(self, name: str) -> None: ...

    def fetched(self) -> int | None:
        """Return how many partitions are fetched; None: it is not known."""
        ...


class Ours:
    def __init__(self, members: Group) -> None:
        self._members = members
        self._joined = {}

    def join(self, name: str) -> None:
        member = self._members.member(name, zk_sync_time=SYNC_SECONDS)
        loading = Loading(ZookeeperOffsetStorage(member.core))
        member.fetching = member.balance._fetching = loading  # noqa: SLF001  it is a consumer's, which this has none of
        self._joined[name] = member
        member.begin()

    def leave(self, name: str) -> None:
        self._joined.pop(name).end()

    def fetched(self) -> int:
        return sum(len(member.fetching.servers) for member in self._joined.values())


class Javas:
    def __init__(self, java: Metaq1Client, zookeeper: Zookeeper) -> None:
        self._java, self._zookeeper = java, zookeeper

    def join(self, name: str) -> None:
        self._java.factory(f"f{name}", self._zookeeper.address, sync_ms=int(SYNC_SECONDS * 1000))
        self._java.subscriber(name, f"f{name}", GROUP, {TOPIC: 1 << 20}, id=name, commit_ms=5000, max_delay_ms=5000)

    def leave(self, name: str) -> None:
        self._java.shutdown(name)

    def fetched(self) -> None:
        return None


class Watcher:
    """Who owns what, by few requests, which are counted."""

    def __init__(self, members: Group, partitions: int) -> None:
        self._client = members.nodes.client
        self._parent = members.layout.owners(GROUP, TOPIC)
        self._partitions = sorted(f"0-{number}" for number in range(partitions))
        self.asked = 0

    def settled(self, first: str, last: str) -> bool:
        """Whether all partitions have owners: the first and last in the order of texts these."""
        from kazoo.exceptions import NoNodeError

        try:
            self.asked += 1
            if len(self._client.get_children(self._parent)) < len(self._partitions):
                return False
            half = len(self._partitions) // 2
            for name, some in ((first, self._partitions[:half]), (last, self._partitions[half:])):
                for partition in (some[0], some[len(some) // 2], some[-1]):
                    self.asked += 1
                    if self._client.get(f"{self._parent}/{partition}")[0] != f"{GROUP}_{name}".encode():
                        return False
        except NoNodeError:
            return False
        return True


def packets(zookeeper: Zookeeper) -> int:
    """What it has received so far, this question included."""
    host, _, port = zookeeper.address.rpartition(":")
    with socket.create_connection((host, int(port)), processes.PATIENCE) as connection:
        connection.sendall(b"mntr")
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(next(line.split("\t")[1] for line in text.splitlines() if line.startswith("zk_packets_received")))


def steps(consumers: Consumers, zookeeper: Zookeeper, watcher: Watcher, partitions: int) -> dict[str, Figures]:
    plan: list[tuple[str, Callable[[], None], tuple[str, str]]] = [
        ("join", lambda: consumers.join("a"), ("a", "a")),
        ("second", lambda: consumers.join("b"), ("a", "b")),
        ("leave", lambda: consumers.leave("a"), ("b", "b")),
    ]
    found = {}
    for step, work, owners in plan:
        before, watcher.asked = packets(zookeeper), 0
        began = time.monotonic()
        work()
        deadline = began + processes.PATIENCE
        while not (watcher.settled(*owners) and consumers.fetched() in {None, partitions}):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{step}: not all partitions have their owners")
            time.sleep(0.01)
        seconds = time.monotonic() - began
        found[step] = {"value": seconds, "requests": packets(zookeeper) - before - 1 - watcher.asked}
    consumers.leave("b")
    return found


@contextlib.contextmanager
def running(folder: Path, partitions: int) -> Iterator[Zookeeper]:
    """A broker of ours with one topic, in a ZooKeeper of its own."""
    topics = {TOPIC: {"numPartitions": partitions}}
    with Zookeeper(folder) as zookeeper, OurServer(folder / "server", zookeeper, topics):
        yield zookeeper


def measured(disk: Path, partitions: int, *, java: bool) -> dict[str, Figures]:
    folder = Path(tempfile.mkdtemp(prefix="metaq1-rebalance-", dir=disk))
    try:
        with contextlib.ExitStack() as stack:
            zookeeper = stack.enter_context(running(folder, partitions))
            members = stack.enter_context(group(zookeeper, ROOT))
            node = f"{ROOT}/brokers/topics-sub/{TOPIC}/0-m"
            while members.nodes.client.exists(node) is None:
                time.sleep(0.05)
            if java:
                consumers: Consumers = Javas(stack.enter_context(metaq1_client(folder / "java")), zookeeper)
            else:
                consumers = Ours(members)
            return steps(consumers, zookeeper, Watcher(members, partitions), partitions)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without the original client")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    for name in ("kazoo", "metaq"):  # a ZooKeeper that is not up yet is tried again
        logging.getLogger(name).setLevel(logging.ERROR)
    arguments.disk.mkdir(parents=True, exist_ok=True)
    kinds = {"ours": False} if arguments.alone else {"ours": False, "original": True}
    runs: dict[str, list[dict[str, Figures]]] = {kind: [] for kind in kinds}
    try:
        for number in range(arguments.runs):
            for kind, java in kinds.items():
                runs[kind].append(measured(arguments.disk, arguments.partitions, java=java))
                told = {step: f"{one['value']:.2f} s, {one['requests']:.0f}" for step, one in runs[kind][-1].items()}
                print(f"{kind} run {number + 1}: {told}", flush=True)
    except pytest.skip.Exception as error:  # no Java, no jars
        raise SystemExit(f"no MetaQ 1.x beside it: {error}; --alone goes without") from None
    medians = {
        step: {
            kind: {key: statistics.median(one[step][key] for one in found) for key in ("value", "requests")}
            for kind, found in runs.items()
        }
        for step in STEPS
    }
    print(json.dumps(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
