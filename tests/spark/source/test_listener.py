"""The progress of queries, mirrored to consumer groups and the log."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from metaq.admin import Admin
from metaq.clock import FakeClock
from metaq.errors import ConfigError, RequestTimeout
from metaq.model import offsets
from metaq.model.queue import MessageQueue
from metaq.spark import ProgressListener
from metaq.spark.source.listener import ProgressStore
from metaq.wire.codes import RequestCode
from tests.scripted import Fate, ScriptedCluster
from tests.spark.jvm import java_options
from tests.spark.running import finished
from tests.support import PATIENCE, WHOLE_PATIENCE, environment, eventually

A0, A1, B0 = (
    MessageQueue("orders", "broker-a", 0),
    MessageQueue("orders", "broker-a", 1),
    MessageQueue("orders", "b", 0),
)


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        running.put("orders", 0, [b"x"] * 20)
        running.put("orders", 1, [b"x"] * 5)
        yield running


# -------------------------------------------------------------- storing
def test_the_newest_position_of_each_queue_is_stored():
    """Whoever notes is never kept waiting: what piles up behind a slow broker is one position a queue."""
    stored, slow, begun = [], threading.Event(), threading.Event()

    def store(group, positions):
        stored.append((group, positions))
        begun.set()
        assert slow.wait(PATIENCE)

    mirror = ProgressStore(store)
    mirror.note("g", {A0: 1})
    assert begun.wait(PATIENCE)
    for position in range(2, 1000):
        mirror.note("g", {A0: position})
    mirror.note("g", {A1: 7})
    assert not mirror.settled(0)
    slow.set()
    assert mirror.settled(PATIENCE)
    assert stored == [("g", {A0: 1}), ("g", {A0: 999, A1: 7})]
    assert mirror.close(PATIENCE)


def test_a_broker_that_is_away_keeps_no_other_waiting_and_is_told_when_it_is_back(caplog):
    """It is tried again, with what is newest then; the log says that its progress is late."""
    stored, back = [], threading.Event()

    def store(group, positions):
        if B0 in positions and not back.is_set():
            raise RequestTimeout("no answer")
        stored.append(positions)

    mirror = ProgressStore(store, pause_seconds=0.001)
    mirror.note("g", {A0: 1, B0: 1})
    eventually(lambda: stored == [{A0: 1}])
    mirror.note("g", {B0: 5})
    assert not mirror.settled(0)
    back.set()
    assert mirror.settled(PATIENCE)
    assert stored == [{A0: 1}, {B0: 5}]
    assert "the progress of group g at broker b is not stored yet: no answer" in caplog.text
    assert mirror.close(PATIENCE)


def test_a_fault_that_nobody_thought_of_ends_no_thread(caplog):
    """It is told, and the progress is stored by the next attempt."""
    stored = []

    def store(group, positions):
        if not stored:
            stored.append("a fault")
            raise KeyError("nobody thought of it")
        stored.append(positions)

    mirror = ProgressStore(store, pause_seconds=0.001)
    mirror.note("g", {A0: 1})
    assert mirror.settled(PATIENCE)
    assert stored == ["a fault", {A0: 1}]
    assert "is not stored yet: KeyError('nobody thought of it')" in caplog.text
    assert mirror.close(PATIENCE)


def test_an_end_tries_once_more_and_says_whether_all_is_stored():
    """Closing waits for no pause between two attempts, and for no broker that stays away."""
    tries = []

    def store(group, positions):
        tries.append(positions)
        if len(tries) < 2:
            raise RequestTimeout("no answer")

    mirror = ProgressStore(store, pause_seconds=3600)
    mirror.note("g", {A0: 1})
    eventually(lambda: len(tries) == 1)
    assert mirror.close(PATIENCE)
    assert tries == [{A0: 1}] * 2

    def away(group, positions):
        raise RequestTimeout("no answer")

    lost = ProgressStore(away, pause_seconds=3600)
    lost.note("g", {A0: 1})
    assert not lost.close(PATIENCE)


# -------------------------------------------------------------- events
QUERY = "6f1c9a2e-0000-4000-8000-000000000001"
RUNS = [f"6f1c9a2e-0000-4000-8000-00000000001{i}" for i in range(3)]


def progress(end, latest, run=0, name="copies", batch=7) -> SimpleNamespace:
    """A progress event, as Spark makes it of a query's report."""
    source = {"description": "a source", "startOffset": None, "numInputRows": 10, "inputRowsPerSecond": 1.0}
    source |= {"processedRowsPerSecond": 1.0, "endOffset": end, "latestOffset": latest}
    text = {
        "id": QUERY, "runId": RUNS[run], "name": name, "timestamp": "2026-03-01T00:00:00.000Z", "batchId": batch,
        "batchDuration": 5, "numInputRows": 10, "stateOperators": [], "sources": [source],
        "sink": {"description": "a sink", "numOutputRows": 10},
    }  # fmt: skip
    return SimpleNamespace(progress=StreamingQueryProgress.fromJson(json.loads(json.dumps(text))))


