"""Locks on queues: what an orderly consumer asks for and gets (41, 42)."""

from __future__ import annotations

from collections.abc import Iterable

from metaq.model import MessageQueue, QueueLocks
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree
from metaq.wire.bodies.stats import queue_of_key


def queue_locks(asked: QueueLocks) -> bytes:
    """41 and 42."""
    return fastjson.dumps(
        {"clientId": asked.client_id, "consumerGroup": asked.group, "mqSet": _queues_tree(asked.queues)}
    )


def queue_locks_of(body: Body) -> QueueLocks:
    tree = beans.parse(body, "list of queues")
    return QueueLocks(tree.text_in("consumerGroup"), tree.text_in("clientId"), tuple(_queues_of(tree["mqSet"])))


def locked_queues(queues: Iterable[MessageQueue]) -> bytes:
    """The answer to 41: the queues that are locked now."""
    return fastjson.dumps({"lockOKMQSet": _queues_tree(queues)})


def locked_queues_of(body: Body) -> list[MessageQueue]:
    return list(_queues_of(beans.parse(body, "list of locked queues")["lockOKMQSet"]))


def _queues_tree(queues: Iterable[MessageQueue]) -> list[Tree]:
    return [{"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic} for queue in queues]


def _queues_of(found: Value) -> Iterable[MessageQueue]:
    """Each once: Java has a set there."""
    return dict.fromkeys(map(queue_of_key, found.objects()))
