"""What docs/mirror.md says of options, properties and commands is what the mirror does."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest

from metaq.cli.commands import all_commands
from metaq.model import properties as props
from metaq.pipelines.configuration import configure, describe
from metaq.pipelines.mirror import marks
from metaq.pipelines.mirror.options import MirrorOptions
from metaq.pipelines.mirror.table import RUNS_MAX
from tests.support import ROOT

PAGE = (ROOT / "docs" / "mirror.md").read_text()


def test_the_table_of_options_is_complete():
    """Names, defaults and sentences."""
    written = re.findall(r"^\| `(\w+)` \|(.*?)\| (.*) \|$", PAGE.partition("<!-- options -->")[2], re.MULTILINE)
    assert [(name, default.strip(), text) for name, default, text in written] == describe(MirrorOptions)


def test_the_example_is_a_configuration(tmp_path):
    """And so is what the text proposes for retry topics."""
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mirror.toml").write_text(block)
    options = configure(None, tmp_path / "mirror.toml").options
    assert (options.target_mark, options.group_names) == ("metaq-1:9876", ["mailer", "billing"])
    topics, rename = re.search(r"`(topics = \[.*?\])`, `(rename = .*?)`", PAGE).groups()
    configure("mirror", tomllib.loads(block) | tomllib.loads(f"{topics}\n{rename}"))


def test_every_dropped_property_is_named_and_no_other():
    """Those of the rows that say so."""
    rows = re.findall(r"^\| (`.*?) \| (kept|dropped)", PAGE, re.MULTILINE)
    named = {
        kind: {name for names, found in rows if found == kind for name in re.findall(r"`(\w+)`", names)}
        for kind in ("kept", "dropped")
    }
    assert named["dropped"] == set(marks.DROPPED)
    kept = set(re.findall(r"`(\w+)`", re.search(r"^\| the user's own.*?\|", PAGE, re.MULTILINE)[0])) | named["kept"]
    assert kept <= props.RESERVED | {props.MESSAGE_TYPE}
    assert not kept & set(marks.DROPPED)
    for name in marks.REPLACED:
        assert f"`{name}`" in PAGE
    assert f"at most {RUNS_MAX} runs" in PAGE


@pytest.mark.parametrize("line", sorted(set(re.findall(r"`?(metaq [a-z][^`\n]*)", PAGE))))
def test_every_command_exists_with_its_flags(line):
    """As typer reads it."""
    command, words = all_commands(), shlex.split(line)[1:]
    while words and hasattr(command, "commands"):
        command = command.get_command(None, words.pop(0))
        assert command is not None, line
    command.make_context("metaq", words, resilient_parsing=False)
