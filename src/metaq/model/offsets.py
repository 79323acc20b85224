"""Offsets by queue, and their JSON in Spark's checkpoints and the archive's manifests.

    {"v": 1, "q": {"orders": {"broker-a": {"0": 17, "1": 20}}}}

Each number is the QueueOffset of the next message: a range of two is half-open. The form is in files that outlive this
release, so it changes only with `v`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue

VERSION = 1

Positions = dict[MessageQueue, int]


@dataclass(frozen=True, order=True, slots=True)
class Slice:
    """The messages [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def messages(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue} [{self.start}, {self.end})"


def to_json(positions: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Return the value that Spark keeps. Sorted, so that equal offsets are equal text: Spark finds new data by
    comparing text."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(positions):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = positions[queue]
    return {"v": VERSION, "q": tree}


def to_text(positions: Mapping[MessageQueue, int]) -> str:
    """Return `to_json` as text, as options take it."""
    return json.dumps(to_json(positions))


def from_json(value: Any, what: str = "offsets") -> Positions:
    """Return the offsets in a JSON text or a parsed value. Raises ConfigError: not the form above; `what` names the
    option."""
    try:
        tree = json.loads(value) if isinstance(value, str) else value
        if tree["v"] != VERSION:
            raise ConfigError(f"{what}: version {tree['v']!r} is not known here; this release reads version {VERSION}")
        return {
            MessageQueue(topic, broker, int(queue_id)): _whole(offset)
            for topic, brokers in tree["q"].items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (TypeError, KeyError, ValueError, AttributeError) as fault:
        form = '{"v": 1, "q": {"TOPIC": {"BROKER": {"QUEUE": OFFSET}}}}'
        raise ConfigError(f"{what}: {str(value)[:200]!r} is not of the form {form} ({fault!r})") from None


def _whole(offset: Any) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"the offset {offset!r} is not a whole number")
    if offset < 0:
        raise ValueError(f"the offset {offset} is negative")
    return offset
