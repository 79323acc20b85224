"""Topics: what administrators send and are told (17, 21), and lists of names (206, 224, 304, 305, 311-313)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metaq.model import DataVersion, TopicConfig
from metaq.model.topics.topic import FILTER_TYPES
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree, data_version_of_tree, data_version_tree, queues_in


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


def topic_table_of_tree(tree: Value) -> tuple[DataVersion, dict[str, TopicConfig]]:
    topics = (topic_of_tree(value, name.key()) for name, value in tree["topicConfigTable"].entries())
    return data_version_of_tree(tree["dataVersion"]), {topic.name: topic for topic in topics}


def topic_table(topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
    """21."""
    return fastjson.dumps(topic_table_tree(topics, version))


def topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """206, 224, 304, 305, 311-313."""
    tree: Tree = {"topicList": list(topics)}
    return fastjson.dumps({"brokerAddr": broker_address, **tree} if broker_address else tree)


def topic_list_of(body: Body) -> list[str]:
    return beans.parse(body, "topic list")["topicList"].texts()
