"""Delayed delivery: how many a second beside plain sends, and how late at a steady rate.

    python bench/delay_bench.py             # about a minute
    python bench/delay_bench.py --quick     # a smoke run

Both figures are read from the broker's own log afterwards: a delivered copy names the record that waited, so its lateness
is its store time less that record's and the level's delay.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import processes
from metaq.admin import Admin
from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.log.records import delayed_until, put_record
from metaq.clock import FakeClock
from metaq.errors import MetaqError
from metaq.model.message import host_bytes
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.options import BrokerOptions, StoreOptions
from metaq.store.config_file import ConfigFile
from metaq.store.message_store import MessageStore
from metaq.store.offline.reader import StoreReader
from metaq.store.queues.dispatch import delays_of
from metaq.wire.record import copied_from

HOST = host_bytes("127.0.0.1", 10911)
DELAYS_MS = delays_of(StoreOptions.message_delay_level)


def fill(folder: Path, count: int, levels: int) -> None:
    """A folder with `count` messages that were due long ago, over so many levels, 4 topics and 4 queues."""
    clock = FakeClock(time.time_ns() // 1_000_000 - 3_600_000)
    store_options, options = StoreOptions(store_path_root_dir=str(folder)), BrokerOptions(broker_name="bench")
    with MessageStore(store_options, clock, HOST, options.broker_cluster_name) as store:
        environment = Environment(options, store_options, clock, store, "bench", HOST)
        broker = Broker(environment, broker_files(lambda name: ConfigFile(folder / "config" / name)))
        broker.lead()
        for topic in range(4):
            broker.topics.ensure(f"late-{topic}", 4)
        for number in range(count):
            level = 1 + number % levels
            pairs = {"UNIQ_KEY": f"7F00000128E55FFD2B27676F{number:08X}", "WAIT": "true", "DELAY": str(level)}
            due_ms = broker.schedule.due_ms(level)
            place = delayed_until(pairs, f"late-{number % 4}", number // 4 % 4, level, due_ms)
            store.writer.put([put_record(
                *place[:2], b"x" * 100, pairs, flag=0, sys_flag=0, born_ms=clock.now_ms(), born_host=HOST, tags=place[2]
            )])  # fmt: skip
        broker.close()


def delivered(folder: Path) -> list[tuple[int, int, int]]:
    """(level, lateness in ms, store time) of every delivered copy, in the order of the log; each once."""
    waiting: dict[int, tuple[int, int]] = {}
    found, seen = [], Counter[int]()
    for message in StoreReader(folder).records():
        origin = copied_from(message.prepared_offset)
        if message.topic == SCHEDULE_TOPIC:
            waiting[message.log_offset] = (message.queue_id + 1, message.store_ms)
        elif origin is not None:
            level, stored_ms = waiting[origin]
            seen[origin] += 1
            found.append((level, message.store_ms - stored_ms - DELAYS_MS[level - 1], message.store_ms))
    assert len(seen) == len(waiting), f"{len(waiting)} messages waited, {len(seen)} were delivered"
    assert max(seen.values()) == 1, "a message was delivered twice"
    return found


def percentile(sorted_values: list[int], part: float) -> int:
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))]


def throughput(cache: Path, disk: Path, count: int, levels: int, *, beside: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="delay-", dir=disk))
    try:
        fill(folder, count, levels)
        sends: dict[str, float] = {}
        with processes.metaq_up(disk, data=folder) as server:
            deadline = time.monotonic() + processes.PATIENCE
            if beside:
                sends = processes.load(cache, "send", server.address, conns=4, outstanding=64, count=count)
            while time.monotonic() < deadline and waits(server):
                time.sleep(0.05)
        times = [store_ms for _, _, store_ms in delivered(folder)]
        span = max(1, times[-1] - times[0])
        plain = (
            f", {sends['requests_per_s'] / 1000:.0f} k/s plain sends beside it, p99 {sends['p99_us']:.0f} us"
            if sends
            else ""
        )
        print(f"deliveries: {len(times) / span:.0f} k/s over {span} ms{plain}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def waits(server: processes.Server) -> bool:
    """Whether the broker still has something to deliver."""
    try:
        with Admin(server.namesrv) as admin:
            facts = admin.list_brokers()[0].runtime
    except MetaqError:  # it is too busy to answer
        return True
    left = [value.split(",") for name, value in facts.items() if name.startswith("scheduleMessageOffset_")]
    return not left or any(int(next_offset) < int(end) for next_offset, end in left)


def lateness(cache: Path, disk: Path, rate: int, seconds: float, levels: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="delay-", dir=disk))
    try:
        with processes.metaq_up(disk, data=folder) as server:
            results: dict[str, dict[str, float]] = {}

            def plain() -> None:
                results["plain"] = processes.load(
                    cache, "send", server.address, conns=4, outstanding=16, count=int(rate * seconds / 4),
                    rate=rate // 4, seconds=seconds + 5, prefix="plain",
                )  # fmt: skip

            beside = threading.Thread(target=plain)
            beside.start()
            sent = processes.load(
                cache, "send", server.address, conns=4, outstanding=64, count=int(rate * seconds), rate=rate, delay=levels,
                verify=0, seconds=seconds + 5, prefix="late",
            )  # fmt: skip
            beside.join()
            deadline = time.monotonic() + processes.PATIENCE
            while time.monotonic() < deadline and waits(server):
                time.sleep(0.2)
            cpu = server.cpu_seconds()
        found = defaultdict(list)
        for level, late_ms, _ in delivered(folder):
            found[level].append(late_ms)
        print(
            f"{sent['requests_per_s'] / 1000:.1f} k/s delayed sends (p99 {sent['p99_us']:.0f} us), "
            f"{results['plain']['requests_per_s'] / 1000:.1f} k/s plain (p99 {results['plain']['p99_us']:.0f} us), "
            f"{cpu:.1f} s CPU of the server"
        )
        for level, values in sorted(found.items()):
            values.sort()
            print(
                f"  level {level}: {len(values)} delivered, late p50 {percentile(values, 0.5)} ms, "
                f"p99 {percentile(values, 0.99)} ms, max {values[-1]} ms",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small counts: shows that it works")
    parser.add_argument(
        "--disk", type=Path, default=processes.ROOT / ".cache" / "bench-disk", help="where the files go"
    )
    parser.add_argument("--rate", type=int, default=20_000, help="delayed sends a second, in all")
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    cache, disk = processes.ROOT / ".cache", arguments.disk
    disk.mkdir(parents=True, exist_ok=True)
    count, seconds, levels = (5_000, 1.0, 2) if arguments.quick else (300_000, arguments.seconds, 4)
    for beside in (False, True):
        throughput(cache, disk, count, levels, beside=beside)
    lateness(cache, disk, arguments.rate // (10 if arguments.quick else 1), seconds, levels)


if __name__ == "__main__":
    main()
