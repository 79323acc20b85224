"""What `trace=True` costs a producer: runs with and without it in turn, plain, traced, plain, against one broker.

    python bench/trace_bench.py                  # starts a broker of its own
    python bench/trace_bench.py --count 1000000 --rounds 5

Prints one JSON object:
  own_percent    CPU time of what runs only because of `trace=True` (the tracer's functions, and the sending of its messages), in
                 percent of a plain run's: the figure to go by, because no other part of the process is in it
  cpu_percent    CPU time of this process, user and system, of a traced run over the mean of the plain runs before and behind
                 it: the median of the rounds, in percent more
  null_percent   the same of the plain run behind over the one before, which is nothing but noise; and `null_spread`, half of
                 them lie within so much of their median: a `cpu_percent` is known no better than that over the root of
                 the rounds
  wall_percent   as `cpu_percent`, of the time that passed, which on a shared machine says more of the others than of us
  plain_us, traced_us   CPU microseconds per message, medians
  traced_share   how many of the messages of a traced run were traced: `trace_rate` is 2000 a second
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

PIECE = 200_000
"""So many futures are kept: the memory of all would cost more than the sends."""
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above
from metaq.client.tracing import Tracer  # noqa: E402


class Meter:
    """CPU seconds of some functions of `Tracer`, each in the thread that runs it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return act(*arguments)
            finally:
                self.seconds += time.thread_time() - began

        return measured

    def timed_steps(self, act: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
        """The same of a coroutine: what passes while it waits is not counted."""

        @types.coroutine
        def steps(task: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
            step = self.timed(task.send)
            with contextlib.suppress(StopIteration):
                while True:
                    yield step(None)  # Nobody throws into a writing: it is not cancelled while it is under way.

        async def measured(*arguments: Any) -> None:
            await steps(act(*arguments))

        return measured

    @contextlib.contextmanager
    def on_tracers(self) -> Iterator[None]:
        with (
            mock.patch.object(Tracer, "wants", self.timed(Tracer.wants)),
            mock.patch.object(Tracer, "sent", self.timed(Tracer.sent)),
            mock.patch.object(Tracer, "write", self.timed_steps(Tracer.write)),
        ):
            yield


def run(namesrv: str, topic: str, count: int, *, trace: bool) -> tuple[float, float]:
    """CPU seconds and seconds of `count` submits, each with its future, until all are acknowledged and traced."""
    body = b"x" * 100
    with metaq.Producer(namesrv, timeout=30.0, trace=trace) as producer:
        producer.send(topic, body)
        submit = producer.submit
        began, cpu = time.perf_counter(), time.process_time()
        for start in range(0, count, PIECE):
            futures = [submit(topic, body) for _ in range(min(PIECE, count - start))]
        producer.flush(60)
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        failed = [error for future in futures if (error := future.exception()) is not None]
    assert not failed, f"{len(failed)} of the last {len(futures)} sends failed: {failed[0]}"
    return used, seconds


def traced_messages(namesrv: str) -> int:
    with metaq.Reader(namesrv, "RMQ_SYS_TRACE_TOPIC", start="earliest", stop_at_end=True) as reader:
        return sum(message.body.count(b"\x02") for message in reader)


def measure(namesrv: str, count: int, rounds: int) -> dict[str, object]:
    topic = f"trace-bench-{os.getpid()}"
    run(namesrv, topic, count, trace=True)  # Imports, topics, connections.
    run(namesrv, topic, count, trace=False)
    before = traced_messages(namesrv)
    found = [[run(namesrv, topic, count, trace=trace) for trace in (False, True, False)] for _ in range(rounds)]
    traced = traced_messages(namesrv) - before
    meter = Meter()
    with meter.on_tracers():
        measured = [run(namesrv, topic, count, trace=True)[0] for _ in range(rounds)]

    def more(kind: int) -> float:
        return statistics.median(200 * one[1][kind] / (one[0][kind] + one[2][kind]) - 100 for one in found)

    null = [100 * (behind[0] / first[0] - 1) for first, _, behind in found]
    return {
        "own_percent": round(100 * meter.seconds / (sum(measured) - meter.seconds), 2),
        "cpu_percent": round(more(0), 2),
        "null_percent": round(statistics.median(null), 2),
        "null_spread": round(statistics.median(abs(one - statistics.median(null)) for one in null), 2),
        "wall_percent": round(more(1), 2),
        "plain_us": round(statistics.median((one[0][0] + one[2][0]) / 2 for one in found) / count * 1e6, 3),
        "traced_us": round(statistics.median(one[1][0] for one in found) / count * 1e6, 3),
        "traced_share": round(traced / rounds / count, 4),
        "count": count,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--count", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        print(json.dumps(measure(namesrv, arguments.count, arguments.rounds)))


if __name__ == "__main__":
    main()
