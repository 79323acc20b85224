"""A disk that is full while a pipeline saves what it has done: one clear error, and the next run goes on and loses nothing.

The archive's is in archive/test_service.py, that of merging in compact/test_service.py, the ledger's of redrive in redrive/test_ledger.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import pyarrow.parquet as pq
import pytest

import metaq
from metaq.pipelines.driver import root_text
from metaq.pipelines.metrics.reading import read_metrics
from metaq.pipelines.run import RUNNING, status_of
from metaq.spark import snapshot
from metaq.spark.pipelines import changes, metrics, mirror
from metaq.testing import EmbeddedBroker
from tests.pipelines.changes.batches import body
from tests.pipelines.metrics.test_service import summed
from tests.spark.running import finished
from tests.support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
COUNT = 30


def full(_fsync=os.fsync):
    """`os.fsync` that has no room for what is in files; folders are no matter of room."""

    def fsync(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")
        _fsync(handle)

    return fsync


def snapshot_rows(folder, _target) -> int:
    return pq.ParquetDataset(snapshot(folder).files("shop.t")).read().num_rows


def measured_messages(folder, _target) -> int:
    return summed(read_metrics(folder), "messages", "messages")


def mirrored_messages(_folder, target) -> int:
    with metaq.Reader(target.namesrv, "full_disk_mirror", stop_at_end=True) as reader:
        return len({message.body for message in reader}) if sum(map(len, reader.ranges().values())) == COUNT else -1


PIPELINES = {
    "changes": (changes, {"buckets": 2}, snapshot_rows),
    "metrics": (metrics, {"traceTopic": "off", "windowSeconds": 1, "graceSeconds": 0}, measured_messages),
    "mirror": (mirror, {"sourceName": "a", "targetName": "b"}, mirrored_messages),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_full_disk_is_one_error_and_the_next_run_goes_on(spark, metaq_broker, tmp_path, name, monkeypatch):
    """Twice full, at whatever is saved first; then there is room."""
    start, more, count = PIPELINES[name]
    topic, folder = f"full_disk_{name}", tmp_path / "place"
    folder.mkdir()
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(COUNT):
            producer.send(topic, body("insert", number, 1, {"a": number}), ordering_key=str(number))
    with EmbeddedBroker() if name == "mirror" else contextlib.nullcontext() as target:
        given = {"nameServers": metaq_broker.namesrv, "topics": topic, "folder": str(folder), "once": True, **more}
        if target is not None:
            given["to"] = target.namesrv

        def run() -> None:
            finished(lambda: start(spark, given))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full())
            for _ in range(2):
                with pytest.raises(Exception, match="No space left on device") as caught:
                    run()
                assert "Make room and start again: it goes on from there" in root_text(str(caught.value))
                eventually(lambda: status_of(folder).state != RUNNING, what="the run's end")
        run()
        eventually(lambda: status_of(folder).state != RUNNING, what="the run's end")
        assert status_of(folder).fault == ""
        assert count(folder, target) == COUNT
