"""`metaq store import-meta`: take over what a server of MetaQ 1.x has stored."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from metaq.amounts import count, size
from metaq.cli.output import EXIT_FAILED, AsJson, print_json, print_table
from metaq.clock import SYSTEM
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.app.import_meta import Imported

_TOLD_SECONDS: Final = 5.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def import_files(
    folder: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="DIR", exists=True, file_okay=False, help="dataPath of a MetaQ 1.x server that is stopped"
        ),
    ],
    data: Annotated[str | None, typer.Option(metavar="STORE", help="store folder to import into")] = None,
    file: Annotated[
        str | None,
        typer.Option("-c", "--config", metavar="FILE", help="configuration file of the broker, such as a server.ini"),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("-o", metavar="KEY=VALUE", help="set any option of the broker; may be repeated")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import the messages of a MetaQ 1.x server with their ids and positions.

    The offsets of its consumers stay valid. The broker must be stopped. Run the same command again to continue an interrupted import.
    From now on, the messages are kept as long as new ones. Exit code 1: a partition was not imported, or not wholly; standard error
    names it.
    """
    import msgspec

    from metaq.app.configuration import load
    from metaq.app.import_meta import import_meta

    if data is None and file is None:
        raise ConfigError("give the store folder to import into (--data), or the broker's configuration file (-c)")
    configuration = load(
        file,
        flags={"store": {"store_path_root_dir": data}},
        settings=settings or (),
        serving=("broker", "store", "metaq1"),
        defaults={"store": {}},
    )
    with _until_signal() as stopped:
        results = import_meta(folder, configuration, progress=_Progress().show, stopped=stopped)
        was_stopped = stopped()
    if as_json:
        print_json({"partitions": [msgspec.to_builtins(one) for one in results]})
    else:
        print_table(
            ("topic", "partition", "begin", "end", "messages", "bytes", "already there"),
            [(one.topic, one.partition, one.begin, one.end, one.messages, one.bytes, one.already) for one in results],
        )
    for one in results:
        name = f"{one.topic}-{one.partition}"
        if one.damaged:
            print(f"{name}: {one.damaged} at position {one.end}: not imported", file=sys.stderr)
        if one.problem:
            print(f"{name}: {one.problem}", file=sys.stderr)
    if was_stopped or any(one.problem for one in results):
        raise typer.Exit(EXIT_FAILED)


class _Progress:
    """Prints a line every few seconds, on standard error."""

    def __init__(self) -> None:
        self._told_at = SYSTEM.monotonic()
        self._done: dict[tuple[str, int], Imported] = {}

    def show(self, imported: Imported) -> None:
        self._done[imported.topic, imported.partition] = imported
        if SYSTEM.monotonic() - self._told_at >= _TOLD_SECONDS:
            self._told_at = SYSTEM.monotonic()
            messages = sum(one.messages for one in self._done.values())
            taken = size(sum(one.bytes for one in self._done.values()))
            where = f"{imported.topic}-{imported.partition} at position {imported.end}"
            print(f"{count(messages, 'message')}, {taken}; {where}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _until_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function: whether SIGINT or SIGTERM has come. The import then ends between two batches, and closes the store."""
    seen: set[int] = set()

    def note(number: int, _frame: FrameType | None) -> None:
        seen.add(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
