"""`metaq broker log`: the last lines of a broker's log."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import msgspec
import typer

from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, NameServers, print_json

Name = Annotated[str, typer.Argument(metavar="NAME", help="brokerName (its master), or host:port of one broker")]
Lines = Annotated[int, typer.Option("--lines", min=1, max=500, help="number of lines at most")]
Level = Annotated[
    str,
    typer.Option(
        "--level", metavar="LEVEL", help="lines of at least this level: debug, info, warning, error or critical"
    ),
]


def show_log(
    name: Name,
    lines: Lines = 100,
    level: Level = "info",
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print the last lines of a broker's log, the oldest first. RocketMQ brokers do not offer their log."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.broker_log(name, count=lines, level=level)
    if found is None:
        typer.echo(
            f"broker {name} does not offer its log: it is a RocketMQ broker, or an older release of MetaQ", err=True
        )
        raise typer.Exit(EXIT_FAILED)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for line in found:
        at = dt.datetime.fromtimestamp(line.at_ms / 1000, dt.UTC).isoformat(" ", "milliseconds")
        typer.echo(f"{at} {line.level} {line.logger}: {line.text}")
