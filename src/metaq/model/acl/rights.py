"""Rights of an account to a topic or group: DENY, PUB, SUB and PUB|SUB, in RocketMQ's words and numbers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class Right(enum.IntFlag):
    """What an account may do, or what a request needs; the numbers are RocketMQ's."""

    DENY = 1
    """Nothing, whatever else is set."""
    ANY = 2
    """Needed by requests that either right allows. Never given."""
    PUB = 4
    """Send messages."""
    SUB = 8
    """Receive messages, and keep the group's position."""

    def allows(self, needed: Right) -> bool:
        """Return whether who has these rights may do what needs `needed`: one of its bits suffices."""
        if self & Right.DENY:
            return False
        if needed & Right.ANY:
            return bool(self & (Right.PUB | Right.SUB))
        return bool(self & needed)

    @property
    def text(self) -> str:
        """The right as ACL files write it."""
        return _TEXT_OF[self]


BOTH: Final = Right.PUB | Right.SUB

_RIGHT_OF: Final[Mapping[str, Right]] = {
    "DENY": Right.DENY,
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": BOTH,
    "SUB|PUB": BOTH,
}
_TEXT_OF: Final = {
    Right.DENY: "DENY",
    Right.ANY: "PUB or SUB",
    Right.PUB: "PUB",
    Right.SUB: "SUB",
    BOTH: "PUB|SUB",
}


class BadRight(ValueError):
    """A text that is no right. RocketMQ reads it as DENY, without a word."""


def parse_right(text: str) -> Right:
    """Parse DENY, PUB, SUB or PUB|SUB. Raises BadRight."""
    right = _RIGHT_OF.get(text.strip())
    if right is None:
        shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
        raise BadRight(f"{shown} is no permission: write DENY, PUB, SUB or PUB|SUB")
    return right
