"""A line of a server's log, as it is told to administrators."""

from __future__ import annotations

from msgspec import Struct


class LogLine(Struct, frozen=True, rename="camel"):
    """Entry of the answer to LOG_LINES (30026)."""

    at_ms: int
    """When it was written, ms since 1970, by the server's clock."""
    level: str
    """`DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`."""
    logger: str
    """The part of the software that wrote it, such as `metaq.store.recovery`."""
    text: str
    """The line, without the trace of an error; cut after 2000 characters."""
