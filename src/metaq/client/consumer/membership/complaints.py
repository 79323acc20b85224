"""Warnings that are given once: what goes on failing every second is news only the first time."""

from __future__ import annotations

import logging

log = logging.getLogger("metaq.client")


class Complaints:
    """What a member has warned of and is not over yet."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def once(self, key: str, text: str, level: int = logging.WARNING) -> None:
        """Say it, unless that was done since the last `over`."""
        if key not in self._made:
            self._made.add(key)
            log.log(level, "%s", text)

    def over(self, key: str) -> None:
        self._made.discard(key)
