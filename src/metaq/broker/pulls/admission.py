"""What the checks of a pull come to."""

from __future__ import annotations

from typing import NamedTuple

from metaq.model import GroupConfig
from metaq.wire.hot import Filter


class Admission(NamedTuple):
    """What the checks found for one group, topic and filter."""

    group: GroupConfig
    topic: str
    queues: int
    wanted: Filter | None
    """None takes all."""
    expression: str
    version: int
    """Of the heartbeat's subscription; a request that brings its own filter has none to compare."""
    predicate: str = ""
    """The name of the one that chooses; "": `wanted` alone does."""
