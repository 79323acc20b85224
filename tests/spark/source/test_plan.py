"""What the driver decides: where a query begins and ends, and how much of it one batch takes."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from metaq.clock import FakeClock
from metaq.errors import ConfigError, MessagesLost, NoRoute, OffsetOutOfRange, RemoteProtocolError
from metaq.model import offsets
from metaq.model.queue import MessageQueue
from metaq.spark import data_source as source
from metaq.spark.cluster import client
from metaq.spark.data_source import MetaqStreamReader
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import SourceOptions
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, reply, request
from tests.scripted import ScriptedCluster
from tests.support import PATIENCE, eventually

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", i) for i in range(3))
NO_LIMIT = ReadAllAvailable()
START = 1_700_000_000_000


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path) as running:
        running.put("orders", 0, [b"x" * 100] * 60, START)
        running.new_log_file()
        running.put("orders", 0, [b"x" * 100] * 40)
        running.put("orders", 1, [b"x" * 100] * 300, START + 1000)
        yield running
        client.client_of.cache_clear()


def options(cluster, **more) -> SourceOptions:
    chosen = {} if {"assign", "subscribePattern"} & set(more) else {"subscribe": "orders"}
    return SourceOptions.of({"nameServers": cluster.namesrv, "retrySeconds": "0.2"} | chosen | more)


def reader(cluster, **more) -> MetaqStreamReader:
    return MetaqStreamReader(options(cluster, **more), StructType([]))


def test_the_start_is_what_the_options_say(cluster):
    """earliest, latest, a time, or offsets, where a queue that is not named is read from its first message."""
    cluster.expire("orders", 0, 60)

    def start(**more):
        return Planner(options(cluster, **more)).start("latest")

    assert start() == {Q0: 100, Q1: 300}
    assert start(startingOffsets="earliest") == {Q0: 60, Q1: 0}
    assert start(startingTimestamp=str(START + 500)) == {Q0: 100, Q1: 0}
    assert start(startingTimestamp="0") == {Q0: 60, Q1: 0}
    assert start(startingTimestamp=str(START + 1001)) == {Q0: 100, Q1: 300}
    assert start(startingOffsets=offsets.to_text({Q1: 7})) == {Q0: 60, Q1: 7}
    with pytest.raises(ConfigError, match="startingOffsets names queues that are not read: orders@broker-a:9"):
        start(startingOffsets=offsets.to_text({MessageQueue("orders", "broker-a", 9): 1}))
    with pytest.raises(ConfigError, match="startingOffsets='earlyest': need earliest, latest, or offsets as JSON"):
        start(startingOffsets="earlyest")


def test_a_trimmed_topic_begins_where_its_queues_do(cluster):
    """No log file went. Only the queue that was trimmed begins later."""
    header = headers.TrimTopicHeader(topic="orders", offset=40, queue_id=1)
    cluster._ask([request(RequestCode.TRIM_TOPIC, header)])
    eventually(lambda: cluster.starts("orders") == {Q0: 0, Q1: 40})
    assert Planner(options(cluster, startingOffsets="earliest")).start("latest") == {Q0: 0, Q1: 40}
    header = headers.TrimTopicHeader(topic="orders", before=START + 500)
    cluster._ask([request(RequestCode.TRIM_TOPIC, header)])
    eventually(lambda: cluster.starts("orders") == {Q0: 100, Q1: 40})
    assert Planner(options(cluster, startingTimestamp="0")).start("latest") == {Q0: 100, Q1: 40}


def test_times_may_differ_by_topic_and_end_a_batch(cluster):
    """Each topic at its own time; the end is before the first message of its time."""
    cluster.put("stock", 0, [b"x"] * 10, START + 5000)
    both = {"subscribe": "orders,stock"}
    times = f'{{"orders": {START + 500}, "stock": {START + 6000}}}'
    plan = Planner(options(cluster, **both, startingTimestamp=times))
    stock = MessageQueue("stock", "broker-a", 0)
    assert plan.start("latest") == {Q0: 100, Q1: 0, stock: 10}
    ending = Planner(options(cluster, **both, endingTimestamp=times))
    assert ending.end([Q0, Q1, stock]) == {Q0: 100, Q1: 0, stock: 10}
    with pytest.raises(ConfigError, match="each topic needs one"):
        options(cluster, **both, startingTimestamp='{"orders": 1}')
    with pytest.raises(ConfigError, match=r"has no time for topic .*stock"):
        Planner(options(cluster, subscribePattern="*", startingTimestamp='{"orders": 1}')).start("latest")


def test_a_group_says_where_a_query_begins_or_ends(cluster):
    """Where it has come; the first message kept of a queue that it has not consumed, or of which that has left the log."""
    Planner(options(cluster)).client.report("audit", {Q1: 42})
    cluster.expire("orders", 0, 60)
    assert Planner(options(cluster, startingGroup="audit")).start("latest") == {Q0: 60, Q1: 42}
    assert Planner(options(cluster, endingGroup="audit")).end([Q0, Q1]) == {Q0: 60, Q1: 42}
    Planner(options(cluster)).client.report("audit", {Q0: 7})
    assert Planner(options(cluster, startingGroup="audit")).start("latest") == {Q0: 60, Q1: 42}
    with pytest.raises(ConfigError, match="nobody has consumed nothing of what is read"):
        Planner(options(cluster, assign='{"orders": {"broker-a": [0]}}', startingGroup="nobody")).start("latest")


def test_a_group_that_is_beyond_the_end_of_a_queue_is_told(cluster, caplog):
    """Its topic was made anew: a query that began there would have no rows, and nobody would know why."""
    Planner(options(cluster)).client.report("ahead", {Q0: 7, Q1: 500})
    with pytest.raises(OffsetOutOfRange, match=r"orders@broker-a:1 keeps \[0, 300\), wanted 500"):
        Planner(options(cluster, startingGroup="ahead")).start("latest")
    careless = Planner(options(cluster, startingGroup="ahead", failOnDataLoss="false"))
    assert careless.start("latest") == {Q0: 7, Q1: 300}
    assert "keeps [0, 300), wanted 500" in caplog.text


def test_a_small_batch_waits_for_more_or_for_its_delay(cluster, monkeypatch):
    """Too few messages wait; enough of them, or the delay, end that; nothing at all is no batch either way."""
    clock = FakeClock()
    monkeypatch.setattr(MetaqStreamReader, "clock", clock)
    monkeypatch.setattr(source, "IDLE_SECONDS", 0.0)
    stream = reader(cluster, minOffsetsPerTrigger="10", maxTriggerDelay="2m")
    begin = offsets.to_json({Q0: 97, Q1: 300})
    assert stream.latestOffset(begin, NO_LIMIT) == begin
    clock.advance(119)
    assert stream.latestOffset(begin, NO_LIMIT) == begin
    clock.advance(2)
    whole = offsets.to_json({Q0: 100, Q1: 300})
    assert offsets.from_json(stream.latestOffset(begin, NO_LIMIT)) == offsets.from_json(whole)
    assert stream.latestOffset(whole, NO_LIMIT) == whole
    cluster.put("orders", 1, [b"x"] * 9)
    assert stream.latestOffset(whole, NO_LIMIT) == whole
    cluster.put("orders", 0, [b"x"])
    assert offsets.from_json(stream.latestOffset(whole, NO_LIMIT)) == {Q0: 101, Q1: 309}


def test_assign_and_pattern_choose_queues(cluster):
    """Only the assigned queues; every topic that the glob matches."""
    cluster.put("orders-old", 0, [b"x"])
    cluster.put("other", 0, [b"x"])
    assigned = options(cluster, assign='{"orders": {"broker-a": [1]}}')
    assert Planner(assigned).queues() == [Q1]
    matched = Planner(options(cluster, subscribePattern="orders*")).queues()
    assert {queue.topic for queue in matched} == {"orders", "orders-old"}
    with pytest.raises(NoRoute, match="assign names queues that are not there: orders@broker-a:7"):
        Planner(options(cluster, assign='{"orders": {"broker-a": [7]}}')).queues()


def test_a_batch_takes_no_more_than_its_limits(cluster):
    """By messages, by bytes, or by the smaller of both; `ReadAllAvailable` overrules them."""
    begin = {Q0: 0, Q1: 0}

    def taken(limit=None, **more):
        stream = reader(cluster, **more)
        end = stream.latestOffset(offsets.to_json(begin), limit or stream.getDefaultReadLimit())
        return sum(offsets.from_json(end).values())

    assert taken() == 400
    assert taken(maxOffsetsPerTrigger="40") == 40
    by_bytes = taken(maxBytesPerTrigger="10000")
    assert 30 <= by_bytes <= 50  # records of about 250 bytes
    assert taken(maxBytesPerTrigger="10000", maxOffsetsPerTrigger="5") == 5
    assert taken(NO_LIMIT, maxOffsetsPerTrigger="40") == 400
    assert isinstance(reader(cluster).getDefaultReadLimit(), ReadAllAvailable)
    assert reader(cluster, maxOffsetsPerTrigger="40").getDefaultReadLimit() == ReadMaxRows(40)


def test_a_new_queue_is_pinned_first_and_read_then(cluster):
    """Its first message is where the query's checkpoint says it begins."""
    stream = reader(cluster)
    begin = {Q0: 100, Q1: 300}
    cluster.put("orders", 2, [b"x"] * 2)
    cluster.new_log_file()
    cluster.put("orders", 2, [b"x"] * 3)
    cluster.expire("orders", 2, 2)
    pinned = stream.latestOffset(offsets.to_json(begin), NO_LIMIT)
    assert offsets.from_json(pinned) == {**begin, Q2: 2}
    assert stream.partitions(offsets.to_json(begin), pinned) == []
    then = stream.latestOffset(pinned, NO_LIMIT)
    assert [partition.wanted for partition in stream.partitions(pinned, then)] == [offsets.Slice(Q2, 2, 5)]


