"""Cached result of a pull's checks."""

from __future__ import annotations

from typing import NamedTuple

from metaq.model import GroupConfig
from metaq.wire.hot import Filter


class Admission(NamedTuple):
    """Result of the checks for one group, topic and filter."""

    group: GroupConfig
    topic: str
    # readQueueNums: checked against each pull's queue id.
    queues: int
    wanted: Filter | None
    """None: all messages."""
    expression: str
    version: int
    """Version of the heartbeat's subscription; 0 for a request that brings its own filter."""
    predicate: str = ""
    """Name of the predicate that filters; "": `wanted` alone does."""
