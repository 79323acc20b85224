"""`metaq pipeline`: the ready-made Spark jobs."""

from __future__ import annotations

import enum
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.cli.output import NAMESRV_DEFAULT, NameServers, print_json_line
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.spark.pipelines.archive import BatchReport
    from metaq.spark.pipelines.lease import Lease

app = typer.Typer(help="Run the ready-made Spark pipelines.", no_args_is_help=True)
run_app = typer.Typer(help="Run one of them.", no_args_is_help=True)
app.add_typer(run_app, name="run")

LOOK_SECONDS = 0.5
ROUTE_SECONDS = 1.5
"""How long an unknown topic may take to become known."""
LEASE_SECONDS = 2.0
"""How long an earlier run may take to end."""


class Dedupe(enum.Enum):
    """`metaq.spark.pipelines.dedupe.DEDUPE`, which would load numpy to be asked."""

    off = "off"
    unique_id = "unique_id"
    key = "key"


class ReadFrom(enum.Enum):
    """`metaq.spark.replicas.READ_FROM`, in the same way."""

    auto = "auto"
    master = "master"
    slave = "slave"


@app.callback()
def pipelines() -> None:
    """Run the ready-made Spark pipelines."""


@run_app.callback()
def run_pipeline() -> None:
    """Run one of them: each takes its own options."""


@run_app.command("archive")
def run_archive(
    topic: Annotated[list[str], typer.Option("--topic", help="topic to archive; may be given several times")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="the archive's folder, its own")],
    namesrv: NameServers = NAMESRV_DEFAULT,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="by default inside the output")] = None,
    staging: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="where unfinished files lie: on the output's file system; by default beside it"
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="archive what is there now, then end")] = False,
    trigger: Annotated[float, typer.Option(metavar="SECONDS", help="look for new messages this often", min=0)] = 60.0,
    group: Annotated[str | None, typer.Option(help="report progress as this consumer group")] = None,
    dedupe: Annotated[
        Dedupe,
        typer.Option(help="what a repeated message is known by and left out for: the producer's id, or its keys"),
    ] = Dedupe.unique_id,
    dedupe_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="repeats are stored at most this long after each other", min=0)
    ] = 600.0,
    starting_offsets: Annotated[str, typer.Option(help="where a new archive begins: earliest or latest")] = "earliest",
    read_from: Annotated[
        ReadFrom, typer.Option(help="slaves serve what masters have on disk only, or all, or nothing")
    ] = ReadFrom.auto,
    master: Annotated[str | None, typer.Option(help="Spark master, by default this machine")] = None,
    spark_log: Annotated[
        str, typer.Option(metavar="LEVEL", help="what Spark itself logs: off, error, warn or info")
    ] = "off",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line per batch")] = False,
) -> None:
    """Write topics to Parquet, every message once, partitioned by topic and store date (UTC).

    Killed at any moment, it goes on where it stopped when it is started again.
    """
    from metaq.spark import archive, session
    from metaq.spark.slow_start import run_through

    lease = _begin(namesrv, topic, output, staging)
    shown = _Shown(as_json)
    shown.status("starting Spark")
    spark = None
    try:
        # Its own log is off: what it says of a failed query is 200 lines of traces around the one that we print.
        spark = session("metaq archive", master=master, log_level=spark_log)
        taken: Lease | None = lease

        def start() -> Any:
            nonlocal taken
            mine, taken = taken, None  # it ends with its query: a second one takes another
            return archive(
                spark,
                name_servers=namesrv,
                topics=topic,
                output=output,
                checkpoint=checkpoint,
                staging=staging,
                once=once,
                trigger_seconds=trigger,
                progress_group=group,
                dedupe=dedupe.value,
                dedupe_seconds=dedupe_seconds,
                on_batch=shown.batch,
                source={"startingOffsets": starting_offsets, "readFrom": read_from.value},
                lease=mine,
            )

        stopping = threading.Event()
        run_through(start, lambda query: watch(query, shown, stopping))
    except Exception as fault:
        if type(fault).__module__.partition(".")[0] in {"pyspark", "py4j"}:
            raise MetaqError(f"Spark failed: {root_text(str(fault))}") from fault
        raise
    finally:
        shown.close()
        if spark is not None:
            spark.stop()
        lease.release()


def _begin(namesrv: str, topics: list[str], output: Path, staging: Path | None) -> Lease:
    """Find and say what is wrong without Spark, which takes seconds to start. Returns the output's lease, taken.

    Raises: NoRoute: a topic that nobody knows. ConfigError, StoreLocked: the output cannot be written to.
    """
    from metaq.spark.cluster_client import ClusterClient
    from metaq.spark.pipelines.folder import ArchiveFolder
    from metaq.spark.pipelines.lease import begin

    # Its warnings of every new try would surround the one line that we print in the end.
    logging.getLogger("metaq.spark.cluster_client").setLevel(logging.ERROR)
    client = ClusterClient(namesrv, ROUTE_SECONDS)
    try:
        client.queues(topics)
    finally:
        client.close()
    return begin(ArchiveFolder(output, staging), LEASE_SECONDS)


def watch(query: Any, shown: _Shown, stopping: threading.Event) -> None:
    """Wait for the query's end, or for Ctrl-C or SIGTERM, which stop it: what it had published stays, nothing else.

    They set `stopping`, so that they also count between two queries. Raises MetaqError: the query failed.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    # Set after the session was made: Spark's own handler for Ctrl-C would raise in the middle of a call.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        while not stopping.is_set() and query.isActive:
            stopping.wait(LOOK_SECONDS)
            shown.behind(messages_behind(query.lastProgress))
    finally:
        query.stop()
    fault = None if stopping.is_set() else query.exception()
    if fault is not None:
        raise MetaqError(f"the query failed: {root_text(str(fault))}")


def root_text(text: str) -> str:
    """The line of a Spark failure that says what went wrong: our own error, out of the traces around it."""
    lines = [line.strip() for line in text.splitlines()]
    ours = [line for line in lines if line.startswith("metaq.errors.")]
    return ours[-1].partition(": ")[2] if ours else next((line for line in lines if line), "no reason was given")


def messages_behind(progress: Any) -> int | None:
    """Backlog in messages, from a query's last progress."""
    if not progress or not progress["sources"]:
        return None
    from metaq.spark.progress import of_progress

    found = of_progress(progress)
    return found.behind if found is not None else None


class _Shown:
    """What the user sees: a line per batch, and on a terminal a status line under them."""

    def __init__(self, as_json: bool) -> None:
        from rich.console import Console

        self._json, self._total = as_json, 0
        self._status = None if as_json or not sys.stdout.isatty() else Console().status("")
        if self._status is not None:
            self._status.start()

    def status(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def behind(self, messages: int | None) -> None:
        lag = "" if messages is None else f", {messages:,} behind"
        self.status(f"{self._total:,} messages archived{lag}")

    def batch(self, report: BatchReport) -> None:
        self._total += report.rows
        if self._json:
            print_json_line({name: getattr(report, name) for name in type(report).__dataclass_fields__})
            return
        rate = report.rows / report.seconds if report.seconds else 0
        repeats = f", {report.repeats:,} repeats left out" if report.repeats else ""
        how = "was published before the restart" if report.replayed else f"{report.seconds:.1f} s, {rate:,.0f}/s"
        print(
            f"batch {report.batch}: {report.rows:,} messages in {report.files} files, "
            f"{report.size / 1e6:,.1f} MB{repeats} ({how})",
            flush=True,
        )

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