def test_the_first_batch_ends_where_it_begins(cluster):
    """Whatever arrives between the two questions; and Spark asks for the start again afterwards."""
    stream = reader(cluster)
    initial = stream.initialOffset()
    cluster.put("orders", 0, [b"x"] * 10)
    assert stream.latestOffset(initial, NO_LIMIT) == initial
    assert stream.initialOffset() == initial
    assert offsets.from_json(stream.latestOffset(initial, NO_LIMIT))[Q0] == 110


def test_a_replayed_first_batch_is_empty_though_the_start_has_moved(cluster):
    """start behind end, as after a crash before the first commit: nothing is read, and nothing is lost after it."""
    logged = reader(cluster).initialOffset()
    cluster.put("orders", 0, [b"x"] * 10)
    restarted = reader(cluster)
    assert restarted.partitions(restarted.initialOffset(), logged) == []
    end = restarted.latestOffset(logged, NO_LIMIT)
    assert [partition.wanted for partition in restarted.partitions(logged, end)] == [offsets.Slice(Q0, 100, 110)]


def test_an_idle_query_waits_for_news_and_asks_seldom(cluster, monkeypatch):
    """It comes back without news after a while, and at once with them."""
    monkeypatch.setattr(source, "IDLE_SECONDS", 0.3)
    stream = reader(cluster)
    here = offsets.to_json({Q0: 100, Q1: 300})
    before = len(cluster.requests)
    assert stream.latestOffset(here, NO_LIMIT) == here
    assert len(cluster.requests) - before < 100
    assert offsets.from_json(stream.reportLatestOffset()) == offsets.from_json(here)


