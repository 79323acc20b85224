"""`metaq stop`: ends servers that `metaq start` has started."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.cli.output import EXIT_FAILED, AsJson, print_json
from metaq.cli.servers.background import RunDir, Waiting, known_names

if TYPE_CHECKING:
    from metaq.app.background.places import Places

STOP_SECONDS: Final = 120.0


def stop(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="names of servers (default: the only one that runs)")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="stop all that run, name servers last")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="longest wait for the clean stop of each")
    ] = STOP_SECONDS,
    force: Annotated[
        bool,
        typer.Option("--force", help="kill a server that has not ended in time; its next start recovers the store"),
    ] = False,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """Stop servers that `metaq start` has started, cleanly, and wait until they have ended.

    A server that does not run any more is not a failure. Exit codes: 0 none of them runs, 1 one still runs, 3 no server has that name.
    """
    import os

    from metaq.app.background.places import Places, run_folder

    places = Places(run_folder(run_dir, os.environ))
    chosen = _chosen(places, names or [], every=every)
    results = [stop_one(places, name, timeout, force=force, quiet=as_json) for name in chosen]
    if as_json:
        print_json(results)
    elif not results:
        print(f"no server that was started in {places.folder} is running")
    if any(result["outcome"] == "still running" for result in results):
        raise typer.Exit(EXIT_FAILED)


def _chosen(places: Places, names: list[str], *, every: bool) -> list[str]:
    known = known_names(places, names)
    if names:
        return known
    running = [places.find(name) for name in known]
    running = [found for found in running if found.pid is not None]
    if len(running) > 1 and not every:
        raise typer.BadParameter(
            f"several run: {', '.join(found.name for found in running)}; give the names of those to stop, or --all"
        )
    # A broker says good-bye to its name server.
    return [found.name for found in sorted(running, key=lambda found: found.server == "namesrv")]


def stop_one(places: Places, name: str, timeout: float, *, force: bool, quiet: bool) -> dict[str, Any]:
    """Stop a server, and say how that went unless `quiet`. Returns it for JSON output; `outcome` may be `still running`."""
    from pathlib import Path

    from metaq.app.background.starting import tail
    from metaq.app.background.stopping import StillRuns, StopOutcome
    from metaq.app.background.stopping import stop as stop_server
    from metaq.clock import SYSTEM

    found = places.find(name)
    log = Path(found.description.log) if found.description is not None else places.log(name)

    def last_line() -> str:
        return next(iter(tail(log, lines=1)), "")

    begun = SYSTEM.monotonic()
    try:
        outcome: str = stop_server(places, name, timeout, Waiting(f"{name} is stopping", last_line), force=force)
    except StillRuns as error:
        outcome = "still running"
        remedy = (
            "" if force else f"; it may be flushing: its log {log} says so, `metaq stop {name} --timeout S` waits longer, and --force kills it"
        )  # fmt: skip
        print(f"metaq: {error}{remedy}", file=sys.stderr)
    seconds = round(SYSTEM.monotonic() - begun, 1)
    if not quiet and outcome != "still running":
        print({
            StopOutcome.CLEAN: f"{name} has stopped (process {found.pid}, {seconds} s)",
            StopOutcome.KILLED: f"{name} was killed (process {found.pid}, after {seconds} s): its next start recovers the store",
            StopOutcome.NOT_RUNNING: f"{name} does not run",
        }[StopOutcome(outcome)])  # fmt: skip
    return {"name": name, "pid": found.pid, "outcome": outcome, "seconds": seconds}
