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
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="the shell")], as_json: AsJson = False
) -> None:
    """Print the completion script of a shell: commands, options, and names of topics and groups.

    Save it where the shell reads completions at its start, as the examples do.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="metaq", complete_var="_METAQ_COMPLETE", shell=shell.value)
    if as_json:
        print_json({"shell": shell.value, "script": script})
    else:
        print(script)
