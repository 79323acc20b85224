"""The JSON bodies of the remoting protocol: values in, bytes out, and back (reference: RocketMQ 4.9, section 2.8).

For a body X, `x(...)` encodes and `x_of(body)` decodes. Encoders write compact standard JSON unless Java's readers need
one of fastjson's odd forms. Decoders take all that fastjson takes and raise BadRequest for a missing or wrong part.
`..._tree` functions give and take the parsed form, which the configuration files share.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from metaq.errors import BadRequest
from metaq.model import (
    BrokerData,
    ClusterInfo,
    ConsumeFrom,
    DataVersion,
    GroupConfig,
    MessageModel,
    MessageQueue,
    QueueData,
    Route,
    SubscriptionData,
    TopicConfig,
)
from metaq.wire import fastjson
from metaq.wire.compression import inflate

REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
"""Largest registration after inflating: some 400 000 topics."""

QUEUES_MAX = 65_536
"""Queues of a topic on one broker."""

_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")

Body = bytes | memoryview
Tree = dict[Any, Any]

# -------------------------------------------------------------------- parts of trees


def _part(tree: Any, key: Any, kind: type, default: Any = None) -> Any:
    """tree[key] as `kind`; absent or null gives the default. Raises BadRequest for another type."""
    value = tree.get(key) if isinstance(tree, dict) else None
    if value is None:
        return default
    if kind is int:
        return _whole(value, key)
    if kind is str and isinstance(value, int | float):
        return str(value)
    if not isinstance(value, kind):
        raise BadRequest(f"{key} is {value!r:.60}, need {kind.__name__}")
    return value


def _whole(value: Any, what: str) -> int:
    """A number, or its text, that fits Java's long. Raises BadRequest."""
    if isinstance(value, str) and _INTEGER.match(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise BadRequest(f"{what} is {value!r:.60}, need a whole number of at most 64 bits")
    return value


def _queues(tree: Any, key: str, default: int) -> int:
    """A number of queues: clients make a list of them, so that nobody may claim a billion."""
    count: int = _part(tree, key, int, default)
    if not 0 <= count <= QUEUES_MAX:
        raise BadRequest(f"{key} is {count}, need 0 to {QUEUES_MAX}")
    return count


def data_version_tree(version: DataVersion) -> Tree:
    return {"counter": version.counter, "timestamp": version.timestamp}


def data_version_of_tree(tree: Any) -> DataVersion:
    return DataVersion(_part(tree, "timestamp", int, 0), _part(tree, "counter", int, 0))


def data_version(version: DataVersion) -> bytes:
    return fastjson.dumps(data_version_tree(version))


def data_version_of(body: Body) -> DataVersion:
    return data_version_of_tree(fastjson.load_object(body, "data version"))


# -------------------------------------------------------------------- topics (17, 21, 103, topics.json)


def topic_tree(topic: TopicConfig) -> Tree:
    return {
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queues,
        "topicFilterType": topic.filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queues,
    }


def topic_of_tree(tree: Any, name: str = "") -> TopicConfig:
    return TopicConfig(
        _part(tree, "topicName", str, name),
        _queues(tree, "readQueueNums", 16),
        _queues(tree, "writeQueueNums", 16),
        _part(tree, "perm", int, 6),
        _part(tree, "topicSysFlag", int, 0),
        _part(tree, "order", bool, False),
        _part(tree, "topicFilterType", str, "SINGLE_TAG"),
    )


def topic_table_tree(topics: Mapping[str, TopicConfig], version: DataVersion) -> Tree:
    table = {name: topic_tree(topic) for name, topic in topics.items()}
    return {"dataVersion": data_version_tree(version), "topicConfigTable": table}


def topic_table_of_tree(tree: Any) -> tuple[DataVersion, dict[str, TopicConfig]]:
    table = _part(tree, "topicConfigTable", dict, {})
    topics = (topic_of_tree(value, str(name)) for name, value in table.items())
    return data_version_of_tree(_part(tree, "dataVersion", dict, {})), {topic.name: topic for topic in topics}


def registration(version: DataVersion, topics: Mapping[str, TopicConfig], filter_servers: Iterable[str] = ()) -> bytes:
    """The body of 103."""
    return fastjson.dumps(
        {"filterServerList": list(filter_servers), "topicConfigSerializeWrapper": topic_table_tree(topics, version)}
    )


def registration_of(body: Body, *, compressed: bool, bare: bool) -> tuple[DataVersion, dict[str, TopicConfig]]:
    """Decode the body of 103. `bare`: a broker before V3_0_11, which sends the table without its wrapper.

    An empty body is an empty table. Raises BadRequest, also for a compressed body that grows beyond 64 MiB.
    """
    if not len(body):
        return DataVersion(), {}
    if compressed:
        return _compressed_registration_of(body)
    tree: Any = fastjson.load_object(body, "registration")
    return topic_table_of_tree(tree if bare else _part(tree, "topicConfigSerializeWrapper", dict, {}))


def _compressed_registration_of(body: Body) -> tuple[DataVersion, dict[str, TopicConfig]]:
    """i32 n, n bytes DataVersion JSON; i32 topics; per topic i32 n, `name readQ writeQ perm filterType`; filter servers."""
    data = inflate(body, REGISTRATION_BYTES_MAX)
    topics: dict[str, TopicConfig] = {}
    try:
        at, piece = _piece(data, 0)
        version = data_version_of(piece)
        (count,) = struct.unpack_from(">i", data, at)
        at += 4
        for _ in range(count):
            at, piece = _piece(data, at)
            name, reads, writes, perm, filter_type = bytes(piece).decode().split(" ")
            tree = {"readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicFilterType": filter_type}
            topics[name] = topic_of_tree(tree, name)
    except (struct.error, ValueError) as error:
        raise BadRequest(f"the compressed registration is broken: {error}") from None
    return version, topics


def _piece(data: bytes, at: int) -> tuple[int, bytes]:
    (size,) = struct.unpack_from(">i", data, at)
    end = at + 4 + size
    if size < 0 or end > len(data):
        raise ValueError(f"a part of {size} bytes at {at}")
    return end, data[at + 4 : end]


# -------------------------------------------------------------------- groups (200, 201, subscriptionGroup.json)


def group_tree(group: GroupConfig) -> Tree:
    return {
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "groupName": group.name,
        "notifyConsumerIdsChangedEnable": group.notify_changed,
        "retryMaxTimes": group.retry_max,
        "retryQueueNums": group.retry_queues,
        "whichBrokerWhenConsumeSlowly": group.slow_broker_id,
    }


def group_of_tree(tree: Any, name: str = "") -> GroupConfig:
    return GroupConfig(
        _part(tree, "groupName", str, name),
        _part(tree, "consumeEnable", bool, True),
        _part(tree, "consumeFromMinEnable", bool, True),
        _part(tree, "consumeBroadcastEnable", bool, True),
        _part(tree, "retryQueueNums", int, 1),
        _part(tree, "retryMaxTimes", int, 16),
        _part(tree, "brokerId", int, 0),
        _part(tree, "whichBrokerWhenConsumeSlowly", int, 1),
        _part(tree, "notifyConsumerIdsChangedEnable", bool, True),
    )


def group_table_tree(groups: Mapping[str, GroupConfig], version: DataVersion) -> Tree:
    table = {name: group_tree(group) for name, group in groups.items()}
    return {"dataVersion": data_version_tree(version), "subscriptionGroupTable": table}


def group_table_of_tree(tree: Any) -> tuple[DataVersion, dict[str, GroupConfig]]:
    table = _part(tree, "subscriptionGroupTable", dict, {})
    groups = (group_of_tree(value, str(name)) for name, value in table.items())
    return data_version_of_tree(_part(tree, "dataVersion", dict, {})), {group.name: group for group in groups}


# -------------------------------------------------------------------- heartbeats (34, 46, 203)


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """What one member says of its consumer group."""

    group: str
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    push: bool = True
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a client process says of itself."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producers: tuple[str, ...] = ()


def subscription_tree(data: SubscriptionData) -> Tree:
    return {
        "classFilterMode": data.class_filter,
        "codeSet": sorted(data.tag_hashes),
        "expressionType": data.expression_type,
        "subString": data.expression,
        "subVersion": data.version,
        "tagsSet": sorted(data.tags),
        "topic": data.topic,
    }


def subscription_of_tree(tree: Any) -> SubscriptionData:
    """Node leaves out `expressionType`, 5.x clients add parts: neither matters."""
    codes = _part(tree, "codeSet", list, [])
    if not all(isinstance(code, int) and -(1 << 31) <= code < 1 << 31 for code in codes):
        raise BadRequest("codeSet holds something else than 32-bit numbers")
    return SubscriptionData(
        _part(tree, "topic", str, ""),
        _part(tree, "subString", str, "*"),
        _part(tree, "expressionType", str, "") or "TAG",
        frozenset(str(tag) for tag in _part(tree, "tagsSet", list, [])),
        frozenset(codes),
        _part(tree, "subVersion", int, 0),
        _part(tree, "classFilterMode", bool, False),
    )


_CONSUME_FROM = {value.value: value for value in ConsumeFrom} | {
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST": ConsumeFrom.LAST,
    "CONSUME_FROM_MIN_OFFSET": ConsumeFrom.FIRST,
    "CONSUME_FROM_MAX_OFFSET": ConsumeFrom.LAST,
}  # The last three are old names that fastjson still reads.
_MODELS = {value.value: value for value in MessageModel}
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
        for consumer in beat.consumers
    ]
    producers = [{"groupName": group} for group in beat.producers]
    return fastjson.dumps({"clientID": beat.client_id, "consumerDataSet": consumers, "producerDataSet": producers})


