"""`metaq pipeline run archive` to a real HDFS, from a real broker: killed at every point of publishing, put to sleep, and with
its name node gone. The oracles are `metaq store dump`, and pyarrow over what HDFS hands out over HTTP.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import metaq
from tests.pipelines import commands
from tests.pipelines.archive.cut_archive import MANIFEST_MADE, POINTS
from tests.spark.jvm import java_options
from tests.spark.test_kill import producing
from tests.support import PATIENCE, ROOT, WHOLE_PATIENCE, environment, eventually, run_metaq

pytestmark = [
    pytest.mark.spark, pytest.mark.interop, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all,
]  # fmt: skip


def flags(broker, topic: str, output: str, folder: Path) -> list[str]:
    words = ["-n", broker.namesrv, "--topic", topic, "--output", output, "--run-folder", str(folder / "run")]
    return [*words, "--lease-seconds", "2"]


@contextlib.contextmanager
def cut(folder: Path, number: str, point: str, words: list[str]) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The pipeline, cut by a signal at a point: the process, and the file that says that it came there."""
    mark = folder / f"mark-{point.replace(' ', '-')}"
    command = [sys.executable, "-m", "tests.pipelines.archive.cut_archive", number, point, str(mark), *words]
    env = environment(JDK_JAVA_OPTIONS=java_options())
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
    with (folder / "pipeline.log").open("a") as log:
        running = subprocess.Popen(
            [*command, "--master", "local[2]"],
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield running, mark
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait(PATIENCE)


def log_of(folder: Path) -> str:
    return (folder / "pipeline.log").read_text()[-3000:]


def stored(broker, topic: str) -> Counter:
    dumped = run_metaq("store", "dump", str(broker.data))
    assert dumped.returncode == 0, dumped.stderr
    found = [message for line in dumped.stdout.splitlines() if (message := json.loads(line))["topic"] == topic]
    return Counter((one["queue_id"], one["queue_offset"], one["message_id"], one["body"]) for one in found)


def archived(hdfs, output: str, folder: Path) -> Counter:
    rows = ds.dataset(hdfs.copy(output, folder / "copy"), partitioning="hive").to_table().to_pylist()
    return Counter((row["queue_id"], row["queue_offset"], row["message_id"], row["body"].decode()) for row in rows)


def finish(spark, broker, hdfs, topic: str, output: str, folder: Path) -> None:
    """Run it to the end of what is there, and compare."""
    last = commands.run_here(spark, "archive", *flags(broker, topic, output, folder), "--once")
    assert last.returncode == 0, last.stderr
    found = archived(hdfs, output, folder)
    assert found == stored(broker, topic)
    assert set(found.values()) == {1}
    assert [name for name in hdfs.names(output.rpartition("/")[0]) if name.startswith(".")] == []


def test_killed_at_every_point_of_publishing_the_archive_is_what_the_store_holds(spark, metaq_broker, hdfs, tmp_path):
    """Each run is killed -9 at another point, with what the one before left; nobody gives the lease back."""
    topic, output = "hdfs-killed", f"{hdfs.folder('killed')}/out"
    words = flags(metaq_broker, topic, output, tmp_path)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"first", tag="t", keys=["k"])
    with producing(metaq_broker, topic) as sent:
        for point in POINTS:
            before = len(sent)
            eventually(lambda: len(sent) > before, WHOLE_PATIENCE)  # noqa: B023  used at once
            with cut(tmp_path, "SIGKILL", point, [*words, "--trigger", "0.2"]) as (running, mark):
                assert running.wait(WHOLE_PATIENCE) == -signal.SIGKILL, (point, log_of(tmp_path))
                assert mark.exists()
    assert run_metaq("pipeline", "status", "--folder", str(tmp_path / "run")).stdout.startswith(
        "archive: lost (process "
    )
    finish(spark, metaq_broker, hdfs, topic, output, tmp_path)


def test_a_run_that_sleeps_while_another_takes_over_is_refused_when_it_wakes(spark, metaq_broker, hdfs, tmp_path):
    """It has looked at the lease, and all that it has to do is to name its manifest."""
    topic, output = "hdfs-asleep", f"{hdfs.folder('asleep')}/out"
    (tmp_path / "sleeper").mkdir()
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number)
    words = flags(metaq_broker, topic, output, tmp_path / "sleeper")
    with cut(tmp_path / "sleeper", "SIGSTOP", MANIFEST_MADE, [*words, "--trigger", "0.2"]) as (sleeper, mark):
        eventually(lambda: mark.exists() or sleeper.poll() is not None, WHOLE_PATIENCE)
        assert sleeper.poll() is None, log_of(tmp_path / "sleeper")
        assert hdfs.names(f"{output}/_manifests") == [] or not any(
            name.endswith(".json") for name in hdfs.names(f"{output}/_manifests")
        )
        finish(spark, metaq_broker, hdfs, topic, output, tmp_path)
        manifests = hdfs.files(f"{output}/_manifests")
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(WHOLE_PATIENCE) == 1
    refused = rf"the query failed: another run publishes in {output}, and batch \d+ is its: this one was taken for dead"
    assert re.search(refused, log_of(tmp_path / "sleeper"))
    assert hdfs.files(f"{output}/_manifests") == manifests
    finish(spark, metaq_broker, hdfs, topic, output, tmp_path)


def test_a_second_run_is_refused_by_name_while_the_first_one_lives(spark, metaq_broker, hdfs, tmp_path):
    """From another machine, as it were: with a run folder of its own. The first is then stopped by its folder."""
    topic, output = "hdfs-second", f"{hdfs.folder('second')}/out"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"one")
    first = flags(metaq_broker, topic, output, tmp_path)
    with commands.pipeline(tmp_path / "pipeline.log", "archive", *first, "--trigger", "0.2", "--json") as running:
        assert json.loads(running.stdout.readline())["rows"] == 1
        other = flags(metaq_broker, topic, output, tmp_path / "other")
        second = commands.run_here(spark, "archive", *other, "--once")
        assert second.returncode == 1
        assert f"another run writes into {output}: process {running.pid} on " in second.stderr
        stopped = run_metaq("pipeline", "stop", "--folder", str(tmp_path / "run"), timeout=WHOLE_PATIENCE)
        assert stopped.stdout.startswith("archive has stopped: "), stopped
        assert running.wait(WHOLE_PATIENCE) == 0
    finish(spark, metaq_broker, hdfs, topic, output, tmp_path)


def test_a_name_node_that_goes_away_is_one_error_and_the_next_run_goes_on(spark, metaq_broker, hdfs, tmp_path):
    """In the middle of a run, with messages coming: nothing is lost."""
    topic, output = "hdfs-gone", f"{hdfs.folder('gone')}/out"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"first")
    words = flags(metaq_broker, topic, output, tmp_path)
    with producing(metaq_broker, topic):
        with commands.pipeline(tmp_path / "pipeline.log", "archive", *words, "--trigger", "0.2", "--json") as running:
            running.stdout.readline()
            hdfs.order("stop")
            try:
                assert running.wait(WHOLE_PATIENCE) == 1
            finally:
                hdfs.order("start")
        assert "onnection" in log_of(tmp_path), log_of(tmp_path)
    finish(spark, metaq_broker, hdfs, topic, output, tmp_path)