def ended(run=0, exception=None) -> SimpleNamespace:
    return SimpleNamespace(id=QUERY, runId=RUNS[run], exception=exception)


def test_each_query_is_mirrored_to_a_group_of_its_own(cluster):
    """Named after the query, as the option says; a query without a name goes by its id."""
    listener = ProgressListener(cluster.namesrv, "spark-{name}")
    listener.onQueryProgress(progress(offsets.to_json({A0: 7, A1: 5}), None))
    listener.onQueryProgress(progress(offsets.to_json({A0: 3}), None, 1, None))
    listener.onQueryTerminated(ended(0))
    listener.onQueryTerminated(ended(1))
    assert listener.close(PATIENCE)
    assert cluster.progress("spark-copies", "orders") == {A0: 7, A1: 5}
    assert cluster.progress(f"spark-{QUERY}", "orders")[A0] == 3


def test_a_table_says_which_queries_are_mirrored(cluster):
    """Others are logged only."""
    listener = ProgressListener(cluster.namesrv, {"copies": "one", "more": "two"})
    listener.onQueryStarted(SimpleNamespace(id=QUERY, runId=RUNS[1], name="else"))
    for run, name in enumerate(["copies", "else"]):
        listener.onQueryProgress(progress(offsets.to_json({A0: 7}), None, run, name))
        listener.onQueryTerminated(ended(run))
    assert listener.close(PATIENCE)
    assert cluster.progress("one", "orders")[A0] == 7
    assert cluster.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 1


def test_the_log_is_told_now_and_then_and_at_the_end(caplog):
    """Without name servers it is all that happens; what another source reads is nobody's business."""
    caplog.set_level(logging.INFO, "metaq.spark.source.listener")
    clock = FakeClock()
    listener = ProgressListener(clock=clock, log_seconds=10)
    latest = offsets.to_json({A0: 20})
    for batch in range(1, 5):
        listener.onQueryProgress(progress(offsets.to_json({A0: batch}), latest, batch=batch))
        clock.advance(4)
    listener.onQueryProgress(progress(5, 9, run=1))
    listener.onQueryProgress(progress(None, None, run=2))
    listener.onQueryIdle(SimpleNamespace())
    for run, fault in enumerate(["it broke", None, None]):
        listener.onQueryTerminated(ended(run, fault))
    assert [record.message for record in caplog.records] == [
        "query copies, batch 1: 10 rows read, 19 behind in 1 queue",
        "query copies, batch 4: 10 rows read, 16 behind in 1 queue",
        "query copies has failed after batch 4, 16 behind in 1 queue",
    ]
    assert listener.close()


def test_two_queries_that_write_over_each_other_are_told_once(cluster, caplog):
    """Of the same queues, in the same group, at the same time; one after the other is fine."""
    listener = ProgressListener(cluster.namesrv, "shared")
    listener.onQueryProgress(progress(offsets.to_json({A0: 7}), None, 0, "first"))
    listener.onQueryProgress(progress(offsets.to_json({A1: 7}), None, 1, "other queues"))
    listener.onQueryTerminated(ended(0))
    listener.onQueryProgress(progress(offsets.to_json({A0: 7}), None, 2, "later"))
    assert "read the same queues" not in caplog.text
    for _ in range(2):
        listener.onQueryProgress(progress(offsets.to_json({A0: 1}), None, 1, "other queues"))
    assert caplog.text.count("queries later and other queues read the same queues") == 1
    listener.onQueryTerminated(ended(1))
    listener.onQueryTerminated(ended(2))
    assert listener.close(PATIENCE)


