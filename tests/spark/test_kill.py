"""kill -9 of the driver, at each point where a checkpoint is half written: no message is lost, none comes twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import metaq
from metaq.model import offsets
from metaq.store.offline.reader import StoreReader
from tests.spark import faulty_driver
from tests.spark.source.faulty_source import AFTER_OFFSETS, BATCH_0, BEFORE_COMMIT, BEFORE_OFFSETS, IN_READ, POINTS
from tests.support import ROOT, WHOLE_PATIENCE, environment, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
EARLIER = 200

KILLED_AT = [(BATCH_0, IN_READ), (BEFORE_OFFSETS, BEFORE_COMMIT), (AFTER_OFFSETS, BEFORE_OFFSETS)]
"""Per query: where it is killed, and where again, when it has the first one's remains."""


@contextlib.contextmanager
def driver(broker, topic: str, folder: Path, plan: dict[Path, str]):
    """The driver as a process of its own, with everything it starts; killed -9 at the end."""
    command = [sys.executable, "-m", "tests.spark.faulty_driver", broker.namesrv, topic]
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
    with (folder / "driver.log").open("a") as log:
        running = subprocess.Popen(
            [*command, json.dumps({str(query): point for query, point in plan.items()})],
            cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait(WHOLE_PATIENCE)


@contextlib.contextmanager
def producing(broker, topic: str):
    """A producer that goes on sending, some hundred messages a second, until the block is left."""
    stop, total = threading.Event(), []

    def run() -> None:
        with metaq.Producer(broker.namesrv) as producer:
            while not stop.wait(0.2):
                futures = [producer.submit(topic, b"x" * 50, queue=queue) for queue in producer.queues(topic) * 5]
                total.extend(future.result() for future in futures)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield total
    finally:
        stop.set()
        thread.join(WHOLE_PATIENCE)


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*"))


def ends_of_batch_0(checkpoint: Path) -> dict:
    return offsets.from_json(json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1]))


def test_drivers_killed_at_every_point_read_each_message_once(spark, metaq_broker, tmp_path):
    """Queries, started at `latest` under a running producer, each stopped at another point and all killed at once; the
    same again at other points; then left to finish.
    """
    assert {point for points in KILLED_AT for point in points} == set(POINTS)
    topic = "killed"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for _ in range(EARLIER):
            producer.send(topic, b"sent before the query began")
    queries = [tmp_path / f"query-{number}" for number in range(len(KILLED_AT))]
    for query in queries:
        query.mkdir()
    with producing(metaq_broker, topic) as sent:
        for points in zip(*KILLED_AT, strict=True):
            plan = dict(zip(queries, points, strict=True))
            with driver(metaq_broker, topic, tmp_path, plan) as running:
                there = lambda: all((query / f"mark-{point}").exists() for query, point in plan.items())  # noqa: E731, B023  used at once
                eventually(lambda: there() or running.poll() is not None, WHOLE_PATIENCE, what="all points")  # noqa: B023
                assert there(), (tmp_path / "driver.log").read_text()[-3000:]
            for query, point in plan.items():
                logged, committed = (numbers(query / "checkpoint" / name) for name in ("offsets", "commits"))
                assert len(logged) - len(committed) == (0 if point == BEFORE_OFFSETS else 1), point
                (query / f"mark-{point}").unlink()
        before = len(sent)
        eventually(lambda: len(sent) > before, WHOLE_PATIENCE)
    faulty_driver.run(spark, metaq_broker.namesrv, topic, dict.fromkeys(map(str, queries), ""))

    records = [(one.queue_id, one.queue_offset) for one in StoreReader(metaq_broker.data).records(topics=[topic])]
    for query, points in zip(queries, KILLED_AT, strict=True):
        start = ends_of_batch_0(query / "checkpoint")
        assert sum(start.values()) >= EARLIER
        begin = {queue.queue_id: offset for queue, offset in start.items()}
        stored = Counter((queue_id, offset) for queue_id, offset in records if offset >= begin[queue_id])
        rows = ds.dataset(query / "out", partitioning="hive").to_table().to_pylist()
        assert len(stored) > 200
        assert Counter((row["queue_id"], row["queue_offset"]) for row in rows) == stored, points
