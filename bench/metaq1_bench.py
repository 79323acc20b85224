"""Puts and gets of MetaQ 1.x at our MetaQ 1.x server, and beside it at the original server 1.4.6.2, by one generator in one run.

    python bench/metaq1_bench.py                       # every part, each server in turn, three times
    python bench/metaq1_bench.py --part put-100 --runs 5 --scale 0.1 --alone

Parts:
  put-100, put-1000    messages of so many bytes, 4 connections with 64 puts under way each, unflushThreshold=1000: an
                       acknowledged put is in the page cache
  put-100-forced       the same with unflushThreshold=0, as the original ships: in groups, forced to the disk
  put-1x1              one put after the other, 100 bytes: p50
  get-100, get-1000    blocks of 1 MiB of such messages, one after the other on one connection, from the page cache; get-1000-4:
                       on four
  topics               1 000 topics with 4 partitions each: start of our broker until all are registered in ZooKeeper

Both servers have files of 1 GiB on fresh folders of `--disk`, the original a heap of 1 GiB. It runs with a ZooKeeper, for
it cannot do without. Prints one line a part and run, and at the end one JSON object: part → medians of ours and the original's.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import processes

sys.path.insert(0, str(processes.ROOT))

import pytest
from tests.interop.metaq1 import OriginalServer, OurServer, TextServer, Zookeeper

Figures = dict[str, float]
PARTITIONS = 4
SEGMENT_BYTES = 1 << 30
FORCED = {"unflushThreshold": 0}
TOPICS, TOPIC_PARTITIONS = 1000, 4


class Bench:
    """Where, how much, and who is measured."""

    def __init__(self, disk: Path, scale: float) -> None:
        self.disk, self.scale = disk, scale
        self.cache = processes.ROOT / ".cache" / "bench"

    def count(self, full: int, least: int = 2000) -> int:
        return max(least, int(full * self.scale))

    @contextlib.contextmanager
    def server(self, kind: type[TextServer], **system: object) -> Iterator[TextServer]:
        """On a fresh folder, which is removed afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="metaq1-", dir=self.disk))
        settings = {
            "unflushThreshold": 1000, "unflushInterval": 1000, "maxSegmentSize": SEGMENT_BYTES, "numPartitions": PARTITIONS, "stat": "false",
            "getProcessThreadCount": os.cpu_count() or 1, "putProcessThreadCount": 10 * (os.cpu_count() or 1), **system,
        }  # fmt: skip
        try:
            with contextlib.ExitStack() as running:
                zookeeper = None
                if kind is OriginalServer:
                    zookeeper = running.enter_context(Zookeeper(folder))
                server = kind(folder / "server", zookeeper, {"bench": {}}, settings)
                if isinstance(server, OriginalServer):
                    server.jvm = ("-Xmx1g", "-Xms1g")
                yield running.enter_context(server)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load(self, mode: str, server: TextServer, **options: object) -> Figures:
        return processes.load(self.cache, mode, server.text, generator="textload", partitions=PARTITIONS, **options)

    def puts(self, kind: type[TextServer], body: int, count: int, **system: object) -> Figures:
        with self.server(kind, **system) as server:
            self.load("put", server, body=body, count=self.count(20_000))  # the pages, the topic, Java's compiler
            result = self.load("put", server, body=body, count=self.count(count))
        return {**result, "value": result["requests_per_s"] / 1000}

    def one_by_one(self, kind: type[TextServer]) -> Figures:
        with self.server(kind) as server:
            self.load("put", server, count=self.count(20_000))
            result = self.load("put", server, conns=1, outstanding=1, count=self.count(20_000))
        return {**result, "value": result["p50_us"]}

    def gets(self, kind: type[TextServer], body: int, conns: int) -> Figures:
        with self.server(kind, numPartitions=1) as server:
            bytes_ = self.count(256 << 20)
            fill = {"body": body, "count": bytes_ // (20 + body) + 1}
            processes.load(self.cache, "put", server.text, generator="textload", partitions=1, **fill)
            blocks = {"body": body, "conns": conns, "partitions": 1}
            for total in (bytes_, self.count(4 << 30)):
                result = processes.load(self.cache, "get", server.text, generator="textload", bytes=total, **blocks)
        return {**result, "value": result["bytes_per_s"] / 1e9}

    def topics(self) -> Figures:
        """Of ours alone: the original has one thread of its own for each, and its start is not the question."""
        folder = Path(tempfile.mkdtemp(prefix="metaq1-", dir=self.disk))
        names = [f"topic-{number}" for number in range(self.count(TOPICS, 20))]
        try:
            with Zookeeper(folder) as zookeeper, zookeeper.nodes() as nodes:
                sections = {name: {"numPartitions": TOPIC_PARTITIONS} for name in names}
                server = OurServer(folder / "server", zookeeper, sections)
                began = time.monotonic()
                with server:
                    found: list[str] = []
                    while len(found) < len(names):
                        found = nodes.client.get_children("/meta/brokers/topics-sub")
                        ready = len(found) == len(names)
                        if ready and not all(
                            nodes.client.exists(f"/meta/brokers/topics-sub/{one}/0-m") for one in found
                        ):
                            found = []
                        time.sleep(0.02)
                    seconds = time.monotonic() - began
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return {"value": seconds}


def parts(bench: Bench) -> dict[str, tuple[str, Callable[[type[TextServer]], Figures]]]:
    return {
        "put-100": ("k/s", lambda kind: bench.puts(kind, 100, 1_000_000 if kind is OurServer else 400_000)),
        "put-1000": ("k/s", lambda kind: bench.puts(kind, 1000, 400_000 if kind is OurServer else 300_000)),
        "put-100-forced": (
            "k/s",
            lambda kind: bench.puts(kind, 100, 600_000 if kind is OurServer else 300_000, **FORCED),
        ),
        "put-1x1": ("µs", bench.one_by_one),
        "get-100": ("GB/s", lambda kind: bench.gets(kind, 100, 1)),
        "get-1000": ("GB/s", lambda kind: bench.gets(kind, 1000, 1)),
        "get-1000-4": ("GB/s", lambda kind: bench.gets(kind, 1000, 4)),
    }


def measured(bench: Bench, part: str, runs: int, *, alone: bool) -> dict[str, list[Figures]]:
    """Server → its runs; who goes first alternates."""
    if part == "topics":
        found = {"ours": [bench.topics() for _ in range(runs)]}
        print(f"topics: {[round(one['value'], 2) for one in found['ours']]} s", flush=True)
        return found
    unit, work = parts(bench)[part]
    kinds: dict[str, type[TextServer]] = (
        {"ours": OurServer} if alone else {"ours": OurServer, "original": OriginalServer}
    )
    found = {name: list[Figures]() for name in kinds}
    for run in range(runs):
        for name in sorted(kinds, reverse=run % 2 == 1):
            figures = work(kinds[name])
            found[name].append(figures)
            print(
                f"{part} {name} run {run + 1}: {figures['value']:.2f} {unit}, p50 {figures['p50_us']:.0f} µs, p99"
                f" {figures['p99_us']:.0f} µs",
                flush=True,
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", help="comma-separated; default all")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--alone", action="store_true", help="without the original")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # a ZooKeeper that is not up yet is tried again
    arguments.disk.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.disk, arguments.scale)
    wanted = arguments.part.split(",") if arguments.part else [*parts(bench), "topics"]
    if unknown := set(wanted) - {*parts(bench), "topics"}:
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    result: dict[str, dict[str, Figures]] = {}
    try:
        for part in wanted:
            result[part] = {
                name: {key: statistics.median(run[key] for run in runs) for key in ("value", "p50_us", "p99_us") if key in runs[0]}
                for name, runs in measured(bench, part, arguments.runs, alone=arguments.alone).items()
            }  # fmt: skip
    except pytest.skip.Exception as error:  # no Java, no jars
        raise SystemExit(f"no MetaQ 1.x beside it: {error}; --alone goes without") from None
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
