"""A list of Spark SQL expressions, as an option gives it: `upper(text) as body, 'a,b' as tag`.

Spark parses one expression at a time, so the list is cut here, at the commas that lie in no quotes, brackets or comment.
"""

from __future__ import annotations

import re
from typing import Final

from metaq.errors import ConfigError

_TOKEN: Final = re.compile(
    r"""
    (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<comma>,)
    | (?P<raw>(?<!\w)[rR](?:'[^']*'|"[^"]*"))         # r'\d' keeps its backslashes
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>`[^`]*`)
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<broken>['"`]|/\*)
    """,
    re.VERBOSE | re.DOTALL,
)
_PAIRS: Final = {")": "(", "]": "["}


def split_expressions(text: str | None, option: str) -> list[str]:
    """The expressions of a list, without the space around them. None and an empty text: there are none.

    Raises ConfigError: a quote or bracket that does not end, or nothing between two commas; names the `option`.
    """
    if text is None or not text.strip():
        return []
    found, begin, inside = list[str](), 0, list[str]()
    for token in _TOKEN.finditer(text):
        kind, value = token.lastgroup, token.group()
        if kind == "broken":
            raise ConfigError(f"{option}: what begins at {text[token.start() :][:40]!r} does not end")
        if kind == "open":
            inside.append(value)
        elif kind == "close":
            if not inside or inside.pop() != _PAIRS[value]:
                raise ConfigError(f"{option}: {value} closes nothing at {text[token.start() :][:40]!r}")
        elif kind == "comma" and not inside:
            found.append(text[begin : token.start()])
            begin = token.end()
    if inside:
        raise ConfigError(f"{option}: {inside[-1]} is not closed in {text.strip()[:200]!r}")
    stripped = [one.strip() for one in (*found, text[begin:])]
    if not all(stripped):
        raise ConfigError(f"{option}: nothing lies between two commas of {text.strip()[:200]!r}")
    return stripped
