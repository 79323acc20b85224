"""`metaq top`: what brokers, topics and groups do at this moment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from metaq.cli.cluster.top_figures import (
    GroupSort,
    TopicSort,
    behind_text,
    growth_text,
    number,
    share,
    sorted_groups,
    sorted_topics,
    state_of,
)
from metaq.cli.output import (
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    iso_time,
    print_json,
    print_json_line,
    print_table,
)
from metaq.cli.watching import INTERVAL_DEFAULT, Interval, rate_text, repeat
from metaq.clock import SYSTEM

if TYPE_CHECKING:
    from metaq.admin import Activity

PLAIN_ROWS: Final = 10
"""Topics and groups that are printed where there is no terminal whose height says how many."""


def show_top(
    topics: Annotated[TopicSort, typer.Option(help="sort topics by this column")] = TopicSort.STORED,
    groups: Annotated[GroupSort, typer.Option(help="sort groups by this column")] = GroupSort.LAG,
    rows: Annotated[
        int | None,
        typer.Option(min=1, metavar="NUMBER", help="topics and groups to show (default: as many as fit)"),
    ] = None,
    interval: Interval = INTERVAL_DEFAULT,
    once: Annotated[bool, typer.Option("--once", help="print once and exit")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show live figures of brokers, the busiest topics, and the groups with the largest lag; q ends it.

    Rates of topics and groups are averages of the last minute, those of brokers of the last ten seconds. On a terminal, t and g change
    the sort columns of topics and groups, p pauses, q quits. In a file or pipe, tables are printed one below the other; with --json, one
    document per update with all topics and groups.
    """
    from metaq.admin import Admin

    before: Activity | None = None

    with Admin(namesrv) as admin:

        def look() -> tuple[Activity, float]:
            nonlocal before
            began = SYSTEM.monotonic()
            before = admin.activity(before)
            return before, SYSTEM.monotonic() - began

        def show(found: tuple[Activity, float]) -> None:
            if as_json:
                (print_json if once else print_json_line)(activity_json(*found, topics, groups, rows))
            else:
                _print(found[0], topics, groups, rows or PLAIN_ROWS)

        if not once and not as_json and _is_screen():
            from metaq.cli.cluster.top_screen import Screen, View

            Screen(look, interval, View(topics, groups, rows)).run()
        else:
            repeat(look, show, watch=not once, seconds=interval, clear=False)


def _is_screen() -> bool:
    from rich.console import Console

    return sys.stdout.isatty() and not Console().is_dumb_terminal


def activity_json(
    found: Activity, seconds: float, topics: TopicSort, groups: GroupSort, rows: int | None
) -> dict[str, object]:
    """Return one look as JSON has it. `rows`: None: all topics and groups."""
    from metaq.admin.brokers import behind

    return {
        "time": iso_time(found.now_ms),
        "requests": found.requests,
        "seconds": round(seconds, 3),
        "notes": list(found.notes),
        "brokers": [
            {
                "cluster": one.cluster,
                "broker": one.broker,
                "broker_id": one.broker_id,
                "address": one.address,
                "answers": not one.error,
                "registered": one.registered,
                "state": state_of(one),
                "stored_per_second": one.put_rate,
                "delivered_per_second": one.get_rate,
                "put_p99_ms": one.put_p99_ms,
                "put_p999_ms": one.put_p999_ms,
                "connections": one.connections,
                "disk_used": one.disk_used,
                "behind_bytes": behind(found.brokers, one),
            }
            for one in found.brokers
        ],
        "topics": [
            {
                "topic": one.topic,
                "stored_per_second": one.stored,
                "stored_bytes_per_second": one.stored_bytes,
                "delivered_per_second": one.delivered,
                "groups": one.groups,
                "lag": one.lag,
            }
            for one in sorted_topics(found.topics, topics)[:rows]
        ],
        "groups": [
            {
                "group": one.group,
                "members": one.members,
                "topics": one.topics,
                "lag": one.lag,
                "lag_growth_per_second": one.growth,
                "delivered_per_second": one.delivered,
            }
            for one in sorted_groups(found.groups, groups)[:rows]
        ],
    }


def _print(found: Activity, topics: TopicSort, groups: GroupSort, rows: int) -> None:
    from metaq.admin.brokers import behind

    print(iso_time(found.now_ms))
    for note in found.notes:
        print(f"note: {note}")
    print_table(
        (
            "broker", "id", "address", "stored/s", "delivered/s", "p99 ms", "p99.9 ms", "connections", "disk", "behind", "state",
        ),
        (
            (
                one.broker,
                one.broker_id,
                one.address,
                round(one.put_rate, 1),
                round(one.get_rate, 1),
                number(one.put_p99_ms),
                number(one.put_p999_ms),
                number(one.connections),
                share(one.disk_used),
                behind_text(behind(found.brokers, one)),
                state_of(one),
            )
            for one in found.brokers
        ),
    )  # fmt: skip
    print_table(
        ("topic", "stored/s", "bytes/s", "delivered/s", "groups", "lag"),
        (
            (
                one.topic,
                rate_text(one.stored),
                rate_text(one.stored_bytes),
                round(one.delivered, 1),
                one.groups,
                one.lag,
            )
            for one in sorted_topics(found.topics, topics)[:rows]
        ),
    )
    print_table(
        ("group", "members", "topics", "lag", "growth/s", "delivered/s"),
        (
            (
                one.group,
                number(one.members),
                one.topics,
                one.lag,
                growth_text(one.growth),
                round(one.delivered, 1),
            )
            for one in sorted_groups(found.groups, groups)[:rows]
        ),
    )
    print()
