"""Outcome of a configuration that was read again."""

from __future__ import annotations

from msgspec import Struct


class ReloadedFile(Struct, frozen=True):
    """Sentences for people, one for each change."""

    file: str
    """Path of the file that was read again."""
    changed: tuple[str, ...] = ()
    """Changes that are in force now."""
    waiting: tuple[str, ...] = ()
    """Changes that are not in force: they need a restart, or cannot be made."""
    warnings: tuple[str, ...] = ()
    """What the file says without effect here."""
