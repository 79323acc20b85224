"""Texts for fastjson and for us: each body class of RocketMQ, a template with one odd place, and what is put there.

`wire/fastjson_vectors.json` says what fastjson 1.2.69 made of them; `python -m tests.interop.fastjson` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from metaq.wire import beans, bodies, files


def _words(text: str) -> list[str]:
    return text.split()


SCALARS = [
    *_words(r"""
    null true false 0 1 2 -1 +5 12 012 1.0 1.5 1.9 -1.9 5. 1e2 1E+2 1.5e3 -1e-2 2.50 1L 1S 1B 1D 1.5F NULL undefined NaN
    2147483647 2147483648 -2147483648 -2147483649 9223372036854775807 9223372036854775808 -9223372036854775808
    -9223372036854775809 12345678901234567890 1e10 1e30 1e400 2147483648.5 4294967297
    "true" "false" "TRUE" "True" "t" "f" "T" "F" "Y" "N" "y" "n" "yes" "no" "on" "off" "1" "0" "2" "-1" "+12" "012" "12"
    "1.9" "1.0" "100.00" "0.0" "1." ".0" "1e2" "0x10" "1,234" "1,2," "," "12a" "abc" "" "null" "NULL" "Null" "2598919"
    "1_000" "--1" "1.0.0" "２" "\u0031" "2147483648" "-2147483649" "9223372036854775807" "9223372036854775808" "1,000.00"
    [] [1] [null] ["a"] {} {"a":1} '5' 'ab' abc TRUE .5 -
