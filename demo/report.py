"""The final table: what was counted, and whether it is as it must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from demo import delays
from demo.checks import Archived
from demo.flights import Flight
from demo.sending import Sent


class Line(NamedTuple):
    what: str
    count: int
    note: str
    good: bool | None
    """None: nothing is promised about it."""


def sending_lines(flights: Sequence[Flight], sent: Sent, stored: int) -> list[Line]:
    megabytes = sum(len(flight.body) for flight in flights) / 1e6
    pace = f"{len(sent.ids) / sent.seconds:,.0f} messages/s, {megabytes:,.0f} MB of bodies"
    doubt = f"killed half way, back in {sent.down_seconds:.1f} s; {sent.in_doubt} sends were in doubt"
    if sent.again:
        doubt += f", {sent.again} handed in again"
    return [
        Line("sent, acknowledged", len(sent.ids), pace, len(sent.ids) == len(flights)),
        Line("stored", stored, doubt, stored >= len(flights)),
        Line("stored twice", stored - len(flights), "because an acknowledgement was lost", None),
    ]


def archive_lines(flights: int, found: Archived, seconds: float, repeats: int) -> list[Line]:
    pace = f"{found.rows / seconds:,.0f} messages/s; {found.files} files, {found.size / 1e6:,.0f} MB"
    if repeats:
        pace += f"; {repeats} repeats left out"
    by_id = "by unique id, from the Parquet files"
    return [
        Line("archived", found.rows, pace, found.rows == flights),
        Line("lost", found.lost, by_id, found.lost == 0 and found.strangers == 0),
        Line("archived twice", found.twice, by_id, found.twice == 0),
    ]


def delay_lines(outcome: delays.Outcome, expected: list[delays.AirportHour]) -> list[Line]:
    exact = delays.same(outcome.windows, expected)
    pace = f"{outcome.rows / outcome.seconds:,.0f} messages/s; "
    pace += "all as computed from the file" if exact else "NOT as computed from the file"
    return [
        Line("airport-hours", len(outcome.windows), pace, exact),
        Line("dropped as late", outcome.dropped, "numRowsDroppedByWatermark", outcome.dropped == 0),
    ]


def table(lines: Sequence[Line]) -> Table:
    shown = Table(title="Report", title_style="bold", show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    shown.add_column()
    shown.add_column()
    for line in lines:
        mark = {True: "[green]ok[/green]", False: "[bold red]WRONG[/bold red]", None: ""}[line.good]
        shown.add_row(line.what, f"{line.count:,}", line.note, mark)
    return shown
