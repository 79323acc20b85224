"""Figures and positions by queue (43, 45, 202, 208, 220-223).

Java's tables have the queue, an object, for a key, and fastjson writes it so: `{{"brokerName":...}:value}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from metaq.in_pieces import InPieces
from metaq.model import ConsumeStats, MessageQueue, QueueStats
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree

_GENERATIONS: Final = "metaqGenerations"
"""Ours: RocketMQ's clients ignore it in an offsets.json, and write the file without."""


def queue_key(queue: MessageQueue) -> fastjson.ObjectKey:
    """Return a queue as fastjson writes it for a map key."""
    return (("brokerName", queue.broker), ("queueId", queue.queue_id), ("topic", queue.topic))


def queue_of_key(key: Value) -> MessageQueue:
    """Return the queue in such a key: an object, the text of one, or the object of a pair."""
    tree = key.tree
    # `fastjson` makes tuples of objects that are keys, since dicts cannot be keys.
    if isinstance(tree, tuple):
        key = Value(dict(tree), key.name, key.parent)
    elif isinstance(tree, str):
        key = beans.parse(tree, key.path)
    return MessageQueue(key.text_in("topic"), key.text_in("brokerName"), key.whole_in("queueId", 0, 32))


def queue_items(table: Value) -> Iterator[tuple[MessageQueue, Value]]:
    """Yield a map by queue: `{{..}:v}` as Java writes it, or `[[{..},v],..]` as some clients do."""
    if not isinstance(table.tree, list):
        for key, value in table.entries(nulls=True):
            yield queue_of_key(key), value
        return
    for pair in table.elements():
        if not isinstance(pair.tree, list) or len(pair.tree) != 2:
            raise pair.wrong("a pair of queue and value")
        key, value = pair.elements()
        yield queue_of_key(key), value


def topic_stats(stats: Iterable[tuple[MessageQueue, QueueStats]]) -> InPieces[bytes]:
    """Encode the answer to GET_TOPIC_STATS_INFO (202)."""
    entries = (
        (
            queue_key(queue),
            {"lastUpdateTimestamp": one.last_ms, "maxOffset": one.max_offset, "minOffset": one.min_offset},
        )
        for queue, one in stats
    )
    return fastjson.table_in_pieces({}, "offsetTable", entries)


def topic_stats_of(body: Body) -> dict[MessageQueue, QueueStats]:
    table = beans.parse(body, "topic statistics")["offsetTable"]
    return {
        queue: QueueStats(one.whole_in("minOffset"), one.whole_in("maxOffset"), one.whole_in("lastUpdateTimestamp"))
        for queue, one in queue_items(table)
    }


def consume_stats(stats: Iterable[tuple[MessageQueue, ConsumeStats]], tps: float) -> InPieces[bytes]:
    """Encode the answer to GET_CONSUME_STATS (208)."""
    entries = (
        (
            queue_key(queue),
            {
                "brokerOffset": one.broker_offset,
                "consumerOffset": one.consumer_offset,
                "lastTimestamp": one.last_ms,
            },
        )
        for queue, one in stats
    )
    return fastjson.table_in_pieces({"consumeTps": tps}, "offsetTable", entries)


_QUEUE_KEY: Final = re.compile(rb'(?<=[{,])\{"brokerName":"[^"\\]*","queueId":\d+,"topic":"[^"\\]*"\}(?=:\{)')
"""A queue as the key of a map. Within a text it could not be: quotes have a backslash there."""


def with_texts_as_keys(body: Body) -> bytes:
    """Return a body with texts of queues in place of objects as keys: so it is standard JSON, which is read five times as fast."""
    return _QUEUE_KEY.sub(lambda found: b'"' + found[0].replace(b'"', b'\\"') + b'"', bytes(body))


def consume_stats_of(body: Body) -> tuple[dict[MessageQueue, ConsumeStats], float]:
    return consume_stats_in(beans.parse(with_texts_as_keys(body), "consume statistics"))


def consume_stats_in(tree: Value) -> tuple[dict[MessageQueue, ConsumeStats], float]:
    stats = {
        queue: ConsumeStats(one.whole_in("brokerOffset"), one.whole_in("consumerOffset"), one.whole_in("lastTimestamp"))
        for queue, one in queue_items(tree["offsetTable"])
    }
    return stats, tree["consumeTps"].decimal()


def member_positions(positions: Mapping[MessageQueue, int]) -> bytes:
    """Encode a client's answer to GET_CONSUMER_STATUS_FROM_CLIENT (221)."""
    return fastjson.dumps_java({"consumerTable": {}, "messageQueueTable": _positions_tree(positions)})


def member_positions_of(body: Body) -> dict[MessageQueue, int]:
    return _positions_of(beans.parse(body, "positions")["messageQueueTable"])


