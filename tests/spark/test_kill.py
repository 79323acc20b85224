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
from metaq.spark import offsets
from metaq.store.reader import StoreReader
from tests.spark.faulty_source import BEFORE_OFFSETS, POINTS
from tests.support import ROOT, environment, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]
EARLIER = 200


@contextlib.contextmanager
def driver(broker, topic: str, folder: Path, point: str = ""):
    """The driver as a process of its own, with everything it starts; killed -9 at the end."""
    mark = folder / f"mark-{point.replace(' ', '-')}"
    command = [sys.executable, "-m", "tests.spark.faulty_driver", broker.namesrv, topic]
    env = environment(METAQ_TEST_HALT=point, METAQ_TEST_MARK=str(mark))
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
    with (folder / "driver.log").open("a") as log:
        running = subprocess.Popen(
            [*command, str(folder / "out"), str(folder / "checkpoint")], cwd=ROOT, env=env, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield running, mark
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait(20)


@contextlib.contextmanager
def producing(broker, topic: str):
    """A producer that goes on sending, a few hundred messages a second, until the block is left."""
    stop, total = threading.Event(), []

    def run() -> None:
        with metaq.Producer(broker.namesrv) as producer:
            while not stop.wait(0.05):
                futures = [producer.submit(topic, b"x" * 50, queue=queue) for queue in producer.queues(topic) * 5]
                total.extend(future.result() for future in futures)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield total
    finally:
        stop.set()
        thread.join(30)


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*"))


def ends_of_batch_0(checkpoint: Path) -> dict:
    return offsets.from_json(json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1]))


def test_a_driver_killed_at_every_point_reads_each_message_once(metaq_broker, tmp_path):
    """One query, started at `latest` under a running producer, killed five times, then left to finish."""
    topic = "killed"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for _ in range(EARLIER):
            producer.send(topic, b"sent before the query began")
    checkpoint = tmp_path / "checkpoint"
    with producing(metaq_broker, topic) as sent:
        for point in POINTS:
            with driver(metaq_broker, topic, tmp_path, point) as (running, mark):
                reached = lambda: mark.exists() or running.poll() is not None  # noqa: E731  used at once
                eventually(reached, 90, what=point)
                assert mark.exists(), (tmp_path / "driver.log").read_text()[-3000:]
            logged, committed = numbers(checkpoint / "offsets"), numbers(checkpoint / "commits")
            assert len(logged) - len(committed) == (0 if point == BEFORE_OFFSETS else 1), point
        before = len(sent)
        eventually(lambda: len(sent) > before, 20)
    with driver(metaq_broker, topic, tmp_path) as (running, _):
        assert running.wait(120) == 0, (tmp_path / "driver.log").read_text()[-3000:]

    start = ends_of_batch_0(checkpoint)
    assert sum(start.values()) >= EARLIER
    stored = Counter(
        (message.queue_id, message.queue_offset)
        for message in StoreReader(metaq_broker.data).records(topic=topic)
        if message.queue_offset >= start[next(q for q in start if q.queue_id == message.queue_id)]
    )
    rows = ds.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    read = Counter((row["queue_id"], row["queue_offset"]) for row in rows)
    assert len(stored) > 1000
    assert read == stored
