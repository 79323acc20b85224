"""`metaq meta1 move-partitions` and `delete-partitions`: folders of the original server, while it is stopped."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from metaq.cli.output import AsJson, print_json

DataDir = Annotated[
    pathlib.Path,
    typer.Option("--data-dir", metavar="DIR", help="dataPath of the original server, which must be stopped"),
]
Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC")]
Start = Annotated[int, typer.Option("--start", min=0, metavar="N", help="number of the first partition")]
End = Annotated[int, typer.Option("--end", min=0, metavar="N", help="and of the last one")]


def move_partitions(
    data_dir: DataDir,
    topic: Topic,
    start: Start,
    end: End,
    offset: Annotated[int, typer.Option("--offset", metavar="N", help="partition P becomes P + N; N may be negative")],
    as_json: AsJson = False,
) -> None:
    """Give partitions in a data folder of the original 1.x server other numbers, such as before the folders of two servers become one.

    The server must be stopped. A move that was interrupted goes on when the same command is given again. Offsets of consumers stay under
    the old numbers.
    """
    from metaq.cli.meta1.folders import move_partitions as move

    done = move(data_dir, topic, start, end, offset)
    if as_json:
        print_json({"topic": topic, "moved": done.moved, "moved_before": done.before})
        return
    for text, pairs in (("moved earlier", done.before), ("moved", done.moved)):
        for source, target in pairs:
            print(f"{text}: {topic}-{source} to {topic}-{target}")


def delete_partitions(
    data_dir: DataDir,
    topic: Topic,
    start: Start,
    end: End,
    yes: Annotated[bool, typer.Option("-f", "--force", "-y", "--yes", help="do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete partitions in a data folder of the original 1.x server, with all their messages. The server must be stopped."""
    from metaq.cli.meta1.folders import delete_partitions as delete

    if not yes:
        typer.confirm(f"Delete partitions {start} to {end} of {topic} in {data_dir}, for good?", abort=True)
    gone = delete(data_dir, topic, start, end)
    if as_json:
        print_json({"topic": topic, "deleted": gone})
    else:
        print(f"deleted partitions of {topic}: {', '.join(map(str, gone))}")
