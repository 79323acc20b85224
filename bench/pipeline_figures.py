"""Every figure that the pipelines promise: the archive beside Spark's own Parquet writer, its latency, compaction, row changes.

    python bench/pipeline_figures.py                                # a broker of its own, 3 rounds, some 15 minutes
    python bench/pipeline_figures.py --scale 0.01 --runs 0          # shows that it works: the warming round alone
    python bench/pipeline_figures.py --only archive --runs 5

What is compared is measured one right after the other over the same messages in one session of `local[2]`, and who goes first
alternates by round; a round that warms Spark up is left out. Prints one JSON object, of each figure a list with an item a round:

  archive_100, archive_1000    MB/s of bodies of 100 B and 1 KB from the topic into Parquet, by the pipeline `archive` with its default
                               options: repeats looked for, files forced to the disk, checkpoint and manifest written
  writer_100, writer_1000      the same of `spark.read.format("metaq")` of the same topic, the columns that it has of the archive's, into
                               `write.option("compression", "zstd").parquet(...)`, at the archive's level of compression
  stream_100, stream_1000      the same of `spark.readStream` into Spark's own sink of Parquet files (availableNow)
  archive_fixed_cpu, ...       CPU seconds of the driver, the JVM and all Python below it, for each of these with FEW messages
  archive_cpu_100, ...         CPU µs a message beyond that: what a busy machine leaves believable
  archive_bytes_100, ...       bytes of the files a message
  latency_p50, latency_p99     ms from `submit` until the file with the message is in its place, at `--rate` messages a second with
                               `--trigger` seconds between two looks; of a run of `--seconds`, the first fifth left out
  compact                      MB/s of small files that the pipeline `compact` merges (bytes of those files)
  plain                        the same of pyarrow alone: those files read and written as one, forced to the disk
  compact_cpu, plain_cpu       MB a second of CPU
  changes_parquet, changes_mariadb, changes_postgresql
                               row changes a second, by the pipeline `changes`: nine in ten of them updates, of KEYS keys. None where
                               the database cannot be had
  changes_cpu_parquet, ...     CPU µs a change, of the driver, the JVM and all Python below it
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import processes
import spark_figures
import spark_memory

sys.path.insert(0, str(processes.ROOT))
sys.path.insert(0, str(processes.ROOT / "src"))
import metaq
from metaq.admin import Admin
from metaq.pipelines.run import RUNNING, status_of
from metaq.spark import session
from metaq.spark.engine.slow_start import run_through
from metaq.spark.pipelines import archive, changes, compact

PARTS = ("archive", "latency", "compact", "changes")
ROWS = {1000: 800_000, 100: 4_000_000}
"""By the size of their bodies."""
SMALL_FILES = 200
CHANGES, KEYS = 300_000, 30_000
FEW = 1000
METER_SECONDS = 0.2
NOISE_BYTES = 64 << 20
ZSTD_LEVEL = "1"
"""As the archive writes; Spark's own is 3, which is slower."""
CODEC = {"compression": "zstd", "parquet.compression.codec.zstd.level": ZSTD_LEVEL}


def ended(query: Any) -> None:
    """Wait for its end. Raises what it failed with."""
    query.awaitTermination()


