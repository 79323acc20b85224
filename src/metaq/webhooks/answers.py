"""What an answer of a target says: done, failed, not now, nobody there, or never again."""

from __future__ import annotations

import email.utils
import enum
import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

RETRY_AFTER: Final = "retry-after"
TEXT_CHARS_MAX: Final = 200
"""Of what a target says in a body: for logs and `metaq webhook show`."""
_OVERLOADED: Final = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of a target, or of a proxy before it, that has not judged the message."""
_WITH_TIME: Final = frozenset({429, 503})
_GONE: Final = 410


class Verdict(enum.Enum):
    """What becomes of a message that was posted."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """The target, or its proxy, answered otherwise, or too late, or broke off."""
    BUSY = "busy"
    """The target said when it wants to be asked again."""
    UNREACHABLE = "unreachable"
    """No connection was made, so the message has nothing to do with it."""
    GONE = "gone"
    """The target does not want to be asked any more (410)."""


class Answer(Struct, frozen=True):
    """What came of one attempt."""

    verdict: Verdict
    text: str
    """For people: `503 Service Unavailable: try later`, or what went wrong."""
    status: int = 0
    """Of HTTP; 0: there was no answer."""
    wait: float = 0.0
    """Seconds that the target asks for, with BUSY."""
    judged: bool = False
    """Whether a target that works has judged the message: its next failures are the message's, not an outage's."""


def of_status(status: int, fields: Mapping[str, str], body: bytes, now_seconds: float, wait_max: float) -> Answer:
    """Return the answer of a status line and what came with it.

    Args: fields: by names in lower case. body: its beginning. now_seconds: since 1970. wait_max: seconds at most.
    """
    text = _told(status, body)
    if 200 <= status <= 299:
        return Answer(Verdict.DELIVERED, text, status, judged=True)
    if status == _GONE:
        return Answer(Verdict.GONE, text, status, judged=True)
    if status in _WITH_TIME and (wait := _seconds(fields.get(RETRY_AFTER, ""), now_seconds)) is not None:
        return Answer(Verdict.BUSY, text, status, min(wait, wait_max))
    return Answer(Verdict.FAILED, text, status, judged=status not in _OVERLOADED)


def _seconds(text: str, now_seconds: float) -> float | None:
    """Return the seconds that a Retry-After asks for; None: it is none."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:12])
    try:
        moment = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    left = moment - now_seconds
    return max(0.0, left) if math.isfinite(left) else None


def _told(status: int, body: bytes) -> str:
    said = plain(body)
    return f"status {status}: {said}" if said else f"status {status}"


def plain(body: bytes) -> str:
    """Return the beginning of what a stranger says as one line that does nothing to a terminal or a log."""
    text = body[: 4 * TEXT_CHARS_MAX].decode("utf-8", "replace")
    text = "".join(one if one.isprintable() else " " for one in text)
    return " ".join(text.split())[:TEXT_CHARS_MAX]
