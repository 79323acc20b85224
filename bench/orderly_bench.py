"""Messages per second that one Python consumer takes from 8 queues in order, against a broker on this machine.

    python bench/orderly_bench.py                                   # starts a broker of its own
    python bench/orderly_bench.py --namesrv 127.0.0.1:9876 --count 200000 --runs 5

Prints one JSON object:
  orderly_per_s    `consumer.run(handler, threads=8)` with an empty handler, one message at a time
  thread_per_s     the same in one thread
  iterate_per_s    `for message in consumer: with message: ...`
  batch_per_s      `run(handler, threads=8, batch=32)`
  aio_per_s        `aio.Consumer.run(handler, tasks=8)`
  processes_per_s  `run(handler, processes=2)`, with a fifth of the messages; its handler cannot count, so progress is looked at
Each is the median of `--runs`, from the first message handled to the last. Every way is a group of its own over the same
messages. The offsets of each queue are looked at: a gap or a step back fails the run. Broker and client share the
machine's cores.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above
from metaq import aio  # noqa: E402  found by the line above

QUEUES = 8


class Counting:
    """A handler that does as little as it can: it counts, and checks the order."""

    def __init__(self, count: int, stop: Callable[[], None]) -> None:
        self.count, self.stop, self.last = count, stop, count // QUEUES - 1
        self.next, self.done = [0] * QUEUES, 0
        self.began = self.ended = 0.0

    def __call__(self, message: metaq.ReceivedMessage) -> None:
        queue_id, offset = message.queue_id, message.queue_offset
        assert offset == self.next[queue_id], "a gap or a step back"
        self.next[queue_id] = offset + 1
        if not offset:
            self.began = self.began or time.perf_counter()
        if offset == self.last:
            self.done += 1
            if self.done == QUEUES:
                self.ended = time.perf_counter()
                self.stop()

    def batch(self, messages: list[metaq.ReceivedMessage]) -> None:
        for message in messages:
            self(message)

    async def awaited(self, message: metaq.ReceivedMessage) -> None:
        self(message)

    @property
    def rate(self) -> float:
        assert sum(self.next) == self.count, f"{sum(self.next)} of {self.count} messages handled"
        return self.count / (self.ended - self.began)


def nothing(message: metaq.ReceivedMessage) -> None:
    """For worker processes."""


def fill(namesrv: str, topic: str, count: int, body: bytes) -> int:
    """`count` messages, evenly over the queues. Returns how many that is."""
    with metaq.admin.Admin(namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)
    each = count // QUEUES
    with metaq.Producer(namesrv, timeout=30.0) as producer:
        queues = producer.queues(topic)
        for queue in queues:
            for start in range(0, each, 1000):
                producer.send_batch([metaq.Message(topic, body)] * min(1000, each - start), queue=queue)
    return each * len(queues)


def member(namesrv: str, topic: str, way: str) -> dict[str, object]:
    return {"namesrv": namesrv, "group": f"{topic}-{way}", "topics": topic, "start": "earliest", "orderly": True}


def ran(namesrv: str, topic: str, way: str, count: int, **how: int) -> float:
    with metaq.Consumer(**member(namesrv, topic, way)) as consumer:
        consumer.wait_assigned(30)
        handler = Counting(count, consumer.stop)
        consumer.run(handler.batch if "batch" in how else handler, **how)
    return handler.rate


def iterated(namesrv: str, topic: str, count: int) -> float:
    with metaq.Consumer(**member(namesrv, topic, "iterate")) as consumer:
        consumer.wait_assigned(30)
        handler = Counting(count, consumer.stop)
        for message in consumer:
            with message:
                handler(message)
    return handler.rate


async def awaited(namesrv: str, topic: str, count: int) -> float:
    async with aio.Consumer(**member(namesrv, topic, "aio")) as consumer:
        await consumer.wait_assigned(30)
        handler = Counting(count, consumer.stop)
        await consumer.run(handler.awaited, tasks=8)
    return handler.rate


def in_processes(namesrv: str, topic: str, count: int) -> float:
    """From the moment that both processes are up, to the commit that has everything."""
    import threading

    with metaq.Consumer(**{**member(namesrv, topic, "processes"), "orderly": False}) as consumer:
        consumer.wait_assigned(30)
        running = threading.Thread(target=consumer.run, args=(nothing,), kwargs={"processes": 2})

        def finished() -> int:
            return sum(window.finished_offset() for window in consumer._member.windows.values())  # noqa: SLF001  no other sees it

        running.start()
        while not (before := finished()):
            time.sleep(0.001)
        began = time.perf_counter()
        while (now := finished()) < before + count // 5:
            time.sleep(0.001)
        seconds = time.perf_counter() - began
        consumer.stop()
        running.join()
    return (now - before) / seconds


def measure(namesrv: str, count: int, body_bytes: int, runs: int) -> dict[str, object]:
    results: dict[str, list[float]] = {}
    for run in range(runs):
        topic = f"orderly-bench-{os.getpid()}-{run}"
        total = fill(namesrv, topic, count, b"x" * body_bytes)
        for name, rate in (
            ("orderly_per_s", ran(namesrv, topic, "threads", total, threads=8)),
            ("thread_per_s", ran(namesrv, topic, "thread", total, threads=1)),
            ("iterate_per_s", iterated(namesrv, topic, total)),
            ("batch_per_s", ran(namesrv, topic, "batch", total, threads=8, batch=32)),
            ("aio_per_s", asyncio.run(awaited(namesrv, topic, total))),
            ("processes_per_s", in_processes(namesrv, topic, total)),
        ):
            results.setdefault(name, []).append(rate)
    medians = {name: statistics.median(values) for name, values in results.items()}
    return {**medians, "count": count, "body": body_bytes, **{f"{name}_all": all_ for name, all_ in results.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--count", type=int, default=400_000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        print(json.dumps(measure(namesrv, arguments.count, arguments.body, arguments.runs)))


if __name__ == "__main__":
    main()
