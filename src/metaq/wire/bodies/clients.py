"""Clients: heartbeats, lists of connections (34, 38, 46, 203, 204), and locks on queues (41, 42)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from metaq.errors import BadRequest, Reason, Refused
from metaq.in_pieces import InPieces, finish
from metaq.model import (
    ClientConnection,
    ConsumeFrom,
    ConsumerView,
    Heartbeat,
    MessageModel,
    MessageQueue,
    QueueLocks,
    SubscriptionData,
)
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree
from metaq.wire.bodies.queues import queue_of_key
from metaq.wire.command import LANGUAGES
from metaq.wire.extensions import KEEP_SECONDS, MEMBER_WANTS

NAMES_OF_A_PIECE = 32
"""Subscriptions or queues that are decoded at once: some 0.3 ms."""


def subscription_tree(data: SubscriptionData) -> Tree:
    return {
        "classFilterMode": data.class_filter,
        # Sorted: the same subscription is the same bytes, whatever the order of a set.
        "codeSet": sorted(data.tag_hashes),
        "expressionType": data.expression_type,
        "subString": data.expression,
        "subVersion": data.version,
        "tagsSet": sorted(data.tags),
        "topic": data.topic,
    }


def subscription_of_tree(tree: Value) -> SubscriptionData:
    """Return a subscription. Raises BadRequest.

    Node leaves `expressionType` out, Go sends `codeSet` as texts, 5.x clients add fields: all are read.
    """
    return SubscriptionData(
        tree.text_in("topic"),
        # A subscription without an expression gets all messages, as in RocketMQ.
        tree.text_in("subString", "*"),
        # Empty and null mean tags: Node leaves the field out.
        tree.text_in("expressionType") or "TAG",
        frozenset(tree["tagsSet"].texts()),
        frozenset(tree["codeSet"].wholes(32)),
        tree.whole_in("subVersion"),
        tree.boolean_in("classFilterMode"),
    )


# Names of Java's enum in its order, since fastjson may write its number. The second to the fourth are deprecated, and old
# clients still send them.
_CONSUME_FROM = {
    "CONSUME_FROM_LAST_OFFSET": ConsumeFrom.LAST,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST": ConsumeFrom.LAST,
    "CONSUME_FROM_MIN_OFFSET": ConsumeFrom.FIRST,
    "CONSUME_FROM_MAX_OFFSET": ConsumeFrom.LAST,
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFrom.FIRST,
    "CONSUME_FROM_TIMESTAMP": ConsumeFrom.TIMESTAMP,
}
# In the order of Java's enum, since fastjson may write its number.
_MODELS = ("BROADCASTING", "CLUSTERING")
_ACTIVELY, _PASSIVELY = "CONSUME_ACTIVELY", "CONSUME_PASSIVELY"


def heartbeat(beat: Heartbeat) -> bytes:
    consumers = [
        {
            "consumeFromWhere": consumer.consume_from.value,
            "consumeType": _PASSIVELY if consumer.push else _ACTIVELY,
            "groupName": consumer.group,
            "messageModel": consumer.model.value,
            "subscriptionDataSet": [subscription_tree(data) for data in consumer.subscriptions.values()],
            "unitMode": consumer.unit_mode,
        }
        | ({KEEP_SECONDS: math.ceil(consumer.keep_seconds)} if consumer.keep_seconds > 0 else {})
        for consumer in beat.consumers
    ]
    producers = [{"groupName": group} for group in beat.producers]
    return fastjson.dumps({"clientID": beat.client_id, "consumerDataSet": consumers, "producerDataSet": producers})


class HeartbeatLimits(Struct, frozen=True):
    """Most names in a heartbeat."""

    groups: int
    """Consumer groups, and as many producer groups."""
    topics: int
    """Subscriptions of one group."""
    subscriptions: int
    """Subscriptions of all groups."""


def heartbeat_of(body: Body) -> Heartbeat:
    return finish(heartbeat_in_pieces(body))


def heartbeat_in_pieces(body: Body, limits: HeartbeatLimits | None = None) -> InPieces[Heartbeat]:
    """Decode HEART_BEAT (34), a few subscriptions at a time.

    Raises BadRequest; Refused INVALID: more names than the limits. They are counted first, as reading a name costs more.
    """
    tree = beans.parse(body, "heartbeat")
    client_id = tree.text_in("clientID")
    # Groups know their members by it: without one, two such clients would be one member.
    if not client_id:
        raise BadRequest("the heartbeat lacks clientID")
    if limits is not None:
        _check_amounts(tree, limits)
    consumers = []
    for consumer in tree["consumerDataSet"].objects():
        subscriptions = []
        for number, one in enumerate(consumer["subscriptionDataSet"].objects(), 1):
            subscriptions.append(subscription_of_tree(one))
            if number % NAMES_OF_A_PIECE == 0:
                yield
        consumers.append(_consumer(consumer, subscriptions))
        yield
    producers = tuple(one.text_in("groupName") for one in tree["producerDataSet"].objects())
    return Heartbeat(client_id, tuple(consumers), producers)


def _check_amounts(tree: Value, limits: HeartbeatLimits) -> None:
    if max(_count(tree["consumerDataSet"]), _count(tree["producerDataSet"])) > limits.groups:
        raise Refused(Reason.INVALID, f"the client is in more than {limits.groups} groups")
    total = 0
    for consumer in tree["consumerDataSet"].objects():
        count = _count(consumer["subscriptionDataSet"])
        total += count
        if count > limits.topics:
            group = consumer.text_in("groupName")
            raise Refused(Reason.INVALID, f"group {group} subscribes to more than {limits.topics} topics")
    if total > limits.subscriptions:
        raise Refused(
            Reason.INVALID,
            f"a heartbeat with {total} subscriptions, the limit is {limits.subscriptions}; share the groups among more clients",
        )


def _count(value: Value) -> int:
    """Return the number of a list's elements, without looking at them."""
    return len(value.tree) if isinstance(value.tree, list) else 1


