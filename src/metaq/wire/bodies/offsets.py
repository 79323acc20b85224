"""Positions: of all groups (43), of delay levels (45), by queue (220, 222)."""

from __future__ import annotations

from collections.abc import Mapping

from metaq.model import MessageQueue
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree
from metaq.wire.bodies.stats import queue_items, queue_key

SEPARATOR = "@"
"""Between topic and group in a key; no name can hold it."""


def group_offsets_tree(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> Tree:
    """(topic, group) → queue id → offset, with `topic@group` for a key."""
    return {"offsetTable": {f"{topic}{SEPARATOR}{group}": dict(queues) for (topic, group), queues in offsets.items()}}


def group_offsets_of_tree(tree: Value) -> dict[str, dict[int, int]]:
    """The keys as they stand there, for `topics_and_groups`."""
    return {key.key(): _by_number(queues) for key, queues in tree["offsetTable"].entries()}


def topics_and_groups(offsets: Mapping[str, dict[int, int]]) -> dict[tuple[str, str], dict[int, int]]:
    """(topic, group) for each key; one that is none is left out."""
    split = ((key.partition(SEPARATOR), queues) for key, queues in offsets.items())
    return {(topic, group): queues for (topic, found, group), queues in split if found}


def group_offsets(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> bytes:
    """43."""
    return fastjson.dumps_java(group_offsets_tree(offsets))


def delay_offsets_tree(offsets: Mapping[int, int]) -> Tree:
    """Level → offset, flat."""
    return {"offsetTable": dict(offsets)}


def delay_offsets_of_tree(tree: Value) -> dict[int, int]:
    return _by_number(tree["offsetTable"])


def delay_offsets(offsets: Mapping[int, int]) -> bytes:
    """45."""
    return fastjson.dumps_java(delay_offsets_tree(offsets))


def _by_number(table: Value) -> dict[int, int]:
    return {key.given_whole(32): offset.given_whole() for key, offset in table.entries()}


def queue_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """220, 222."""
    return fastjson.dumps_java({"offsetTable": {queue_key(queue): offset for queue, offset in offsets.items()}})


def queue_offset_list(offsets: Mapping[MessageQueue, int]) -> bytes:
    """220 to a C++ client, which knows no objects as keys."""
    return fastjson.dumps(
        {
            "offsetTable": [
                {"brokerName": queue.broker, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
                for queue, offset in offsets.items()
            ]
        }
    )


def queue_offsets_of(body: Body) -> dict[MessageQueue, int]:
    table = beans.parse(body, "offset table")["offsetTable"]
    return {queue: offset.whole() for queue, offset in queue_items(table)}
