"""What `opentelemetry=` costs a producer: three producers of one process take turns in pieces of some milliseconds.

    python bench/otel_bench.py                  # starts a broker of its own
    python bench/otel_bench.py --turns 200

One is plain, one has a provider that samples nothing, one a provider that samples everything and hands its spans, in batches, to an
exporter that drops them. The garbage collector rests meanwhile. As in `trace_bench.py` neighbours in time are compared, since a shared
machine changes its pace; which of the three comes first is drawn anew each turn.

Prints one JSON object: CPU microseconds per message of each, medians of the turns: `submit_…` of messages that are sent in batches,
`send_…` of those whose sender waits for each.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above

BODY = b"x" * 100
SUBMITS, SENDS = 2000, 100
"""Messages of a turn."""
NAMES = ("plain", "unsampled", "sampled")


class Dropping(SpanExporter):
    """An exporter to nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


def submits(producer: metaq.Producer, topic: str) -> None:
    futures = [producer.submit(topic, BODY, keys="k") for _ in range(SUBMITS)]
    producer.flush(60)
    assert futures[-1].exception() is None


def sends(producer: metaq.Producer, topic: str) -> None:
    for _ in range(SENDS):
        producer.send(topic, BODY, keys="k")


def measure(namesrv: str, turns: int) -> dict[str, float]:
    sampled = TracerProvider(shutdown_on_exit=False)
    sampled.add_span_processor(BatchSpanProcessor(Dropping(), max_queue_size=100_000))
    with ExitStack() as stack:
        producers = [
            stack.enter_context(metaq.Producer(namesrv, group=f"bench-{name}", opentelemetry=given))
            for name, given in zip(NAMES, (False, TracerProvider(sampler=ALWAYS_OFF), sampled), strict=True)
        ]
        chance, found = random.Random(1), {}
        gc.collect()
        gc.disable()
        try:
            works: list[tuple[str, int, Callable[[metaq.Producer, str], None]]] = [
                ("submit", SUBMITS, submits), ("send", SENDS, sends),
            ]  # fmt: skip
            for work, count, act in works:
                used: list[list[float]] = [[], [], []]
                for number in range(turns + 5):
                    order = [0, 1, 2]
                    chance.shuffle(order)
                    for place in order:
                        began = time.process_time()
                        act(producers[place], "otel-bench")
                        if number >= 5:
                            used[place].append((time.process_time() - began) / count * 1e6)
                    sampled.force_flush()  # not within anybody's piece
                for name, seconds in zip(NAMES, used, strict=True):
                    found[f"{work}_{name}_us"] = round(statistics.median(seconds), 2)
        finally:
            gc.enable()
    sampled.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--turns", type=int, default=100)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        print(json.dumps(measure(namesrv, arguments.turns)))


if __name__ == "__main__":
    main()