def test_a_wrong_group_is_refused_or_told(caplog):
    """What is wrong for every query at once, what is wrong for one when it comes; the query itself is not touched."""
    for wrong in ("", "a b", "{topic}", "{", {"copies": "a/b"}):
        with pytest.raises(ConfigError, match="group="):
            ProgressListener("127.0.0.1:1", wrong)
    with pytest.raises(ConfigError, match="give name_servers"):
        ProgressListener(group="g")
    with pytest.raises(ConfigError, match="name server"):
        ProgressListener("", "g")
    listener = ProgressListener("127.0.0.1:1", "{name}")
    listener.onQueryProgress(progress(offsets.to_json({A0: 1}), None, 0, "a name with blanks"))
    assert "the progress of query a name with blanks is not mirrored" in caplog.text
    listener.onQueryTerminated(ended(0))
    assert listener.close(PATIENCE)


# -------------------------------------------------------------- brokers
def test_a_group_that_only_a_query_uses_is_known_like_any(cluster):
    """RocketMQ's tools find groups by their retry topics, which brokers make when a consumer joins: once is enough."""
    listener = ProgressListener(cluster.namesrv, "g")
    for batch in range(3):
        listener.onQueryProgress(progress(offsets.to_json({A0: batch, A1: 5}), None, batch=batch))
        assert listener._mirror.settled(PATIENCE)
    listener.onQueryTerminated(ended())
    assert listener.close(PATIENCE)
    assert cluster.count(RequestCode.HEART_BEAT) == cluster.count(RequestCode.UNREGISTER_CLIENT) == 1
    with Admin(cluster.namesrv) as admin:
        eventually(lambda: "%RETRY%g" in admin.list_topics(system=True))
        found = admin.group_progress("g")
        assert {one.queue: (one.consumed, one.lag) for one in found.queues} == {A0: (2, 18), A1: (5, 0)}
        assert found.members == ()


def test_a_broker_that_makes_no_group_gets_the_progress_all_the_same(cluster, caplog):
    """The log says what RocketMQ's tools will miss."""
    cluster.script = lambda asked: Fate.HANG_UP if asked.code == RequestCode.HEART_BEAT else None
    listener = ProgressListener(cluster.namesrv, "g", retry_seconds=0.1)
    listener.onQueryProgress(progress(offsets.to_json({A0: 2}), None))
    listener.onQueryTerminated(ended())
    assert listener.close(PATIENCE)
    assert cluster.progress("g", "orders")[A0] == 2
    assert "RocketMQ's tools may not list the group g at broker broker-a" in caplog.text


# -------------------------------------------------------------- Spark
def copy(spark, cluster, folder):
    source = spark.readStream.format("metaq").options(
        nameServers=cluster.namesrv, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=15
    )
    writer = source.load().writeStream.format("noop").queryName("listened")
    return writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)


@pytest.mark.spark
def test_the_last_batch_of_a_run_that_ends_is_stored(spark, cluster, tmp_path):
    """Spark tells listeners of it after `awaitTermination` has returned: `close` waits for that."""
    listener = ProgressListener(cluster.namesrv, "spark-{name}")
    spark.streams.addListener(listener)
    try:
        finished(copy(spark, cluster, tmp_path / "checkpoint").start)
        assert listener.close(PATIENCE)
    finally:
        spark.streams.removeListener(listener)
    assert cluster.progress("spark-listened", "orders") == {A0: 20, A1: 5}


@pytest.mark.spark
@pytest.mark.all
@pytest.mark.spark_all
def test_a_program_that_ends_right_behind_its_query_leaves_the_progress_stored(cluster, tmp_path):
    """Nobody closes the listener: the end of the process does."""
    program = textwrap.dedent(f"""
        import metaq.spark
        spark = metaq.spark.session(master="local[1]")
        spark.streams.addListener(metaq.spark.ProgressListener("{cluster.namesrv}", "g"))
        options = {{"nameServers": "{cluster.namesrv}", "subscribe": "orders", "startingOffsets": "earliest"}}
        writer = spark.readStream.format("metaq").options(**options).load().writeStream.format("noop")
        writer.option("checkpointLocation", {str(tmp_path / "c")!r}).trigger(availableNow=True).start().awaitTermination()
    """)
    env = environment(JDK_JAVA_OPTIONS=java_options())
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=WHOLE_PATIENCE)
    assert cluster.progress("g", "orders") == {A0: 20, A1: 5}
