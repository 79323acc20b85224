"""Java properties: the text format of RocketMQ's files, and of several of MetaQ 1.x's."""

from __future__ import annotations

import re
from collections.abc import Iterator


def read_properties(text: str) -> dict[str, str]:
    r"""Parse Java properties: `#` and `!` comments; `=`, `:` or a blank between key and value; `\` escapes, and joins
    lines."""
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)\Z", line, re.DOTALL)
        if match and match.group(1):
            # Java keeps blanks at the end of a value; nobody means them.
            pairs[_unescape(match.group(1))] = _unescape(match.group(2)).rstrip()
    return pairs


def _logical_lines(text: str) -> Iterator[str]:
    joined = ""
    for raw in text.splitlines():
        line = raw.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        joined += line
        # An odd number joins lines: `\\` is a backslash.
        trailing = len(joined) - len(joined.rstrip("\\"))
        if trailing % 2:
            joined = joined[:-1]
            continue
        yield joined
        joined = ""
    if joined:
        yield joined


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        word = match.group(1)
        if word[0] == "u" and len(word) == 5:
            return chr(int(word[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(word, word)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, text, flags=re.DOTALL)
