"""Whether the memory of an archive that runs for long stays flat: driver, JVM, Python workers and broker, sampled while it runs.

    python bench/spark_memory.py                                    # an hour at 2 000 messages/s, on a broker of its own
    python bench/spark_memory.py --minutes 10 --rate 5000
    python bench/spark_memory.py --minutes 0.5 --trigger 1          # shows that it works; the slopes mean nothing

A process of its own sends at the rate. The archive (`metaq.spark.pipelines.archive`) looks every `--trigger` seconds and merges
its small files as it goes, so that every part of it is at work all the time. Sampled every `--every` seconds:

  driver    RssAnon of this process: PySpark's driver, with the archive's window of unique ids; its garbage is collected every `--collect`
            seconds
  jvm       RssAnon of Spark's JVM, whose whole heap (`--heap`) is touched at its start: what grows lies outside of the heap
  live      MB of the JVM's heap that are in use behind a full collection, which is asked for every `--collect` seconds
  workers   Pss of all Python processes below the JVM together: daemons, workers, planners
  broker    RssAnon of the broker

The first part of the run (`--warm`, of all) is left out: the window of ids fills for the archive's `dedupeSeconds`, the JVM
compiles. Of the rest the slope is Theil's: the median of the slopes between all pairs of points, which no single jump moves. A point is
the least sample of two minutes: what is kept. What a merge takes for its seconds, and gives back, is in `most`. Writes
memory.csv and memory.png into `--output`, prints a table and, as the last line, one JSON object. Ends with 1 where a line grows
by more than `--most` percent of its median in an hour and by more than MB_LEAST, or where the archive does not have what was sent.
"""

import argparse
import csv
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import processes

TOPIC = "memory"
QUEUES = 4
SERIES = ("driver", "jvm", "live", "workers", "broker")
MB_LEAST = 10.0
"""What grows by less in an hour is called flat, however small it is: an allocator takes such steps."""
KEPT_SECONDS = 120.0
KEPT_PARTS = 20
PAIRS_SAMPLES_MAX = 400
"""Of more samples every so manieth is taken for the slope: its pairs are their square."""


# ------------------------------------------------------------------ the sender, in a process of its own


def send(namesrv: str, topic: str, rate: int, body: int, seconds: float) -> None:
    """Send at a steady rate, and print how many were acknowledged."""
    import metaq

    noise = os.urandom(1 << 19).hex().encode()
    began, sent, pending = time.monotonic(), 0, deque()
    with metaq.Producer(namesrv, timeout=60.0) as producer:
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * rate:
                start = sent * 61 % (len(noise) - body)
                pending.append(producer.submit(topic, noise[start : start + body], tag="bench"))
                sent += 1
            while pending and pending[0].done():
                pending.popleft().result()
            time.sleep(0.02)
        for future in pending:
            future.result()
    print(sent)


# ------------------------------------------------------------------ what is sampled


def field(file: Path, name: str) -> float:
    """MB that a line of a file of /proc says in kB; NaN where the process or the line is not there."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1000
    return float("nan")


def below(pid: int) -> Iterable[int]:
    """All processes that descend from `pid`."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                yield child
                yield from below(child)


def jvm_of(pid: int) -> int:
    """Spark's JVM among the processes below the driver."""
    for one in below(pid):
        with suppress(OSError):
            if Path(f"/proc/{one}/comm").read_text().strip() == "java":
                return one
    raise RuntimeError("no java runs below this process")


