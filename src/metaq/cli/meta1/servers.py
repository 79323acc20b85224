"""`metaq meta1 start`, `stop`, `restart` and `status`: the words of 1.x's `metaServer.sh` for brokers in the background."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.cli.output import EXIT_FAILED, EXIT_NOT_FOUND, AsJson, print_json
from metaq.cli.servers.background import RunDir, description_json, known_names
from metaq.cli.servers.start import READY_SECONDS, ready_line, start_again, start_function
from metaq.cli.servers.status import status
from metaq.cli.servers.stop import STOP_SECONDS, stop, stop_one

if TYPE_CHECKING:
    from metaq.app.background.places import Places

_BROKERS: Final = frozenset({"broker", "up"})


def add_to(app: typer.Typer) -> None:
    """Add the commands to `metaq meta1`."""
    app.command("start")(start_function("broker"))
    app.command("stop")(stop)
    app.command("restart")(restart)
    app.command("status")(status)


def restart(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="name of the broker (default: the only one that was started)")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="longest wait for the clean stop, and again for the start")
    ] = STOP_SECONDS,
    force: Annotated[
        bool, typer.Option("--force", help="kill it when it has not ended in time; its start recovers the store")
    ] = False,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """Restart a broker that was started in the background, with the same arguments, folder and log.

    A broker that does not run is started. Exit codes: 0 it is ready, 1 it could not be stopped, or ended at its start, 2 its configuration
    is wrong (the running broker is left alone), 3 no broker has that name.
    """
    from metaq.app.background.places import Places, run_folder
    from metaq.cli.servers import serve
    from metaq.cli.servers.flags import read_plain

    places = Places(run_folder(run_dir, os.environ))
    chosen = _one(places, name)
    what = places.find(chosen).description
    values: dict[str, Any] | None = None if what is None else read_plain(what.server, what.arguments)
    if what is None or values is None:
        print_to_stderr(
            f"metaq: the arguments of {chosen} cannot be read in {places.folder}: stop it, and start it with them"
        )
        raise typer.Exit(EXIT_FAILED)
    try:
        place = contextlib.chdir(what.folder)
        with place:
            serve.configure(what.server, dict(values))  # what is wrong with it is said before the old one is stopped
            stopped = stop_one(places, chosen, timeout, force=force, quiet=as_json)
            if stopped["outcome"] == "still running":
                raise typer.Exit(EXIT_FAILED)
            started = start_again(places, what, values, max(timeout, READY_SECONDS))
    except (FileNotFoundError, NotADirectoryError) as fault:
        print_to_stderr(f"metaq: {chosen} was started in {what.folder}, which is not there any more: {fault.strerror}")
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        print_json({"stopped": stopped, "started": description_json(started)})
    else:
        print(ready_line(started))


def print_to_stderr(text: str) -> None:
    typer.echo(text, err=True)


def _one(places: Places, name: str | None) -> str:
    if name is not None:
        return known_names(places, [name])[0]
    brokers = [known for known in places.names() if places.find(known).server in _BROKERS]
    if not brokers:
        print_to_stderr(f"metaq: no broker was started in {places.folder}; `metaq meta1 start -f server.ini` does")
        raise typer.Exit(EXIT_NOT_FOUND)
    if len(brokers) > 1:
        raise typer.BadParameter(f"several were started here: {', '.join(brokers)}; name the one to restart")
    return brokers[0]
