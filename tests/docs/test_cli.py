"""docs/cli.md shows commands that exist, with flags that exist, and its table has every command."""

from __future__ import annotations

import re
import shlex

import pytest
from tools.cli_page import INTRODUCTION, SESSION, WITH_ACCOUNTS, leaves, table

from metaq.cli.commands import all_commands
from tests.support import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text()
ALL = all_commands()


def test_the_table_has_every_command():
    """As the tool makes it: a new command, or another summary, needs a new page (python -m tools.cli_page > docs/cli.md)."""
    assert PAGE.endswith(table())
    assert PAGE.startswith(INTRODUCTION)


def test_the_session_is_the_tools():
    """Every line of it is on the page, in its order, with what it printed."""
    lines = [line for part in (*SESSION, WITH_ACCOUNTS) for line in part.lines]
    assert re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE) == lines
    assert "Traceback" not in PAGE


@pytest.mark.parametrize("line", re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE))
def test_every_line_is_a_command_with_its_flags(line):
    """As typer has them."""
    words = shlex.split(re.search(r"metaq [^|]*(\|\| [^|]*)?", line)[0])[1:]
    command = ALL
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    for word in words:
        if re.match(r"--?[a-zA-Z]", word):
            assert any(word in parameter.opts for parameter in command.params), word


def test_the_session_shows_most_commands():
    """Every group that needs nothing but a broker is in it."""
    text = "\n".join(line for part in (*SESSION, WITH_ACCOUNTS) for line in part.lines)
    shown = {path for path, _ in leaves(ALL) if re.search(rf"metaq {re.escape(path)}\b", text)}
    groups = {path.split()[0] for path in shown}
    assert groups >= {
        "send", "consume", "bench", "message", "topic", "group", "cluster", "context", "quota", "acl", "transaction", "meta1",
        "store", "pipeline", "doctor", "broker", "start", "stop", "status",
    }  # fmt: skip