def heartbeat_of(body: Body) -> Heartbeat:
    tree = fastjson.load_object(body, "heartbeat")
    client_id = _part(tree, "clientID", str, "")
    if not client_id:
        raise BadRequest("the heartbeat lacks clientID")
    consumers = tuple(_consumer_of_tree(part) for part in _part(tree, "consumerDataSet", list, []))
    producers = tuple(_part(part, "groupName", str, "") for part in _part(tree, "producerDataSet", list, []))
    return Heartbeat(client_id, consumers, producers)


def _consumer_of_tree(tree: Any) -> ConsumerData:
    subscriptions = map(subscription_of_tree, _part(tree, "subscriptionDataSet", list, []))
    return ConsumerData(
        _part(tree, "groupName", str, ""),
        {data.topic: data for data in subscriptions},
        _part(tree, "consumeType", str, _PASSIVELY) != _ACTIVELY,
        _MODELS.get(_part(tree, "messageModel", str, ""), MessageModel.CLUSTERING),
        _CONSUME_FROM.get(_part(tree, "consumeFromWhere", str, ""), ConsumeFrom.LAST),
        _part(tree, "unitMode", bool, False),
    )


def client_check_of(body: Body) -> tuple[str, str, SubscriptionData]:
    """46: (client id, group, the subscription to be checked)."""
    tree = fastjson.load_object(body, "client configuration")
    data = subscription_of_tree(_part(tree, "subscriptionData", dict, {}))
    return _part(tree, "clientId", str, ""), _part(tree, "group", str, ""), data


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One member of a group, as 203 and 204 list it."""

    client_id: str
    address: str
    language: str
    version: int


def _connections_tree(connections: Iterable[ClientConnection]) -> list[Tree]:
    return [
        {"clientAddr": one.address, "clientId": one.client_id, "language": one.language, "version": one.version}
        for one in connections
    ]


def producer_connections(connections: Iterable[ClientConnection]) -> bytes:
    """204."""
    return fastjson.dumps({"connectionSet": _connections_tree(connections)})


def consumer_connections(consumer: ConsumerData, connections: Iterable[ClientConnection]) -> bytes:
    """203."""
    return fastjson.dumps(
        {
            "connectionSet": _connections_tree(connections),
            "consumeFromWhere": consumer.consume_from.value,
            "consumeType": _PASSIVELY if consumer.push else _ACTIVELY,
            "messageModel": consumer.model.value,
            "subscriptionTable": {t: subscription_tree(data) for t, data in consumer.subscriptions.items()},
        }
    )


def connections_of(body: Body) -> tuple[list[ClientConnection], ConsumerData]:
    """203 and 204. The consumer part has no group name: the request named it."""
    tree = fastjson.load_object(body, "connection list")
    connections = [
        ClientConnection(
            _part(one, "clientId", str, ""),
            _part(one, "clientAddr", str, ""),
            _part(one, "language", str, ""),
            _part(one, "version", int, 0),
        )
        for one in _part(tree, "connectionSet", list, [])
    ]
    table = _part(tree, "subscriptionTable", dict, {})
    consumer = _consumer_of_tree({**tree, "subscriptionDataSet": list(table.values())})
    return connections, consumer


def consumer_ids(ids: Iterable[str]) -> bytes:
    """38."""
    return fastjson.dumps({"consumerIdList": list(ids)})


def consumer_ids_of(body: Body) -> list[str]:
    return [str(one) for one in _part(fastjson.load_object(body, "consumer list"), "consumerIdList", list, [])]


# -------------------------------------------------------------------- routes (105, 106, 206, 219)


def route(data: Route) -> bytes:
    """105, in strictly standard form: Go cuts the text by hand, Node and Java >= 4.9.4 want quoted keys."""
    tree: Tree = {
        "brokerDatas": [_broker_tree(one, quoted=True) for one in data.brokers],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": one.broker,
                "perm": one.perm,
                "readQueueNums": one.read_queues,
                "topicSysFlag": one.sys_flag,
                "writeQueueNums": one.write_queues,
            }
            for one in data.queues
        ],
    }
    if data.order is not None:
        tree["orderTopicConf"] = data.order
    return fastjson.dumps(tree)


def route_of(topic: str, body: Body) -> Route:
    tree = fastjson.load_object(body, f"route of {topic}")
    queues = tuple(
        QueueData(
            _part(one, "brokerName", str, ""),
            _queues(one, "readQueueNums", 0),
            _queues(one, "writeQueueNums", 0),
            _part(one, "perm", int, 0),
            _part(one, "topicSysFlag", int, _part(one, "topicSynFlag", int, 0)),  # the older spelling
        )
        for one in _part(tree, "queueDatas", list, [])
    )
    brokers = tuple(map(_broker_of_tree, _part(tree, "brokerDatas", list, [])))
    return Route(topic, queues, brokers, _part(tree, "orderTopicConf", str))


def _broker_tree(data: BrokerData, *, quoted: bool) -> Tree:
    addresses: Tree = {str(key) if quoted else key: value for key, value in data.addresses.items()}
    return {"brokerAddrs": addresses, "brokerName": data.broker, "cluster": data.cluster}


def _broker_of_tree(tree: Any) -> BrokerData:
    addresses: dict[int, str] = {}
    for key, address in _part(tree, "brokerAddrs", dict, {}).items():
        if not isinstance(address, str):
            raise BadRequest(f"brokerAddrs holds {key!r:.40}: {address!r:.60}, need broker id: address")
        addresses[_whole(key, "a broker id in brokerAddrs")] = address
    return BrokerData(_part(tree, "cluster", str, ""), _part(tree, "brokerName", str, ""), addresses)


def cluster_info(info: ClusterInfo) -> bytes:
    """106, with bare integer keys as upstream writes them."""
    brokers = {name: _broker_tree(data, quoted=False) for name, data in info.brokers.items()}
    clusters = {name: list(members) for name, members in info.clusters.items()}
    return fastjson.dumps_java({"brokerAddrTable": brokers, "clusterAddrTable": clusters})


def cluster_info_of(body: Body) -> ClusterInfo:
    tree = fastjson.load_object(body, "cluster info")
    brokers = {str(k): _broker_of_tree(v) for k, v in _part(tree, "brokerAddrTable", dict, {}).items()}
    clusters = _part(tree, "clusterAddrTable", dict, {})
    return ClusterInfo(brokers, {str(name): tuple(map(str, _part(clusters, name, list, []))) for name in clusters})


def topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """206, 224, 304, 305, 311-313."""
    tree: Tree = {"topicList": list(topics)}
    return fastjson.dumps({"brokerAddr": broker_address, **tree} if broker_address else tree)


def topic_list_of(body: Body) -> list[str]:
    return [str(name) for name in _part(fastjson.load_object(body, "topic list"), "topicList", list, [])]


def group_list(groups: Iterable[str]) -> bytes:
    """300."""
    return fastjson.dumps({"groupList": list(groups)})


def group_list_of(body: Body) -> list[str]:
    return [str(name) for name in _part(fastjson.load_object(body, "group list"), "groupList", list, [])]


def kv_table(table: Mapping[str, str]) -> bytes:
    """28, 219 and the answer to 103."""
    return fastjson.dumps({"table": dict(table)})


def kv_table_of(body: Body) -> dict[str, str]:
    table = _part(fastjson.load_object(body, "table"), "table", dict, {})
    return {str(key): "" if value is None else str(value) for key, value in table.items()}


# -------------------------------------------------------------------- tables by queue (202, 208, 220, 307)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue in 202. `last_ms`: store time of its newest message, 0 if it has none."""

    min_offset: int
    max_offset: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """One queue in 208. `last_ms`: store time of the newest message that the group has consumed."""

    broker_offset: int
    consumer_offset: int
    last_ms: int


