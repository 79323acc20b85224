"""Bytes that may be an estimate, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.amounts import size

if TYPE_CHECKING:
    from metaq.admin.figures.sizes import MessagesSize


def waiting_text(waiting: MessagesSize | None) -> str:
    """Return bytes for people, `~` before an estimate; empty for None."""
    return "" if waiting is None else f"{'' if waiting.exact else '~'}{size(waiting.bytes)}"


def waiting_json(waiting: MessagesSize | None, name: str = "lag_bytes") -> dict[str, object]:
    """Return bytes for programs: `lag_bytes`, null if they are not known, and `lag_bytes_exact`."""
    return {
        name: waiting.bytes if waiting is not None else None,
        f"{name}_exact": waiting is not None and waiting.exact,
    }