def consumer_positions(members: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Encode the answer to INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): client id → its positions."""
    table = {client: _positions_tree(positions) for client, positions in members.items()}
    return fastjson.dumps_java({"consumerTable": table, "messageQueueTable": {}})


def consumer_positions_of(body: Body) -> dict[str, dict[MessageQueue, int]]:
    table = beans.parse(body, "positions")["consumerTable"]
    return {client.key(): _positions_of(positions) for client, positions in table.entries(nulls=True)}


def _positions_tree(positions: Mapping[MessageQueue, int]) -> Tree:
    return {queue_key(queue): offset for queue, offset in positions.items()}


def _positions_of(table: Value) -> dict[MessageQueue, int]:
    return {queue: offset.whole() for queue, offset in queue_items(table)}


SEPARATOR = "@"
"""Separator of topic and group in a key; no name of either holds it."""


def group_offsets_tree(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> Tree:
    """Return the tree of (topic, group) → queue id → offset, with `topic@group` for a key."""
    return {"offsetTable": dict(_group_offsets(offsets.items()))}


def _group_offsets(
    offsets: Iterable[tuple[tuple[str, str], Mapping[int, int]]],
) -> Iterator[tuple[str, dict[int, int]]]:
    # RocketMQ's key, in its file and on the wire.
    return ((f"{topic}{SEPARATOR}{group}", dict(queues)) for (topic, group), queues in offsets)


def group_offsets_of_tree(tree: Value) -> dict[str, dict[int, int]]:
    """Return the offsets by the keys as they stand there, for `topics_and_groups`."""
    return {key.key(): _by_number(queues) for key, queues in tree["offsetTable"].entries()}


def topics_and_groups(offsets: Mapping[str, dict[int, int]]) -> dict[tuple[str, str], dict[int, int]]:
    """Return the offsets by (topic, group). Keys without the separator are left out."""
    split = ((key.partition(SEPARATOR), queues) for key, queues in offsets.items())
    return {(topic, group): queues for (topic, found, group), queues in split if found}


def group_offsets(offsets: Iterable[tuple[tuple[str, str], Mapping[int, int]]]) -> InPieces[bytes]:
    """Encode the answer to GET_ALL_CONSUMER_OFFSET (43)."""
    return fastjson.table_in_pieces({}, "offsetTable", _group_offsets(offsets))


def group_offsets_of(body: Body) -> dict[tuple[str, str], dict[int, int]]:
    """Decode the answer to GET_ALL_CONSUMER_OFFSET (43): (topic, group) → queue id → QueueOffset."""
    return topics_and_groups(group_offsets_of_tree(beans.parse(body, "group offsets")))


def delay_offsets_tree(offsets: Mapping[int, int]) -> Tree:
    """Return the tree of delay level → offset."""
    return {"offsetTable": dict(offsets)}


def delay_offsets_of_tree(tree: Value) -> dict[int, int]:
    return _by_number(tree["offsetTable"])


def delay_offsets(offsets: Mapping[int, int]) -> bytes:
    """Encode the answer to GET_ALL_DELAY_OFFSET (45)."""
    return fastjson.dumps_java(delay_offsets_tree(offsets))


def delay_offsets_of(body: Body) -> dict[int, int]:
    """Decode the answer to GET_ALL_DELAY_OFFSET (45): level → QueueOffset."""
    return delay_offsets_of_tree(beans.parse(body, "delay offsets"))


def _by_number(table: Value) -> dict[int, int]:
    return {key.given_whole(32): offset.given_whole() for key, offset in table.entries()}


def queue_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Encode RESET_CONSUMER_CLIENT_OFFSET (220) and the answer to INVOKE_BROKER_TO_RESET_OFFSET (222)."""
    return fastjson.dumps_java({"offsetTable": {queue_key(queue): offset for queue, offset in offsets.items()}})


def kept_offsets(offsets: Mapping[MessageQueue, int], generations: Mapping[MessageQueue, int]) -> bytes:
    """Encode a client's offsets.json: RocketMQ's, with the generation of each queue's topic."""
    if not generations:
        return queue_offsets(offsets)
    return fastjson.dumps_java(
        {
            "offsetTable": {queue_key(queue): offset for queue, offset in offsets.items()},
            _GENERATIONS: {queue_key(queue): generation for queue, generation in generations.items()},
        }
    )


def kept_generations_of(body: Body) -> dict[MessageQueue, int]:
    table = beans.parse(body, "offset table")[_GENERATIONS]
    return {} if table.tree is None else {queue: generation.whole() for queue, generation in queue_items(table)}


def queue_offset_list(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Encode RESET_CONSUMER_CLIENT_OFFSET (220) for C++ clients, which cannot read objects as keys. RocketMQ does so
    too."""
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