def fill(namesrv: str, topic: str, rows: int, body: int) -> None:
    """Send `rows` messages of hexadecimal noise, which zstd halves. None is like another that is near enough for it to know."""
    noise = os.urandom(NOISE_BYTES // 2).hex().encode()
    with metaq.Producer(namesrv) as producer:
        for number in range(rows):
            begin = number * body % (len(noise) - body)
            last = producer.submit(topic, noise[begin : begin + body], tag="bench")
        producer.flush(processes.PATIENCE)
        last.result(processes.PATIENCE)


class Meter:
    """CPU of this process, the JVM, and all Python below it, also of what has ended: a thread looks again and again.

    A process whose parent died before it is in nobody's sum, so what `/proc` says of ended children is not enough.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm, self._over = jvm, threading.Event()
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._own = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._first = self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        return sum(ticks - self._first.get(pid, 0) for pid, ticks in self._last.items()) / processes.TICKS - self._own

    def _run(self) -> None:
        while not self._over.wait(METER_SECONDS):
            self._last |= self._look()
        self._last |= self._look()
        self._own = time.thread_time()  # What it costs to look is not what is looked for.

    def _look(self) -> dict[int, int]:
        found = {}
        for pid in (os.getpid(), self._jvm, *spark_memory.below(self._jvm)):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found[pid] = int(fields[11]) + int(fields[12])
        return found


def over(folder: Path) -> None:
    """Wait until the run of the pipeline in a folder has told its end: the folder is nobody's then."""
    while (status := status_of(folder)) is not None and status.state == RUNNING:
        time.sleep(0.01)


def parquet_files(folder: Path) -> list[Path]:
    """Those that a glob by Hive's rules sees."""
    return [
        path
        for path in folder.rglob("*.parquet")
        if not any(part[0] in "._" for part in path.relative_to(folder).parts)
    ]


def rows_of(files: list[Path]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files)


class Figures:
    """A broker with topics, a session, a folder of a disk."""

    def __init__(self, spark: Any, namesrv: str, folder: Path, arguments: argparse.Namespace) -> None:
        self.spark, self.namesrv, self.folder = spark, namesrv, folder
        self.scale, self.rate, self.trigger, self.seconds = (
            arguments.scale, arguments.rate, arguments.trigger, arguments.seconds,
        )  # fmt: skip
        self.bodies = [int(body) for body in arguments.bodies.split(",")]
        self.found: dict[str, list[float | None]] = {}
        self.fresh = 0
        self.jvm = spark_memory.jvm_of(os.getpid())

    def note(self, name: str, value: float | None) -> None:
        self.found.setdefault(name, []).append(value)

    def count(self, full: int, least: int = 1000) -> int:
        return max(least, int(full * self.scale))

    @contextlib.contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """A folder that is not there yet, removed afterwards."""
        self.fresh += 1
        path = self.folder / f"{name}-{self.fresh}"
        try:
            yield path
        finally:
            for one in self.folder.glob(f"{path.name}*"), self.folder.glob(f".{path.name}*"):
                for there in one:
                    shutil.rmtree(there, ignore_errors=True)

    # ---------------------------------------------------------------- archive
    @cached_property
    def topics(self) -> dict[int, str]:
        made = {body: f"rows-{body}" for body in self.bodies}
        for body, topic in made.items():
            fill(self.namesrv, topic, self.count(ROWS[body]), body)
        return made

    @cached_property
    def few(self) -> str:
        """A topic of so few messages that what they cost is what any query costs."""
        fill(self.namesrv, "rows-few", FEW, 100)
        return "rows-few"

    def archive(self, number: int) -> None:
        acts = {"archive": self._archive, "writer": self._writer, "stream": self._stream}
        named = list(acts.items())
        fixed = {}
        for name, act in named:
            with self.place(name) as output:
                with Meter(self.jvm) as meter:
                    act(self.few, output)
                fixed[name] = meter.seconds
                self.note(f"{name}_fixed_cpu", meter.seconds)
        for body, topic in self.topics.items():
            rows = self.count(ROWS[body])
            for name, act in named if number % 2 else reversed(named):
                with self.place(name) as output:
                    with Meter(self.jvm) as meter:
                        seconds = spark_figures.seconds_of(
                            lambda act=act, topic=topic, output=output: act(topic, output)
                        )
                    files = parquet_files(output)
                    assert (written := rows_of(files)) == rows, f"{name} wrote {written} rows of {rows}"
                    self.note(f"{name}_{body}", rows * body / 1e6 / seconds)
                    self.note(f"{name}_cpu_{body}", (meter.seconds - fixed[name]) / rows * 1e6)
                    self.note(f"{name}_bytes_{body}", sum(file.stat().st_size for file in files) / rows)

    def _archive(self, topic: str, output: Path, **more: Any) -> None:
        options = {"nameServers": self.namesrv, "topics": topic, "output": output, "once": True, **more}
        run_through(lambda: archive(self.spark, options), ended)
        over(output)

    @property
    def _columns(self) -> str:
        from metaq.archive.records import COLUMNS
        from metaq.client.arrow.records import TYPES

        return ",".join(name for name in COLUMNS if name in TYPES)  # The rest Spark's source does not have.

    def _writer(self, topic: str, output: Path) -> None:
        source = {"nameServers": self.namesrv, "subscribe": topic, "columns": self._columns}
        self.spark.read.format("metaq").options(**source).load().write.options(**CODEC).parquet(str(output))

    def _stream(self, topic: str, output: Path) -> None:
        # In batches as the archive's.
        source = {"nameServers": self.namesrv, "subscribe": topic, "columns": self._columns, "startingOffsets": "earliest",
                  "maxOffsetsPerTrigger": "2000000"}  # fmt: skip
        reader = self.spark.readStream.format("metaq").options(**source).load()
        writer = (
            reader.writeStream.format("parquet").options(**CODEC).option("checkpointLocation", f"{output}/_checkpoint")
        )
        run_through(writer.trigger(availableNow=True).option("path", str(output)).start, ended)

    # ---------------------------------------------------------------- latency
    def latency(self, number: int) -> None:
        topic = f"latency-{number}"
        with Admin(self.namesrv) as admin:
            admin.create_topic(topic, queues=4)
        with self.place("latency") as output:
            options = {"nameServers": self.namesrv, "topics": topic, "output": output, "triggerSeconds": self.trigger}
            rows = {"archived": 0}

            def on_batch(_line: str, figures: Any) -> None:
                rows["archived"] += figures["rows"]

            def follow(query: Any) -> None:
                warm = metaq.Producer(self.namesrv)
                with warm as producer:  # until the first batch is there, Spark starts
                    producer.send(topic, b"0" * 100)
                while rows["archived"] < 1:
                    if query.awaitTermination(0.05):
                        return
                sent = 1 + self._send(topic)
                end = time.monotonic() + processes.PATIENCE
                while rows["archived"] < sent and time.monotonic() < end and not query.awaitTermination(0.05):
                    pass
                query.stop()
                assert rows["archived"] == sent, f"{rows['archived']} messages of {sent} are archived"

            run_through(lambda: archive(self.spark, options, on_batch), follow)
            waited = self._waited(output)
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            self.note(f"latency_{name}", waited[min(len(waited) - 1, int(part * len(waited)))])

    def _send(self, topic: str) -> int:
        """Send at the rate, in a process of its own. Returns how many."""
        program = str(processes.ROOT / "bench" / "spark_memory.py")
        flags = {
            "--send": self.namesrv,
            "--topic": topic,
            "--rate": self.rate,
            "--body": 100,
            "--minutes": self.seconds / 60,
        }
        words = [word for pair in flags.items() for word in map(str, pair)]
        done = subprocess.run([sys.executable, program, *words], stdout=subprocess.PIPE, text=True, check=True)
        return int(done.stdout)

    def _waited(self, output: Path) -> list[float]:
        """Of each message the ms until its file was renamed to where readers see it, which its inode's time says; sorted."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        born, seen = [], []
        for path in parquet_files(output):
            times = pq.read_table(path, columns=["born_time"], partitioning=None)["born_time"].cast(
                pa.timestamp("ms", "UTC")
            )
            born.append(times.cast(pa.int64()).to_numpy())
            seen.append(np.full(len(times), path.stat().st_ctime_ns / 1e6))
        began, waited = np.concatenate(born), np.concatenate(seen) - np.concatenate(born)
        counted = began >= began.max() - self.seconds * 1000 * 0.8
        return sorted(waited[counted].tolist())

    # ---------------------------------------------------------------- compaction
    @cached_property
    def small(self) -> Path:
        """An archive of small files; it is copied for each round."""
        topic, path = self.topics[1000], self.folder / "small"
        self._archive(topic, path, messagesPerFile=max(1, self.count(ROWS[1000]) // SMALL_FILES))
        return path

    def compact(self, number: int) -> None:
        files = parquet_files(self.small)
        megabytes, rows = sum(file.stat().st_size for file in files) / 1e6, rows_of(files)

        def ours() -> None:
            with self.place("merged") as output:
                subprocess.run(["cp", "-r", str(self.small), str(output)], check=True)
                spark_figures.touch(output)
                options = {"folder": output, "graceSeconds": 0, "wait": True}
                cpu = time.process_time()
                seconds = spark_figures.seconds_of(lambda: compact(options))
                self.note("compact_cpu", megabytes / (time.process_time() - cpu))
                left = parquet_files(output)
                assert rows_of(left) == rows
                assert len(left) < len(files) / 10, f"{len(left)} files are left of {len(files)}"
                self.note("compact", megabytes / seconds)

        def plain() -> None:
            with self.place("plain") as output:
                output.mkdir()
                cpu = time.process_time()
                self.note("plain", megabytes / spark_figures.seconds_of(lambda: merged(files, output / "one.parquet")))
                self.note("plain_cpu", megabytes / (time.process_time() - cpu))

        spark_figures.touch(self.small)
        spark_figures.in_turn(number, ours, plain)

    # ---------------------------------------------------------------- changes
    @cached_property
    def changed(self) -> tuple[str, int]:
        """A topic of row changes, and how many they are."""
        topic, count, keys = "changes", self.count(CHANGES), self.count(KEYS, 100)
        chance, numbers = random.Random(7), [0] * keys
        with metaq.Producer(self.namesrv) as producer:
            last = None
            for _ in range(count):
                key = chance.randrange(keys)
                numbers[key] += 1
                row = {
                    "name": f"customer {key}",
                    "amount": chance.randrange(100_000),
                    "state": chance.choice(["new", "paid", "sent"]),
                }
                op = "delete" if numbers[key] % 20 == 0 else "insert" if numbers[key] % 20 == 1 else "update"
                body = {"op": op, "table": "orders", "key": {"id": key}, "seq": numbers[key]}
                body |= {} if op == "delete" else {"row": row}
                last = producer.submit(topic, json.dumps(body).encode(), ordering_key=str(key))
            assert last is not None
            producer.flush(processes.PATIENCE)
            last.result(processes.PATIENCE)
        return topic, count

    def changes(self, _number: int) -> None:
        for name, running in self.targets.items():
            rate, cpu = running() if running else (None, None)
            self.note(f"changes_{name}", rate)
            self.note(f"changes_cpu_{name}", cpu)

    @cached_property
    def targets(self) -> dict[str, Callable[[], tuple[float, float]] | None]:
        return {
            "parquet": lambda: self._changes(buckets=4),
            "mariadb": (lambda: self._changes(target=f"mysql://{self.mariadb}/test", createTable=True))
            if self.mariadb
            else None,
            "postgresql": (lambda: self._changes(target=f"postgresql://{self.postgresql}/postgres", createTable=True))
            if self.postgresql
            else None,
        }

    mariadb = postgresql = ""
    """`user@host:port`; empty: it cannot be had."""

    def _changes(self, **more: Any) -> tuple[float, float]:
        topic, count = self.changed
        told: list[Any] = []
        with self.place("changes") as folder:
            options = {"nameServers": self.namesrv, "topics": topic, "folder": folder, "once": True, **more}
            if "target" in more:  # a table of its own: the last round's has other positions
                options["targetTable"] = f"orders_{self.fresh}"

            def apply() -> None:
                run_through(lambda: changes(self.spark, options, lambda _line, figures: told.append(figures)), ended)
                over(folder)

            with Meter(self.jvm) as meter:
                seconds = spark_figures.seconds_of(apply)
        applied = sum(one["changes"] for one in told)
        assert applied == count, f"{applied} changes of {count} were applied"
        return count / seconds, meter.seconds / count * 1e6


def ratio(ones: list[Any], others: list[Any]) -> float:
    """The median of those of one round."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def merged(files: list[Path], output: Path) -> None:
    """What pyarrow alone does: one file of many, forced to the disk, a file at a time in memory."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(
        output, pq.read_schema(files[0]), compression="zstd", compression_level=int(ZSTD_LEVEL)
    ) as writer:
        for file in files:
            writer.write_table(pq.read_table(file, partitioning=None))
    with output.open("rb") as written:
        os.fsync(written.fileno())


def make_schema(address: str) -> None:
    """MariaDB's own has none that one may write to."""
    import pymysql

    user, _, place = address.partition("@")
    host, _, port = place.partition(":")
    with pymysql.connect(host=host, port=int(port), user=user) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA test CHARACTER SET utf8mb4")


@contextlib.contextmanager
def database(name: str, folder: Path) -> Iterator[str]:
    """Its address, or an empty text where it cannot be had."""
    import pytest
    from tests.interop import mariadb, postgresql

    with ExitStack() as stack:
        try:
            address = stack.enter_context(mariadb.running(folder) if name == "mariadb" else postgresql.running())
            if name == "mariadb":
                make_schema(address)
        except (pytest.skip.Exception, OSError) as fault:
            print(f"{name}: {fault}", file=sys.stderr)
            address = ""
        yield address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the numbers of rows; below 1 the figures mean little"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--bodies", default=",".join(map(str, ROWS)), help="of archive: bytes of the bodies; all by default"
    )
    parser.add_argument("--rate", type=int, default=10_000, help="of latency: messages a second")
    parser.add_argument("--trigger", type=float, default=0.5, help="of latency: seconds between two looks")
    parser.add_argument("--seconds", type=float, default=30.0, help="of latency: how long it is sent")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    if "compact" in parts and "1000" not in arguments.bodies.split(","):
        parser.error("compact merges files of bodies of 1000 bytes: --bodies must have them")
    paths = [str(processes.ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    folder = arguments.disk.absolute() / f"pipeline-figures-{os.getpid()}"
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(processes.metaq_up(folder))
        spark = session("pipeline_figures", master="local[2]")
        stack.callback(spark.stop)
        figures = Figures(spark, server.namesrv, folder, arguments)
        if "changes" in parts:
            figures.mariadb = stack.enter_context(database("mariadb", folder))
            figures.postgresql = stack.enter_context(database("postgresql", folder))
        for number in range(arguments.runs + 1):
            for part in parts:
                getattr(figures, part)(number)
                latest = {name: values[-1] and round(values[-1], 1) for name, values in figures.found.items()}
                print(f"round {number}, load {os.getloadavg()[0]:.1f}", latest, file=sys.stderr, flush=True)
        rounds = {
            name: [value and round(value, 2) for value in values[1:] or values]
            for name, values in figures.found.items()
        }
        for body in figures.bodies if "archive" in parts else ():
            for other in ("writer", "stream"):
                faster = ratio(rounds[f"archive_{body}"], rounds[f"{other}_{body}"])
                cheaper = ratio(rounds[f"{other}_cpu_{body}"], rounds[f"archive_cpu_{body}"])
                print(f"{body} B: archive {faster:.2f} times as fast as {other}, which takes {cheaper:.2f} times its CPU", file=sys.stderr)  # fmt: skip
        print(json.dumps(rounds))


if __name__ == "__main__":
    main()