def heartbeat_names_of(body: Body) -> tuple[str, list[str]]:
    """Return client id and consumer groups, the first `NAMES_OF_A_PIECE`, of a heartbeat that is refused, as far as they
    can be read."""
    try:
        tree = beans.parse(body, "heartbeat")
        groups = tree["consumerDataSet"].objects()[:NAMES_OF_A_PIECE]
        return tree.text_in("clientID"), [one.text_in("groupName") for one in groups]
    except BadRequest:
        return "", []


def _consumer(tree: Value, subscriptions: Iterable[SubscriptionData]) -> ConsumerView:
    return ConsumerView(
        tree.text_in("groupName"),
        {data.topic: data for data in subscriptions},
        tree.enum_in("consumeType", (_ACTIVELY, _PASSIVELY), _PASSIVELY) != _ACTIVELY,
        MessageModel(tree.enum_in("messageModel", _MODELS, "CLUSTERING")),
        _CONSUME_FROM[tree.enum_in("consumeFromWhere", tuple(_CONSUME_FROM), "CONSUME_FROM_LAST_OFFSET")],
        tree.boolean_in("unitMode"),
        tree.whole_in(KEEP_SECONDS),
    )


def client_check_of(body: Body) -> tuple[str, str, SubscriptionData]:
    """Return what CHECK_CLIENT_CONFIG (46) asks: client id, group, the subscription to be checked."""
    tree = beans.parse(body, "client configuration")
    return tree.text_in("clientId"), tree.text_in("group"), subscription_of_tree(tree["subscriptionData"])


def _connections_tree(connections: Iterable[ClientConnection]) -> list[Tree]:
    return [
        # MEMBER_WANTS is ours: RocketMQ's tools ignore fields that they do not know.
        {"clientAddr": one.address, "clientId": one.client_id, "language": one.language, "version": one.version}
        | ({} if one.wants is None else {MEMBER_WANTS: dict(one.wants)})
        for one in connections
    ]


