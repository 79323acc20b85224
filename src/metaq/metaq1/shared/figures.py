"""The question for a server's figures."""

from __future__ import annotations

from typing import Final

from metaq.metaq1.conversation.answers import Reply
from metaq.metaq1.shared.links import Link
from metaq.wire.metaq1.commands import StatsLine

STATS_SECONDS: Final = 3.0
"""Longest wait for a server's figures, as in Java."""


async def ask_stats(link: Link, item: str | None, action: str) -> Reply:
    """In the loop: return the answer to `stats`, whatever its code. `action`: what the server is to do, for errors.

    Raises ConnectionFailed, RequestTimeout.
    """
    return await link.ask(lambda opaque: StatsLine(item, opaque), action, STATS_SECONDS)
