"""Queues and clients in detail, for administrators (303, 308, 317, 321, 328)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from metaq.in_pieces import InPieces
from metaq.model import ConsumeStats, MessageQueue
from metaq.model.filters.subscription import GroupFilter
from metaq.model.inspection import ProducerClient, QueueTimeSpan, QueueUnit, QueueUnits
from metaq.wire import beans, fastjson
from metaq.wire.bodies.clients import subscription_of_tree, subscription_tree
from metaq.wire.bodies.parts import Body, Tree
from metaq.wire.bodies.queues import consume_stats, consume_stats_in, queue_of_key, with_texts_as_keys
from metaq.wire.command import LANGUAGES
from metaq.wire.fastjson import ENTRIES_OF_A_PIECE

AllStats = dict[str, list[tuple[dict[MessageQueue, ConsumeStats], float]]]
"""Group → progress in each of its topics, and the messages that it gets there in a second."""


def time_spans(spans: Iterable[QueueTimeSpan]) -> InPieces[bytes]:
    """Encode the answer to QUERY_CONSUME_TIME_SPAN (303).

    RocketMQ writes each time as a text, too, in its own time zone; its tools make those themselves.
    """
    left, parts = iter(spans), []
    while some := list(islice(left, ENTRIES_OF_A_PIECE)):
        parts.append(fastjson.dumps([_span_tree(one) for one in some])[1:-1])
        yield
    return b'{"consumeTimeSpanSet":[' + b",".join(parts) + b"]}"


def _span_tree(span: QueueTimeSpan) -> Tree:
    queue = span.queue
    return {
        "consumeTimeStamp": span.consumed_ms,
        "delayTime": span.delay_ms,
        "maxTimeStamp": span.newest_ms,
        "messageQueue": {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic},
        "minTimeStamp": span.oldest_ms,
    }


def time_spans_of(body: Body) -> list[QueueTimeSpan]:
    return [
        QueueTimeSpan(
            queue_of_key(one["messageQueue"]),
            one.whole_in("minTimeStamp"),
            one.whole_in("maxTimeStamp"),
            one.whole_in("consumeTimeStamp"),
            one.whole_in("delayTime"),
        )
        for one in beans.parse(body, "time spans")["consumeTimeSpanSet"].objects()
    ]


def all_consume_stats(
    address: str, groups: Iterable[tuple[str, Iterable[tuple[Iterable[tuple[MessageQueue, ConsumeStats]], float]]]]
) -> InPieces[bytes]:
    """Encode the answer to GET_BROKER_CONSUME_STATS (317) of the broker at `address`: each group's topics, with
    their queues and the messages that the group gets there in a second."""
    total, parts = _Total(), []
    for group, topics in groups:
        texts = list[bytes]()
        for stats, tps in topics:
            text = yield from consume_stats(total.counting(stats), tps)
            texts.append(text)
        parts.append(b"{" + fastjson.dumps(group) + b":[" + b",".join(texts) + b"]}")
        yield
    before = fastjson.dumps({"brokerAddr": address})
    return (
        before[:-1] + b',"consumeStatsList":[' + b",".join(parts) + b'],"totalDiff":' + str(total.diff).encode() + b"}"
    )


class _Total:
    """Sum of the messages that groups have not consumed."""

    diff = 0

    def counting(
        self, stats: Iterable[tuple[MessageQueue, ConsumeStats]]
    ) -> Iterator[tuple[MessageQueue, ConsumeStats]]:
        for queue, one in stats:
            self.diff += one.broker_offset - one.consumer_offset
            yield queue, one


def all_consume_stats_of(body: Body) -> tuple[str, AllStats, int]:
    """Decode the answer to 317: address of the broker, each group's topics, messages that are not consumed."""
    tree = beans.parse(with_texts_as_keys(body), "consume statistics")
    found: AllStats = {}
    for entry in tree["consumeStatsList"].objects():
        for group, topics in entry.entries(nulls=True):
            found.setdefault(group.key(), []).extend(consume_stats_in(topic) for topic in topics.objects())
    return tree.text_in("brokerAddr"), found, tree.whole_in("totalDiff")


def queue_units(found: QueueUnits, topic: str) -> bytes:
    """Encode the answer to QUERY_CONSUME_QUEUE (321) about a queue of `topic`."""
    tree: Tree = {} if found.group is None else {"filterData": _filter_text(found, topic)}
    tree |= {
        "maxQueueIndex": found.max_offset,
        "minQueueIndex": found.min_offset,
        "queueData": [
            # `eval` as RocketMQ has it, which looks at filters by SQL only.
            {"eval": False, "physicOffset": one.log_offset, "physicSize": one.size, "tagsCode": one.tags_code}
            for one in found.units
        ],
    }
    if found.subscription is not None:
        tree["subscriptionData"] = subscription_tree(found.subscription)
    return fastjson.dumps(tree)


def _filter_text(found: QueueUnits, topic: str) -> str:
    if found.subscription is None:
        return f"{found.group}@{topic} is not online!"
    return "null" if found.filter is None else fastjson.dumps_file(_filter_tree(found.filter))


def _filter_tree(one: GroupFilter) -> Tree:
    return {
        "bornTime": one.born_ms,
        "clientVersion": one.version,
        "consumerGroup": one.group,
        "dead": one.dead,
        "deadTime": one.dead_ms,
        "expression": one.expression,
        "expressionType": one.expression_type,
        "topic": one.topic,
    }


def queue_units_of(body: Body) -> QueueUnits:
    """Decode the answer to 321; group and filter are in it as a text for people only."""
    tree = beans.parse(body, "consume queue")
    subscription = tree["subscriptionData"]
    return QueueUnits(
        tree.whole_in("minQueueIndex"),
        tree.whole_in("maxQueueIndex"),
        [
            QueueUnit(one.whole_in("physicOffset"), one.whole_in("physicSize", 0, 32), one.whole_in("tagsCode"))
            for one in tree["queueData"].objects()
        ],
        subscription=subscription_of_tree(subscription) if subscription.tree is not None else None,
    )


def correction_offsets(offsets: Mapping[int, int]) -> bytes:
    """Encode the answer to QUERY_CORRECTION_OFFSET (308): queue id → QueueOffset."""
    return fastjson.dumps_java({"correctionOffsets": dict(offsets)})


def correction_offsets_of(body: Body) -> dict[int, int]:
    table = beans.parse(body, "correction offsets")["correctionOffsets"]
    return {key.given_whole(32): offset.given_whole() for key, offset in table.entries()}


def all_producers(groups: Iterable[tuple[str, Iterable[ProducerClient]]]) -> InPieces[bytes]:
    """Encode the answer to GET_ALL_PRODUCER_INFO (328)."""
    entries = ((group, [_producer_tree(one) for one in members]) for group, members in groups)
    return fastjson.table_in_pieces({}, "data", entries)


def _producer_tree(one: ProducerClient) -> Tree:
    return {
        "clientId": one.client_id,
        "language": one.language,
        "lastUpdateTimestamp": one.seen_ms,
        "remoteIP": f"/{one.address}",  # as Java writes a socket's address
        "version": one.version,
    }


def all_producers_of(body: Body) -> dict[str, list[ProducerClient]]:
    return {
        group.key(): [
            ProducerClient(
                one.text_in("clientId"),
                one.text_in("remoteIP").removeprefix("/"),
                one.enum_in("language", LANGUAGES, ""),
                one.whole_in("version", 0, 32),
                one.whole_in("lastUpdateTimestamp"),
            )
            for one in members.objects()
        ]
        for group, members in beans.parse(body, "producers")["data"].entries(nulls=True)
    }
