"""Audit records: who asked what of a server, from where, and what became of it (docs/formats/audit-log.md)."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

VALUE_CHARS_MAX: Final = 200
VALUES_MAX: Final = 32
TEXT_CHARS_MAX: Final = 500
HIDDEN: Final = "(hidden)"
_SECRET: Final = re.compile(
    r"secret|passw|token|signature|credential|private|(api|access|private).?key\Z", re.IGNORECASE
)
"""Names of values that may be secrets, whatever request has them. `accessKey` is a name, and stands in `account`."""
_PROTOCOL: Final = frozenset({"Signature", "AccessKey", "SecurityToken", "OnsChannel"})
"""Fields of signed requests, which are no values of theirs."""


class AuditOutcome(enum.Enum):
    """What became of a request."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    """It was tried, and an error came in between: whether it took effect, the text says, or nobody knows."""
    LEFT_OUT = "left-out"
    """No request: so many lines were left out, of one source or because the queue to the file was full."""


class AuditRecord(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of an audit log. Fields that are empty are left out."""

    time: str
    """UTC, `2026-01-31T12:00:00.123Z`."""
    server: str
    """Name of the broker, or `namesrv`."""
    outcome: str
    protocol: str = ""
    """`remoting`, `metaq1` or `http`."""
    request: str = ""
    """Name of the request code, of the 1.x command, or of the operation of HTTP."""
    code: int = 0
    address: str = ""
    """`host:port` of the peer."""
    account: str = ""
    """Access key that the request names. With outcome `done` it is proven; refused ones may have made it up."""
    client: str = ""
    """Client id of the connection's heartbeat."""
    topic: str = ""
    group: str = ""
    values: Mapping[str, str] = {}
    """What the request wants to set, without secrets."""
    reason: str = ""
    """Name of the reason of a refusal."""
    text: str = ""
    """What the client was told."""
    count: int = 0
    """Of `left-out`: how many."""


def shown_values(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the values of a request as they may be shown: bounded, and without secrets."""
    shown = dict[str, str]()
    for name, value in fields.items():
        if name in _PROTOCOL or len(shown) >= VALUES_MAX:
            continue
        text = str(value)
        if _SECRET.search(name) and text:
            text = HIDDEN
        shown[name[:VALUE_CHARS_MAX]] = text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
    return shown
