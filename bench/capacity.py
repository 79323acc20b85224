"""What a broker needs of memory, disk, files and descriptors: at rest, and for each connection, topic, queue, group and message.

    python bench/capacity.py             # under a minute on an idle machine
    python bench/capacity.py --quick     # a smoke run

A name server and a broker run in one process (`metaq up`) with the file sizes of `metaq broker`, so a topic costs what it costs at both. Memory
is RssAnon of that process: what it takes itself, without the page cache. docs/capacity.md reckons with the figures.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import processes
from conversation import Conversation
from metaq import Producer
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, SerializeType, request

OPTIONS = (
    "-o", "autoCreateTopicsMax=1000000", "-o", "autoCreateTopicsPerMinute=1000000", "-o", "autoCreateGroupsMax=1000000",
    "-o", "autoCreateGroupsPerMinute=1000000", "-o", "dashboardEnable=false",
    "-o", "diskMaxUsedSpaceRatio=95", "-o", "cleanFileForciblyEnable=false", "-o", "diskSpaceWarningLevelRatio=0.97",
)  # fmt: skip
"""A developer's disk is often fuller than a server's may be; and all topics here are one client's."""
QUEUES = 8
UNIT = struct.Struct(">qiq")
"""Of a consume queue: log offset, size of the record, hash of the tag."""
WINDOW = 64
"""Requests under way on a connection."""


class Sender(Conversation):
    """Sends many requests, some at a time."""

    async def ask_all(self, commands: Sequence[Command]) -> None:
        """Raises RuntimeError: one is refused."""
        for first in range(0, len(commands), WINDOW):
            some = commands[first : first + WINDOW]
            for command in some:
                self.write(command)
            for _ in some:
                await self.answer()


def send(topic: str, queue: int = 0) -> Command:
    header = headers.SendHeader(
        producer_group="bench", topic=topic, queue_id=queue, default_topic_queues=QUEUES, born_ms=1_700_000_000_000, properties="WAIT\x01true\x02"
    )  # fmt: skip
    return request(RequestCode.SEND_MESSAGE_V2, header, b"x" * 100, serialize=SerializeType.JSON)


def commit(group: str, topic: str, queue: int) -> Command:
    header = headers.UpdateOffsetHeader(group=group, topic=topic, queue_id=queue, commit_offset=0)
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


class Measured:
    """A server of which figures are taken. Bytes of memory, files, and descriptors."""

    def __init__(self, server: processes.Server, store: Path) -> None:
        self._server, self._store = server, store

    def memory(self) -> float:
        return self._server.rss_anon_mb() * 1000 * 1024

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self._server.process.pid}/fd").iterdir())

    def maps(self) -> int:
        with Path(f"/proc/{self._server.process.pid}/maps").open() as lines:
            return sum(str(self._store) in line for line in lines)

    def taken(self, part: str) -> tuple[int, int]:
        """Files below a folder of the store, and the bytes that they take of the disk: holes take none."""
        found = [path for path in (self._store / part).rglob("*") if path.is_file()]
        return len(found), sum(path.stat().st_blocks * 512 for path in found)


def record_bytes(store: Path, topic: str) -> int:
    """Return the size in the log of the first message of a topic's queues."""
    for queue in sorted((store / "consumequeue" / topic).iterdir()):
        for file in sorted(queue.iterdir()):
            _, size, _ = UNIT.unpack(file.read_bytes()[: UNIT.size])
            if size:
                return size
    raise RuntimeError(f"no message of {topic} in {store}")


async def measure(
    server: processes.Server, store: Path, connections: int, topics: int, groups: int
) -> dict[str, float]:
    found, seen = {}, Measured(server, store)
    first = await Sender.open(server.address)
    await first.ask_all([send("warm", number % QUEUES) for number in range(4 * WINDOW)])
    found["disk of a store with one message, MB"] = sum(seen.taken(".")[1:]) / 1e6

    before, open_before = seen.memory(), seen.descriptors()
    senders = [await Sender.open(server.address) for _ in range(connections)]
    for sender in senders:
        await sender.ask_all([send("warm")])
    found["memory of a connection that has sent, KB"] = (seen.memory() - before) / connections / 1e3
    found["descriptors of a connection"] = (seen.descriptors() - open_before) / connections

    names = [f"topic-{number}" for number in range(topics)]
    before = seen.memory()
    await first.ask_all([send(name) for name in names])
    found[f"memory of a topic of {QUEUES} queues, one of them with messages, KB"] = (
        (seen.memory() - before) / topics / 1e3
    )
    before, open_before, maps, (files, taken) = (
        seen.memory(),
        seen.descriptors(),
        seen.maps(),
        seen.taken("consumequeue"),
    )
    await first.ask_all([send(name, queue) for name in names for queue in range(1, QUEUES)])
    queues = topics * (QUEUES - 1)
    found["memory of a further queue with messages, KB"] = (seen.memory() - before) / queues / 1e3
    found["descriptors of a queue"] = (seen.descriptors() - open_before) / queues
    found["mapped files of a queue"] = (seen.maps() - maps) / queues
    after, after_taken = seen.taken("consumequeue")
    found["files of a queue"] = (after - files) / queues
    found["disk of a queue with one message, KB"] = (after_taken - taken) / queues / 1e3

    before = seen.memory()
    await first.ask_all(
        [commit(f"group-{number}", "warm", queue) for number in range(groups) for queue in range(QUEUES)]
    )
    found[f"memory of a group with offsets of {QUEUES} queues, KB"] = (seen.memory() - before) / groups / 1e3
    return found


def records(server: processes.Server, store: Path) -> dict[str, float]:
    """Bytes of the log behind each message of the Python client beyond its body: name of the topic and properties counted."""
    found = {}
    with Producer(server.namesrv) as producer:
        for topic, size, more in (
            ("body-100", 100, {}), ("body-1000", 1000, {}), ("tag-and-key-1000", 1000, {"tag": "paid", "keys": ["order-0000042"]}),
        ):  # fmt: skip
            producer.send(topic, b"x" * size, **more)
            found[f"overhead of a record, topic {topic}, B"] = record_bytes(store, topic) - size
    found["entry of a consume queue, B"] = UNIT.size
    return found


def index_file_bytes(slots: int = 5_000_000, entries: int = 20_000_000) -> int:
    """Return the size of one file of the index: its head, its slots, its entries (maxHashSlotNum, maxIndexNum)."""
    return 40 + 4 * slots + 20 * entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = 50 if arguments.quick else min(1000, hard // 4)
    topics, groups = (20, 20) if arguments.quick else (500, 1000)
    store = Path(arguments.disk) / f"capacity-{os.getpid()}"
    store.mkdir()
    try:
        with processes.metaq_up(arguments.disk, data=store, options=OPTIONS) as server:
            seen = Measured(server, store)
            found = {"memory at rest, MB": seen.memory() / 1e6, "descriptors at rest": float(seen.descriptors())}
            found |= records(server, store)
            found |= asyncio.run(measure(server, store, connections, topics, groups))
    finally:
        shutil.rmtree(store, ignore_errors=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found["one file of the index, MB"] = index_file_bytes() / 1e6
    if arguments.json:
        print(json.dumps(found))
        return
    for what, value in found.items():
        print(f"{what}: {value:,.1f}".removesuffix(".0"))


if __name__ == "__main__":
    main()
