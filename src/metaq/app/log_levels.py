"""Levels of parts of the log (`logLevels`), which may be changed while a server runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator


def set_log_levels(text: str, before: str = "") -> None:
    """Set levels of loggers. Args: text: `metaq.broker=debug,metaq.net=warning`; before: the text that is not in force any more."""
    for name, _ in _levels(before):
        logging.getLogger(name).setLevel(logging.NOTSET)  # as the whole log's again
    for name, level in _levels(text):
        logging.getLogger(name).setLevel(level)


def _levels(text: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, text.split(",")):
        name, _, level = pair.partition("=")
        yield name.strip(), level.strip().upper()
