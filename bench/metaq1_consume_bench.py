"""Messages of 1 KB per second that a listener of MetaQ 1.x gets from the original server 1.4.6.2: our client and Java's.

    python bench/metaq1_consume_bench.py [--count 200000] [--runs 3]

Each gets all messages of one topic with 4 partitions, from the page cache, in a group of its own; who goes first alternates. The
clock runs from the first message to the last. Prints one JSON object: medians in messages per second, and ours / Java's.
"""

import argparse
import contextlib
import json
import logging
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import processes

sys.path.insert(0, str(processes.ROOT))

import pytest
from tests.interop import maven
from tests.interop.metaq1 import CLIENT, OriginalServer, Zookeeper, java_command

SOURCE = processes.ROOT / "bench" / "java" / "Metaq1ConsumeRate.java"
OURS = """
import sys, threading, time
from metaq.metaq1 import ConsumerConfig, MetaClientConfig, MetaMessageSessionFactory, ZKConfig

zookeeper, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen, began, ended, done, lock = 0, 0.0, 0.0, threading.Event(), threading.Lock()

def listener(message):
    global seen, began, ended
    with lock:
        seen += 1
        number = seen
    if number == 1:
        began = time.perf_counter()
    elif number == count:
        ended = time.perf_counter()
        done.set()

with MetaMessageSessionFactory(MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper))) as factory:
    consumer = factory.create_consumer(ConsumerConfig("consume-rate-python"))
    consumer.subscribe(topic, 1 << 20, listener)
    consumer.complete_subscribe()
    done.wait()
    print("rate", count / (ended - began))
"""
PARTITIONS = 4
BODY_BYTES = 1000
TOPIC = "bench"


@contextlib.contextmanager
def filled(disk: Path, count: int) -> Iterator[Zookeeper]:
    """The original server with `count` messages; ZooKeeper is where clients find it."""
    folder = Path(tempfile.mkdtemp(prefix="metaq1-", dir=disk))
    system = {"unflushThreshold": 1000, "unflushInterval": 1000, "numPartitions": PARTITIONS, "stat": "false"}
    try:
        with Zookeeper(folder) as zookeeper:
            server = OriginalServer(folder / "server", zookeeper, {TOPIC: {}}, system)
            server.jvm = ("-Xmx1g", "-Xms1g")
            with server:
                cache = processes.ROOT / ".cache" / "bench"
                load = {"partitions": PARTITIONS, "body": BODY_BYTES, "count": count}
                processes.load(cache, "put", server.text, generator="textload", **load)
                yield zookeeper
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rate(command: list[str]) -> float:
    """Messages per second of one consumer. Raises RuntimeError: it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=processes.PATIENCE)
    found = re.search(r"rate (\S+)", done.stdout)
    if not found:
        raise RuntimeError(f"the consumer failed: {(done.stdout + done.stderr)[-1000:]}")
    return float(found.group(1))


def java_consumer(home: Path) -> list[str]:
    """The command of the Java consumer, without its arguments."""
    command = java_command(home, CLIENT, ("-Xmx512m",), "ERROR")
    classes = command[command.index("-cp") + 1]
    compiler = [maven.java(compiler=True), "-cp", classes, "-d", str(home), str(SOURCE)]
    compiled = subprocess.run(compiler, capture_output=True, text=True, check=False)
    if compiled.returncode:
        raise RuntimeError(f"{SOURCE.name} does not compile: {compiled.stderr[-500:]}")
    return [*command, "Metaq1ConsumeRate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # a ZooKeeper that is not up yet is tried again
    rates: dict[str, list[float]] = {"ours": [], "java": []}
    try:
        for run in range(arguments.runs):
            with filled(arguments.disk, arguments.count) as zookeeper, tempfile.TemporaryDirectory() as home:
                consumers = {"ours": [sys.executable, "-c", OURS], "java": java_consumer(Path(home))}
                for name in sorted(rates, reverse=run % 2 == 0):
                    rates[name].append(rate([*consumers[name], zookeeper.address, TOPIC, str(arguments.count)]))
    except pytest.skip.Exception as error:  # no Java, no jars
        raise SystemExit(f"no MetaQ 1.x to measure beside: {error}") from None
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(json.dumps({**medians, "ratio": medians["ours"] / medians["java"], "all": rates}))


if __name__ == "__main__":
    main()