"""),
    '" 12"', '"12 "', '" "', "/*c*/ 1"]  # fmt: skip
ENUMS = _words(r"""null 0 1 2 5 6 -1 1.5 true "" "null" "0" [] {} "x"
    "CONSUME_ACTIVELY" "consume_actively" "Consume_Actively" "PULL" "CONSUME_PASSIVELY" "BROADCASTING" "broadcasting"
    "CLUSTERING" "CONSUME_FROM_FIRST_OFFSET" "CONSUME_FROM_MIN_OFFSET" "CONSUME_FROM_TIMESTAMP" "consume_from_timestamp"
    "SINGLE_TAG" "MULTI_TAG" "multi_tag" "JAVA" "GO" "go" "PYTHON" """)  # fmt: skip
LISTS = _words(r"""null [] [1] ["1"] ["2598919",7] [1,"2","3,4",1.9,"+7",-8] [null] [""] ["null"] ["a"] ["a",1,2.50,true] [true]
    [99999999999] ["99999999999"] [[1]] [[]] [{}] [{"a":1}] {} {"a":1} "a" "1" 5 true Set[1,2] TreeSet["5"] ["1"] ['1']
    [1,] [1,1] [1,,2] [,1] [1 [1} [1.0] [1e2] [undefined]""")  # fmt: skip
BEANS = _words(r"""null [] [null] [{}] [[]] [""] {} "a" 5 ["x"] [5] [true] [[1]] [{},{}] [{"groupName":"x","topic":5,"perm":"4"}]
    {"groupName":"x","topic":5,"perm":"4"} {"GROUP_NAME":"x"} [{"group-name":"x"}]""")  # fmt: skip
NUMBER_KEYS = [
    *_words(r"""{0:1} {"0":1} {"0":"1"} {"0":1.9} {"0":null} {0:"1,234"} {"a":1} {"1,0":1} {1.5:1} {"1.5":1} {"1.0":1} {"":1}
    {null:1} {"null":1} {true:1} {-1:1} {+1:1} {"+1":1} {"0":true} {"0":"a"} {"0":{}} {"0":[]} {0:1,} {0:1,0:2} {01:2}
    {99999999999:1} {"0":"9223372036854775808"} {"0":9223372036854775808} {"0":""} {[1]:2} {{}:2} {1L:1} {0:1;1:2} {'0':1}
    {1e1:2} null {} [] [[0,5]] "" 5 "a" {0:1 {0}"""),
    "{0 : 1}"]  # fmt: skip
TEXT_VALUES = _words(r"""{"a":"x"} {"a":1} {"a":1.50} {"a":1e2} {"a":true} {"a":null} {"a":{"b":1}} {"a":[1]} {a:1} {$a:1} {true:1}
    {null:"x"} {"":1} {1:"x"} null {} [] 5 "a" {"a":1,} {,"a":1} {'a':'x'}""")  # fmt: skip
QUEUE_KEYS = _words(r"""{{"topic":"T","brokerName":"b","queueId":1}:%} {{"topic":"T","queueId":"1"}:%} {{"queueId":1.9}:%} {{}:%}
    {"{\"topic\":\"T\",\"queueId\":1}":%} {"x":%} {1:%} null {} [] 5""")  # fmt: skip
QUEUES = _words(r"""null [] {} [{}] [null] [{"topic":"T","brokerName":"b","queueId":1}] [{"queueId":"1"}] [{"queueId":1.9}]
    [{"queueId":true}] [{"queueId":"x"}] [{"queueId":99999999999}] [5] ["x"] "a" 5 {"topic":"T"} [{"topic":5}] [{},{}] [[1]]
    [{"queueId":1},{"queueId":"1"}] [{"broker_name":"b"}] [{"queueId":1}""")  # fmt: skip
TOPIC_FIELDS = [
    *_words(r"""{"Perm":1} {"PERM":1} {"_perm":1} {"read_queue_nums":5} {"read-queue-nums":5} {"READQUEUENUMS":5} {"isOrder":true}
    {"is_order":"Y"} {"perm":1,"perm":2} {perm:3} {'perm':3} {"perm":3,} {"perm":3,,"order":true} {,"perm":3}
    {"x":{"y":[1,{}]},"perm":3} {"x":undefined,"perm":3} {"x":[null,{"a":'b'}],"perm":"3"} /*c*/{"perm":3} {"perm":3}//c
    {"perm":3}x {"perm":3}{} {"perm"=3} {"perm":3 {"perm": {"perm":3] {"topicName":"a\x41b"} {"topicName":"a\qb"}
    {"topicName":"a\/b"} {"topicName":"a\0b"} {"topicName":"a\vb"} {"topicName":"a\u00"} {"topicName":"a\'b"}
    {"topicName":'a"b'} {"topicName":"\u0054\ud83d\ude00é"} {} null [] 5 "x" true"""),

    '{"topicName":"a\tb\\n"}', '{"perm":3 "order":true}', "{perm : 3 , order : true}", '{"a b":1,"perm":3}', '\ufeff{"perm":3}',
]  # fmt: skip

SUBSCRIPTIONS = [*(text for text in BEANS if text != "[{},{}]"), '[{"subVersion":1},{"subVersion":1}]']
"""A set of beans that hold the moment of their making: two made of nothing are one only within the same millisecond."""


class Target(NamedTuple):
    """One place of one body. `read`: our decoder of it. `java`: RocketMQ's class, behind `org.apache.rocketmq.`."""

    java: str
    template: str
    texts: list[str]
    read: Callable[[str], Any]

    def body(self, text: str) -> str:
        return self.template.replace("%%", text)


def _tree(read: Callable[[beans.Value], Any]) -> Callable[[str], Any]:
    return lambda text: read(beans.parse(text, "body"))


def _body(read: Callable[[bytes], Any]) -> Callable[[str], Any]:
    return lambda text: read(text.encode())


_BODY, _BEAT = "common.protocol.body.", "common.protocol.heartbeat."
_SUBSCRIPTION = '{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T",%s}]}]}'


def _topic(field: str, texts: list[str]) -> Target:
    return Target("common.TopicConfig", f'{{"{field}":%%}}', texts, _tree(bodies.topic_of_tree))


def _group(field: str, texts: list[str]) -> Target:
    java = "common.subscription.SubscriptionGroupConfig"
    return Target(java, f'{{"{field}":%%}}', texts, _body(bodies.group_of))


def _beat(template: str, texts: list[str]) -> Target:
    return Target(f"{_BEAT}HeartbeatData", template, texts, _body(bodies.heartbeat_of))


def _filter(field: str, texts: list[str]) -> Target:
    return _beat(_SUBSCRIPTION % f'"{field}":%%', texts)


def _consumer(field: str, texts: list[str]) -> Target:
    return _beat(f'{{"clientID":"c","consumerDataSet":[{{"{field}":%%}}]}}', texts)


def _version(field: str) -> Target:
    tree = _tree(bodies.data_version_of_tree)
    return Target("common.DataVersion", f'{{"{field}":%%}}', SCALARS, tree)


def _in_tables(table: str, name: str, read: Callable[[beans.Value], Any]) -> dict[str, Target]:
    texts = [f"{{{key}:{value}}}" for key in ('"A"', "A") for value in ("{}", "null", '""', "[]", "5", '{"perm":"4"}')]
    versions = ["null", '""', "{}", '"{}"', "5", "[]", '{"counter":"7","timestamp":"1,234"}', '{"TIMESTAMP":8}']
    return {
        f"{name} table": Target(
            f"{_BODY}{name}", f'{{"dataVersion":{{"timestamp":1}},"{table}":%%}}', texts, _tree(read)
        ),
        f"{name} version": Target(f"{_BODY}{name}", '{"dataVersion":%%}', versions, _tree(read)),
    }


TARGETS: dict[str, Target] = {
    "TopicConfig": Target("common.TopicConfig", "%%", TOPIC_FIELDS, _tree(bodies.topic_of_tree)),
    **{f"TopicConfig.{field}": _topic(field, SCALARS) for field in ("perm", "topicSysFlag", "order", "topicName")},
    "TopicConfig.topicFilterType": _topic("topicFilterType", ENUMS),
    **{f"SubscriptionGroupConfig.{f}": _group(f, SCALARS) for f in ("brokerId", "consumeEnable", "retryMaxTimes")},
    **{f"DataVersion.{field}": _version(field) for field in ("timestamp", "counter")},
    "HeartbeatData.clientID": _beat('{"clientID":%%}', SCALARS),
    "HeartbeatData.consumerDataSet": _beat('{"clientID":"c","consumerDataSet":%%}', BEANS),
    "HeartbeatData.producerDataSet": _beat('{"clientID":"c","producerDataSet":%%}', BEANS),
    "ConsumerData.subscriptionDataSet": _consumer("subscriptionDataSet", SUBSCRIPTIONS),
    "ConsumerData.unitMode": _consumer("unitMode", SCALARS),
    "ConsumerData.groupName": _consumer("groupName", SCALARS),
    **{f"ConsumerData.{f}": _consumer(f, ENUMS) for f in ("consumeType", "messageModel", "consumeFromWhere")},
    "SubscriptionData.codeSet": _filter("codeSet", LISTS),
    "SubscriptionData.tagsSet": _filter("tagsSet", LISTS),
    "SubscriptionData.subVersion": _filter("subVersion", SCALARS),
    "SubscriptionData.subString": _filter("subString", SCALARS),
    "SubscriptionData.classFilterMode": _filter("classFilterMode", SCALARS),
    "CheckClientRequestBody": Target(
        f"{_BODY}CheckClientRequestBody",
        '{"clientId":5,"group":%%,"subscriptionData":{"codeSet":["5"]}}',
        SCALARS,
        _body(bodies.client_check_of),
    ),
    **_in_tables("topicConfigTable", "TopicConfigSerializeWrapper", bodies.topic_table_of_tree),
    **_in_tables("subscriptionGroupTable", "SubscriptionGroupWrapper", bodies.group_table_of_tree),
    "RegisterBrokerBody": Target(
        f"{_BODY}RegisterBrokerBody",
        '{"filterServerList":[],"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":%%,"topicName":"T"}}}}',
        SCALARS,
        lambda text: bodies.registration_of(text.encode(), compressed=False, bare=False)[1],
    ),
    "ConsumerOffsetSerializeWrapper": Target(
        f"{_BODY}ConsumerOffsetSerializeWrapper",
        '{"offsetTable":{"T@G":%%}}',
        NUMBER_KEYS,
        _tree(bodies.group_offsets_of_tree),
    ),
    "DelayOffsetSerializeWrapper": Target(
        "store.schedule.DelayOffsetSerializeWrapper",
        '{"offsetTable":%%}',
        NUMBER_KEYS,
        _tree(bodies.delay_offsets_of_tree),
    ),
    "KVConfigSerializeWrapper": Target(
        "namesrv.kvconfig.KVConfigSerializeWrapper",
        '{"configTable":{"N":%%}}',
        TEXT_VALUES,
        _tree(files.namespaces_of_tree),
    ),
    "KVTable": Target(f"{_BODY}KVTable", '{"table":%%}', TEXT_VALUES, _body(bodies.kv_table_of)),
    "ClusterInfo.brokerAddrs": Target(
        f"{_BODY}ClusterInfo",
        '{"brokerAddrTable":{"b":{"brokerAddrs":%%}}}',
        NUMBER_KEYS,
        _body(bodies.cluster_info_of),
    ),
    "ClusterInfo.clusterAddrTable": Target(
        f"{_BODY}ClusterInfo",
        '{"clusterAddrTable":{"C":%%}}',
        LISTS,
        lambda text: {name: set(of) for name, of in bodies.cluster_info_of(text.encode()).clusters.items()},
    ),
    "TopicRouteData.queueDatas": Target(
        "common.protocol.route.TopicRouteData",
        '{"queueDatas":%%}',
        BEANS,
        lambda text: bodies.route_of("T", text.encode()),
    ),
    "TopicRouteData.topicSysFlag": Target(
        "common.protocol.route.TopicRouteData",
        '{"queueDatas":[{"topicSysFlag":%%,"readQueueNums":"4"}],"orderTopicConf":5}',
        SCALARS,
        lambda text: bodies.route_of("T", text.encode()),
    ),
    "TopicList": Target(
        f"{_BODY}TopicList", '{"topicList":%%}', LISTS, lambda text: set(bodies.topic_list_of(text.encode()))
    ),
    "GroupList": Target(
        f"{_BODY}GroupList", '{"groupList":%%}', LISTS, lambda text: set(bodies.group_list_of(text.encode()))
    ),
    "GetConsumerListByGroupResponseBody": Target(
        "common.protocol.header.GetConsumerListByGroupResponseBody",
        '{"consumerIdList":%%}',
        LISTS,
        _body(bodies.consumer_ids_of),
    ),
    "LockBatchRequestBody.mqSet": Target(
        f"{_BODY}LockBatchRequestBody",
        '{"consumerGroup":5,"clientId":"c","mqSet":%%}',
        QUEUES,
        _body(bodies.queue_locks_of),
    ),
    "LockBatchResponseBody": Target(
        f"{_BODY}LockBatchResponseBody",
        '{"lockOKMQSet":%%}',
        QUEUES,
        lambda text: set(bodies.locked_queues_of(text.encode())),
    ),
    "ConsumerConnection": Target(
        f"{_BODY}ConsumerConnection",
        '{"connectionSet":[{"clientId":5,"version":"7","language":%%}]}',
        ENUMS,
        _body(bodies.connections_of),
    ),
    "ConsumeStats.consumeTps": Target(
        "common.admin.ConsumeStats", '{"consumeTps":%%}', SCALARS, _body(bodies.consume_stats_of)
    ),
    "ConsumeStats.offsetTable": Target(
        "common.admin.ConsumeStats",
        '{"offsetTable":%%}',
        [text.replace("%", '{"brokerOffset":"5","lastTimestamp":null}') for text in QUEUE_KEYS],
        _body(bodies.consume_stats_of),
    ),
    "TopicStatsTable": Target(
        "common.admin.TopicStatsTable",
        '{"offsetTable":%%}',
        [text.replace("%", '{"maxOffset":"1,0"}') for text in QUEUE_KEYS],
        _body(bodies.topic_stats_of),
    ),
    "ResetOffsetBody": Target(
        f"{_BODY}ResetOffsetBody",
        '{"offsetTable":%%}',
        [text.replace("%", '"5"') for text in QUEUE_KEYS],
        _body(bodies.queue_offsets_of),
    ),
}
