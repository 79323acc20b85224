"""`metaq store`: look into store folders, without a broker and without changing anything."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated

import typer

from metaq.cli.output import message_json, print_json_line

app = typer.Typer(help="Look into a store folder, ours or RocketMQ's, without a broker.", no_args_is_help=True)


@app.callback()
def stores() -> None:
    """Look into a store folder, ours or RocketMQ's, without a broker."""


@app.command("dump")
def dump(
    folder: Annotated[
        pathlib.Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="the store's root folder")
    ],
    topic: Annotated[str | None, typer.Option(help="only this topic")] = None,
    start: Annotated[int | None, typer.Option("--from", min=0, metavar="OFFSET", help="first log offset")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="what it prints anyway; here as every command has it")] = True,
) -> None:
    """Print every record of a folder as one line of JSON, in the order of the log.

    A broker may be running on the folder. Says on standard error where the log ends, and why there.
    """
    from metaq.store.reader import StoreReader

    del as_json
    reader = StoreReader(folder)
    for message in reader.records(start=start, topic=topic):
        shown = message_json(message)
        shown["log_offset"] = message.log_offset
        print_json_line(shown)
    print(f"end of the log at offset {reader.end}: {reader.why}", file=sys.stderr)
