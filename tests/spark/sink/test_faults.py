"""The fault timelines of an effectively-once sink: whatever fails, every row is delivered once, and each queue's in order.

Compared are multisets of bodies, and of each queue the order of the rows of one task.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import TransactionEnded
from metaq.spark.cluster.courier import Courier
from metaq.spark.engine.slow_start import run_through
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.sink.task import StagedRows
from tests.spark.running import finished
from tests.spark.sink.faulty_sink import (
    ABORTED_AFTER_COMMIT,
    AFTER_COMMIT,
    AFTER_STAGING,
    BEFORE_COMMIT,
    LOST_BEFORE_COMMIT,
    FaultySink,
    Struck,
)
from tests.support import WHOLE_PATIENCE, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]
_names = itertools.count()
ROWS = 400


class Copying:
    """A query that copies one topic to another through the faulty sink, and what it should have copied."""

    def __init__(self, spark, namesrv, folder, fault="", **options):
        spark.dataSource.register(FaultySink)
        self.spark, self.namesrv, self.folder = spark, namesrv, folder
        number = next(_names)
        self.source, self.target, self.sink_id = f"sink_in_{number}", f"sink_out_{number}", f"s{number}"
        self.options = {
            "nameServers": namesrv, "topic": self.target, "sinkId": self.sink_id,
            "fault": fault, "mark": str(folder / "marks"), **options,
        }  # fmt: skip
        (folder / "marks").mkdir(exist_ok=True)
        self.columns = ["body", "keys", "tag"]
        self.sent = []

    def make(self):
        """Both topics, with a message each."""
        with metaq.Producer(self.namesrv) as producer:
            producer.send(self.source, b"first")
            producer.send(self.target, b"there")
        self.sent.append(b"first")
        return self

    def fill(self, rows=ROWS):
        with metaq.Producer(self.namesrv) as producer:
            bodies = [b"%06d" % (len(self.sent) + number) for number in range(rows)]
            for future in [producer.submit(self.source, body, keys=[body.decode()]) for body in bodies]:
                future.result(WHOLE_PATIENCE)
        self.sent += bodies

    def start(self, checkpoint="checkpoint", **source):
        stream = (
            self.spark.readStream.format("metaq")
            .options(nameServers=self.namesrv, subscribe=self.source, startingOffsets="earliest", **source)
            .load()
            .selectExpr(*self.columns)
        )
        writer = stream.writeStream.format("metaq-faulty-sink").options(**self.options)
        return writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True).start()

    def run(self, **source):
        return finished(lambda: self.start(**source), WHOLE_PATIENCE)

    def fails(self, text, **source):
        with pytest.raises(Exception, match=text):
            self.run(**source)

    def copied(self):
        with metaq.Reader(self.namesrv, self.target, stop_at_end=True) as reader:
            return [message for message in reader if message.body != b"there"]

    def row(self):
        """The last transaction of this query's sink."""
        with Admin(self.namesrv) as admin:
            found, _ = admin.list_transaction_rows()
        return next(row for rows in found.values() for row in rows if row.key.endswith(f":{self.sink_id}"))

    def check(self, sent=None):
        copied = self.copied()
        assert Counter(message.body for message in copied) == Counter(self.sent if sent is None else sent)
        return copied


@pytest.fixture
def copying(spark, metaq_broker, tmp_path):
    return lambda fault="", **options: Copying(spark, metaq_broker.namesrv, tmp_path, fault, **options).make()


def test_a_task_that_is_tried_again_with_its_rows_in_another_order_writes_them_once(copying):
    """Timeline 1: what the first attempt staged is dropped, whole."""
    query = copying(AFTER_STAGING)
    query.fill()
    query.run()
    query.check()


@pytest.mark.parametrize("fault", [BEFORE_COMMIT, AFTER_COMMIT, ABORTED_AFTER_COMMIT])
def test_a_batch_that_is_replayed_in_other_slices_is_written_once(copying, fault):
    """Timelines 2 and 5: whether the driver failed before our commit or between ours and Spark's."""
    query = copying(fault)
    query.fill()
    query.fails(fault)
    assert len(query.copied()) == (0 if fault == BEFORE_COMMIT else len(query.sent))
    query.run(minPartitions="7")
    query.fill(100)
    query.run()
    query.check()


def test_what_a_zombie_stages_after_the_commit_is_never_seen(copying, metaq_broker):
    """Timeline 3: an executor that Spark has given up goes on."""
    query = copying()
    query.fill()
    query.run()
    courier = Courier(metaq_broker.namesrv, 5)
    options = SinkOptions.of({"nameServers": metaq_broker.namesrv, "topic": query.target})
    late = StagedRows(courier, options, query.row().transaction, "zombie")
    late.write([pa.record_batch({"body": [b"late"] * 10})])
    with pytest.raises(TransactionEnded, match="is over"):
        late.finish()
    courier.close()
    query.fill(50)
    query.run()
    query.check()


