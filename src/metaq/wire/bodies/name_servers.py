"""Name servers: registrations (103), routes (105) and clusters (106)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from metaq.errors import BadRequest
from metaq.in_pieces import InPieces, finish
from metaq.model import BrokerData, ClusterInfo, DataVersion, QueueData, Route, TopicConfig
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value, whole
from metaq.wire.bodies.parts import Body, Tree, data_version_of, queues_in
from metaq.wire.bodies.tables import TOPICS_OF_A_PIECE, topic_of_tree, topic_table_in_pieces, topic_table_tree
from metaq.wire.compression import inflate


def route(data: Route) -> bytes:
    """Encode the answer to GET_ROUTEINFO_BY_TOPIC (105), always as compact standard JSON.

    RocketMQ itself does so towards clients >= 4.9.4 only, which demand it. All others read it too: Go cuts broker
    addresses out of the text and stumbles over a blank after a colon, Node's parser takes quoted keys as well as bare
    ones.
    """
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
        # Left out and not null: with it, clients take their queues from it alone.
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
            # RocketMQ up to about 4.8 spelt it topicSynFlag.
            one.whole_in("topicSynFlag" if one.has("topicSynFlag") else "topicSysFlag", 0, 32),
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
    """Encode the answer to GET_BROKER_CLUSTER_INFO (106), with bare integer keys as RocketMQ writes them."""
    brokers = {name: _broker_tree(data, quoted=False) for name, data in info.brokers.items()}
    clusters = {name: list(members) for name, members in info.clusters.items()}
    return fastjson.dumps_java({"brokerAddrTable": brokers, "clusterAddrTable": clusters})


def cluster_info_of(body: Body) -> ClusterInfo:
    tree = beans.parse(body, "cluster info")
    brokers = {name.key(): _broker_of_tree(one) for name, one in tree["brokerAddrTable"].entries(nulls=True)}
    clusters = tree["clusterAddrTable"].entries(nulls=True)
    return ClusterInfo(brokers, {name.key(): tuple(members.texts()) for name, members in clusters})


REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
"""Largest registration after inflating, room for some 400 000 topics: a zlib stream of kilobytes may expand to
gigabytes."""


def registration(version: DataVersion, topics: Mapping[str, TopicConfig], filter_servers: Iterable[str] = ()) -> bytes:
    """Encode REGISTER_BROKER (103)."""
    return fastjson.dumps(
        {"filterServerList": list(filter_servers), "topicConfigSerializeWrapper": topic_table_tree(topics, version)}
    )


def registration_of(body: Body, *, compressed: bool, bare: bool) -> tuple[DataVersion, dict[str, TopicConfig]]:
    return finish(registration_in_pieces(body, compressed=compressed, bare=bare))


def registration_in_pieces(
    body: Body, *, compressed: bool, bare: bool
) -> InPieces[tuple[DataVersion, dict[str, TopicConfig]]]:
    """Decode REGISTER_BROKER (103), some topics at a time. An empty body is an empty table.

    Raises BadRequest, also for a compressed body that grows beyond `REGISTRATION_BYTES_MAX`.

    Args:
        compressed: brokers with compressedRegister=true send a binary form in a zlib stream.
        bare: brokers before V3_0_11 send the topic table without the wrapper around it.
    """
    if not len(body):  # RocketMQ's name server takes it for an empty table, too
        return DataVersion(), {}
    if compressed:
        return (yield from _compressed_registration_of(body))
    tree = beans.parse(body, "registration")
    return (yield from topic_table_in_pieces(tree if bare else tree["topicConfigSerializeWrapper"]))


def _compressed_registration_of(body: Body) -> InPieces[tuple[DataVersion, dict[str, TopicConfig]]]:
    """Decode the compressed form.

    i32 n, n bytes DataVersion as JSON; i32 topics; per topic i32 n, n bytes `name readQ writeQ perm filterType`; the
    list of filter servers, which is not read. The form has neither sysFlag nor order.
    """
    data = inflate(body, REGISTRATION_BYTES_MAX)
    topics: dict[str, TopicConfig] = {}
    try:
        at, piece = _piece(data, 0)
        version = data_version_of(piece)
        (count,) = struct.unpack_from(">i", data, at)
        at += 4
        for number in range(count):
            if number % TOPICS_OF_A_PIECE == TOPICS_OF_A_PIECE - 1:
                yield
            at, piece = _piece(data, at)
            # Blanks cannot be part of a name, so the split is exact.
            name, reads, writes, perm, filter_type = bytes(piece).decode().split(" ")
            tree = {"readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicFilterType": filter_type}
            topics[name] = topic_of_tree(Value(tree, f"the compressed registration of {name:.60}"), name)
    except (struct.error, ValueError) as error:
        raise BadRequest(f"the compressed registration is broken: {error}") from None
    return version, topics


def _piece(data: bytes, at: int) -> tuple[int, bytes]:
    (size,) = struct.unpack_from(">i", data, at)
    end = at + 4 + size
    # Sizes come from a peer: a negative one would go back in the buffer for ever.
    if size < 0 or end > len(data):
        raise ValueError(f"a part of {size} bytes at {at}")
    return end, data[at + 4 : end]
