"""Every figure that the Spark connector promises, in one run over the same data: source, store reader, sink, micro-batches, planning.

    python bench/spark_figures.py                                   # a broker of its own, 5 rounds, some 5 minutes
    python bench/spark_figures.py --scale 0.01 --runs 1             # shows that it works
    python bench/spark_figures.py --only source,sink --runs 3

Broker, JVM and Python workers share the same cores. What is compared is measured one right after the other, and who goes first
alternates by round; a round that warms Spark up is left out. Prints one JSON object, of each figure a list with an item a round:

  source_100, source_1000    MB/s of bodies of 100 B and 1 KB through format("metaq") into Spark's `noop` sink, lean rows
  parquet_100, parquet_1000  the same of Spark's own scan of the same rows in Parquet files (snappy)
  files_1000                 the same of format("metaq").option("path", ...) over a copy of the broker's log, 1 KB
  exact_100, exact_1000      the same of bodies from those Parquet files written into a topic, effectively once, commit and all
  once_100, once_1000        written at least once
  floor_empty, floor_one     median ms of micro-batches (triggerExecution) that read nothing, as the broker filters, and one row
  floor_spark                the same of Spark's own rate-micro-batch with one row
  driver_big, driver_small   CPU ms of the driver's Python and the planners' processes for a micro-batch of 1 M rows and of 10 k,
                             without the timers of Spark's own that run whether there is a query or not
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import processes
import spark_bench

sys.path.insert(0, str(processes.ROOT / "src"))
from metaq.spark import session
from metaq.spark.engine.slow_start import run_through

PARTS = ("source", "files", "sink", "floor", "driver")
ROWS = {1000: 1_500_000, 100: 6_000_000}
"""By the size of their bodies. Some 0.5 s of CPU of each query are the same for any number of rows: the JVM compiles."""
SINK_SHARE = 6
"""One in so many of the Parquet files is written into topics: that takes room on the disk."""
BATCH_ROWS, BATCH_ROWS_SMALL = 1_000_000, 10_000
BATCHES = 6
"""Micro-batches of each of these sizes. What the first and the last of them cost is left out."""
TRIES = 5
STREAM_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
FLOOR_BATCHES, FLOOR_SKIPPED = 25, 5
LOOK_SECONDS = 0.05


def seconds_of(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def noop(frame: Any) -> None:
    """Every row and column into a sink that drops them."""
    frame.write.format("noop").mode("overwrite").save()


def touch(folder: Path) -> None:
    """Bring a folder's files into the page cache: some machines take back what nobody has read for seconds."""
    room = bytearray(8 * 1024 * 1024)
    for path in folder.rglob("*"):
        if path.is_file():
            with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
                while file.readinto(room):
                    pass


def in_turn(number: int, *acts: Callable[[], None]) -> None:
    for act in acts if number % 2 else reversed(acts):
        act()


def cpu_ns(pids: Iterable[int]) -> dict[tuple[int, int], int]:
    """CPU of each thread of these processes but the one that asks, by process and thread.

    In the scheduler's nanoseconds where /proc/PID/stat has ticks of 10 ms.
    """
    found = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for task in Path(f"/proc/{pid}/task").iterdir():
                found[pid, int(task.name)] = int((task / "schedstat").read_text().split()[0])
    found.pop((os.getpid(), threading.get_native_id()), None)  # What it costs to look is not what is looked for.
    return found


def spent_ms(before: dict[tuple[int, int], int], after: dict[tuple[int, int], int]) -> float:
    """CPU between two looks, of all that is there in the second: what has ended meanwhile is neither added nor taken away."""
    return sum(now - before.get(thread, 0) for thread, now in after.items()) / 1e6


def planners(root: int) -> dict[int, str]:
    """The processes below `root` in which Spark runs the Python of its driver, by what they run.

    One for each stream, and all daemons with their forks but the executors'.
    """
    found = {}
    for child in Path(f"/proc/{root}/task").glob("*/children"):
        for pid in _children(child):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                line = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
                if line[-1].startswith("pyspark.sql.") and "-m" in line:
                    found[pid] = line[-1]
                found |= planners(pid)
    return found


def _children(file: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(word) for word in file.read_text().split()]
    return []


