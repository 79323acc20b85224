"""`metaq status`: the servers that `metaq start` has started, and how they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.cli.output import AsJson, print_json, print_table, span
from metaq.cli.servers.background import RunDir, description_json, known_names

if TYPE_CHECKING:
    from metaq.app.background.looking import Look

# Of the Linux Standard Base, for `status`.
_RUNS: Final = 0
_DIED: Final = 1
_DOES_NOT_RUN: Final = 3


def status(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="names of servers (default: all)")
    ] = None,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the servers that `metaq start` has started: state, age, addresses, store folder and log.

    Exit codes, as of a service: 0 all shown run, 1 one has died and left its pid file, 3 one does not run, or there is none.
    """
    import os

    from metaq.app.background.looking import State, look_at
    from metaq.app.background.places import Places, run_folder

    places = Places(run_folder(run_dir, os.environ))
    looks = look_at(places, known_names(places, names or []))
    if as_json:
        print_json([_look_json(look) for look in looks])
    elif looks:
        _print(looks)
    else:
        print(f"no server was started in {places.folder}")
    states = {look.state for look in looks}
    if State.DIED in states:
        raise typer.Exit(_DIED)
    raise typer.Exit(_RUNS if looks and all(state.runs for state in states) else _DOES_NOT_RUN)


def _look_json(look: Look) -> dict[str, Any]:
    known = description_json(look.description) if look.description is not None else {}
    return {**known, "name": look.name, "state": look.state.value, "pid": look.pid, "no_answer": list(look.closed)}


def _print(looks: list[Look]) -> None:
    from metaq.clock import SYSTEM

    now, rows = SYSTEM.now_ms(), []
    for look in looks:
        what = look.description
        if what is None:
            rows.append([look.name, "", look.state.value, look.pid or "", "", "", "", ""])
            continue
        ended = what.ended
        since = what.since_ms if look.state.runs or ended is None else ended.ms
        shown = [f"{kind} {address}" for kind, address in what.addresses.items()] if look.state.runs else []
        state = look.state.value
        if not look.state.runs and ended is not None and ended.code:
            state += f" (exit code {ended.code})" if ended.code > 0 else f" (signal {-ended.code})"
        if look.closed:
            state += f" ({', '.join(look.closed)})"
        age = span((now - since) / 1000)
        rows.append([look.name, what.server, state, look.pid or "", age, ", ".join(shown), what.data, what.log])
    print_table(("name", "server", "state", "pid", "since", "addresses", "store", "log"), rows)