def test_a_query_that_was_down_for_longer_than_its_parts_are_kept_goes_on(copying, metaq_broker):
    """Timeline 4: brokers have dropped what was staged; the batch is staged anew."""
    query = copying(LOST_BEFORE_COMMIT, stageSeconds="1")
    query.fill()
    query.fails(LOST_BEFORE_COMMIT)
    with Admin(metaq_broker.namesrv) as admin:
        eventually(lambda: not admin.list_transactions().transactions, WHOLE_PATIENCE)
    assert query.copied() == []
    query.run()
    query.check()


def test_a_batch_that_one_broker_has_committed_while_another_is_down_is_not_written_again(spark, tmp_path):
    """Timeline 6: the decision is at A, B gets its part of it when it is back; the batch, planned anew, adds nothing."""
    with metaq.testing.Cluster(brokers=2, folder=tmp_path / "cluster") as cluster, Admin(cluster.namesrv) as admin:
        one, other = sorted(status.broker for status in admin.list_brokers())
        down = cluster.brokers[1]
        query = Copying(spark, cluster.namesrv, tmp_path, AFTER_COMMIT, coordinator=one, meeting=str(tmp_path))
        # A task whose rows have no keys takes one queue at random.
        query.columns.append("cast(body as string) as ordering_key")
        admin.create_topic(query.source, queues=4, broker=one)
        for broker in (one, other):
            admin.create_topic(query.target, queues=2, broker=broker)
        query.fill()

        def kill():
            eventually((tmp_path / "begin").exists, WHOLE_PATIENCE)
            down.kill()
            (tmp_path / "end").touch()

        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(kill)
            query.fails(AFTER_COMMIT, maxOffsetsPerPartition="50")
            killed.result()

        def goes_on(again):  # It waits for the broker.
            if not down.alive:
                down.start()
            assert again.awaitTermination(WHOLE_PATIENCE)

        run_through(lambda: query.start(maxOffsetsPerPartition="33"), goes_on)
        copied = query.check()
        assert {message.queue.broker for message in copied} == {one, other}


def test_brokers_that_are_killed_between_commits_lose_and_double_nothing(spark, tmp_path):
    """Timeline 7: the coordinator and only broker, killed -9 again and again under a running query."""
    with metaq.testing.Cluster(brokers=1, folder=tmp_path / "cluster") as cluster:
        query = Copying(spark, cluster.namesrv, tmp_path).make()
        query.fill(1000)
        commits, goals = tmp_path / "checkpoint" / "commits", [2, 4, 6, 8]

        def kill_again_and_again(running):
            while goals:
                eventually(
                    lambda: not running.isActive or len(list(commits.glob("[0-9]*"))) >= goals[0], WHOLE_PATIENCE
                )
                if (fault := running.exception()) is not None:
                    raise fault
                assert running.isActive
                del goals[0]
                cluster.brokers[0].kill()
                cluster.brokers[0].start()
            assert running.awaitTermination(WHOLE_PATIENCE)

        run_through(lambda: query.start(maxOffsetsPerTrigger="100"), kill_again_and_again)
        query.check()


def test_two_writes_in_one_foreach_batch_are_each_done_once(spark, metaq_broker, tmp_path):
    """Timeline 8: the first is committed, the second fails, the whole batch comes again."""
    query = Copying(spark, metaq_broker.namesrv, tmp_path).make()
    other = f"{query.target}_other"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(other, b"there")
    query.fill()
    failed = []

    def write(frame, batch):
        for number, topic in enumerate((query.target, other)):
            if number == 1 and batch > 0 and not failed:
                failed.append(batch)
                raise Struck("between the writes")
            options = {
                **query.options,
                "topic": topic,
                "sinkId": str(number),
                "txnAppId": query.target,
                "txnVersion": batch,
            }
            frame.write.format("metaq-faulty-sink").options(**options).mode("append").save()

    def start():
        stream = spark.readStream.format("metaq").options(
            nameServers=query.namesrv, subscribe=query.source, startingOffsets="earliest"
        )
        writer = stream.load().selectExpr("body", "keys").writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    with pytest.raises(Exception, match="between the writes"):
        finished(start, WHOLE_PATIENCE)
    finished(start, WHOLE_PATIENCE)
    query.check()
    query.target = other
    query.check()


def test_a_copied_checkpoint_is_refused_as_stale(copying, tmp_path):
    """Timeline 9: two queries of one id; the one that falls behind is told so, and writes nothing."""
    query = copying()
    query.fill(50)
    query.run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    for _ in range(2):
        query.fill(50)
        query.run()
    with pytest.raises(Exception, match=r"StaleBatch.*is older than what was written last"):
        finished(lambda: query.start("copy"), WHOLE_PATIENCE)
    query.check()


def test_a_query_whose_earlier_batches_no_broker_remembers_is_stopped(copying, metaq_broker):
    """A row that was forgotten, or a broker that is away with it: going on could write a batch twice."""
    query = copying()
    query.fill(20)
    query.run()
    with Admin(metaq_broker.namesrv) as admin:
        admin.forget_transaction(query.row().key, row=True)
    query.fill(20)
    query.fails("no broker remembers earlier batches")
    query.options["adoptBatch"] = "true"
    query.run()
    query.check()
