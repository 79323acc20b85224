"""Consumer groups: what administrators send and are told (200, 201), and lists of names (300)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metaq.model import DataVersion, GroupConfig
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree, data_version_of_tree, data_version_tree


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


def group_of(body: Body) -> GroupConfig:
    """200."""
    return group_of_tree(beans.parse(body, "subscription group"))


def group_table_tree(groups: Mapping[str, GroupConfig], version: DataVersion) -> Tree:
    table = {name: group_tree(group) for name, group in groups.items()}
    return {"dataVersion": data_version_tree(version), "subscriptionGroupTable": table}


def group_table_of_tree(tree: Value) -> tuple[DataVersion, dict[str, GroupConfig]]:
    groups = (group_of_tree(value, name.key()) for name, value in tree["subscriptionGroupTable"].entries())
    return data_version_of_tree(tree["dataVersion"]), {group.name: group for group in groups}


def group_table(groups: Mapping[str, GroupConfig], version: DataVersion) -> bytes:
    """201."""
    return fastjson.dumps(group_table_tree(groups, version))


def group_list(groups: Iterable[str]) -> bytes:
    """300."""
    return fastjson.dumps({"groupList": list(groups)})


def group_list_of(body: Body) -> list[str]:
    return beans.parse(body, "group list")["groupList"].texts()
