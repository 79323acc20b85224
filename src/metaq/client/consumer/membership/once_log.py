"""Warnings that are given once: what goes on failing every second is news only the first time."""

from __future__ import annotations

import logging


class OnceLog:
    """Writes each kind of event to `logger` once, until it is over: what fails every second is news only the first time."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._written: set[str] = set()

    def once(self, key: str, text: str, level: int = logging.WARNING) -> None:
        """Write the line, unless that was done since the last `over` of the same key."""
        if key not in self._written:
            self._written.add(key)
            self._logger.log(level, "%s", text)

    def over(self, key: str) -> None:
        """The event has ended: the next one is written again."""
        self._written.discard(key)
