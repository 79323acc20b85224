"""What `metaq start`, `metaq stop` and `metaq status` have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.cli.output import EXIT_NOT_FOUND, iso_time

if TYPE_CHECKING:
    from metaq.app.background.places import Description, Places

RunDir = Annotated[
    str | None,
    typer.Option(
        "--run-dir",
        metavar="DIR",
        help="folder of pid files and logs (METAQ_RUN_DIR; default metaq/servers in $XDG_STATE_HOME, which is ~/.local/state if unset)",
    ),
]


class Waiting:
    """Tells on standard error that something takes long: after 2 s, and each 10 s from then on; on a terminal each second."""

    def __init__(self, what: str, detail: Callable[[], str] = str) -> None:
        self._what, self._detail = what, detail
        self._every, self._next = (1.0, 2.0) if sys.stderr.isatty() else (10.0, 2.0)

    def __call__(self, passed: float) -> None:
        if passed < self._next:
            return
        self._next += self._every
        detail = self._detail()
        print(f"{self._what} ({passed:.0f} s){f': {detail}' if detail else ''}", file=sys.stderr, flush=True)


def known_names(places: Places, names: Sequence[str]) -> list[str]:
    """Return the names that are asked for, else all that are known there. Ends the command if one of them is not."""
    known = places.names()
    for name in names:
        if name not in known:
            have = ", ".join(known) or "none"
            print(f"metaq: no server was started as {name} in {places.folder} (there are: {have})", file=sys.stderr)
            raise typer.Exit(EXIT_NOT_FOUND)
    return list(names) or known


def description_json(what: Description) -> dict[str, Any]:
    """Return a description for JSON output."""
    return {
        "name": what.name,
        "server": what.server,
        "pid": what.pid,
        "since": iso_time(what.since_ms),
        "ready": iso_time(what.ready_ms or 0),
        "addresses": what.addresses,
        "store": what.data,
        "log": what.log,
        "arguments": what.arguments,
        "folder": what.folder,
        "ended": {"time": iso_time(what.ended.ms), "exit_code": what.ended.code} if what.ended is not None else None,
    }
