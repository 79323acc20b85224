"""What the tests of several pages do with a page: its programs, its commands, its links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from metaq.cli.commands import all_commands
from tests.support import ROOT

_ALL = all_commands()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def typed(page: str) -> list[str]:
    """The commands of the blocks of bash, in their order, without comments."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("metaq ")]


def mentioned(page: str) -> list[str]:
    """The commands within the lines of the text, and in cells of tables."""
    return re.findall(r"`(metaq [a-z][^`]*)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def check_command(line: str) -> None:
    """Raises AssertionError: there is no command of this name, or it has not this flag."""
    words, command = shlex.split(line)[1:], _ALL
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not words or words[0].startswith("-") or command.params, f"{line}: no such command"
    for word in words:
        if re.match(r"--?[a-zA-Z]", word):
            assert any(word in (*one.opts, *one.secondary_opts) for one in command.params), f"{line}: {word}"


def replaced(text: str, words: Mapping[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text


def headings(page: str) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def dead_links(page: str) -> list[str]:
    """Links of a page of `docs` to a file, or to a heading, that is not there."""
    dead = []
    for target in re.findall(r"\]\(([^):\s]+)\)", page):
        name, _, heading = target.partition("#")
        file = ROOT / "docs" / name
        if not file.exists() or (heading and heading not in headings(file.read_text() if name else page)):
            dead.append(target)
    return dead
