"""Search by time (29, as the broker answers it): how long it takes to find the offset of a store time in a long queue, ms.

    python bench/time_search_bench.py                     # 10 million messages of 8 B in one queue, 1.2 GB on the disk
    python bench/time_search_bench.py --messages 100000

The store is opened anew behind the filling, and its files' pages are dropped: `cold_*` are the first searches, which read from the disk,
the others come when all that they need is in memory. Each outcome is checked: the first message of that millisecond.
"""

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path

from metaq.clock import SystemClock
from metaq.model.message import host_bytes
from metaq.options import StoreOptions
from metaq.store.log.writer import PutRecord
from metaq.store.message_store import MessageStore

HOST = host_bytes("127.0.0.1", 10911)
TOPIC = "bench"
COLD, WARM = 50, 2000
"""Searches."""


def opened(folder: Path) -> MessageStore:
    options = StoreOptions(store_path_root_dir=str(folder), message_index_enable=False)
    return MessageStore(options, SystemClock(), HOST, "bench")


def fill(store: MessageStore, messages: int) -> None:
    records = [PutRecord(TOPIC, 0, b"x" * 8, b"", 0, 0, 1, HOST) for _ in range(100)]
    for _ in range(messages // 100):
        store.writer.put(records)


def drop_pages(folder: Path) -> None:
    """Have the kernel forget what it holds of the files, as far as they are on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def searches(store: MessageStore, count: int, messages: int, draw: random.Random) -> tuple[list[float], float]:
    """Milliseconds of each, sorted, and of CPU on the average."""
    took, cpu = [], 0.0
    for _ in range(count):
        # Its time is that of a message whose place the search does not know.
        wanted = store.reader.store_time(TOPIC, 0, draw.randrange(messages))
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        found = store.reader.offset_at(TOPIC, 0, wanted)
        took.append((time.perf_counter() - begin) * 1000)
        cpu += (time.thread_time() - cpu_begin) * 1000
        assert store.reader.store_time(TOPIC, 0, found) == wanted
        assert found == 0 or store.reader.store_time(TOPIC, 0, found - 1) < wanted
    return sorted(took), cpu / count


def measure(folder: Path, messages: int) -> dict[str, float]:
    """p50, p99, the longest, and CPU, ms."""
    store = opened(folder)
    fill(store, messages)
    store.close()
    drop_pages(folder)
    store = opened(folder)
    draw = random.Random(29)
    try:
        cold, _ = searches(store, COLD, messages, draw)
        warm, cpu = searches(store, WARM, messages, draw)
    finally:
        store.close()
    return {
        "cold_p50_ms": cold[len(cold) // 2], "cold_max_ms": cold[-1], "p50_ms": warm[len(warm) // 2],
        "p99_ms": warm[len(warm) * 99 // 100], "max_ms": warm[-1], "cpu_ms": cpu,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk that is to be measured")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metaq-time-search-", dir=chosen.folder) as folder:
        print(json.dumps(measure(Path(folder), chosen.messages)))


if __name__ == "__main__":
    main()
