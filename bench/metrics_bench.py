"""What metrics cost: the broker's work with and without a scraper, and a scrape of many topics.

    python bench/metrics_bench.py                     # about two minutes
    python bench/metrics_bench.py --quick             # a smoke run
    python bench/metrics_bench.py --against TREE      # the server without is another tree's, of an older commit

Two servers (`metaq up`) run side by side, one with an HTTP server whose `/metrics` is read every second, one without. They take turns under
the generator in short runs, who goes first alternates, and what is compared is CPU time of the server for a message: of each pair the
ratio, of all pairs the median. The scrape is of a broker in this process with many topics, all with messages and a group that is behind:
its time from the request to the last byte, by a client in another process, and the longest time for which the loop ran nothing else.

Prints one JSON object:
  send_ratio, batch_ratio, pull_ratio   CPU a message with metrics over that without; with *_low and *_high, the quartiles
  scrape_ms, scrape_most_ms   a scrape of so many topics, median and longest
  hold_ms        the longest hold of the loop during a scrape, median of the scrapes; hold_most_ms: of all
  page_bytes     of that page
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import processes
import topics_bench
from metaq.app.broker import RunningBroker, start_broker
from metaq.options import BrokerOptions, StoreOptions
from metaq.store.disk import raise_file_limit

SCRAPE_SECONDS = 1.0
LOADS = {
    "send": ("send", {"conns": 64, "outstanding": 1}, 60_000),
    "batch": ("batch", {"outstanding": 16}, 3_000),
    "pull": ("pull", {"outstanding": 16}, 30_000),
}
"""Row → mode of the generator, its options, and requests of one run."""
_CLIENT = """
import sys, time, urllib.request
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    body = urllib.request.urlopen(sys.argv[1], timeout=600).read()
    print(time.perf_counter() - began, len(body), flush=True)
    time.sleep(0.05)
"""


@contextmanager
def scraped(port: int) -> Iterator[None]:
    """Read `/metrics` every second meanwhile."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(SCRAPE_SECONDS):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=processes.PATIENCE) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
"""Of the CPU time of a process."""


def ratios(disk: Path, pairs: int, share: float, against: Path | None) -> dict[str, float]:
    """CPU a message with metrics over that without."""
    found: dict[str, list[float]] = {row: [] for row in LOADS}
    cache, port = disk.parent, processes.free_port()
    prefix = ("env", f"PYTHONPATH={against / 'src'}") if against is not None else ()
    with ExitStack() as stack:
        with_metrics = stack.enter_context(processes.metaq_up(disk, options=("-o", f"httpPort={port}")))
        without = stack.enter_context(processes.metaq_up(disk, prefix=prefix))
        stack.enter_context(scraped(port))
        for number in range(pairs + 1):
            for row, (mode, options, count) in LOADS.items():
                spent = dict[int, float]()
                for server in (with_metrics, without) if number % 2 else (without, with_metrics):
                    before = server.cpu_seconds()
                    processes.load(cache, mode, server.address, count=max(500, int(count * share)), **options)
                    spent[server.process.pid] = server.cpu_seconds() - before
                if number:  # the first runs open files and gates
                    # What the system counts in ticks may be none after a load of a smoke test.
                    ours, base = (max(spent[one.process.pid], TICK_SECONDS) for one in (with_metrics, without))
                    found[row].append(ours / base)
    told = dict[str, float]()
    for row, values in found.items():
        low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else [*values, *values, *values]
        told |= {f"{row}_ratio": median, f"{row}_low": low, f"{row}_high": high}
    return told


class Holds:
    """Watches how long the running loop does nothing but one thing."""

    def __init__(self) -> None:
        self._loop, self.most, self._last, self._over = asyncio.get_running_loop(), 0.0, time.perf_counter(), False
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        now = time.perf_counter()
        self.most, self._last = max(self.most, now - self._last), now
        if not self._over:
            self._loop.call_soon(self._look)

    def end(self) -> None:
        self._over = True

    def take(self) -> float:
        """Return the longest since the last call, s."""
        most, self.most = self.most, 0.0
        return most


async def scrapes(disk: Path, topics: int, times: int) -> dict[str, float]:
    """Time of scrapes, and what they keep the loop from."""
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        options = BrokerOptions(
            listen_port=0,
            ha_listen_port=0,
            http_port=0,
            auto_create_topics_max=10 * topics,
            auto_create_topics_per_minute=10 * topics,
        )
        store = StoreOptions(store_path_root_dir=folder, disk_max_used_space_ratio=95)
        running = await start_broker(options, store)
        try:
            await _fill(running, topics)
            gc.collect()
            gc.freeze()  # as `metaq broker` does when it is ready, with the topics that it has then
            url, holds = f"http://{running.addresses['http']}/metrics", Holds()
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _CLIENT, url, str(times + 1), stdout=subprocess.PIPE
            )
            assert client.stdout is not None
            took, held, size = [], [], 0
            for number in range(times + 1):
                line = (await client.stdout.readline()).split()
                if number:  # the first one makes the tables of names
                    took.append(float(line[0]) * 1000)
                    held.append(holds.take() * 1000)
                size = int(line[1])
                holds.take()
            await client.wait()
            holds.end()
        finally:
            await running.close()
    return {
        "scrape_ms": statistics.median(took), "scrape_most_ms": max(took), "hold_ms": statistics.median(held),
        "hold_most_ms": max(held), "page_bytes": float(size),
    }  # fmt: skip


async def _fill(running: RunningBroker, topics: int) -> None:
    """Make topics with a message each, and groups that are behind."""
    for _ in range(2):
        senders = [await topics_bench.Sender.open(running.address) for _ in range(8)]
        names = [f"topic-{number}" for number in range(topics)]
        await asyncio.gather(*(sender.send_all(names[first::8], 64) for first, sender in enumerate(senders)))
    offsets = running._broker.offsets  # noqa: SLF001  as if the groups had committed
    for number in range(topics):
        offsets.put(f"group-{number % 1000}", f"topic-{number}", 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    quick = arguments.quick
    found = ratios(arguments.disk, 2 if quick else arguments.pairs, 0.02 if quick else 1.0, arguments.against)
    raise_file_limit()
    found |= asyncio.run(scrapes(arguments.disk, 100 if quick else arguments.topics, 2 if quick else 20))
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
