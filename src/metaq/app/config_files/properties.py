"""Java properties: the text format of RocketMQ's files, and of several of MetaQ 1.x's. javaproperties reads them."""

from __future__ import annotations

import re
from typing import Final

from metaq.errors import ConfigError

_LINE_END: Final = re.compile(r"\r\n?|\n")
"""As Java counts lines: Python's `splitlines` ends them at U+2028 and the like, too."""


def read_properties(text: str, where: str) -> dict[str, str]:
    r"""Parse Java properties: `#` and `!` comments; `=`, `:` or a blank between key and value; `\` escapes, and joins
    lines. Of two values of a key the last one counts.

    Args: where: the file, for errors.
    Raises ConfigError: a `\u` without four hexadecimal digits behind it, with the number of its line (Java reads no such file);
        javaproperties is not installed.
    """
    try:
        import javaproperties  # here and not above: it takes 30 ms, and most starts have no such file
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"{where}: files of properties need the package {missing.name}: pip install javaproperties"
        ) from None

    pairs: dict[str, str] = {}
    line = 1
    try:
        for part in javaproperties.parse(text):
            # Java takes a line without a key, and keeps blanks at the end of a value; nobody means them.
            if isinstance(part, javaproperties.KeyValue) and part.key:
                pairs[part.key] = part.value.rstrip()
            line += len(_LINE_END.findall(part.source))
    except javaproperties.InvalidUEscapeError as fault:
        raise ConfigError(
            f"{where}, line {line}: {fault.escape} is no character: \\u has four hexadecimal digits behind it, and a backslash "
            "that is meant as one is written twice"
        ) from None
    return pairs
