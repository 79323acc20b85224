"""`metaq meta1 move-partitions` and `delete-partitions`: folders of the original server, while it is stopped."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from metaq.cli.output import AsJson, ask, print_json

DataDir = Annotated[
    pathlib.Path,
    typer.Option("--data-dir", metavar="DIR", help="dataPath of the original server, which must be stopped"),
]
Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="topic of the partitions")]
Start = Annotated[int, typer.Option("--start", min=0, metavar="N", help="number of the first partition")]
End = Annotated[int, typer.Option("--end", min=0, metavar="N", help="number of the last partition")]


def move_partitions(
    data_dir: DataDir,
    topic: Topic,
    start: Start,
    end: End,
    offset: Annotated[int, typer.Option("--offset", metavar="N", help="partition P becomes P + N; N may be negative")],
    as_json: AsJson = False,
) -> None:
    """Renumber partitions in a data folder of the original 1.x server.

    This is useful before the folders of two servers are merged. The server must be stopped. Run the same command again to finish an
    interrupted move. Consumers' offsets stay under the old numbers: `metaq meta1 copy-offsets` copies them.
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
    yes: Annotated[bool, typer.Option("-f", "--force", "-y", "--yes", help="do not ask for confirmation")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete partitions in a data folder of the original 1.x server, with all their messages. The server must be stopped."""
    from metaq.cli.meta1.folders import check_delete
    from metaq.cli.meta1.folders import delete_partitions as delete

    if not yes:
        check_delete(data_dir, topic, start, end)
        ask(f"Delete partitions {start} to {end} of {topic} in {data_dir}, for good?")
    gone = delete(data_dir, topic, start, end)
    if as_json:
        print_json({"topic": topic, "deleted": gone})
    else:
        print(f"deleted partitions of {topic}: {', '.join(map(str, gone))}")
