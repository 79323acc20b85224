"""`metaq start`: a server in the background, with the flags that it has in the foreground."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.cli.groups import App, MetaqGroup
from metaq.cli.output import EXIT_USAGE, AsJson, print_json
from metaq.cli.servers.background import RunDir, Waiting, description_json
from metaq.cli.servers.commands import parameters_of
from metaq.cli.servers.flags import PLUGINS, SERVERS, flags_of, no_values, words_of

if TYPE_CHECKING:
    from metaq.app.background.places import Description, Places
    from metaq.app.background.starting import LogSettings

MIB: Final = 1024 * 1024
READY_SECONDS: Final = 120.0
_METAQ1: Final = frozenset({"local", "slave"})
"""Words behind 1.x's `metaServer.sh start`."""


class _Servers(MetaqGroup):
    """`metaq start`. Knows what users of 1.x type."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in PLUGINS:
            raise typer.BadParameter(
                f"`start {args[0]}` is MetaQ 1.x's: `metaq start broker -f server.ini --{args[0]} FILE` starts a broker with its files "
                "(docs/metaq1-slaves.md)"
            )
        if args and args[0] in _METAQ1:
            raise typer.BadParameter(
                f"`start {args[0]}` is MetaQ 1.x's: `metaq start broker -f server.ini` starts a broker with its file, and with "
                "`--metaslave async_slave.properties` a slave (docs/metaq1-slaves.md); ZooKeeper is a server of its own here"
            )
        found: tuple[str | None, Any, list[str]] = super().resolve_command(ctx, args)
        return found


app = App("Start a server in the background (docs/running.md).", group=_Servers)

_WHAT: Final = {"namesrv": "a name server", "broker": "a broker", "up": "a name server and a broker in one process"}
_TEXT = """Start {what} in the background, and wait until it accepts clients.

It takes the options of `metaq {server}`; -o key=value sets any option of docs/configuration.md. The server keeps running when the
terminal is closed; `metaq stop` ends it, `metaq status` shows it. Exit codes: 0 it is ready, 1 it has ended, is not ready yet, or runs
already, 2 wrong usage or configuration.
"""


def _own_parameters() -> list[inspect.Parameter]:
    """Return the parameters that each server has in the background only."""
    options: Mapping[str, tuple[Any, Any]] = {
        "called": (
            Annotated[
                str | None,
                typer.Option("--as", metavar="NAME", help="name of the server for stop and status (default: --name, else broker, namesrv or up)"),
            ],
            None,
        ),
        "run_dir": (RunDir, None),
        "log": (Annotated[str | None, typer.Option(metavar="FILE", help="log file (default NAME.log in the run dir)")], None),
        "log_size": (
            Annotated[int, typer.Option("--log-size", min=0, metavar="MIB", help="size at which a new log file is begun; 0: never")],
            64,
        ),
        "log_files": (
            Annotated[int, typer.Option("--log-files", min=1, max=1000, metavar="N", help="number of older log files to keep")],
            9,
        ),
        "timeout": (
            Annotated[float, typer.Option(min=0, metavar="S", help="longest wait until it is ready; the server goes on starting after that")],
            READY_SECONDS,
        ),
        "as_json": (AsJson, False),
    }  # fmt: skip
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, keyword, default=usual, annotation=kind) for name, (kind, usual) in options.items()]


def start_function(server: str) -> Callable[..., None]:
    """Return the function of a command that starts a server of this kind, with the parameters that typer makes flags of."""
    flags = [flag for flag in flags_of(server) if flag.name != "print_config"]

    def run(**values: Any) -> None:
        own = {name: values.pop(name) for name in [one.name for one in _own_parameters()]}
        _start(server, {**no_values(server), **{name: one for name, one in values.items() if one is not None}}, own)

    parameters = [*parameters_of(flags), *_own_parameters()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = _TEXT.format(what=_WHAT[server], server=server)
    return run


def _start(server: str, values: dict[str, Any], own: Mapping[str, Any]) -> None:
    import os
    import pathlib

    from metaq.app.background.places import Places, run_folder
    from metaq.app.background.starting import LogSettings
    from metaq.cli.servers import serve

    serve.configure(server, values)  # what is wrong with it is said before anything is touched
    places = Places(run_folder(own["run_dir"], os.environ))
    name = own["called"] or values.get("name") or server
    path = pathlib.Path(own["log"]).expanduser().absolute() if own["log"] else places.log(name)
    started = _run(
        places, name, server, values, LogSettings(path, own["log_size"] * MIB, own["log_files"]), own["timeout"]
    )
    if own["as_json"]:
        print_json(description_json(started))
    else:
        print(ready_line(started))


def start_again(places: Places, what: Description, values: Mapping[str, Any], timeout: float) -> Description:
    """Start a server that has ended, as `what` says that it was started; `values` are its arguments. Raises as `start`."""
    import pathlib

    from metaq.app.background.starting import LogSettings

    log = LogSettings(pathlib.Path(what.log), what.log_bytes, what.log_files)
    return _run(places, what.name, what.server, values, log, timeout)


def _run(
    places: Places, name: str, server: str, values: Mapping[str, Any], log: LogSettings, timeout: float
) -> Description:
    from metaq.app.background.starting import EndedAtStart, start_in_background, tail

    def command(report: int) -> list[str]:
        # -P: a module in the working directory must not stand in for one of ours.
        program = [sys.executable, "-P", "-m", "metaq.cli.servers.child"]
        place = [str(places.folder), name, str(report), str(log.path), str(log.bytes_max), str(log.older)]
        return [*program, *place, server, *words_of(server, values)]

    def last_line() -> str:
        return next(iter(tail(log.path, lines=1)), "")

    try:
        return start_in_background(places, name, command, log, timeout, Waiting(f"{name} is starting", last_line))
    except EndedAtStart as error:
        print(f"metaq: {error}", file=sys.stderr)
        raise typer.Exit(error.code if error.code in {1, EXIT_USAGE} else 1) from None


def ready_line(started: Description) -> str:
    """Return what is said of a server that is ready."""
    where = ", ".join(f"{kind} {address}" for kind, address in started.addresses.items())
    return f"{started.name} is ready (process {started.pid}): {where}\nits log is {started.log}; `metaq stop {started.name}` ends it"


for _server in SERVERS:
    app.command(_server)(start_function(_server))
