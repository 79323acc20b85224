"""Tables by queue (202, 208, 307): fastjson writes the queue, an object, where a key must stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from metaq.model import ConsumeStats, MessageQueue, QueueStats
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body


def queue_key(queue: MessageQueue) -> fastjson.ObjectKey:
    """A queue as fastjson writes it for a map key."""
    return (("brokerName", queue.broker), ("queueId", queue.queue_id), ("topic", queue.topic))


def queue_of_key(key: Value) -> MessageQueue:
    """The queue in such a key (as an object, or as the text of one), or in the object of a pair."""
    tree = key.tree
    if isinstance(tree, tuple):
        key = Value(dict(tree), key.path)
    elif isinstance(tree, str):
        key = beans.parse(tree, key.path)
    return MessageQueue(key.text_in("topic"), key.text_in("brokerName"), key.whole_in("queueId", 0, 32))


def queue_items(table: Value) -> Iterator[tuple[MessageQueue, Value]]:
    """A map by queue: `{{..}:v}`, or `[[{..},v],..]` as some clients write it."""
    if not isinstance(table.tree, list):
        for key, value in table.entries(nulls=True):
            yield queue_of_key(key), value
        return
    for pair in table.elements():
        if not isinstance(pair.tree, list) or len(pair.tree) != 2:
            raise pair.wrong("a pair of queue and value")
        key, value = pair.elements()
        yield queue_of_key(key), value


def topic_stats(stats: Mapping[MessageQueue, QueueStats]) -> bytes:
    """202."""
    table = {
        queue_key(queue): {"lastUpdateTimestamp": one.last_ms, "maxOffset": one.max_offset, "minOffset": one.min_offset}
        for queue, one in stats.items()
    }
    return fastjson.dumps_java({"offsetTable": table})


def topic_stats_of(body: Body) -> dict[MessageQueue, QueueStats]:
    table = beans.parse(body, "topic statistics")["offsetTable"]
    return {
        queue: QueueStats(one.whole_in("minOffset"), one.whole_in("maxOffset"), one.whole_in("lastUpdateTimestamp"))
        for queue, one in queue_items(table)
    }


def consume_stats(stats: Mapping[MessageQueue, ConsumeStats], tps: float) -> bytes:
    """208."""
    table = {
        queue_key(queue): {
            "brokerOffset": one.broker_offset,
            "consumerOffset": one.consumer_offset,
            "lastTimestamp": one.last_ms,
        }
        for queue, one in stats.items()
    }
    return fastjson.dumps_java({"consumeTps": tps, "offsetTable": table})


def consume_stats_of(body: Body) -> tuple[dict[MessageQueue, ConsumeStats], float]:
    tree = beans.parse(body, "consume statistics")
    stats = {
        queue: ConsumeStats(one.whole_in("brokerOffset"), one.whole_in("consumerOffset"), one.whole_in("lastTimestamp"))
        for queue, one in queue_items(tree["offsetTable"])
    }
    return stats, tree["consumeTps"].decimal()
