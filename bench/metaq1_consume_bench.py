"""Messages of 1 KB per second that a listener of MetaQ 1.x gets from the original server 1.4.6.2: our client and Java's.

    python bench/metaq1_consume_bench.py [--count 200000] [--runs 3]
    python bench/metaq1_consume_bench.py --alone               # ours at a broker of ours, without Java

Each gets all messages of one topic with 4 partitions, from the page cache, in a group of its own; who goes first alternates. The
clock runs from the first message to the last. Prints one JSON object: medians in messages per second, and of ours / Java's in a run.
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
BODY_BYTES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without the original and Java's client")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # a ZooKeeper that is not up yet is tried again
    server = "ours" if arguments.alone else "original"
    consumers = {"ours": [sys.executable, "-c", OURS]}
    try:
        with tempfile.TemporaryDirectory() as home:
            if not arguments.alone:
                consumers["java"] = metaq1_clients.java_program("Metaq1ConsumeRate", Path(home))
            rates: dict[str, list[float]] = {name: [] for name in consumers}
            for run in range(arguments.runs):
                load = {"body": BODY_BYTES, "count": arguments.count}
                with metaq1_clients.serving(arguments.disk, server, load) as zookeeper:
                    for name in sorted(rates, reverse=run % 2 == 0):
                        words = [zookeeper.address, metaq1_clients.TOPIC, str(arguments.count)]
                        rates[name].append(metaq1_clients.rate([*consumers[name], *words]))
    except pytest.skip.Exception as error:  # no Java, no jars
        raise SystemExit(f"no MetaQ 1.x to measure beside: {error}") from None
    result: dict[str, object] = {name: statistics.median(values) for name, values in rates.items()}
    if "java" in rates:
        result["ratio"] = statistics.median(
            ours / java for ours, java in zip(rates["ours"], rates["java"], strict=True)
        )
    print(json.dumps({**result, "all": rates}))


if __name__ == "__main__":
    main()