def producer_connections(connections: Iterable[ClientConnection]) -> bytes:
    """Encode the answer to GET_PRODUCER_CONNECTION_LIST (204)."""
    return fastjson.dumps({"connectionSet": _connections_tree(connections)})


def consumer_connections(consumer: ConsumerView, connections: Iterable[ClientConnection]) -> bytes:
    """Encode the answer to GET_CONSUMER_CONNECTION_LIST (203)."""
    return fastjson.dumps(
        {
            "connectionSet": _connections_tree(connections),
            "consumeFromWhere": consumer.consume_from.value,
            "consumeType": _PASSIVELY if consumer.push else _ACTIVELY,
            "messageModel": consumer.model.value,
            "subscriptionTable": {t: subscription_tree(data) for t, data in consumer.subscriptions.items()},
        }
    )


def connections_of(body: Body) -> tuple[list[ClientConnection], ConsumerView]:
    """Decode the answers to 203 and 204. The consumer's part has no group name: the request named it."""
    tree = beans.parse(body, "connection list")
    connections = [
        ClientConnection(
            one.text_in("clientId"),
            one.text_in("clientAddr"),
            one.enum_in("language", LANGUAGES, ""),
            one.whole_in("version", 0, 32),
            {topic.key(): wanted.text() for topic, wanted in one[MEMBER_WANTS].entries(nulls=True)}
            if one[MEMBER_WANTS].tree is not None
            else None,
        )
        for one in tree["connectionSet"].objects()
    ]
    return connections, _consumer(
        tree, (subscription_of_tree(value) for _, value in tree["subscriptionTable"].entries())
    )


def consumer_ids(ids: Iterable[str]) -> bytes:
    """Encode the answer to GET_CONSUMER_LIST_BY_GROUP (38)."""
    return fastjson.dumps({"consumerIdList": list(ids)})


def consumer_ids_of(body: Body) -> list[str]:
    return beans.parse(body, "consumer list")["consumerIdList"].texts(single=True)


def queue_locks(asked: QueueLocks) -> bytes:
    """Encode LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""
    return fastjson.dumps(
        {"clientId": asked.client_id, "consumerGroup": asked.group, "mqSet": _queues_tree(asked.queues)}
    )


def queue_locks_of(body: Body) -> QueueLocks:
    return finish(queue_locks_in_pieces(body))


def queue_locks_in_pieces(body: Body, most: int | None = None) -> InPieces[QueueLocks]:
    """Decode a list of queues, some at a time. Raises BadRequest; Refused INVALID: more than `most`."""
    tree = beans.parse(body, "list of queues")
    if most is not None and (count := _count(tree["mqSet"])) > most:
        raise Refused(Reason.INVALID, f"{count} queues in one request, the limit is {most}")
    queues = dict[MessageQueue, None]()  # each once: the field is a Java Set
    for number, one in enumerate(tree["mqSet"].objects(), 1):
        queues[queue_of_key(one)] = None
        if number % NAMES_OF_A_PIECE == 0:
            yield
    return QueueLocks(tree.text_in("consumerGroup"), tree.text_in("clientId"), tuple(queues))


def locked_queues(queues: Iterable[MessageQueue]) -> bytes:
    """Encode the answer to LOCK_BATCH_MQ: of the queues asked for those that the client has now."""
    return fastjson.dumps({"lockOKMQSet": _queues_tree(queues)})


def locked_queues_of(body: Body) -> list[MessageQueue]:
    return list(_queues_of(beans.parse(body, "list of locked queues")["lockOKMQSet"]))


def _queues_tree(queues: Iterable[MessageQueue]) -> list[Tree]:
    return [{"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic} for queue in queues]


def _queues_of(found: Value) -> Iterable[MessageQueue]:
    """Return each queue once: the field is a Java Set."""
    return dict.fromkeys(map(queue_of_key, found.objects()))
