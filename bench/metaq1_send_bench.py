"""Messages per second that a producer of MetaQ 1.x sends to one server: our client and Java's client 1.4.6.2, in turn.

    python bench/metaq1_send_bench.py                          # every part at the original server 1.4.6.2, three runs
    python bench/metaq1_send_bench.py --part 64-100 --runs 5 --scale 0.2
    python bench/metaq1_send_bench.py --server ours            # the same two clients at a broker of ours
    python bench/metaq1_send_bench.py --server ours --alone    # without Java's client

Parts: `one-100`, `one-1000`: one thread, each send waits for its answer, bodies of so many bytes; `64-100`, `64-1000`: 64 sends under
way. Of these each client has several ways, and its fastest counts: Java's callbacks, and 64 threads; ours futures of one thread,
64 tasks of asyncio, and 64 threads (`metaq1_sender.py`). `--brief` takes one way of each. Each sender is a process of its own that
first sends a fifth of its messages unmeasured; who goes first alternates. The server has been warmed up (`metaq1_clients.serving`), and
the cores are kept awake. Prints one line a part and run, and at the end one JSON object: part → medians in messages per second by
way, `ours` and `java`, the fastest of each in a run, and `ratio`, the median of ours / Java's in a run.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
from pathlib import Path

import pytest

import metaq1_clients
import processes

OURS = processes.ROOT / "bench" / "metaq1_sender.py"
WAYS = {
    "one": {"java": ("one",), "ours": ("one",)},
    "64": {"java": ("callbacks", "threads"), "ours": ("futures", "tasks", "threads")},
}
COUNTS = {"one-100": 30_000, "one-1000": 30_000, "64-100": 150_000, "64-1000": 100_000}
"""Parts, and how many messages each way of them sends."""
Commands = dict[str, list[str]]
Rates = dict[str, float]


def measured(zookeeper: str, part: str, clients: Commands, count: int, run: int, ways_max: int) -> Rates:
    """Messages per second by way of each client."""
    kind, _, size = part.partition("-")
    found = {}
    with processes.cores_awake():
        for client in sorted(clients, reverse=run % 2 == 0):
            for way in WAYS[kind][client][:ways_max]:
                words = [zookeeper, metaq1_clients.TOPIC, way, size, str(count // 5), str(count)]
                found[f"{client} {way}"] = metaq1_clients.rate([*clients[client], *words])
    return found


def fastest(rates: Rates, client: str) -> float:
    return max(rate for way, rate in rates.items() if way.startswith(client))


def summary(runs: list[Rates], clients: Commands) -> Rates:
    result = {way: statistics.median(run[way] for run in runs) for way in runs[0]}
    for client in clients:
        result[client] = statistics.median(fastest(run, client) for run in runs)
    if "java" in clients:
        result["ratio"] = statistics.median(fastest(run, "ours") / fastest(run, "java") for run in runs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", help="comma-separated; default all")
    parser.add_argument("--server", choices=sorted(metaq1_clients.KINDS), default="original")
    parser.add_argument("--alone", action="store_true", help="without Java's client")
    parser.add_argument("--brief", action="store_true", help="one way of each client")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    parts = arguments.part.split(",") if arguments.part else list(COUNTS)
    if unknown := set(parts) - set(COUNTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    arguments.disk.mkdir(parents=True, exist_ok=True)
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # a ZooKeeper that is not up yet is tried again
    runs: dict[str, list[Rates]] = {part: [] for part in parts}
    clients = {"ours": [sys.executable, str(OURS)]}
    warm = max(1000, int(30_000 * arguments.scale))
    # Java's compiler is to have seen both a batch and a single command.
    loads = [{"body": 100, "count": warm}, {"body": 100, "count": warm, "conns": 1, "outstanding": 1}]
    try:
        with tempfile.TemporaryDirectory() as home:
            if not arguments.alone:
                clients["java"] = metaq1_clients.java_program("Metaq1SendRate", Path(home))
            for run in range(arguments.runs):
                with metaq1_clients.serving(arguments.disk, arguments.server, *loads) as zookeeper:
                    for part in parts:
                        count = max(2000, int(COUNTS[part] * arguments.scale))
                        ways_max = 1 if arguments.brief else len(WAYS["64"]["ours"])
                        runs[part].append(measured(zookeeper.address, part, clients, count, run, ways_max))
                        told = ", ".join(f"{way} {rate:.0f}" for way, rate in runs[part][-1].items())
                        print(f"{part} run {run + 1}: {told}", flush=True)
    except pytest.skip.Exception as error:  # no Java, no jars
        raise SystemExit(f"no MetaQ 1.x to measure beside: {error}") from None
    print(json.dumps({part: summary(found, clients) for part, found in runs.items()}))


if __name__ == "__main__":
    main()
