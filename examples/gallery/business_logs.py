"""The classic log pipeline: services log to the topic business-logs, one group archives it, another watches it live.

    services ── logging, MetaQHandler ──► topic business-logs ──┬─► group hdfs-writer: Spark, Parquet files by day ──► a query
                                                                └─► group storm-spouts: counts, alerts, a live view

The groups know nothing of each other: each has its own progress at the broker, and either can be stopped, started again or
reset without the other noticing. The archive has the fields of records as columns, so that any reader of Parquet answers
questions: here which service failed when, and how long its requests took.

pip install 'pymetaq[spark,plots]'
python examples/gallery/business_logs.py                        # all of it for 20 seconds, with a broker of its own
python examples/gallery/business_logs.py --namesrv localhost:9876 --seconds 60 --picture logs.svg
python examples/gallery/business_logs.py --only storm-spouts    # one part, with `metaq up`: services, storm-spouts or hdfs-writer
python examples/gallery/business_logs.py --reset storm-spouts   # it reads everything again, whether it runs or not

`metaq group show storm-spouts` and `metaq group show hdfs-writer` tell how far each is behind.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

import metaq
from metaq.admin import Admin, GroupNotFound

TOPIC, ARCHIVER, WATCHER = "business-logs", "hdfs-writer", "storm-spouts"
SERVICES = ("checkout", "payment", "search")
PARTS = ("services", WATCHER, ARCHIVER)
WINDOW_SECONDS = 5
ERRORS_MAX = 10
"""More of one service in one window are an alert."""
WINDOWS_KEPT = 12
DRAIN_SECONDS = 60.0
SLOW_MS = 100
RECORD = "time timestamp, service string, level string, message string, extra struct<request string, ms bigint>"
"""What the archive makes columns of. A record that has other fields as well loses nothing: its body is archived too."""


# ------------------------------------------------------------------ what logs


def run_service(name: str, namesrv: str, stop: threading.Event, topic: str = TOPIC) -> metaq.MetaQHandler:
    """Log as a busy service does, until `stop` is set. The one line that makes it part of the pipeline is addHandler."""
    handler = metaq.MetaQHandler(namesrv, topic=topic, service=name, keys=["request"])
    logger = logging.getLogger(f"example.{name}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    chance = random.Random(name)
    for request in range(1_000_000):
        trouble = name == "payment" and request % 300 > 200
        took = int(chance.lognormvariate(3.4, 0.6)) * (8 if trouble else 1)
        who = {"request": f"{name}-{request}", "ms": took}
        if chance.random() < (0.3 if trouble else 0.01):
            try:
                raise TimeoutError("the bank does not answer")  # noqa: TRY301  as if somebody else had
            except TimeoutError:
                logger.exception("request failed", extra=who)
        elif took > SLOW_MS:
            logger.warning("slow request: %d ms", took, extra=who)
        else:
            logger.info("request served in %d ms", took, extra=who)
        if stop.wait(0.01):
            break
    logger.removeHandler(handler)
    handler.close()  # sends what waits
    return handler


# ------------------------------------------------------------------ storm-spouts


@dataclasses.dataclass
class Analysis:
    """Counts by window, service and level; alerts. Windows are of the broker's store time, so all readers agree on them."""

    windows: dict[int, collections.Counter[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    alerts: list[str] = dataclasses.field(default_factory=list)
    total: int = 0
    _alarmed: set[tuple[int, str]] = dataclasses.field(default_factory=set)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def add(self, store_ms: int, body: bytes) -> None:
        """Count one record. Whatever else is in the topic counts as a record of the service "?"."""
        try:
            record = json.loads(body)
            service, level = str(record["service"]), str(record["level"])
        except (ValueError, TypeError, KeyError):
            service, level = "?", "?"
        window = store_ms // 1000 // WINDOW_SECONDS * WINDOW_SECONDS
        with self._lock:
            counts = self.windows.setdefault(window, collections.Counter())
            counts[service, level] += 1
            self.total += 1
            errors = counts[service, "ERROR"] + counts[service, "CRITICAL"]
            if errors > ERRORS_MAX and (window, service) not in self._alarmed:
                self._alarmed.add((window, service))
                self.alerts.append(f"{clock(window)} {service}: more than {ERRORS_MAX} errors in {WINDOW_SECONDS} s")
            while len(self.windows) > WINDOWS_KEPT:
                oldest = min(self.windows)
                del self.windows[oldest]
                self._alarmed = {one for one in self._alarmed if one[0] != oldest}

    def rows(self, window: int) -> Iterator[tuple[str, int, int, int]]:
        """Service, and its records, warnings and errors, of one window."""
        with self._lock:
            counts = collections.Counter(self.windows.get(window))
        for service in sorted({service for service, _ in counts}):
            levels = {level: count for (name, level), count in counts.items() if name == service}
            errors = levels.get("ERROR", 0) + levels.get("CRITICAL", 0)
            yield service, sum(levels.values()), levels.get("WARNING", 0), errors


def clock(seconds: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def watch(namesrv: str, analysis: Analysis, stop: threading.Event, topic: str = TOPIC) -> None:
    """Be a member of the group storm-spouts until `stop` is set. What it has counted is acknowledged, one by one."""
    with metaq.Consumer(namesrv, group=WATCHER, topics=topic, start="earliest") as consumer:
        while not stop.is_set():
            message = consumer.receive(0.2)
            if message is not None:
                with message:
                    analysis.add(message.store_ms, message.body)


class View:
    """The analysis on a terminal, drawn again and again; elsewhere a line per service and window that is over."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._printed = self._alerts = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.update(last=True)
        if self._live is not None:
            self._live.stop()

    def update(self, *, last: bool = False) -> None:
        """Show what is new; `last`: also of the window that is not over."""
        if self._live is not None:
            self._live.update(self._table())
            return
        windows = sorted(self._analysis.windows)
        for window in windows if last else windows[:-1]:
            if window > self._printed:
                self._printed = window
                for service, count, warnings, errors in self._analysis.rows(window):
                    print(
                        f"{clock(window)} {service}: {count} records, {warnings} warnings, {errors} errors", flush=True
                    )
        for alert in self._analysis.alerts[self._alerts :]:
            self._alerts += 1
            print(f"ALERT {alert}", flush=True)

    def _table(self) -> Table:
        alerts = self._analysis.alerts[-3:]
        table = Table("window", "service", "records", "warnings", "errors", title=f"{TOPIC}: {self._analysis.total} records",
                      caption="\n".join(f"ALERT {alert}" for alert in alerts))  # fmt: skip
        for window in sorted(self._analysis.windows)[-4:]:
            for service, *counts in self._analysis.rows(window):
                style = "red" if counts[-1] > ERRORS_MAX else None
                table.add_row(clock(window), service, *map(str, counts), style=style)
        return table


# ------------------------------------------------------------------ hdfs-writer


def archive(
    spark: Any,
    namesrv: str,
    folder: str | Path,
    *,
    once: bool = False,
    topic: str = TOPIC,
    group_is_reset: bool = False,
) -> Any:
    """Start archiving the topic to Parquet. Returns Spark's query.

    An archive goes on where its own folder says, and tells the broker how far it is as the group hdfs-writer. So a group that
    was reset takes a new folder: with `group_is_reset` it takes over the group and begins where that stands.
    """
    source = {"startingGroup": ARCHIVER} if group_is_reset else {}
    return metaq.spark.archive(
        spark, name_servers=namesrv, topics=topic, output=folder, once=once, trigger_seconds=2, progress_group=ARCHIVER,
        source=source, decode={"decode": "json", "decode_schema": RECORD},
    )  # fmt: skip


# ------------------------------------------------------------------ what the archive answers


def ask(folder: str | Path) -> Any:
    """How services did, by second: an Arrow table of service, second, requests, failed, and ms, within which 95 of 100 were done.

    It reads the archive's Parquet files and nothing else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    record = pc.field("decoded", "service")
    rows = ds.dataset(folder, partitioning="hive").to_table(
        columns={
            "service": record,
            "second": pc.floor_temporal(pc.field("decoded", "time"), unit="second"),
            "failed": pc.field("decoded", "level").isin(pa.array(["ERROR", "CRITICAL"])).cast("int64"),
            "ms": pc.field("decoded", "extra", "ms"),
        },
        filter=record.is_valid(),
    )  # fmt: skip
    found = rows.group_by(["service", "second"]).aggregate(
        [([], "count_all"), ("failed", "sum"), ("ms", "tdigest", pc.TDigestOptions(q=0.95))]
    )
    found = found.rename_columns(["service", "second", "requests", "failed", "ms"])
    place = found.column_names.index("ms")
    return found.set_column(place, "ms", pc.list_element(found["ms"], 0)).sort_by([("service", "ascending"), ("second", "ascending")])  # fmt: skip


def tell(answer: Any) -> None:
    """The answer in a line for each service."""
    for service in sorted(set(answer["service"].to_pylist())):
        rows = [row for row in answer.to_pylist() if row["service"] == service]
        requests, failed = (sum(row[name] for row in rows) for name in ("requests", "failed"))
        worst = max(rows, key=lambda row: row["failed"])
        print(
            f"{service}: {requests} requests, {failed} failed, most of them, {worst['failed']}, at {worst['second']:%H:%M:%S} UTC"
        )


def draw(answer: Any, path: str | Path) -> None:
    """The answer as a picture."""
    from picture import COLOURS, picture

    start = min(answer["second"].to_pylist())
    title = f"{sum(answer['requests'].to_pylist()):,} requests of three services, as the archive tells"
    with picture(Path(path), title, "failed requests per second", "95 of 100 requests took at most, ms") as (
        failed,
        took,
    ):
        for service, colour in zip(SERVICES, COLOURS, strict=False):
            rows = [row for row in answer.to_pylist() if row["service"] == service]
            at = [(row["second"] - start).total_seconds() for row in rows]
            failed.step(at, [row["failed"] for row in rows], where="post", color=colour, label=service)
            took.step(at, [row["ms"] for row in rows], where="post", color=colour)
        took.set_xlabel("seconds")
        for axes in (failed, took):
            axes.set_ylim(bottom=0)
        failed.legend(ncols=len(SERVICES), loc="upper right", bbox_to_anchor=(1, 1.2))


# ------------------------------------------------------------------ all together


def lag(namesrv: str, group: str) -> int:
    """Messages that the group has not consumed: all of the topic, if the broker has not heard of it yet."""
    with Admin(namesrv) as admin:
        try:
            return admin.group_progress(group).lag
        except GroupNotFound:
            return admin.describe_topic(TOPIC).messages


def demo(namesrv: str, parts: tuple[str, ...], seconds: float, folder: str, picture: str = "") -> None:
    """Run some parts for so many seconds, let the groups come to the end, and tell how far each is."""
    with Admin(namesrv) as admin:
        if TOPIC not in admin.list_topics():
            admin.create_topic(TOPIC, queues=4)
    query = spark = None
    if ARCHIVER in parts:
        spark = metaq.spark.session("business_logs")
        query = archive(spark, namesrv, folder)
    analysis, no_more_logs, no_more_watching = Analysis(), threading.Event(), threading.Event()
    threads = [threading.Thread(target=run_service, args=[name, namesrv, no_more_logs]) for name in SERVICES]
    watcher = threading.Thread(target=watch, args=[namesrv, analysis, no_more_watching])
    if "services" in parts:
        for thread in threads:
            thread.start()
    if WATCHER in parts:
        watcher.start()
    try:
        with View(analysis) if WATCHER in parts else contextlib.nullcontext() as view:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.25)
                if view is not None:
                    view.update()
            no_more_logs.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            groups = [group for group in (WATCHER, ARCHIVER) if group in parts]
            end = time.monotonic() + DRAIN_SECONDS
            while any(lag(namesrv, group) for group in groups) and time.monotonic() < end:
                time.sleep(0.25)
    finally:
        no_more_logs.set()
        no_more_watching.set()
        if watcher.ident is not None:
            watcher.join()
        if query is not None and spark is not None:
            query.stop()
            spark.stop()
    for group in groups:
        print(f"group {group}: {lag(namesrv, group)} messages behind")
    if ARCHIVER in parts:
        import pyarrow.dataset as ds

        print(f"{ds.dataset(folder, partitioning='hive').count_rows()} records archived in {folder}")
        answer = ask(folder)
        tell(answer)
        if picture:
            draw(answer, picture)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Services log, hdfs-writer archives, storm-spouts watches.")
    arguments.add_argument("--namesrv", default=os.environ.get("NAMESRV_ADDR"), help="by default a broker of its own")
    arguments.add_argument("--seconds", type=float, default=20.0, help="how long services log")
    arguments.add_argument("--only", choices=PARTS, action="append", help="this part; may be given several times")
    arguments.add_argument("--archive", default="", help="folder of the archive; by default a temporary one")
    arguments.add_argument("--picture", default="", help="draw what the archive answers into this SVG file")
    arguments.add_argument("--reset", choices=(WATCHER, ARCHIVER), help="let the group begin again, and end")
    given = arguments.parse_args()
    if given.reset:
        with Admin(given.namesrv) as admin:
            again = sum(one.repeated for one in admin.reset_group(given.reset, TOPIC, "earliest"))
        print(f"group {given.reset} gets {again} messages again")
        sys.exit()
    with contextlib.ExitStack() as stack:
        namesrv = given.namesrv or stack.enter_context(metaq.testing.EmbeddedBroker()).namesrv
        demo(
            namesrv,
            tuple(given.only or PARTS),
            given.seconds,
            given.archive or tempfile.mkdtemp(prefix="business-logs-"),
            given.picture,
        )


if __name__ == "__main__":
    main()
