"""JSON of strangers: fastjson's texts, heartbeats, every body of `wire.bodies`, our extensions' bodies, staged parts, traces."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import msgspec
from fuzz.target import Feed, parser
from tests.servers.remoting.test_fuzz import DECISION, PART, T
from tests.wire.test_hostile_bodies import DECODERS, KEYS, TREES

from metaq.errors import BadRequest, Refused
from metaq.in_pieces import finish
from metaq.model.transactions.staging import DecisionOutcome
from metaq.wire import beans, bodies, extensions, fastjson, following, staging, trace
from metaq.wire.bodies.clients import HeartbeatLimits

VECTORS = pathlib.Path(__file__).parents[2] / "tests" / "wire" / "fastjson_vectors.json"
WORDS = tuple(f'"{key}":'.encode() for key in KEYS)
LIMITS = HeartbeatLimits(groups=8, topics=8, subscriptions=20)


def all_of(decoders: dict[str, Callable[[Any], Any]], *errors: type[Exception]) -> Feed:
    """A feed for every one of these; an input that all refuse is refused."""

    def feed(data: bytes) -> None:
        refused: Exception | None = None
        count = 0
        for decode in decoders.values():
            try:
                found = decode(data)
                if hasattr(found, "send"):  # in pieces
                    finish(found)
            except errors as error:
                refused, count = error, count + 1
        if refused is not None and count == len(decoders):
            raise refused

    return feed


# -- fastjson


def text(data: bytes) -> None:
    """Any text: what is read can be written in every form, and is read again as it was."""
    tree = fastjson.loads(data)
    for written in (fastjson.dumps_java(tree), fastjson.dumps_file(tree).encode()):
        with contextlib.suppress(BadRequest):  # nested deeper than the parser in Python reads
            assert fastjson.loads(written) == tree
    beans.text(tree)


def some_texts() -> list[bytes]:
    vectors = json.loads(VECTORS.read_text())
    texts = [one for outcomes in vectors.values() for values in outcomes.values() for one in values]
    return [
        b'{0:"a",1:"b"}', b'{{"brokerName":"b","queueId":0,"topic":"T"}:5}', b"{'a':'b',/* c */c:Set[1,2],d:1.5F}//x",
        b'\xef\xbb\xbf{"a":"\\ud83d\\ude00"}', b"[1e10,-1.50,12L,NaN,undefined]", b"{,a:1,,}",
        *sorted({one.encode("utf-8", "surrogatepass") for one in texts}, key=lambda one: (len(one), one))[:120],
    ]  # fmt: skip


# -- bodies

BEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":'
    b'"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"topic":"T","subString":"a || b","tagsSet":["a","b"],"codeSet":[97,98],'
    b'"subVersion":5,"expressionType":"TAG"}],"unitMode":false}],"producerDataSet":[{"groupName":"P"}]}'
)


def heartbeat(data: bytes) -> None:
    """A heartbeat with limits, and what is read of one that is refused."""
    names = bodies.heartbeat_names_of(data)
    beat = finish(bodies.heartbeat_in_pieces(data, LIMITS))
    assert len(beat.consumers) <= LIMITS.groups
    assert names[0] == beat.client_id
    again = bodies.heartbeat_of(bodies.heartbeat(beat))
    assert again.client_id == beat.client_id


def some_bodies() -> list[bytes]:
    queue = '{"brokerName":"b","queueId":0,"topic":"T"}'
    return [
        BEAT, b'{"topicConfigTable":{"T":{"perm":6,"readQueueNums":4,"topicName":"T","writeQueueNums":4,"topicSysFlag":0,"order":false,"topicFilterType":"SINGLE_TAG"}},"dataVersion":{"counter":1,"timestamp":2}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T"}},"dataVersion":{"counter":1,"timestamp":2}},"filterServerList":[]}',
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1","1":"h:2"},"brokerName":"b","cluster":"C"}],"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":4,"topicSynFlag":0}],"orderTopicConf":"b:4"}',
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{"0":"h:1"},"brokerName":"b","cluster":"C"}},"clusterAddrTable":{"C":["b"]}}',
        f'{{"offsetTable":{{{queue}:{{"minOffset":0,"maxOffset":5,"lastUpdateTimestamp":1}}}}}}'.encode(),
        f'{{"offsetTable":{{{queue}:{{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":1}}}},"consumeTps":1.5}}'.encode(),
        f'{{"offsetTable":{{{queue}:5}},"metaqGenerations":{{{queue}:7}}}}'.encode(), f'{{"offsetTable":[[{queue},5]]}}'.encode(),
        f'{{"clientId":"c","consumerGroup":"G","mqSet":[{queue}]}}'.encode(), f'{{"lockOKMQSet":[{queue}]}}'.encode(),
        b'{"offsetTable":{"T@G":{0:5,"1":"7"}}}', b'{"offsetTable":{1:5}}', b'{"table":{"a":"b"}}', b"a=b\nc = d\n", b'{"counter":1,"timestamp":2}',
        b'{"topicList":["T"],"brokerAddr":"h:1"}', b'{"groupList":["G"]}', b'{"consumerIdList":["c"]}',
        b'{"subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":16}},"dataVersion":{"counter":1}}', b'{"groupName":"G","brokerId":0}',
        b'{"connectionSet":[{"clientAddr":"h:1","clientId":"c","language":"JAVA","version":409,"metaqWants":{"T":"a"}}],"consumeType":"CONSUME_ACTIVELY","subscriptionTable":{"T":{"topic":"T","subString":"*"}}}',
        b'{"clientId":"c","group":"G","subscriptionData":{"topic":"T","subString":"a > 5","expressionType":"SQL92"}}',
        b'{"configTable":{"N":{"K":"V"}}}', b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"expression":"a > 5","expressionType":"SQL92"}}}}}',
    ]  # fmt: skip


def some_registrations() -> list[bytes]:
    from metaq.model import DataVersion, TopicConfig

    return [bodies.registration(DataVersion(1, 1), {"T": TopicConfig("T")}), *some_bodies()[:3]]


def tree_of(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda data: decode(beans.parse(data, "body"))


# -- extensions

EXTENSIONS = {
    name: call
    for module in (extensions, staging, following)
    for name, call in vars(module).items()
    if name.endswith("_of") and callable(call) and name[0] != "_" and name not in {"scrub_state_of", "level_of"}
} | {"scrub_state_of": lambda data: extensions.scrub_state_of(data.decode("utf-8", "replace"))}


def some_extensions() -> list[bytes]:
    decide = staging.DecideBody(DecisionOutcome.COMMIT, (PART.manifest,), "writer", 3)
    state = staging.TransactionState(T, DECISION) if hasattr(staging, "TransactionState") else DECISION
    return [
        staging.sections(PART.sections(), decide), staging.sections(PART.sections()), staging.decide_body(decide),
        staging.apply_body(staging.ApplyBody(DECISION)), b"null", b"[]", b"[1,2]", msgspec.json.encode([state]), msgspec.json.encode(state),
        b'{"fileBytes":1,"logMin":0,"logFlushed":0,"checksums":[]}', b'{"epochs":[{"number":1,"start":0}]}', b'{"topics":{},"filters":{"T":{"G":null}}}',
    ]  # fmt: skip


TRACES = [
    b"Pub\x011700000000000\x01DefaultRegion\x01P\x01T\x01ID\x01TAG\x01K\x01127.0.0.1:10911\x015\x013\x010\x01OFFSETID\x01true\x01127.0.0.1:1\x02",
    b"SubBefore\x011700000000000\x01R\x01G\x01REQ\x01ID\x010\x01K\x02SubAfter\x01REQ\x01ID\x015\x01true\x01K\x010\x02",
    b"EndTransaction\x011700000000000\x01R\x01P\x01T\x01ID\x01TAG\x01K\x01h:1\x012\x01TX\x01COMMIT_MESSAGE\x01false\x02",
]

TARGETS = [
    parser(
        "fastjson",
        text,
        some_texts,
        BadRequest,
        words=(b"Set[", b"/*", b"*/", b"//", b"NaN", b"undefined", b"\\u", b"'", b"1L", b"{{}:1}"),
    ),
    parser("heartbeat", heartbeat, lambda: [BEAT, *some_bodies()[1:2]], BadRequest, Refused, words=WORDS),
    # Forty decoders parse an input one after the other, at some 30 ms each for 64 KiB.
    parser("bodies", all_of(DECODERS, BadRequest, Refused), some_bodies, BadRequest, Refused, words=WORDS, seconds=4.0),
    parser(
        "trees",
        all_of({name: tree_of(one) for name, one in TREES.items()}, BadRequest),
        some_bodies,
        BadRequest,
        words=WORDS,
    ),
    parser("registration", DECODERS["compressed registration_of"], some_registrations, BadRequest),
    parser("extensions", all_of(EXTENSIONS, BadRequest), some_extensions, BadRequest),
    parser(
        "trace",
        trace.decode,
        lambda: TRACES,
        BadRequest,
        words=(b"\x01", b"\x02", b"Pub\x01", b"SubBefore\x01", b"SubAfter\x01", b"EndTransaction\x01"),
    ),
]
