"""`metaq completion`: the script that has a shell complete commands, options, topics and groups."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from metaq.cli.output import AsJson, print_json


class Shell(enum.Enum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="which shell")], as_json: AsJson = False
) -> None:
    """Print what has a shell complete `metaq`: commands, options, and the names of topics and groups of the cluster.

    Put it where the shell reads it at its start, as the examples do.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="metaq", complete_var="_METAQ_COMPLETE", shell=shell.value)
    if as_json:
        print_json({"shell": shell.value, "script": script})
    else:
        print(script)
