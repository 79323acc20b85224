"""`--acl-file` of every command that asks servers, and why there is no option for a secret."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final

import typer
import typer.main

from metaq.cli import origins
from metaq.cli.completing import complete_contexts
from metaq.cli.output import ACL_FILE_VARIABLE

_SERVER_PARAMETERS: Final = frozenset({"namesrv", "address"})
"""A command that has one of these parameters asks servers."""


def add_shared_options(command: Any) -> None:
    """Add the options to a command, or to all of a group that ask servers."""
    _add(command, typer.main.get_command(_with_options()).params)


def _add(command: Any, options: list[Any]) -> None:
    if hasattr(command, "commands"):
        for one in command.commands.values():
            _add(one, options)
        # One that does something by itself, as `metaq cluster`; `metaq broker` runs a server, which signs by its own options.
        if {"namesrv", "as_json"} <= {parameter.name for parameter in command.params}:
            command.params.extend(options)
    elif _SERVER_PARAMETERS.intersection(parameter.name for parameter in command.params):
        asks_name_servers = any(parameter.name == "namesrv" for parameter in command.params)
        command.params.extend(one for one in options if asks_name_servers or one.name != "context")


def _take(value: str | None) -> None:
    """Have the clients of this process, and of those that it starts, sign with the file."""
    if value is None:
        return
    for name in ("METAQ_ACCESS_KEY", "METAQ_SECRET_KEY", "METAQ_SECURITY_TOKEN"):
        os.environ.pop(name, None)
    origins.put(os.environ, ACL_FILE_VARIABLE, value, "--acl-file")


def _choose(value: str | None) -> None:
    """Have this process, and those that it starts, ask the cluster of a context."""
    if value is not None:
        from metaq.cli.contexts.files import CHOSEN_VARIABLE

        origins.put(os.environ, CHOSEN_VARIABLE, value, "--context")


def _refuse(value: str | None) -> None:
    if value is not None:
        raise typer.BadParameter(
            "what is on a command line can be read by every user of this machine (ps) and stays in the shell's history: put "
            "accessKey and secretKey into a file, chmod 600, and give --acl-file FILE, or set METAQ_ACCESS_KEY and METAQ_SECRET_KEY"
        )


def _with_options() -> typer.Typer:
    """An application of one command, whose options are those that all get."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def options(
        acl_file: Annotated[
            str | None,
            typer.Option(
                "--acl-file",
                metavar="FILE",
                callback=_take,
                expose_value=False,
                help=f"sign requests with the keys in this file, a RocketMQ tools.yml; default {ACL_FILE_VARIABLE}",
            ),
        ] = None,
        access_key: Annotated[
            str | None, typer.Option("--access-key", hidden=True, callback=_refuse, expose_value=False)
        ] = None,
        secret_key: Annotated[
            str | None, typer.Option("--secret-key", hidden=True, callback=_refuse, expose_value=False)
        ] = None,
        security_token: Annotated[
            str | None, typer.Option("--security-token", hidden=True, callback=_refuse, expose_value=False)
        ] = None,
        context: Annotated[
            str | None,
            typer.Option(
                "--context",
                metavar="NAME",
                is_eager=True,
                callback=_choose,
                expose_value=False,
                autocompletion=complete_contexts,
                help="use the cluster of this context (`metaq context add`); default METAQ_CONTEXT, else the context in use",
            ),
        ] = None,
    ) -> None:
        del context, acl_file, access_key, secret_key, security_token

    return app
