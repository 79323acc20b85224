"""Topics, groups and positions: what registers, what administrators send, and what the configuration files hold.

Bodies 17, 21, 103, 200, 201, 43, 45 and the files topics.json, subscriptionGroup.json, consumerOffset.json,
delayOffset.json, kvConfig.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from metaq.errors import BadRequest
from metaq.model import DataVersion, GroupConfig, TopicConfig
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.compression import inflate

REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
"""Largest registration after inflating: some 400 000 topics."""

QUEUES_MAX = 65_536
"""Queues of a topic on one broker."""

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

Body = bytes | memoryview
Tree = dict[Any, Any]


def queues_in(tree: Value, field: str, default: int) -> int:
    """A number of queues: clients make a list of them, so that nobody may claim a billion."""
    count = tree.whole_in(field, default, 32)
    if not 0 <= count <= QUEUES_MAX:
        raise tree[field].wrong(f"0 to {QUEUES_MAX}")
    return count


def data_version_tree(version: DataVersion) -> Tree:
    return {"counter": version.counter, "timestamp": version.timestamp}


def data_version_of_tree(tree: Value) -> DataVersion:
    return DataVersion(tree.whole_in("timestamp"), tree.whole_in("counter"))


def data_version(version: DataVersion) -> bytes:
    return fastjson.dumps(data_version_tree(version))


def data_version_of(body: Body) -> DataVersion:
    return data_version_of_tree(beans.parse(body, "data version"))


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


def topic_of_tree(tree: Value, name: str = "") -> TopicConfig:
    return TopicConfig(
        tree.text_in("topicName", name),
        queues_in(tree, "readQueueNums", 16),
        queues_in(tree, "writeQueueNums", 16),
        tree.whole_in("perm", 6, 32),
        tree.whole_in("topicSysFlag", 0, 32),
        tree.boolean_in("order"),
        tree.enum_in("topicFilterType", FILTER_TYPES, "SINGLE_TAG"),
    )


def topic_table_tree(topics: Mapping[str, TopicConfig], version: DataVersion) -> Tree:
    table = {name: topic_tree(topic) for name, topic in topics.items()}
    return {"dataVersion": data_version_tree(version), "topicConfigTable": table}


def topic_file_entry(name: str, topic: TopicConfig) -> str:
    """One topic of topics.json, to be put together by `topic_file`: a large table is not written anew for each."""
    return fastjson.file_entry(name, topic_tree(topic), 2)


def topic_file(entries: Iterable[str], version: DataVersion) -> str:
    """topics.json: the text that `dumps_file` writes for `topic_table_tree`."""
    return _table_file("topicConfigTable", entries, version)


def _table_file(table: str, entries: Iterable[str], version: DataVersion) -> str:
    """A file of a version and one table, put together from the table's entries."""
    version_entry = fastjson.file_entry("dataVersion", data_version_tree(version), 1)
    return fastjson.file_map([version_entry, f'"{table}":{fastjson.file_map(entries, 1)}'], 0)


def topic_table_of_tree(tree: Value) -> tuple[DataVersion, dict[str, TopicConfig]]:
    topics = (topic_of_tree(value, name.key()) for name, value in tree["topicConfigTable"].entries())
    return data_version_of_tree(tree["dataVersion"]), {topic.name: topic for topic in topics}


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
    tree = beans.parse(body, "registration")
    return topic_table_of_tree(tree if bare else tree["topicConfigSerializeWrapper"])


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
            topics[name] = topic_of_tree(Value(tree, f"the compressed registration of {name:.60}"), name)
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


def group_of_tree(tree: Value, name: str = "") -> GroupConfig:
    return GroupConfig(
        tree.text_in("groupName", name),
        tree.boolean_in("consumeEnable", default=True),
        tree.boolean_in("consumeFromMinEnable", default=True),
        tree.boolean_in("consumeBroadcastEnable", default=True),
        tree.whole_in("retryQueueNums", 1, 32),
        tree.whole_in("retryMaxTimes", 16, 32),
        tree.whole_in("brokerId", 0),
        tree.whole_in("whichBrokerWhenConsumeSlowly", 1),
        tree.boolean_in("notifyConsumerIdsChangedEnable", default=True),
    )


def group_of(body: Body) -> GroupConfig:
    """200."""
    return group_of_tree(beans.parse(body, "subscription group"))


def group_table_tree(groups: Mapping[str, GroupConfig], version: DataVersion) -> Tree:
    table = {name: group_tree(group) for name, group in groups.items()}
    return {"dataVersion": data_version_tree(version), "subscriptionGroupTable": table}


def group_file_entry(name: str, group: GroupConfig) -> str:
    """One group of subscriptionGroup.json, as `topic_file_entry`."""
    return fastjson.file_entry(name, group_tree(group), 2)


def group_file(entries: Iterable[str], version: DataVersion) -> str:
    """subscriptionGroup.json: the text that `dumps_file` writes for `group_table_tree`."""
    return _table_file("subscriptionGroupTable", entries, version)


def group_table_of_tree(tree: Value) -> tuple[DataVersion, dict[str, GroupConfig]]:
    groups = (group_of_tree(value, name.key()) for name, value in tree["subscriptionGroupTable"].entries())
    return data_version_of_tree(tree["dataVersion"]), {group.name: group for group in groups}


# -------------------------------------------------------------------- positions (43, 45) and the name server's file


def group_offsets_tree(offsets: Mapping[str, Mapping[int, int]]) -> Tree:
    """43 and consumerOffset.json: `topic@group` → queue id → offset. 45 and delayOffset.json: level → offset, flat."""
    return {"offsetTable": {key: dict(table) for key, table in offsets.items()}}


def group_offsets_of_tree(tree: Value) -> dict[str, dict[int, int]]:
    return {key.key(): _by_number(table) for key, table in tree["offsetTable"].entries()}


def delay_offsets_tree(offsets: Mapping[int, int]) -> Tree:
    return {"offsetTable": dict(offsets)}


def delay_offsets_of_tree(tree: Value) -> dict[int, int]:
    return _by_number(tree["offsetTable"])


def _by_number(table: Value) -> dict[int, int]:
    return {key.given_whole(32): offset.given_whole() for key, offset in table.entries()}


def kv_file(entries: Mapping[tuple[str, str], str]) -> str:
    """kvConfig.json of the entries of `kv_file_entry`, by namespace and key."""
    spaces: dict[str, list[str]] = {}
    for (namespace, _), entry in entries.items():
        spaces.setdefault(namespace, []).append(entry)
    maps = (f"{fastjson.dumps(name).decode()}:{fastjson.file_map(table, 2)}" for name, table in spaces.items())
    return fastjson.file_map([f'"configTable":{fastjson.file_map(maps, 1)}'], 0)


def kv_file_entry(key: str, value: str) -> str:
    return fastjson.file_entry(key, value, 3)


def kv_config_of_tree(tree: Value) -> dict[str, dict[str, str]]:
    """kvConfig.json: namespace → key → text. Raises BadRequest for a file without a table: nothing was configured there."""
    if tree["configTable"].tree is None:
        raise tree["configTable"].wrong("a table of namespaces")
    return {
        namespace.key(): {key.key(): value.text() for key, value in table.entries(nulls=True)}
        for namespace, table in tree["configTable"].entries(nulls=True)
    }
