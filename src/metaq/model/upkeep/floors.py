"""Keys of `metaqFloors.json`: a topic, or one queue of it, as `orders@3`. No topic's name has an @ in it."""

from __future__ import annotations

from collections.abc import Mapping


def queue_key(topic: str, queue_id: int) -> str:
    """Return the key of one queue."""
    return f"{topic}@{queue_id}"


def topic_of(key: str) -> str:
    """Return the topic of a key."""
    return key.partition("@")[0]


def floor_of(floors: Mapping[str, int], topic: str, queue_id: int) -> int:
    """Return the LogOffset below which a queue's messages are hidden: its topic's floor or its own; 0: there is none."""
    if not floors:
        return 0
    return max(floors.get(topic, 0), floors.get(queue_key(topic, queue_id), 0))