def queue_key(queue: MessageQueue) -> fastjson.ObjectKey:
    """A queue as fastjson writes it for a map key."""
    return (("brokerName", queue.broker), ("queueId", queue.queue_id), ("topic", queue.topic))


def queue_of_key(key: Any) -> MessageQueue:
    """The queue in such a key, or in the object of a pair."""
    tree = dict(key) if isinstance(key, tuple) else key
    return MessageQueue(
        _part(tree, "topic", str, ""), _part(tree, "brokerName", str, ""), _part(tree, "queueId", int, 0)
    )


def _queue_items(table: Any) -> Iterable[tuple[MessageQueue, Any]]:
    """A map by queue: `{{..}:v}`, or `[[{..},v],..]` as some clients write it."""
    if not isinstance(table, dict | list):
        raise BadRequest(f"a table by queue is {type(table).__name__}, need an object or a list")
    for pair in table.items() if isinstance(table, dict) else table:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadRequest("a table by queue holds something else than pairs")
        yield queue_of_key(pair[0]), pair[1]


def topic_stats(stats: Mapping[MessageQueue, QueueStats]) -> bytes:
    """202."""
    table = {
        queue_key(queue): {"lastUpdateTimestamp": one.last_ms, "maxOffset": one.max_offset, "minOffset": one.min_offset}
        for queue, one in stats.items()
    }
    return fastjson.dumps_java({"offsetTable": table})


