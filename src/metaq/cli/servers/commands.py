"""The servers' commands as typer has them: help, errors, completion, and command lines that `flags.read_plain` leaves to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from metaq.cli.servers.flags import SERVERS, Flag, flags_of, no_values

_TEXT = """{summary}

-o key=value sets any option of docs/configuration.md. The server prints one line that begins with `ready` when it accepts
connections. SIGTERM and Ctrl-C stop it cleanly (exit code 0); SIGHUP makes it read FILE again and apply the options that
docs/configuration.md calls hot. Other exit codes: 1 failed, 2 wrong usage or configuration.
"""


def server_function(server: str, summary: str) -> Callable[..., None]:
    """Return the function of a server's command, with the parameters that typer makes flags of."""

    def run(context: typer.Context, **values: Any) -> None:
        if context.invoked_subcommand is not None:
            if given := sorted(name for name, value in values.items() if value):
                raise typer.BadParameter(
                    f"options go behind the command: metaq {server} {context.invoked_subcommand} ... "
                    f"(found before it: {', '.join(given)})"
                )
            return
        from metaq.cli.servers import serve

        raise typer.Exit(
            serve.main(server, {**no_values(server), **{name: one for name, one in values.items() if one is not None}})
        )

    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *parameters_of(flags_of(server))]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = _TEXT.format(summary=summary)
    return run


def parameters_of(flags: Sequence[Flag]) -> list[inspect.Parameter]:
    """Return the parameters that typer makes these flags of."""
    typed = [(flag.name, *_typed(flag)) for flag in flags]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, keyword, default=usual, annotation=kind) for name, kind, usual in typed]


def _typed(flag: Flag) -> tuple[Any, Any]:
    if flag.kind is bool:
        return Annotated[bool, typer.Option(*flag.texts, help=flag.help)], False
    kind: Any = list[str] if flag.kind is list else flag.kind
    return Annotated[kind | None, typer.Option(*flag.texts, metavar=flag.metavar, help=flag.help)], None


up = server_function("up", SERVERS["up"])
