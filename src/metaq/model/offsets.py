"""Offsets by queue, and their JSON in Spark's checkpoints and the archive's manifests.

    {"v": 1, "q": {"orders": {"broker-a": {"0": 17, "1": 20}}}}

Each number is the QueueOffset of the next message: a range of two is half-open. The form is in files that outlive this
release, so it changes only with `v`. The generations of the topics are with them, where brokers tell them:

    {"v": 1, "q": {...}, "g": {"orders": {"broker-a": 52428800}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue

VERSION = 1

Positions = dict[MessageQueue, int]
Generations = dict[tuple[str, str], int]
"""(topic, broker) → generation of the topic there: the LogOffset of its last deletion; without one, the time when the broker's store
was new, below 0; 0, which may be left out: that is not known."""


def is_another(now: int, then: int) -> bool:
    """Return whether a topic of generation `now` is another one than that of generation `then`.

    What was reached where no generation was known (at a RocketMQ broker, from a slave, by hand) may be of any that was not deleted.
    """
    return now != then and not (then == 0 and now < 0)


@dataclass(frozen=True, order=True, slots=True)
class Slice:
    """The messages [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int
    generation: int | None = field(default=None, compare=False)
    """Of the queue's topic when the range was planned; None: not known."""

    @property
    def messages(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue} [{self.start}, {self.end})"


def to_json(
    positions: Mapping[MessageQueue, int], generations: Mapping[tuple[str, str], int] | None = None
) -> dict[str, Any]:
    """Return the value that Spark keeps. Sorted, so that equal offsets are equal text: Spark finds new data by
    comparing text."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(positions):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = positions[queue]
    made_anew: dict[str, dict[str, int]] = {}
    for topic, broker in sorted({(queue.topic, queue.broker) for queue in positions}):
        if generation := (generations or {}).get((topic, broker), 0):
            made_anew.setdefault(topic, {})[broker] = generation
    return {"v": VERSION, "q": tree} | ({"g": made_anew} if made_anew else {})


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
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as fault:
        form = '{"v": 1, "q": {"TOPIC": {"BROKER": {"QUEUE": OFFSET}}}}'
        raise ConfigError(f"{what}: {str(value)[:200]!r} is not of the form {form} ({fault!r})") from None


def generations_of(value: Any, what: str = "offsets") -> Generations:
    """Return the generations in a JSON text or a parsed value. Raises ConfigError."""
    try:
        tree = json.loads(value) if isinstance(value, str) else value
        return {
            (topic, broker): _number(generation)
            for topic, brokers in tree.get("g", {}).items()
            for broker, generation in brokers.items()
        }
    except (TypeError, ValueError, AttributeError, RecursionError) as fault:
        raise ConfigError(
            f"{what}: the generations of {str(value)[:200]!r} are not of the right form ({fault!r})"
        ) from None


def _whole(offset: Any) -> int:
    if _number(offset) < 0:
        raise ValueError(f"the offset {offset} is negative")
    return int(offset)


def _number(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{given!r} is not a whole number")
    return given
