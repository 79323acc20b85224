"""The groups of examples/gallery/business_logs.py: each has progress of its own, and neither is touched by what befalls the other."""

from __future__ import annotations

import importlib.util
import logging
import threading
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import metaq
from metaq.admin import Admin
from tests.spark.running import finished
from tests.support import PATIENCE, ROOT, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]

TOPIC = "business-logs-groups"
ARCHIVER, WATCHER = "hdfs-writer", "storm-spouts"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("business_logs", ROOT / "examples" / "gallery" / "business_logs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def log(broker, start, stop):
    """Records with those numbers, through the handler."""
    logger = logging.Logger("shop")  # noqa: LOG001  nobody else is to hear it
    handler = metaq.MetaQHandler(broker.namesrv, topic=TOPIC, service="shop")
    logger.addHandler(handler)
    for number in range(start, stop):
        logger.error("%d", number)
    handler.close(PATIENCE)
    assert (handler.sent, handler.dropped) == (stop - start, {})


def archived(folder: Path) -> int:
    return ds.dataset(folder, partitioning="hive").count_rows()


def test_the_groups_do_not_touch_each_other(example, spark, metaq_broker, tmp_path):
    """Stopped, started again and reset: what the other has consumed stays as it was, by the names that tools show."""
    namesrv = metaq_broker.namesrv

    def progress(group):
        return sum(one.consumed for one in admin.group_progress(group).queues if one.queue.topic == TOPIC)

    def archive(folder, **more):
        finished(lambda: example.archive(spark, namesrv, tmp_path / folder, once=True, topic=TOPIC, **more))
        return archived(tmp_path / folder)

    def watch(total):
        """Watch until the group has seen so many; returns what was counted."""
        analysis, stop = example.Analysis(), threading.Event()
        thread = threading.Thread(target=example.watch, args=[namesrv, analysis, stop, TOPIC])
        thread.start()
        try:
            eventually(lambda: analysis.total >= total, what="the records are counted")
        finally:
            stop.set()
            thread.join(PATIENCE)
        return analysis

    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC, queues=2)
        log(metaq_broker, 0, 30)
        assert archive("first") == 30  # storm-spouts has not begun
        assert progress(ARCHIVER) == 30

        analysis = watch(30)  # hdfs-writer is stopped
        assert analysis.total == 30
        assert sum(counts["shop", "ERROR"] for counts in analysis.windows.values()) == 30
        assert any("shop: more than 10 errors" in alert for alert in analysis.alerts)
        assert (progress(ARCHIVER), progress(WATCHER)) == (30, 30)

        log(metaq_broker, 30, 40)
        assert archive("first") == 40  # started again: the ten that are new
        assert (progress(ARCHIVER), progress(WATCHER)) == (40, 30)
        assert admin.group_progress(WATCHER).lag == 10

        admin.reset_group(WATCHER, TOPIC, "earliest")
        assert (progress(ARCHIVER), progress(WATCHER)) == (40, 0)
        assert watch(40).total == 40
        assert archive("first") == 40

        admin.reset_group(ARCHIVER, TOPIC, "earliest")
        assert (progress(ARCHIVER), progress(WATCHER)) == (0, 40)
        assert archive("second", group_is_reset=True) == 40
        assert (progress(ARCHIVER), progress(WATCHER)) == (40, 40)
        assert archived(tmp_path / "first") == 40
