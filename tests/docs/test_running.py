"""docs/running.md, and what docs/addresses.md says of exchanged name servers: commands, flags, defaults, files and states as they are."""

from __future__ import annotations

import re
import shlex

import pytest

from metaq.app.background.looking import State
from metaq.app.background.places import Places
from metaq.cli.commands import all_commands
from tests.support import ROOT

PAGE = (ROOT / "docs" / "running.md").read_text()
LINES = sorted({
    line.partition("#")[0].strip()
    for page in (PAGE, (ROOT / "docs" / "addresses.md").read_text())
    for line in [*re.findall(r"^(metaq [^\n]*)$", page, re.MULTILINE), *re.findall(r"`(metaq [a-z][^`]*)`", page)]
    if "|" not in line and "..." not in line
})  # fmt: skip
ALL = all_commands()


@pytest.mark.parametrize("line", [line for line in LINES if "KEY" not in line])
def test_every_line_is_a_command_with_its_flags(line):
    words = [word for word in shlex.split(line.replace("[", "").replace("]", "")) if word != "\\"][1:]
    command = ALL
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    for word in words:
        if re.match(r"--?[a-zA-Z]", word):
            assert any(word in (*parameter.opts, *parameter.secondary_opts) for parameter in command.params), word


def test_defaults_are_those_of_the_flags():
    """Times, sizes and counts that the page names."""
    start = ALL.commands["start"].commands["broker"]
    usual = {parameter.opts[-1]: parameter.default for parameter in (*start.params, *ALL.commands["stop"].params)}
    for flag, text in (("--timeout", "{:.0f} s"), ("--log-size", "{} MiB"), ("--log-files", "{}")):
        shown = text.format(usual[flag])
        assert re.search(rf"`{flag}`\s+\({re.escape(shown)}[:;)]", PAGE), (flag, shown)


def test_states_and_files_are_all_there(tmp_path):
    table = dict(re.findall(r"^\| ([a-z ]+) \| [^|]* \| (\d) \|$", PAGE, re.MULTILINE))
    assert set(table) == {state.value for state in State}
    assert {State(name).runs for name, code in table.items() if code == "0"} == {True}
    places = Places(tmp_path)
    for path in (places.pid_file("NAME"), places.log("NAME")):
        assert f"| `{path.name}` |" in PAGE
