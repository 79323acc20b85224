"""`--format`: a text for each message, with the letters of kcat."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

from metaq.cli.output import iso_time

if TYPE_CHECKING:
    from metaq.model import StoredMessage

_KEPT_BY_US: Final = frozenset({"KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER", "TRACE_ON"})


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def headers_of(message: StoredMessage) -> str:
    """Return the properties that a user has set, as `name=value,...`."""
    return ",".join(f"{name}={value}" for name, value in message.properties.items() if name not in _KEPT_BY_US)


LETTERS: Final[dict[str, tuple[str, Callable[[StoredMessage], str]]]] = {
    "s": ("body", lambda one: _text(one.body)),
    "S": ("its length in bytes", lambda one: str(len(one.body))),
    "k": ("keys, blank-separated", lambda one: " ".join(one.keys)),
    "g": ("tag", lambda one: one.tag or ""),
    "h": ("properties: name=value,...", headers_of),
    "t": ("topic", lambda one: one.topic),
    "b": ("broker", lambda one: one.queue.broker),
    "p": ("queue", lambda one: str(one.queue_id)),
    "o": ("offset in it", lambda one: str(one.queue_offset)),
    "T": ("time stored, ms since 1970", lambda one: str(one.store_ms)),
    "D": ("time stored, ISO 8601", lambda one: iso_time(one.store_ms) or ""),
    "i": ("message id", lambda one: one.message_id),
    "%": ("a per cent sign", lambda _one: "%"),
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_PIECE: Final = re.compile(r"%(?P<letter>.?)|\\(?P<escape>.?)", re.DOTALL)


def formatter(text: str) -> Callable[[StoredMessage], str]:
    """Return what makes a text of a message. Raises: typer.BadParameter: a letter that there is not."""
    pieces: list[str | Callable[[StoredMessage], str]] = []
    place = 0
    for found in _PIECE.finditer(text):
        pieces.append(text[place : found.start()])
        place = found.end()
        if (letter := found["letter"]) is not None:
            if letter not in LETTERS:
                known = " ".join(f"%{one}" for one in LETTERS)
                raise typer.BadParameter(f"%{letter} is none of {known}", param_hint="--format")
            pieces.append(LETTERS[letter][1])
        else:
            escape = found["escape"] or ""
            pieces.append(_ESCAPES.get(escape, f"\\{escape}"))
    pieces.append(text[place:])
    return lambda message: "".join(one if isinstance(one, str) else one(message) for one in pieces)
