"""SQL filters at the broker: what a reader gets of a topic by a condition that half of the messages pass, beside a tag that
half of them have; and how many messages a second are looked through for one in a thousand.

    python bench/filter_bench.py                 # starts a broker of its own
    python bench/filter_bench.py --count 200000 --runs 3

Prints one JSON object, the best of the runs, which take turns:
  tag_per_s, half_per_s   messages delivered a second, by tag and by condition
  half_of_tag             the second over the first
  scanned_per_s           messages looked through a second, of which one in 1 000 is delivered
  predicate_per_s         messages looked through a second by a predicate in a helper process, of which half are delivered;
                          of a broker of one's own that has the flags of `PREDICATE`, and only with --predicate
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import metaq  # noqa: E402  found by the line above

PREDICATE = ("-o", "filterPredicates=half=filter_bench:half", "-o", f"filterPredicatePath={ROOT / 'bench'}")
"""What `metaq up` needs for it."""
REGIONS = ("eu", "us")
HALF = metaq.Sql("region = 'eu' AND amount >= 0")
FEW = metaq.Sql("amount = 7 AND region IN ('eu', 'us')")


def half(message: metaq.StoredMessage) -> bool:
    """The predicate."""
    return message.tag == "even"


def fill(namesrv: str, topic: str, count: int) -> None:
    """Messages of 100 bytes in one queue, with the properties that an application might have."""
    body = b"x" * 100
    with metaq.Producer(namesrv, timeout=60.0) as producer:
        queue = producer.send(topic, b"first", tag="first").queue
        for start in range(0, count, 1000):
            producer.send_batch(
                [
                    metaq.Message(
                        topic, body, "even" if number % 2 == 0 else "odd",
                        properties={"amount": str(number % 1000), "region": REGIONS[number % 2], "source": "bench"},
                    )
                    for number in range(start, min(start + 1000, count))
                ],
                queue=queue,
            )  # fmt: skip


def read(namesrv: str, topic: str, wanted: str | metaq.Sql | metaq.Predicate) -> tuple[int, float]:
    """How many messages came, and seconds."""
    with metaq.Reader(namesrv, topic, tags=wanted, stop_at_end=True) as reader:
        began = time.perf_counter()
        count = sum(1 for _ in reader)
        return count, time.perf_counter() - began


def measure_predicate(namesrv: str, count: int, runs: int) -> dict[str, float]:
    topic = f"predicate-bench-{os.getpid()}"
    fill(namesrv, topic, count)
    best = 0.0
    for _ in range(runs):
        found, seconds = read(namesrv, topic, metaq.Predicate("half"))
        assert found == count // 2, f"{found} messages passed and not {count // 2}"
        best = max(best, count / seconds)
    return {"predicate_per_s": round(best), "count": count}


def measure(namesrv: str, count: int, runs: int) -> dict[str, float]:
    topic = f"filter-bench-{os.getpid()}"
    fill(namesrv, topic, count)
    best = dict.fromkeys(("tag_per_s", "half_per_s", "scanned_per_s"), 0.0)
    for _ in range(runs):
        for name, wanted, expected in (
            ("tag_per_s", "even", count // 2), ("half_per_s", HALF, count // 2), ("scanned_per_s", FEW, count // 1000),
        ):  # fmt: skip
            found, seconds = read(namesrv, topic, wanted)
            assert found == expected, f"{name}: {found} messages and not {expected}"
            best[name] = max(best[name], (count if name == "scanned_per_s" else found) / seconds)
    return {name: round(rate) for name, rate in best.items()} | {
        "half_of_tag": round(best["half_per_s"] / best["tag_per_s"], 3), "count": count,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--predicate", action="store_true", help="measure the predicate, and nothing else")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            namesrv = stack.enter_context(processes.metaq_up(disk, options=PREDICATE)).namesrv
        work = measure_predicate if arguments.predicate else measure
        print(json.dumps(work(namesrv, arguments.count, arguments.runs)))


if __name__ == "__main__":
    main()
