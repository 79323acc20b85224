"""What `trace=True` costs a producer: three producers of one process, one of which traces, take turns in pieces of some 10 ms.

    python bench/trace_bench.py                  # starts a broker of its own
    python bench/trace_bench.py --periods 100

Whole runs behind each other differ by ten times what is to be seen, for a shared machine changes its pace within a tenth of a
second. Neighbouring pieces see the same pace; which of the three comes first is drawn anew each time. A period is as many turns
as take the traced producer the half second after which traces are written; its first piece of each period writes those of the period
before, side by side with its sends, as the tracer's own clock would have it, and lasts until they are stored. So all that tracing
does is within that producer's pieces, on whichever thread. The garbage collector rests meanwhile: it takes a quarter of a plain
run, whenever it likes. With it a plain run costs more, and tracing the less of it.

Prints one JSON object:
  cpu_percent    CPU time of this process, user and system, of the traced producer's pieces over the mean of the plain ones', in
                 percent more: the median of the periods
  cpu_low, cpu_high    an interval that holds that median in 19 of 20 such measurements
  null_percent   the same of one plain producer over the other, which is nothing but noise; with null_low and null_high
  own_percent    CPU time of the tracer's functions alone, and of sending its messages, in percent of a plain producer's pieces
  wall_percent   as `cpu_percent`, of the time that passed
  plain_us, traced_us   CPU microseconds per message, medians
  traced_share   how many of the traced producer's messages were traced: `trace_rate` is 2000 a second
"""

import argparse
import contextlib
import gc
import itertools
import json
import logging
import math
import os
import random
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

PIECE = 10_000
"""Messages that one producer sends before the next has its turn."""
BODY = b"x" * 100
WARM_PERIODS = 2
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above
from metaq.client.observing.tracing import EVERY_SECONDS, Tracer  # noqa: E402
from metaq.client.shared import loop  # noqa: E402


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


class Turns:
    """The three producers, and what each period took them."""

    def __init__(self, namesrv: str, topic: str, piece: int) -> None:
        self.topic, self.piece = topic, piece
        made: list[Tracer] = []
        with mock.patch.object(Tracer, "start", lambda tracer: made.extend([tracer])):  # It is told when to write.
            self.producers = [metaq.Producer(namesrv, timeout=30.0, trace=trace) for trace in (False, True, False)]
            for producer in self.producers:
                producer.send(topic, BODY)
        [self.tracer] = made
        self.chance = random.Random(1)
        self.messages = 0
        """Of each producer."""

    def period(self) -> list[tuple[float, float]]:
        """CPU seconds and seconds of each of the three."""
        cpu, wall = [0.0] * 3, [0.0] * 3
        while wall[1] < EVERY_SECONDS:
            order = [0, 1, 2]
            self.chance.shuffle(order)
            for place in order:
                write = self.tracer.write if place == 1 and not wall[1] else None
                began, used = time.perf_counter(), time.process_time()
                self.send_piece(self.producers[place], write)
                cpu[place] += time.process_time() - used
                wall[place] += time.perf_counter() - began
            self.messages += self.piece
        return list(zip(cpu, wall, strict=True))

    def send_piece(self, producer: metaq.Producer, write: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Submit, each with its future, until all are acknowledged, and what `write` writes is stored."""
        written = None if write is None else loop.background().start(write())
        submit, topic = producer.submit, self.topic
        futures = [submit(topic, BODY) for _ in range(self.piece)]
        producer.flush(60)
        if written is not None:
            written.result(60)
        failed = [error for future in futures[:: self.piece // 10] if (error := future.exception()) is not None]
        assert not failed, f"sends failed: {failed[0]}"

    def close(self) -> None:
        for producer in self.producers:
            producer.close()


def traced_messages(namesrv: str) -> int:
    with metaq.Reader(namesrv, "RMQ_SYS_TRACE_TOPIC", start="earliest", stop_at_end=True) as reader:
        return sum(message.body.count(b"\x02") for message in reader)


def median(values: list[float]) -> tuple[float, float, float]:
    """And the ends of its interval of 95 %, by the order of the values alone. Of less than six values: all of them."""
    values = sorted(values)
    beyond = max(0, math.floor(len(values) / 2 - 0.98 * math.sqrt(len(values))))
    return statistics.median(values), values[beyond], values[-1 - beyond]


def measure(namesrv: str, periods: int, piece: int) -> dict[str, object]:
    logging.getLogger("metaq.client").setLevel(logging.ERROR)  # It says how many were not traced.
    turns = Turns(namesrv, f"trace-bench-{os.getpid()}", piece)
    gc.collect()
    gc.disable()
    try:
        for _ in range(WARM_PERIODS):
            turns.period()
        sent_before, traced_before = turns.messages, traced_messages(namesrv)
        marks = [turns.messages]
        found = []
        for _ in range(periods):
            found.append(turns.period())
            marks.append(turns.messages)
        loop.background().run(turns.tracer.write())
        traced = traced_messages(namesrv) - traced_before
        meter, used = Meter(), 0.0
        with meter.on_tracers():
            for _ in range(max(1, periods // 4)):
                (first, _), _, (last, _) = turns.period()
                used += (first + last) / 2
    finally:
        gc.enable()
        turns.close()

    def more(kind: int) -> list[float]:
        return [200 * one[1][kind] / (one[0][kind] + one[2][kind]) - 100 for one in found]

    cpu, cpu_low, cpu_high = median(more(0))
    null, null_low, null_high = median([100 * (one[2][0] / one[0][0] - 1) for one in found])
    counts = [end - begin for begin, end in itertools.pairwise(marks)]
    plain = [(one[0][0] + one[2][0]) / 2 / count * 1e6 for one, count in zip(found, counts, strict=True)]
    return {
        "cpu_percent": round(cpu, 2),
        "cpu_low": round(cpu_low, 2),
        "cpu_high": round(cpu_high, 2),
        "null_percent": round(null, 2),
        "null_low": round(null_low, 2),
        "null_high": round(null_high, 2),
        "own_percent": round(100 * meter.seconds / used, 2),
        "wall_percent": round(statistics.median(more(1)), 2),
        "plain_us": round(statistics.median(plain), 3),
        "traced_us": round(
            statistics.median(one[1][0] / count * 1e6 for one, count in zip(found, counts, strict=True)), 3
        ),
        "traced_share": round(traced / (marks[-1] - sent_before), 4),
        "periods": periods,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--periods", type=int, default=80, help="of half a second for each of the three")
    parser.add_argument("--piece", type=int, default=PIECE, help="messages of one turn")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        print(json.dumps(measure(namesrv, arguments.periods, arguments.piece)))


if __name__ == "__main__":
    main()