def topic_stats_of(body: Body) -> dict[MessageQueue, QueueStats]:
    table = fastjson.load_object(body, "topic statistics").get("offsetTable") or {}
    return {
        queue: QueueStats(
            _part(one, "minOffset", int, 0), _part(one, "maxOffset", int, 0), _part(one, "lastUpdateTimestamp", int, 0)
        )
        for queue, one in _queue_items(table)
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
    tree = fastjson.load_object(body, "consume statistics")
    stats = {
        queue: ConsumeStats(
            _part(one, "brokerOffset", int, 0),
            _part(one, "consumerOffset", int, 0),
            _part(one, "lastTimestamp", int, 0),
        )
        for queue, one in _queue_items(tree.get("offsetTable") or {})
    }
    tps = tree.get("consumeTps")
    return stats, float(tps) if isinstance(tps, int | float) else 0.0


def queue_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """220, 222."""
    return fastjson.dumps_java({"offsetTable": {queue_key(queue): offset for queue, offset in offsets.items()}})


def queue_offsets_of(body: Body) -> dict[MessageQueue, int]:
    table = fastjson.load_object(body, "offset table").get("offsetTable") or {}
    return {queue: _whole(offset, f"the offset of {queue}") for queue, offset in _queue_items(table)}


def group_offsets_tree(offsets: Mapping[str, Mapping[int, int]]) -> Tree:
    """43 and consumerOffset.json: `topic@group` → queue id → offset. 45 and delayOffset.json: level → offset, flat."""
    return {"offsetTable": {key: dict(table) for key, table in offsets.items()}}


def group_offsets_of_tree(tree: Any) -> dict[str, dict[int, int]]:
    table = _part(tree, "offsetTable", dict, {})
    return {str(key): _int_map(value, str(key)) for key, value in table.items()}


def delay_offsets_tree(offsets: Mapping[int, int]) -> Tree:
    return {"offsetTable": dict(offsets)}


def delay_offsets_of_tree(tree: Any) -> dict[int, int]:
    return _int_map(_part(tree, "offsetTable", dict, {}), "offsetTable")


def _int_map(tree: Any, what: str) -> dict[int, int]:
    if not isinstance(tree, dict):
        raise BadRequest(f"{what} is {tree!r:.60}, need a map from number to number")
    return {_whole(key, f"a key of {what}"): _whole(value, what) for key, value in tree.items()}
