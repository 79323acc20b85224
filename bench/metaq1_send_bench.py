"""Messages per second that a producer of MetaQ 1.x sends to one server: our client and Java's client 1.4.6.2, in turn.

    python bench/metaq1_send_bench.py                          # every part at the original server 1.4.6.2, three runs
    python bench/metaq1_send_bench.py --part 64-100 --runs 5 --scale 0.2
    python bench/metaq1_send_bench.py --server ours            # the same two clients at a broker of ours

Parts: `one-100`, `one-1000`: one thread, each send waits for its answer, bodies of so many bytes; `64-100`, `64-1000`: 64 sends under
way. Of these each client has several ways, and its fastest counts: Java 64 threads, and callbacks; ours 64 threads, futures, and tasks
of asyncio (`metaq1_sender.py`). Each sender is a process of its own that first sends a fifth of its messages unmeasured. The server
has files in the page cache (unflushThreshold=1000), 4 partitions, a heap of 1 GiB and a ZooKeeper; it has been warmed up. The
cores are kept awake. Prints one line a part and run, and at the end one JSON object: part → medians in messages per second by way,
`ours` and `java`, their fastest ones, and `ratio`, ours / Java's.
"""

import argparse
import contextlib
import json
import logging
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import processes

sys.path.insert(0, str(processes.ROOT))

import pytest
from tests.interop.metaq1 import OriginalServer, OurServer, TextServer, Zookeeper

from metaq1_clients import figure, java_program

JAVA = "Metaq1SendRate"
OURS = processes.ROOT / "bench" / "metaq1_sender.py"
KINDS: dict[str, type[TextServer]] = {"original": OriginalServer, "ours": OurServer}
PARTITIONS = 4
TOPIC = "bench"
WAYS = {
    "one": {"java": ("one",), "ours": ("one",)},
    "64": {"java": ("threads", "callbacks"), "ours": ("threads", "futures", "tasks")},
}
COUNTS = {"one-100": 30_000, "one-1000": 30_000, "64-100": 150_000, "64-1000": 100_000}
"""Parts, and how many messages each way of them sends."""


@contextlib.contextmanager
def serving(disk: Path, kind: type[TextServer], warm: int) -> Iterator[Zookeeper]:
    """A server that has taken `warm` messages; ZooKeeper is where clients find it."""
    folder = Path(tempfile.mkdtemp(prefix="metaq1-", dir=disk))
    system = {
        "unflushThreshold": 1000, "unflushInterval": 1000, "maxSegmentSize": 1 << 30, "numPartitions": PARTITIONS, "stat": "false",
    }  # fmt: skip
    try:
        with Zookeeper(folder) as zookeeper:
            server = kind(folder / "server", zookeeper, {TOPIC: {}}, system)
            if isinstance(server, OriginalServer):
                server.jvm = ("-Xmx1g", "-Xms1g")
            with server:
                cache = processes.ROOT / ".cache" / "bench"
                for conns in (4, 1):  # Java's compiler has seen both a batch and a single command
                    load = {
                        "partitions": PARTITIONS,
                        "body": 100,
                        "count": warm,
                        "conns": conns,
                        "outstanding": conns**3,
                    }
                    processes.load(cache, "put", server.text, generator="textload", **load)
                yield zookeeper
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(zookeeper: Zookeeper, part: str, java: list[str], count: int, run: int) -> dict[str, float]:
    """Messages per second by way of each client; who goes first alternates."""
    kind, _, size = part.partition("-")
    commands = {"ours": [sys.executable, str(OURS)], "java": java}
    found = {}
    with processes.cores_awake():
        for client in sorted(commands, reverse=run % 2 == 0):
            for way in WAYS[kind][client]:
                words = [*commands[client], zookeeper.address, TOPIC, way, size, str(count // 5), str(count)]
                found[f"{client} {way}"] = figure("rate", words)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", help="comma-separated; default all")
    parser.add_argument("--server", choices=sorted(KINDS), default="original")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    parts = arguments.part.split(",") if arguments.part else list(COUNTS)
    if unknown := set(parts) - set(COUNTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    arguments.disk.mkdir(parents=True, exist_ok=True)
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # a ZooKeeper that is not up yet is tried again
    runs: dict[str, list[dict[str, float]]] = {part: [] for part in parts}
    try:
        with tempfile.TemporaryDirectory() as home:
            java = java_program(JAVA, Path(home))
            for run in range(arguments.runs):
                with serving(
                    arguments.disk, KINDS[arguments.server], max(2000, int(30_000 * arguments.scale))
                ) as zookeeper:
                    for part in parts:
                        count = max(2000, int(COUNTS[part] * arguments.scale))
                        runs[part].append(measured(zookeeper, part, java, count, run))
                        told = ", ".join(f"{way} {rate:.0f}" for way, rate in runs[part][-1].items())
                        print(f"{part} run {run + 1}: {told}", flush=True)
    except pytest.skip.Exception as error:  # no Java, no jars
        raise SystemExit(f"no MetaQ 1.x to measure beside: {error}") from None
    print(json.dumps({part: summary(found) for part, found in runs.items()}))


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    ways = {way: statistics.median(run[way] for run in runs) for way in runs[0]}
    best = {client: max(rate for way, rate in ways.items() if way.startswith(client)) for client in ("ours", "java")}
    return {**ways, **best, "ratio": best["ours"] / best["java"]}


if __name__ == "__main__":
    main()
