"""How far a query is behind, from its progress reports, its checkpoint and the brokers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from metaq.clock import FakeClock
from metaq.errors import ConfigError, MetaqError
from metaq.model import offsets
from metaq.model.queue import MessageQueue
from metaq.spark import Lag, QueueLag, lag
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source.progress import of_progress
from tests.scripted import ScriptedCluster
from tests.spark.running import finished

Q0, Q1 = (MessageQueue("orders", "broker-a", i) for i in range(2))
START = 1_700_000_000_000


def report(*sources: tuple[object, object], **more) -> dict:
    """A progress report whose sources are at (end, latest)."""
    told = [{"description": "a source", "endOffset": end, "latestOffset": latest} for end, latest in sources]
    return {"id": "6f1c9a2e", "name": "copies", "batchId": 7, "sources": told} | more


def checkpoint(folder: Path, done: int, batches: dict[int, str], version: str = "v1") -> Path:
    """A folder as Spark writes it, in which batches up to `done` are finished."""
    for name in ("commits", "offsets"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"6f1c9a2e"}')
    for batch, sources in batches.items():
        (folder / "offsets" / str(batch)).write_text(f'{version}\n{{"batchWatermarkMs":0}}\n{sources}')
        if batch <= done:
            (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        running.put("orders", 0, [b"x"] * 10, START)
        running.put("orders", 0, [b"x"] * 10, START + 60_000)
        running.put("orders", 1, [b"x"] * 5)
        yield running


def test_a_report_tells_position_end_and_what_lies_between():
    """Texts (a listener's) or values (lastProgress): each queue, and all together."""
    end, latest = {Q0: 7, Q1: 5}, {Q0: 10, Q1: 5}
    found = lag(report((offsets.to_json(end), offsets.to_json(latest))))
    assert found == lag(report((offsets.to_text(end), offsets.to_text(latest))))
    assert found == Lag("6f1c9a2e", "copies", 7, (QueueLag(Q0, 7, 10), QueueLag(Q1, 5, 5)))
    first = found.queues[0]
    assert (first.topic, first.broker, first.queue_id, first.behind) == ("orders", "broker-a", 0, 3)
    assert (found.behind, found.seconds, found.positions) == (3, None, end)
    assert lag(report((offsets.to_json(latest), offsets.to_json(latest)))).seconds == 0.0


def test_what_is_not_known_yet_is_none():
    """Before the first batch, and in the first one, whose ends Spark does not tell."""

    class Query:
        lastProgress = None  # noqa: N815  Spark's name

    assert lag(Query()) is None
    assert lag(report(("null", "null"))) is None
    assert lag(report(sources=[])) is None
    pinned = lag(report((offsets.to_json({Q0: 7}), None)))
    assert (pinned.behind, pinned.seconds, pinned.queues[0].behind) == (None, None, None)


def test_other_sources_are_passed_over_and_one_of_ours_is_needed():
    """A join with something else shows our part; a query without one is told so by its name."""
    ours = (offsets.to_json({Q0: 1}), offsets.to_json({Q0: 3}))
    found = lag(report((0, 5), ours, ("LongOffset: 3", None)))
    assert [(one.source, one.behind) for one in found.queues] == [(1, 2)]
    with pytest.raises(ConfigError, match=r"the query copies has no source of format\('metaq'\)"):
        lag(report((0, 5)))
    with pytest.raises(ConfigError, match="version 2 is not known here"):
        lag(report(({"v": 2, "q": {}}, None)))


def test_a_queue_that_two_sources_read_is_as_far_as_the_one_behind():
    """Each source has its line; the position is the smaller one."""
    latest = offsets.to_json({Q0: 10})
    found = of_progress(report((offsets.to_json({Q0: 7}), latest), (offsets.to_json({Q0: 4}), latest)))
    assert (found.behind, found.positions) == (9, {Q0: 4})


def test_brokers_tell_the_ends_of_now_and_how_old_the_first_unread_message_is(cluster):
    """The age is that of the oldest message which waits; of a queue that is read to its end there is none."""
    clock = FakeClock(START + 90_000)
    old = report((offsets.to_json({Q0: 7, Q1: 5}), offsets.to_json({Q0: 7, Q1: 5})))
    found = lag(old, name_servers=cluster.namesrv, clock=clock)
    assert [(one.behind, one.waiting_since_ms) for one in found.queues] == [(13, START), (0, None)]
    assert (found.behind, found.seconds) == (13, 90.0)
    later = report((offsets.to_json({Q0: 10, Q1: 5}), None))
    assert lag(later, name_servers=cluster.namesrv, clock=clock).seconds == 30.0
    done = report((offsets.to_json({Q0: 20, Q1: 5}), None))
    assert lag(done, name_servers=cluster.namesrv, clock=clock).seconds == 0.0


@pytest.mark.parametrize("known", [False, True])
def test_a_topic_that_was_deleted_keeps_no_others_back(cluster, known):
    """A query of a pattern has it in its checkpoint for ever: nothing of it is left to read, and nowhere to tell progress."""
    deleted = MessageQueue("a-deleted", "broker-a", 0)
    reached = {Q0: 7, deleted: 3}
    found = lag(report((offsets.to_json(reached), None)), name_servers=cluster.namesrv, retry_seconds=0.2)
    assert [(one.queue, one.behind) for one in found.queues] == [(deleted, 0), (Q0, 13)]
    with contextlib.closing(ClusterClient(cluster.namesrv, 0.2)) as client:
        if known:
            client.queues(["orders"])
        client.report("readers", reached)
    assert cluster.progress("readers", "orders")[Q0] == 7


def test_two_sources_of_one_queue_do_not_share_the_age(cluster):
    """The first message that the one behind waits for is not the other's."""
    both = report((offsets.to_json({Q0: 12}), None), (offsets.to_json({Q0: 3}), None))
    found = lag(both, name_servers=cluster.namesrv, clock=FakeClock(START + 90_000))
    assert [(one.behind, one.waiting_since_ms) for one in found.queues] == [(8, None), (17, START)]
    assert found.seconds == 90.0


def test_a_checkpoint_tells_how_far_a_query_was_that_does_not_run(cluster, tmp_path):
    """The end of the last finished batch counts, not that of one which was only planned."""
    at = {batch: json.dumps(offsets.to_json({Q0: position})) for batch, position in {0: 0, 9: 4, 10: 8, 11: 12}.items()}
    for version, texts in {"v1": at, "v2": {batch: f"orders:{text}" for batch, text in at.items()}}.items():
        folder = checkpoint(tmp_path / version, 10, texts, version)
        found = lag(folder, name_servers=cluster.namesrv)
        assert (found.query, found.name, found.batch, found.positions, found.behind) == (
            "6f1c9a2e", None, 10, {Q0: 8}, 12,
        )  # fmt: skip
        assert lag(f"file:{folder}", name_servers=cluster.namesrv).positions == {Q0: 8}
    fresh = checkpoint(tmp_path / "fresh", -1, {0: at[0]})
    assert lag(fresh, name_servers=cluster.namesrv) is None


def test_a_checkpoint_that_cannot_be_read_is_told(tmp_path):
    """Without name servers, not here, no checkpoint, damaged, or of a Spark that writes another form."""
    with pytest.raises(ConfigError, match="give name_servers to ask the brokers"):
        lag(tmp_path)
    asked = {"name_servers": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match="hdfs://x/y is not a local folder: only Spark can read it"):
        lag("hdfs://x/y", **asked)
    with pytest.raises(ConfigError, match="is not the checkpoint of a query"):
        lag(tmp_path, **asked)
    folder = checkpoint(tmp_path / "later", 3, {3: "{}"}, "v3")
    with pytest.raises(ConfigError, match="version 'v3', which is not known here"):
        lag(folder, **asked)
    (folder / "offsets" / "3").unlink()
    with pytest.raises(ConfigError, match="is not the checkpoint of a query"):
        lag(folder, **asked)


def test_a_broker_that_does_not_answer_is_told_after_the_given_time(cluster):
    """Nobody waits for ever on a dashboard."""
    with pytest.raises(MetaqError):
        lag(report((offsets.to_json({Q0: 7}), None)), name_servers="127.0.0.1:1", retry_seconds=0.1)


@pytest.mark.spark
def test_a_query_that_has_ended_and_its_checkpoint_tell_the_same(spark, cluster, tmp_path):
    """After an AvailableNow run nothing is behind; what comes later is seen by the brokers only."""
    source = spark.readStream.format("metaq").options(
        nameServers=cluster.namesrv, subscribe="orders", startingOffsets="earliest"
    )
    writer = (
        source.load().writeStream.format("noop").queryName("behind").option("checkpointLocation", str(tmp_path / "c"))
    )
    query = finished(writer.trigger(availableNow=True).start)
    found = lag(query)
    assert (found.name, found.behind, found.positions) == ("behind", 0, {Q0: 20, Q1: 5})
    assert found.query == query.id
    cluster.put("orders", 1, [b"later"] * 3)
    assert (lag(query).behind, lag(query, name_servers=cluster.namesrv).behind) == (0, 3)
    stopped = lag(tmp_path / "c", name_servers=cluster.namesrv)
    assert (stopped.query, stopped.batch, stopped.behind) == (query.id, found.batch, 3)
