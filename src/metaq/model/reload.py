"""What became of a configuration that was read again."""

from __future__ import annotations

from msgspec import Struct


class Reloaded(Struct, frozen=True):
    """Sentences for people, one for each matter."""

    file: str
    changed: tuple[str, ...] = ()
    """What is in force now."""
    waiting: tuple[str, ...] = ()
    """What is not: it needs a restart, or cannot be."""
    warnings: tuple[str, ...] = ()
    """What the file says without effect."""
