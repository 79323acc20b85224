"""What `trace=True` costs a producer: pairs of runs with and without it, one after the other, against one broker.

    python bench/trace_bench.py                  # starts a broker of its own
    python bench/trace_bench.py --count 1000000 --pairs 5

Prints one JSON object:
  cpu_percent    CPU time of this process, user and system, of a traced run over that of the plain run before it: the median
                 of the pairs, in percent more
  least_cpu_percent   the same of the cheapest run of each kind, which others on the machine have disturbed least
  wall_percent   the same of the time that passed, which on a shared machine says more of the others than of us
  plain_us, traced_us   CPU microseconds per message, medians
  traced_share   how many of the messages of a traced run were traced: `trace_rate` is 2000 a second
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

PIECE = 200_000
"""So many futures are kept: the memory of all would cost more than the sends."""
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above


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


def measure(namesrv: str, count: int, pairs: int) -> dict[str, object]:
    cpu: list[tuple[float, float]] = []
    wall: list[tuple[float, float]] = []
    run(namesrv, f"trace-bench-{os.getpid()}", count, trace=True)  # Imports, topics, connections.
    before = traced_messages(namesrv)
    for number in range(pairs):
        kinds = (False, True) if number % 2 else (True, False)
        found = {trace: run(namesrv, f"trace-bench-{os.getpid()}", count, trace=trace) for trace in kinds}
        cpu.append((found[False][0], found[True][0]))
        wall.append((found[False][1], found[True][1]))
    traced = traced_messages(namesrv) - before
    return {
        "cpu_percent": round(statistics.median(100 * (after / plain - 1) for plain, after in cpu), 2),
        "wall_percent": round(statistics.median(100 * (after / plain - 1) for plain, after in wall), 2),
        "least_cpu_percent": round(100 * (min(after for _, after in cpu) / min(plain for plain, _ in cpu) - 1), 2),
        "plain_us": round(statistics.median(plain for plain, _ in cpu) / count * 1e6, 3),
        "traced_us": round(statistics.median(after for _, after in cpu) / count * 1e6, 3),
        "traced_share": round(traced / pairs / count, 4),
        "count": count,
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--count", type=int, default=3_000_000)
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        print(json.dumps(measure(namesrv, arguments.count, arguments.pairs)))


if __name__ == "__main__":
    main()