class Series:
    """What there is to be measured: a broker with topics, the same rows in Parquet files, a session of Spark."""

    def __init__(self, spark: Any, namesrv: str, data: Path, folder: Path, scale: float) -> None:
        """Args: data: the broker's. folder: of what is written here."""
        self.spark, self.namesrv, self.data, self.folder, self.scale = spark, namesrv, data, folder, scale
        self.found: dict[str, list[float]] = {}
        self.fillings: set[str] = set()
        self.runs = 0

    def round(self, number: int, parts: list[str]) -> None:
        for part in parts:
            getattr(self, part)(number)

    def note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)

    def rates(
        self, name: str, body: int, rows: int, act: Callable[[], object], reads: Path | None = None
    ) -> Callable[[], None]:
        """Notes MB/s of bodies. `reads`: a folder whose files are to be in memory: how fast the disk is is not asked here."""

        def measure() -> None:
            if reads is not None:
                touch(reads)
            self.note(f"{name}_{body}", rows * body / 1e6 / seconds_of(act))

        return measure

    def count(self, full: int, least: int = 1000) -> int:
        return max(least, int(full * self.scale))

    # ---------------------------------------------------------------- data
    @cached_property
    def topics(self) -> dict[int, str]:
        """Those with the rows, by the size of their bodies; the rows are in Parquet files, too."""
        made = {body: f"rows-{body}" for body in ROWS}
        for body, topic in made.items():
            spark_bench.fill(self.namesrv, topic, self.count(ROWS[body]), body)
            if not self.log.exists():
                subprocess.run(["cp", "-r", "--sparse=always", str(self.data), str(self.log)], check=True)
            self.rows(topic).write.option("compression", "snappy").parquet(str(self.folder / topic))
            assert self.parquet(topic).count() == self.count(ROWS[body])
        return made

    @property
    def log(self) -> Path:
        """A copy of the broker's folder with the first of the topics alone, while the broker was running."""
        return self.folder / "store"

    def filled(self, topic: str, rows: int) -> None:
        """The topic has so many messages."""
        if topic not in self.fillings:
            spark_bench.fill(self.namesrv, topic, rows, 100)
            self.fillings.add(topic)

    def options(self, topic: str, **options: Any) -> dict[str, Any]:
        return {"nameServers": self.namesrv, "subscribe": topic, **options}

    def rows(self, topic: str) -> Any:
        return self.spark.read.format("metaq").options(**self.options(topic)).load()

    def parquet(self, topic: str) -> Any:
        return self.spark.read.parquet(str(self.folder / topic))

    # ---------------------------------------------------------------- the parts, a round of each
    def source(self, number: int) -> None:
        for body, topic in self.topics.items():
            rows = self.count(ROWS[body])
            in_turn(
                number,
                self.rates("source", body, rows, lambda topic=topic: noop(self.rows(topic)), self.data),
                self.rates("parquet", body, rows, lambda topic=topic: noop(self.parquet(topic)), self.folder / topic),
            )

    def files(self, number: int) -> None:
        body, topic = next(iter(self.topics.items()))
        rows = self.count(ROWS[body])
        stored = self.spark.read.format("metaq").options(path=str(self.log), topics=topic).load()
        if number == 0:
            assert (found := stored.count()) == rows, f"{found} rows are in the log, {rows} were sent"
        self.rates("files", body, rows, lambda: noop(stored), self.log)()

    def sink(self, number: int) -> None:
        for body, (bodies, rows) in self.to_write.items():
            in_turn(
                number,
                self.rates("exact", body, rows, lambda bodies=bodies: self.write(bodies, "effectively-once")),
                self.rates("once", body, rows, lambda bodies=bodies: self.write(bodies, "at-least-once")),
            )

    @cached_property
    def to_write(self) -> dict[int, tuple[Any, int]]:
        """Bodies and their number, by their size."""
        found = {}
        for body, topic in self.topics.items():
            files = sorted(map(str, (self.folder / topic).glob("*.parquet")))
            bodies = self.spark.read.parquet(*files[::SINK_SHARE]).select("body")
            found[body] = bodies, bodies.count()
        return found

    def write(self, bodies: Any, delivery: str) -> None:
        options = {"nameServers": self.namesrv, "topic": f"written-{delivery}", "delivery": delivery}
        bodies.write.format("metaq").options(**options).mode("append").save()

    def check_written(self, rounds: int) -> None:
        expected = rounds * sum(rows for _, rows in self.to_write.values())
        for delivery in ("effectively-once", "at-least-once"):
            found = self.rows(f"written-{delivery}").count()
            assert found == expected, f"{found} rows of {delivery} are stored, {expected} were written"

    def floor(self, number: int) -> None:
        del number
        self.filled("short", FLOOR_BATCHES)
        one = self.options("short", startingOffsets="earliest", maxOffsetsPerTrigger="1")
        for name, options, rows in (("floor_one", one, 1), ("floor_empty", {**one, "tags": "none-has-this"}, 0)):
            frame = self.spark.readStream.format("metaq").options(**options).load()
            query = self.run(frame, lambda query: query.awaitTermination(), availableNow=True)
            self.note(name, self.trigger_ms(query, rows))
        frame = self.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
        query = self.run(frame, self.enough, processingTime="0 seconds")
        self.note("floor_spark", self.trigger_ms(query, 1))

    def enough(self, query: Any) -> None:
        while not self.committed(FLOOR_BATCHES):
            assert query.isActive, query.exception()
            time.sleep(LOOK_SECONDS)
        query.stop()

    def trigger_ms(self, query: Any, rows: int) -> float:
        """The median of the micro-batches behind the first few. Each has read so many rows, or it is an AssertionError."""
        progress = [one for one in query.recentProgress if FLOOR_SKIPPED <= one["batchId"] < FLOOR_BATCHES]
        assert len(progress) == FLOOR_BATCHES - FLOOR_SKIPPED, f"{len(progress)} micro-batches"
        assert {one["numInputRows"] for one in progress} == {rows}, [one["numInputRows"] for one in progress]
        return statistics.median(one["durationMs"]["triggerExecution"] for one in progress)

    def driver(self, number: int) -> None:
        in_turn(
            number,
            lambda: self.note("driver_big", self.planning_ms("big", self.count(BATCH_ROWS))),
            lambda: self.note("driver_small", self.planning_ms("small", self.count(BATCH_ROWS_SMALL, 100))),
        )

    def planning_ms(self, topic: str, rows: int) -> float:
        """As `_planning_ms`, of a query whose planner was seen at work twice."""
        for _ in range(TRIES):
            if (found := self._planning_ms(topic, rows)) is not None:
                return found
        raise AssertionError(f"{TRIES} queries over {topic} had ended before they were looked at a second time")

    def _planning_ms(self, topic: str, rows: int) -> float | None:
        """CPU of a micro-batch of so many rows in the driver's Python: the second to the last but one of BATCHES.

        With the last one the query ends, and the process that plans it. None: it ended before it was looked at.
        """
        self.filled(topic, rows * BATCHES)
        options = self.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(rows))
        seen: list[dict[tuple[int, int], int]] = []
        planning: list[set[int]] = []
        before = self.timers()

        def watch(query: Any) -> None:
            over = threading.Event()
            seen.clear()
            planning.clear()

            def look() -> None:  # At files, not at the query: to ask that costs the driver CPU.
                for batch in (1, BATCHES - 1):
                    while not self.committed(batch) and not over.wait(LOOK_SECONDS):
                        pass
                    running = planners(os.getpid())
                    counted = cpu_ns([os.getpid(), *running])
                    seen.append({thread: spent for thread, spent in counted.items() if thread not in before})
                    planning.append({pid for pid, module in running.items() if module == STREAM_PLANNER})

            looking = threading.Thread(target=look)
            looking.start()
            try:
                query.awaitTermination()
            finally:
                over.set()
                looking.join()

        self.run(self.spark.readStream.format("metaq").options(**options).load(), watch, availableNow=True)
        assert self.committed(BATCHES)
        assert not self.committed(BATCHES + 1)
        if not planning[0] & planning[1]:
            return None
        return spent_ms(*seen) / (BATCHES - 2)

    def timers(self) -> set[tuple[int, int]]:
        """Threads that Spark and py4j wake once or twice a second, whether there is a query or not.

        Those of this process but the main one, for accumulators and for what is collected, and the daemons that wait to fork.
        """
        idle = {thread for thread in cpu_ns([os.getpid()]) if thread[0] != thread[1]}
        running = planners(os.getpid())
        for pid in running:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if running[pid] != STREAM_PLANNER and parent not in running:
                    idle.add((pid, pid))
        return idle

    def run(self, frame: Any, watch: Callable[[Any], None], **trigger: Any) -> Any:
        """A query into Spark's `noop` sink with a checkpoint of its own, watched to its end."""
        self.runs += 1
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.checkpoint)).trigger(**trigger)

        def watched(query: Any) -> Any:
            watch(query)
            return query

        return run_through(writer.start, watched)

    @property
    def checkpoint(self) -> Path:
        """Of the query that was started last."""
        return self.folder / f"checkpoint-{self.runs}"

    def committed(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the numbers of rows; below 1 the figures mean little"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    paths = [str(processes.ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    folder = arguments.disk / f"spark-figures-{os.getpid()}"
    data = folder / "broker"
    data.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(processes.metaq_up(arguments.disk, data=data))
        spark = session("spark_figures", master="local[2]")
        stack.callback(spark.stop)
        series = Series(spark, server.namesrv, data, folder, arguments.scale)
        for number in range(arguments.runs + 1):
            series.round(number, parts)
            print(
                f"round {number}",
                {name: round(values[-1], 1) for name, values in series.found.items()},
                file=sys.stderr,
            )
        if "sink" in parts:
            series.check_written(arguments.runs + 1)
        print(json.dumps({name: [round(value, 2) for value in values[1:]] for name, values in series.found.items()}))


if __name__ == "__main__":
    main()
