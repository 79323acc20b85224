"""Bodies about queues and clients in detail, against what a 4.9.7 broker sent, and round trips."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.in_pieces import finish
from metaq.model import ConsumeStats, MessageQueue
from metaq.model.filters.subscription import GroupFilter, subscribe
from metaq.model.inspection import ProducerClient, QueueTimeSpan, QueueUnit, QueueUnits
from metaq.wire import beans, bodies

TIME_SPANS = b"""{"consumeTimeSpanSet":[{"consumeTimeStamp":1795898882561,"consumeTimeStampStr":"2026-11-28#20:48:02:561",
"delayTime":1795898889052,"maxTimeStamp":1795898882620,"maxTimeStampStr":"2026-11-28#20:48:02:620","messageQueue":{
"brokerName":"broker-a","queueId":0,"topic":"T"},"minTimeStamp":1795898882561,"minTimeStampStr":"2026-11-28#20:48:02:561"}]}"""
ALL_STATS = (
    b'{"brokerAddr":"127.0.0.1:22105","consumeStatsList":[{"SELF_TEST_C_GROUP":[]},{"G":[{"consumeTps":0.6,"offsetTable":'
    b'{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1795899095172},'
    b'{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":3,"consumerOffset":3,"lastTimestamp":1795899095161}}}'
    b']}],"totalDiff":1}'
)
UNITS = (
    b'{"filterData":"null","maxQueueIndex":3,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":0,"physicSize":198,'
    b'"tagsCode":2598919},{"eval":false,"physicOffset":198,"physicSize":198,"tagsCode":2598919}],"subscriptionData":{'
    b'"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":'
    b'1795898883019,"tagsSet":["TagA","TagB"],"topic":"T"}}'
)
PRODUCERS = (
    b'{"data":{"PG":[{"clientId":"192.0.2.2@p","language":"JAVA","lastUpdateTimestamp":1795898882037,"remoteIP":'
    b'"/127.0.0.1:34680","version":409}]}}'
)
FIRST, SECOND = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(2))


def test_time_spans() -> None:
    """RocketMQ's are read; ours are without the texts, which its tools make themselves."""
    span = QueueTimeSpan(FIRST, 1795898882561, 1795898882620, 1795898882561, 1795898889052)
    assert bodies.time_spans_of(TIME_SPANS) == [span]
    many = [span, *(QueueTimeSpan(MessageQueue("T", "b", number), -1, -1, -1, 0) for number in range(100))]
    assert bodies.time_spans_of(finish(bodies.time_spans(many))) == many
    assert finish(bodies.time_spans([])) == b'{"consumeTimeSpanSet":[]}'


def test_all_statistics_of_a_broker() -> None:
    """Byte for byte as RocketMQ writes them."""
    queues = {SECOND: ConsumeStats(3, 2, 1795899095172), FIRST: ConsumeStats(3, 3, 1795899095161)}
    assert bodies.all_consume_stats_of(ALL_STATS) == (
        "127.0.0.1:22105",
        {"SELF_TEST_C_GROUP": [], "G": [(queues, 0.6)]},
        1,
    )
    groups = [("SELF_TEST_C_GROUP", []), ("G", [(queues.items(), 0.6)])]
    ours = finish(bodies.all_consume_stats("127.0.0.1:22105", groups))
    assert ours == ALL_STATS


QUEUE_TEXTS = st.text(st.sampled_from('ab"\\\\{}:,é%'), max_size=8)


@given(st.lists(st.tuples(QUEUE_TEXTS, QUEUE_TEXTS, st.integers(0, 9)), max_size=4))
def test_statistics_are_read_whatever_names_are(keys: list[tuple[str, str, int]]) -> None:
    """Keys that are read as texts, and those that cannot be, whose names have quotes or look like keys."""
    queues = {MessageQueue(topic, broker, number): ConsumeStats(3, 2, 1) for topic, broker, number in keys}
    body = finish(bodies.all_consume_stats("a:1", [("G", [(queues.items(), 0.5)])]))
    assert bodies.all_consume_stats_of(body) == ("a:1", {"G": [(queues, 0.5)]}, len(queues))
    assert bodies.consume_stats_of(finish(bodies.consume_stats(queues.items(), 0.5))) == (queues, 0.5)


def test_units_of_a_queue() -> None:
    """Byte for byte as RocketMQ's, with a group that is online, one that is not, and none."""
    units = [QueueUnit(0, 198, 2598919), QueueUnit(198, 198, 2598919)]
    wanted = subscribe("T", "TagA || TagB", 1795898883019)
    assert bodies.queue_units(QueueUnits(0, 3, units, "G", wanted), "T") == UNITS
    assert bodies.queue_units_of(UNITS) == QueueUnits(0, 3, units, subscription=wanted)
    offline = bodies.queue_units(QueueUnits(0, 3, units, "nobody"), "T")
    assert b'"filterData":"nobody@T is not online!"' in offline
    plain = bodies.queue_units(QueueUnits(0, 3, units), "T")
    assert plain.startswith(b'{"maxQueueIndex":3')
    assert bodies.queue_units_of(plain) == QueueUnits(0, 3, units)
    sql = GroupFilter("T", "G", "a > 5", born_ms=7)
    told = beans.parse(bodies.queue_units(QueueUnits(0, 3, [], "G", wanted, sql), "T"), "answer").text_in("filterData")
    assert beans.parse(told, "filter").text_in("expression") == "a > 5"


def test_all_producers() -> None:
    """Byte for byte as RocketMQ's."""
    found = {"PG": [ProducerClient("192.0.2.2@p", "127.0.0.1:34680", "JAVA", 409, 1795898882037)]}
    assert bodies.all_producers_of(PRODUCERS) == found
    assert finish(bodies.all_producers(found.items())) == PRODUCERS


def test_correction_offsets() -> None:
    """Byte for byte as RocketMQ's."""
    assert bodies.correction_offsets({0: 3, 1: 3}) == b'{"correctionOffsets":{0:3,1:3}}'
    assert bodies.correction_offsets_of(b'{"correctionOffsets":{0:3,1:3}}') == {0: 3, 1: 3}
    assert bodies.correction_offsets_of(b'{"correctionOffsets":{"0":9223372036854775807}}') == {0: 2**63 - 1}
