"""`python -m demo`: the story, told while it happens. Exits with 1 if a flight was lost or archived twice."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo import boards, checks, delays, flights, report, sending

ROOT = Path(__file__).resolve().parent.parent
DEPARTED_MIN = 5
"""Fewer departures in an hour say more about one flight than about the airport."""
BROKER_OPTIONS = {"mappedFileSizeCommitLog": 256 << 20, "mappedFileSizeConsumeQueue": 6_000_000,
                  "maxHashSlotNum": 1_000_000, "maxIndexNum": 4_000_000}  # fmt: skip

console = Console(highlight=False)


class Stage:
    """A progress bar with a rate, and the line that stays of it."""

    def __init__(self, title: str, total: int) -> None:
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task(title, total=total, rate="")
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def at(self, done: int) -> None:
        rate = done / max(1e-9, time.perf_counter() - self._started)
        self._progress.update(self._task, completed=done, rate=f"{rate:,.0f}/s")


def say(text: str) -> None:
    console.print(f"  {text}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--flights", type=int, default=flights.FLIGHTS, help="only the first so many")
    parser.add_argument("--output", type=Path, default=ROOT / "demo-out")
    arguments = parser.parse_args()
    began = time.perf_counter()
    output: Path = arguments.output
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)

    console.rule("[bold]MetaQ: a year of flights through broker and Spark")
    rows = load(arguments.flights)
    passed = tell(rows, output)
    console.print(f"\n{time.perf_counter() - began:.0f} seconds in all; everything is in {output}")
    return 0 if passed else 1


def load(count: int) -> list[flights.Flight]:
    started = time.perf_counter()
    package = flights.download(ROOT / ".cache" / "demo")
    with Stage("reading flights", count) as stage:
        rows = []
        for flight in flights.read(flights.table(package)):
            if len(rows) == count:
                break
            rows.append(flight)
            if not len(rows) % 10_000:
                stage.at(len(rows))
    say(f"{len(rows):,} flights read from {package.name} ({time.perf_counter() - started:.1f} s)")
    return rows


def tell(rows: list[flights.Flight], output: Path) -> bool:
    from metaq.admin import Admin
    from metaq.testing import EmbeddedBroker

    with EmbeddedBroker(output / "broker", options=BROKER_OPTIONS) as broker:
        say(f"`metaq up` is ready: name server {broker.namesrv}, broker {broker.broker}")
        with Admin(broker.namesrv) as admin:
            admin.create_topic(sending.TOPIC, queues=8)
            with Stage("sending", len(rows)) as stage:
                sent = sending.send_all(broker, rows, stage.at, say)
            stored = admin.describe_topic(sending.TOPIC).messages
        say(f"{len(sent.ids):,} flights acknowledged")

        started = time.perf_counter()
        with console.status("starting Spark"):
            from metaq.spark import session

            spark = session("metaq demo")
        say(f"Spark {spark.version} is up ({time.perf_counter() - started:.1f} s)")
        try:
            archive_seconds, repeats = archive(spark, broker.namesrv, output, stored)
            with Stage("mean delay by airport and hour", stored) as stage:
                outcome = delays.run(spark, broker.namesrv, str(output / "delays-checkpoint"), stage.at)
            say(f"{len(outcome.windows):,} airport-hours computed")
            with Stage("departure boards", stored) as stage:
                taken_seconds = boards.take_all(broker.namesrv, stored, stage.at)
            say(f"{stored:,} messages shown on the boards, each traced ({stored / taken_seconds:,.0f}/s)")
            started = time.perf_counter()
            with console.status("auditing"):
                audited = boards.audit(spark, broker.namesrv, str(output / "audit"))
            say(f"audited what was sent against what the boards have shown ({time.perf_counter() - started:.1f} s)")
        finally:
            spark.stop()
    found = checks.examine(output / "archive", sent.ids)
    show_worst(outcome, rows, output)
    lines = [
        *report.sending_lines(rows, sent, stored),
        *report.archive_lines(len(rows), found, archive_seconds, repeats),
        *report.delay_lines(outcome, delays.by_hand(rows)),
    ]
    console.print()
    console.print(report.table(lines))
    console.print(f"\n[bold]Audit:[/bold] {escape(audited.text)}", soft_wrap=True)
    return all(line.good is not False for line in lines) and audited.exit_status == 0


def archive(spark: Any, namesrv: str, output: Path, stored: int) -> tuple[float, int]:
    """Run the archive pipeline over what is there. Returns its seconds, and the repeats it left out."""
    import metaq.spark
    from metaq.spark.engine.slow_start import run_through

    reports: list[Any] = []
    started = time.perf_counter()
    with Stage("archiving to Parquet", stored) as stage:

        def start() -> Any:
            return metaq.spark.archive(
                spark, name_servers=namesrv, topics=sending.TOPIC, output=output / "archive", once=True,
                progress_group="archive", on_batch=reports.append,
            )  # fmt: skip

        def watch(query: Any) -> None:
            while not query.awaitTermination(0.2):
                stage.at(sum(one.rows for one in reports))

        run_through(start, watch)
    seconds = time.perf_counter() - started
    say(f"{sum(one.rows for one in reports):,} flights archived in {sum(one.files for one in reports)} files")
    return seconds, sum(one.repeats for one in reports)


def show_worst(outcome: delays.Outcome, rows: list[flights.Flight], output: Path) -> None:
    from demo import picture

    worst = delays.worst(outcome.windows, 10, DEPARTED_MIN)
    table = Table(title=f"The ten worst airport-hours of 2013 (at least {DEPARTED_MIN} departures)", title_style="bold")
    for name, side in (("", "right"), ("airport", "left"), ("scheduled departure", "left"), ("mean delay", "right"),
                       ("departed", "right"), ("cancelled", "right")):  # fmt: skip
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for rank, hour in enumerate(worst, 1):
        table.add_row(
            str(rank), hour.origin, f"{picture.local(hour.hour):%a %d %b %Y, %H:00}", f"{hour.mean_delay:.0f} min",
            str(hour.departed), str(hour.cancelled),
        )  # fmt: skip
    console.print()
    console.print(table)
    path = output / "delays.png"
    picture.draw(outcome.windows, worst, len(rows), path)
    console.print(f"Plot: [bold]{path}[/bold]", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