class Sampler:
    """Looks at the processes. A look costs some milliseconds."""

    def __init__(self, spark: Any, broker: processes.Server, collect: float) -> None:
        """Args: collect: seconds between two full collections."""
        self._broker, self._collect, self._collected = broker, collect, float("-inf")
        self._jvm = jvm_of(os.getpid())
        self._java = spark._jvm.java.lang  # noqa: SLF001  the way to the JVM that there is

    def look(self) -> dict[str, float]:
        live = float("nan")
        if time.monotonic() - self._collected >= self._collect:
            self._collected = time.monotonic()
            gc.collect()  # seldom by itself, in a process of so many old objects
            self._java.System.gc()
            live = self._java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed() / 1e6
        workers = [field(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in below(self._jvm)]
        return {
            "driver": field(Path("/proc/self/status"), "RssAnon"),
            "jvm": field(Path(f"/proc/{self._jvm}/status"), "RssAnon"),
            "live": live,
            "workers": sum(size for size in workers if size == size),  # noqa: PLR0124  NaN: it has ended meanwhile
            "broker": self._broker.rss_anon_mb(),
        }


# ------------------------------------------------------------------ what it comes to


def kept(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The least point of each `KEPT_SECONDS`: what somebody holds is in every sample, what work takes for a moment is not.

    In a run that is too short for it, of each `KEPT_PARTS`th of the time.
    """
    seconds = min(KEPT_SECONDS, (points[-1][0] - points[0][0]) / KEPT_PARTS)
    spans: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        spans.setdefault(int(point[0] // seconds), []).append(point)
    return [min(span, key=lambda point: point[1]) for span in spans.values()]


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Theil's slope: the median of those between all pairs of points; NaN with fewer than two."""
    step = max(1, len(times) // PAIRS_SAMPLES_MAX)
    points = list(zip(times[::step], values[::step], strict=True))
    slopes = [(later[1] - one[1]) / (later[0] - one[0]) for one, later in combinations(points, 2) if later[0] > one[0]]
    return statistics.median(slopes) if slopes else float("nan")


def judged(samples: Sequence[dict[str, float]], warm: float, most: float) -> list[dict[str, Any]]:
    """A line for each series. Args: warm: seconds that do not count. most: percent of the median an hour."""
    found = []
    for name in SERIES:
        points = [(one["s"], one[name]) for one in samples if one["s"] >= warm and one[name] == one[name]]
        if len(points) < 4:
            continue
        values = [value for _, value in points]
        quarter = max(1, len(values) // 4)
        middle, hourly = statistics.median(values), slope(*zip(*kept(points), strict=True)) * 3600
        found.append({
            "name": name, "median": middle, "least": min(values), "most": max(values),
            "first_quarter": statistics.median(values[:quarter]), "last_quarter": statistics.median(values[-quarter:]),
            "mb_per_hour": hourly, "percent_per_hour": 100 * hourly / middle, "flat": hourly <= max(middle * most / 100, MB_LEAST),
        })  # fmt: skip
    return found


def table(lines: Sequence[dict[str, Any]]) -> str:
    columns = ("median", "least", "most", "first_quarter", "last_quarter", "mb_per_hour")
    head = f"{'MB':10}" + "".join(f"{name.replace('_', ' '):>15}" for name in columns) + "   % an hour"
    rows = [
        f"{line['name']:10}"
        + "".join(f"{line[name]:15.1f}" for name in columns)
        + f"{line['percent_per_hour']:12.1f}   {'flat' if line['flat'] else 'GROWS'}"
        for line in lines
    ]
    return "\n".join([head, *rows])


def draw(samples: Sequence[dict[str, float]], warm: float, title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(SERIES), sharex=True, figsize=(11, 10), dpi=100, layout="constrained")
    figure.suptitle(title)
    minutes = [one["s"] / 60 for one in samples]
    for one, name in zip(axes, SERIES, strict=True):
        there = [
            (minute, sample[name])
            for minute, sample in zip(minutes, samples, strict=True)
            if sample[name] == sample[name]
        ]
        one.plot(*zip(*there, strict=True), linewidth=0.9, marker="." if name == "live" else None)
        one.axvspan(0, warm / 60, color="#eeeeee")
        one.set_ylim(bottom=0)
        one.set_ylabel(f"{name}, MB")
    axes[-1].set_xlabel("minutes (grey: not counted)")
    figure.savefig(path)
    plt.close(figure)


# ------------------------------------------------------------------ the run


def run(arguments: argparse.Namespace) -> int:
    import metaq
    from metaq.admin import Admin
    from metaq.spark import session
    from metaq.spark.engine.slow_start import run_through
    from metaq.spark.pipelines import archive

    seconds = arguments.minutes * 60
    samples: list[dict[str, float]] = []
    done: dict[str, int] = {"batches": 0, "rows": 0, "compacted": 0}

    def on_batch(_line: str, figures: Any) -> None:
        done["batches"] += 1
        done["rows"] += figures["rows"]
        done["compacted"] += figures["compacted"]

    with ExitStack() as stack:
        arguments.disk.mkdir(parents=True, exist_ok=True)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="memory-", dir=arguments.disk))
        server = stack.enter_context(processes.metaq_up(arguments.disk))
        with Admin(server.namesrv) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        whole_heap = f"-Xms{arguments.heap} -XX:+AlwaysPreTouch"
        conf = {"spark.driver.memory": arguments.heap, "spark.driver.extraJavaOptions": whole_heap}
        spark = session("spark_memory", master="local[2]", conf=conf)
        stack.callback(spark.stop)
        options = {
            "nameServers": server.namesrv, "topics": TOPIC, "output": f"{folder}/archive",
            "triggerSeconds": arguments.trigger, "compactFiles": arguments.compact_files, "graceSeconds": 60,
            "dedupeSeconds": min(600.0, seconds * arguments.warm / 2),
        }  # fmt: skip
        with metaq.Producer(server.namesrv) as producer:
            producer.send(TOPIC, b"0" * arguments.body)

        def first(query: Any) -> Any:
            """Return it when it has archived that one: it runs now."""
            while not done["rows"]:
                if query.awaitTermination(0.2):
                    raise RuntimeError("the archive's query has ended")
            return query

        query = run_through(lambda: archive(spark, options, on_batch), first)
        sender = subprocess.Popen(
            [sys.executable, __file__, "--send", server.namesrv, "--rate", str(arguments.rate), "--body",
             str(arguments.body), "--minutes", str(arguments.minutes)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        stack.callback(sender.kill)
        sampler, began = Sampler(spark, server, arguments.collect), time.monotonic()
        while (passed := time.monotonic() - began) < seconds and sender.poll() is None:
            assert query.isActive, query.exception()
            samples.append({"s": passed, **sampler.look()})
            print(json.dumps({name: round(value, 1) for name, value in (samples[-1] | done).items()}), file=sys.stderr, flush=True)  # fmt: skip
            time.sleep(max(0.0, len(samples) * arguments.every - (time.monotonic() - began)))
        sent = 1 + int(sender.communicate(timeout=processes.PATIENCE)[0])
        end = time.monotonic() + processes.PATIENCE
        while done["rows"] < sent and time.monotonic() < end:
            time.sleep(0.2)
        query.stop()

    warm = seconds * arguments.warm
    lines = judged(samples, warm, arguments.most)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "memory.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["s", *SERIES])
        writer.writeheader()
        writer.writerows({name: round(value, 3) for name, value in one.items()} for one in samples)
    title = (
        f"archive: {arguments.rate:,} messages/s of {arguments.body} B for {arguments.minutes:g} min, "
        f"{done['batches']:,} batches, {done['compacted']:,} files merged, {sent:,} messages"
    )
    with suppress(ImportError):
        draw(samples, warm, title, arguments.output / "memory.png")
    print(f"{title}\n\n{table(lines)}\n")
    whole = done["rows"] == sent
    if not whole:
        print(f"WRONG: {sent:,} messages were sent, {done['rows']:,} are archived")
    print(json.dumps({"sent": sent, **done, "samples": len(samples), "lines": lines}))
    return 0 if whole and all(line["flat"] for line in lines) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--body", type=int, default=100, help="bytes")
    parser.add_argument("--trigger", type=float, default=5.0, help="seconds between the archive's looks")
    parser.add_argument("--compact-files", type=int, default=50, help="it merges where a folder has more small files")
    parser.add_argument("--heap", default="512m", help="spark.driver.memory")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--collect", type=float, default=120.0, help="seconds between full collections of the JVM")
    parser.add_argument("--warm", type=float, default=0.3, help="part of the run that does not count")
    parser.add_argument(
        "--most", type=float, default=5.0, help="percent of its median by which a line may grow an hour"
    )
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    parser.add_argument("--output", type=Path, default=processes.ROOT / ".cache" / "bench")
    parser.add_argument("--topic", default=TOPIC, help=argparse.SUPPRESS)
    parser.add_argument("--send", metavar="NAMESRV", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(processes.ROOT / "src"))
    paths = [str(processes.ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if arguments.send:
        send(arguments.send, arguments.topic, arguments.rate, arguments.body, arguments.minutes * 60)
        return 0
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
