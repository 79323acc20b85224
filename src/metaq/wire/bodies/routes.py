"""Who has what: routes and clusters (105, 106)."""

from __future__ import annotations

from metaq.model import BrokerData, ClusterInfo, QueueData, Route
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value, whole
from metaq.wire.bodies.parts import Body, Tree, queues_in


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
    tree = beans.parse(body, f"route of {topic}")
    queues = tuple(
        QueueData(
            one.text_in("brokerName"),
            queues_in(one, "readQueueNums", 0),
            queues_in(one, "writeQueueNums", 0),
            one.whole_in("perm", 0, 32),
            one.whole_in("topicSynFlag" if one.has("topicSynFlag") else "topicSysFlag", 0, 32),  # the older spelling
        )
        for one in tree["queueDatas"].objects()
    )
    brokers = tuple(map(_broker_of_tree, tree["brokerDatas"].objects()))
    return Route(topic, queues, brokers, tree["orderTopicConf"].text_or_none())


def _broker_tree(data: BrokerData, *, quoted: bool) -> Tree:
    addresses: Tree = {str(key) if quoted else key: value for key, value in data.addresses.items()}
    return {"brokerAddrs": addresses, "brokerName": data.broker, "cluster": data.cluster}


def _broker_of_tree(tree: Value) -> BrokerData:
    addresses = {
        broker_id: address.text()
        for key, address in tree["brokerAddrs"].entries(nulls=True)
        if (broker_id := key.read(whole)) is not None
    }
    return BrokerData(tree.text_in("cluster"), tree.text_in("brokerName"), addresses)


def cluster_info(info: ClusterInfo) -> bytes:
    """106, with bare integer keys as upstream writes them."""
    brokers = {name: _broker_tree(data, quoted=False) for name, data in info.brokers.items()}
    clusters = {name: list(members) for name, members in info.clusters.items()}
    return fastjson.dumps_java({"brokerAddrTable": brokers, "clusterAddrTable": clusters})


def cluster_info_of(body: Body) -> ClusterInfo:
    tree = beans.parse(body, "cluster info")
    brokers = {name.key(): _broker_of_tree(one) for name, one in tree["brokerAddrTable"].entries(nulls=True)}
    clusters = tree["clusterAddrTable"].entries(nulls=True)
    return ClusterInfo(brokers, {name.key(): tuple(members.texts()) for name, members in clusters})
