"""Topics made by use: how long 10 000 first sends take, and what another connection's sends notice of it.

    python bench/topics_bench.py             # about 20 seconds
    python bench/topics_bench.py --quick     # a smoke run

Broker and name server run in one process (`metaq up`), so that registrations cost the broker's loop on both sides. The
sender beside it sends one message at a time to a topic that exists.
"""

import argparse
import asyncio
import time
from pathlib import Path

import processes
from conversation import Conversation
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import SerializeType, request

OPTIONS = ("-o", "autoCreateTopicsMax=1000000", "-o", "autoCreateTopicsPerMinute=1000000")
BESIDE_PAUSE = 0.0005
"""Seconds between an answer and the next send of the sender beside it."""


class Sender(Conversation):
    """Sends to topics."""

    def send(self, topic: str) -> None:
        header = headers.SendHeader(
            producer_group="bench", topic=topic, queue_id=0, born_ms=1_700_000_000_000, properties="WAIT\x01true\x02"
        )
        self.write(request(RequestCode.SEND_MESSAGE_V2, header, b"x" * 100, serialize=SerializeType.JSON))

    async def send_all(self, topics: list[str], window: int) -> None:
        under_way = 0
        for topic in topics:
            self.send(topic)
            under_way += 1
            if under_way == window:
                await self.answer()
                under_way -= 1
        for _ in range(under_way):
            await self.answer()

    async def latencies(self, stop: asyncio.Event) -> list[float]:
        """Milliseconds from each send to its answer, one after the other, until `stop`."""
        found = []
        while not stop.is_set():
            started = time.perf_counter()
            self.send("beside")
            await self.answer()
            found.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(BESIDE_PAUSE)
        return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


async def measure(server: processes.Server, count: int, connections: int, window: int, prefix: str) -> dict[str, float]:
    """Make so many topics over that, beside a sender that goes on."""
    address = server.address
    beside = await Sender.open(address)
    await beside.send_all(["beside"], 1)
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(2 if count > 1000 else 0.1, stop.set)
    alone = await beside.latencies(stop)
    senders = [await Sender.open(address) for _ in range(connections)]
    stop = asyncio.Event()
    watching = asyncio.create_task(beside.latencies(stop))
    started, cpu = time.perf_counter(), server.cpu_seconds()
    await asyncio.gather(
        *(
            sender.send_all([f"{prefix}-{number}" for number in range(first, count, connections)], window)
            for first, sender in enumerate(senders)
        )
    )
    took, cpu = time.perf_counter() - started, server.cpu_seconds() - cpu
    stop.set()
    found = await watching
    return {
        "seconds": took, "topics_per_s": count / took, "cpu_s": cpu, "cpu_us": cpu / count * 1e6, "sends": float(len(found)),
        "beside_p50_ms": percentile(found, 0.5), "beside_p99_ms": percentile(found, 0.99), "beside_most_ms": max(found),
        "alone_p99_ms": percentile(alone, 0.99),
    }  # fmt: skip


def run(server: processes.Server, count: int, connections: int, window: int, prefix: str = "topic") -> dict[str, float]:
    """As `measure`, for those without a loop."""
    return asyncio.run(measure(server, count, connections, window, prefix))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    count = 200 if arguments.quick else arguments.topics
    for connections, window in ((8, 64), (1, 64), (1, 1)):
        with processes.metaq_up(arguments.disk, options=OPTIONS) as server:
            found = run(server, count, connections, window)
        print(
            f"{count} topics by use, {connections} connections x {window}: {found['seconds']:.2f} s, {found['cpu_s']:.2f} s of "
            f"CPU; sends beside it: p50 {found['beside_p50_ms']:.2f}, p99 {found['beside_p99_ms']:.2f}, most "
            f"{found['beside_most_ms']:.1f} ms of {found['sends']:.0f}; before it p99 {found['alone_p99_ms']:.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