def test_an_idle_query_comes_back_however_long_a_look_takes(cluster, monkeypatch):
    """What it waits between two looks is a share of them, and ends with the time that it may take in all."""
    monkeypatch.setattr(source, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(source, "LOOK_SHARE", 1e-9)
    here = offsets.to_json({Q0: 100, Q1: 300})
    waiting = threading.Thread(target=reader(cluster).latestOffset, args=(here, NO_LIMIT), daemon=True)
    waiting.start()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_a_query_with_too_few_messages_asks_as_seldom_as_an_idle_one(cluster, monkeypatch):
    """It looks again itself, instead of coming back to Spark, which asks again at once."""
    monkeypatch.setattr(source, "IDLE_SECONDS", PATIENCE)
    stream = reader(cluster, minOffsetsPerTrigger="10", maxTriggerDelay="24h")
    begin, found = offsets.to_json({Q0: 97, Q1: 300}), []
    waiting = threading.Thread(target=lambda: found.append(stream.latestOffset(begin, NO_LIMIT)), daemon=True)
    waiting.start()
    eventually(lambda: cluster.count(RequestCode.GET_MIN_OFFSET) > 4, PATIENCE)
    assert not found
    cluster.put("orders", 1, [b"x"] * 7)
    waiting.join(PATIENCE)
    assert [offsets.from_json(one) for one in found] == [{Q0: 100, Q1: 307}]


@pytest.mark.parametrize("careless", ["true", "false"])
def test_a_target_that_lies_before_the_start_takes_no_query_back(cluster, careless):
    """A slave told it that is behind. The queue itself is as long as it was: no topic was made anew, nothing is read again."""
    plan = Planner(options(cluster, failOnDataLoss=careless))
    assert plan.advance({Q0: 100, Q1: 7}, {Q0: 90, Q1: 300}, plan.watch()) == {Q0: 100, Q1: 300}


def test_topics_that_a_restarted_query_names_no_more_are_left_where_they_are(cluster, caplog):
    """Also if their broker is gone: nobody wants anything of it."""
    old = MessageQueue("old", "broker-gone", 0)
    plan = Planner(options(cluster, brokerAway="fail", progressGroup="fewer"))
    watch = plan.watch()
    assert plan.advance({Q0: 0, Q1: 0, old: 5}, None, watch) == {Q0: 100, Q1: 300, old: 5}
    assert f"no longer named by the options, and wait: {old}" in caplog.text
    assert plan.completed({Q0: 100, Q1: 300}, {Q0: 0, Q1: 0, old: 5}, watch) == {Q0: 100, Q1: 300}
    assert plan.report({Q0: 1, Q1: 2, old: 5}, watch)
    assert cluster.progress("fewer", "orders") == {Q0: 1, Q1: 2}


def test_a_queue_that_a_restarted_query_assigns_and_that_is_not_there_is_told(cluster, caplog):
    """Nothing of it is read; when it is made it is read like any that is new."""
    plan = Planner(options(cluster, assign='{"orders": {"broker-a": [1, 2]}}'))
    watch = plan.watch()
    assert plan.advance({Q1: 0}, None, watch) == {Q1: 300}
    assert f"1 queues are not readable, or no longer named by the options, and wait: {Q2}" in caplog.text
    cluster.put("orders", 2, [b"x"])
    assert plan.advance({Q1: 0}, None, watch) == {Q1: 300, Q2: 0}


def test_available_now_ends_where_it_began_to_run(cluster):
    """What is sent during the run is for the next one."""
    stream = reader(cluster)
    stream.prepareForTriggerAvailableNow()
    cluster.put("orders", 0, [b"x"] * 10)
    end = stream.latestOffset(offsets.to_json({Q0: 0, Q1: 0}), NO_LIMIT)
    assert offsets.from_json(end) == {Q0: 100, Q1: 300}
    assert stream.latestOffset(end, NO_LIMIT) == end


def test_lost_messages_fail_the_plan_or_are_logged(cluster, caplog):
    """What the log no longer holds is counted as gone."""
    cluster.expire("orders", 0, 60)
    with pytest.raises(MessagesLost, match=r"20 messages of orders@broker-a:0 are gone: offsets \[40, 60\)"):
        Planner(options(cluster)).advance({Q0: 40, Q1: 0}, None)
    careless = Planner(options(cluster, failOnDataLoss="false"))
    assert careless.advance({Q0: 40, Q1: 300}, None) == {Q0: 100, Q1: 300}
    assert "20 messages" in caplog.text


def test_a_queue_that_ends_before_the_checkpoint_is_told_and_nothing_is_called_gone(cluster, caplog):
    """What lay beyond the end is not the queue's any more; retention has nothing to do with it."""
    with pytest.raises(OffsetOutOfRange, match=r"orders@broker-a:1 keeps \[0, 300\), wanted 350. .* made anew"):
        Planner(options(cluster)).advance({Q0: 60, Q1: 350}, None)
    careless = Planner(options(cluster, failOnDataLoss="false"))
    assert careless.advance({Q0: 60, Q1: 350}, None) == {Q0: 100, Q1: 300}
    assert "keeps [0, 300), wanted 350" in caplog.text
    assert "gone" not in caplog.text


@pytest.mark.parametrize("given", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("careless", ["true", "false"])
def test_given_offsets_beyond_the_end_are_an_error_of_the_option(cluster, given, careless):
    """They were never there, so it is no loss, whatever failOnDataLoss says."""
    planner = Planner(options(cluster, failOnDataLoss=careless, **{given: offsets.to_text({Q0: 100, Q1: 301})}))
    wrong = f"{given} lies beyond what is stored: orders@broker-a:1 ends at 300, 301 is given"
    with pytest.raises(ConfigError, match=wrong):
        planner.end([Q0, Q1]) if given == "endingOffsets" else planner.start("latest")


def test_progress_is_reported_when_the_next_batch_is_asked_for(cluster, caplog):
    """Then the one before it is committed. A broker that refuses does not stop the query."""
    stream = reader(cluster, progressGroup="readers")
    stream.latestOffset(offsets.to_json({Q0: 50, Q1: 60}), NO_LIMIT)
    assert cluster.progress("readers", "orders") == {Q0: 50, Q1: 60}

    def refuse_q1(asked: Command) -> Command | None:
        if asked.code != RequestCode.UPDATE_CONSUMER_OFFSET or asked.ext["queueId"] != "1":
            return None
        return reply(asked, ResponseCode.SYSTEM_ERROR, remark="not today")

    cluster.script = refuse_q1
    stream.latestOffset(offsets.to_json({Q0: 51, Q1: 61}), NO_LIMIT)
    assert cluster.progress("readers", "orders") == {Q0: 51, Q1: 60}
    assert "the progress of group readers was not stored: code 1" in caplog.text


def test_a_broker_that_refuses_progress_keeps_no_others_back(cluster, monkeypatch):
    """Each is told for itself; then the fault is raised."""
    told = []

    def report(self, group, positions, seconds=None):
        told.append(positions)
        if Q0 in positions:
            raise RemoteProtocolError("not today")

    monkeypatch.setattr(client.ClusterClient, "report", report)
    elsewhere = MessageQueue("orders", "broker-b", 0)
    with pytest.raises(RemoteProtocolError, match="not today"):
        Planner(options(cluster, progressGroup="readers")).report({Q0: 1, elsewhere: 2})
    assert told == [{Q0: 1}, {elsewhere: 2}]
