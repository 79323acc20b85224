"""docs/growth.md shows commands that exist, with flags that exist, and its program runs."""

from __future__ import annotations

import re
import shlex

import pytest

from metaq.admin import Admin
from metaq.cli.commands import all_commands
from metaq.testing import Cluster
from tests.support import ROOT

PAGE = (ROOT / "docs" / "growth.md").read_text()
LINES = sorted({*re.findall(r"^\$ (metaq .*)$", PAGE, re.MULTILINE), *re.findall(r"`(metaq [^`\n]+)`", PAGE)})
ALL = all_commands()


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_a_command_with_its_flags(line):
    words, command = shlex.split(line)[1:], ALL
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert command is not ALL
    assert not (words and hasattr(command, "commands")), f"no such command: {words[0]}"
    for word in words:
        if word.startswith("-"):
            assert any(word in parameter.opts for parameter in command.params), word


def test_the_program_runs(capsys):
    """With a time-out that is over at once: it says what is open, and undoes the drain."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with Cluster(brokers=2) as cluster:
        program = program.replace("localhost:9876", cluster.namesrv).replace("broker-a", "broker-0")
        exec(compile(program.replace("timeout=3600", "timeout=0"), "growth.md", "exec"), {})
        said = capsys.readouterr().out
        assert said.startswith("moving no send for 0 s of 40 s\n")
        assert "broker broker-0 is not empty after 0 s" in said
        with Admin(cluster.namesrv) as admin:
            assert not any(one.draining for one in admin.list_brokers())
