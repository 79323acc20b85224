"""Tables of topics and consumer groups (21, 200, 201), and lists of their names (206, 224, 300, 304, 305, 311-313)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metaq.in_pieces import InPieces, finish
from metaq.model import DataVersion, GroupConfig, TopicConfig
from metaq.model.topics.topic import FILTER_TYPES
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree, data_version_of_tree, data_version_tree, queues_in

TOPICS_OF_A_PIECE = 32
"""Topics that are decoded at once: some 0.4 ms."""


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
        # 16: RocketMQ's TopicConfig has it where the field is missing.
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


def topic_table_of_tree(tree: Value) -> tuple[DataVersion, dict[str, TopicConfig]]:
    return finish(topic_table_in_pieces(tree))


def topic_table_in_pieces(tree: Value) -> InPieces[tuple[DataVersion, dict[str, TopicConfig]]]:
    """Decode a table of topics, some at a time."""
    version, topics = data_version_of_tree(tree["dataVersion"]), dict[str, TopicConfig]()
    for number, (name, value) in enumerate(tree["topicConfigTable"].entries(), 1):
        topic = topic_of_tree(value, name.key())
        topics[topic.name] = topic
        if number % TOPICS_OF_A_PIECE == 0:
            yield
    return version, topics


def topic_table(topics: Iterable[tuple[str, TopicConfig]], version: DataVersion) -> InPieces[bytes]:
    """Encode the answer to GET_ALL_TOPIC_CONFIG (21)."""
    entries = ((name, topic_tree(topic)) for name, topic in topics)
    head = {"dataVersion": data_version_tree(version)}
    return fastjson.table_in_pieces(head, "topicConfigTable", entries, fastjson.dumps)


def topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """Encode the answer to 206, 224, 304, 305 and 311-313: names of topics."""
    tree: Tree = {"topicList": list(topics)}
    return fastjson.dumps({"brokerAddr": broker_address, **tree} if broker_address else tree)


def topic_list_of(body: Body) -> list[str]:
    return beans.parse(body, "topic list")["topicList"].texts()


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
        name=tree.text_in("groupName", name),
        consume_enable=tree.boolean_in("consumeEnable", default=True),
        consume_from_min_enable=tree.boolean_in("consumeFromMinEnable", default=True),
        consume_broadcast_enable=tree.boolean_in("consumeBroadcastEnable", default=True),
        retry_queues=tree.whole_in("retryQueueNums", 1, 32),
        retry_max=tree.whole_in("retryMaxTimes", 16, 32),
        broker_id=tree.whole_in("brokerId", 0),
        slow_broker_id=tree.whole_in("whichBrokerWhenConsumeSlowly", 1),
        notify_changed=tree.boolean_in("notifyConsumerIdsChangedEnable", default=True),
    )


def group(config: GroupConfig) -> bytes:
    """Encode UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
    return fastjson.dumps(group_tree(config))


def group_of(body: Body) -> GroupConfig:
    """Decode UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
    return group_of_tree(beans.parse(body, "subscription group"))


def group_table_tree(groups: Mapping[str, GroupConfig], version: DataVersion) -> Tree:
    table = {name: group_tree(group) for name, group in groups.items()}
    return {"dataVersion": data_version_tree(version), "subscriptionGroupTable": table}


def group_table_of_tree(tree: Value) -> tuple[DataVersion, dict[str, GroupConfig]]:
    groups = (group_of_tree(value, name.key()) for name, value in tree["subscriptionGroupTable"].entries())
    return data_version_of_tree(tree["dataVersion"]), {group.name: group for group in groups}


def topic_table_of(body: Body) -> InPieces[tuple[DataVersion, dict[str, TopicConfig]]]:
    """Decode the answer to GET_ALL_TOPIC_CONFIG (21), some topics at a time."""
    return topic_table_in_pieces(beans.parse(body, "topic table"))


def group_table_of(body: Body) -> tuple[DataVersion, dict[str, GroupConfig]]:
    """Decode the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
    return group_table_of_tree(beans.parse(body, "group table"))


def group_table(groups: Iterable[tuple[str, GroupConfig]], version: DataVersion) -> InPieces[bytes]:
    """Encode the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
    entries = ((name, group_tree(group)) for name, group in groups)
    head = {"dataVersion": data_version_tree(version)}
    return fastjson.table_in_pieces(head, "subscriptionGroupTable", entries, fastjson.dumps)


def group_list(groups: Iterable[str]) -> bytes:
    """Encode the answer to QUERY_TOPIC_CONSUME_BY_WHO (300)."""
    return fastjson.dumps({"groupList": list(groups)})


def group_list_of(body: Body) -> list[str]:
    return beans.parse(body, "group list")["groupList"].texts()
