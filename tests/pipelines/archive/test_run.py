"""`metaq pipeline run archive` against a real broker: killed, stopped, finished. The oracle is `metaq store dump`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import metaq
from metaq.admin import Admin
from metaq.archive.folder import ArchiveFolder
from metaq.pipelines.run import status_of
from tests.pipelines import commands
from tests.spark.running import python_path
from tests.spark.test_kill import producing
from tests.support import WHOLE_PATIENCE, environment, eventually, run_metaq

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
TOPIC = "archived"


def words(broker, folder: Path) -> list[str]:
    out = str(folder / "out")
    return ["-n", broker.namesrv, "--topic", TOPIC, "--output", out, "--progress-group", "archiver", "--json"]


def pipeline(broker, folder: Path, *more: str, log: str = "pipeline.log"):
    return commands.pipeline(folder / log, "archive", *words(broker, folder), *more)


def test_killed_stopped_and_finished_the_archive_is_what_the_store_holds(spark, metaq_broker, tmp_path):
    """kill -9 in full run, then SIGTERM, then `--once`: every stored message is in the Parquet files once."""
    manifests = tmp_path / "out" / "_manifests"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(TOPIC, b"first", tag="t", keys=["k"], properties={"colour": "red"})
    with producing(metaq_broker, TOPIC):
        with pipeline(metaq_broker, tmp_path, "--trigger", "0.2"):
            eventually(lambda: len(list(manifests.glob("*.json"))) >= 2, WHOLE_PATIENCE, what="two published batches")
        published = {file.path for manifest in ArchiveFolder(tmp_path / "out").manifests() for file in manifest.files}
        below = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet")}
        assert below <= published  # What the most careless reader's glob finds.
        published = len(list(manifests.glob("*.json")))
        with pipeline(metaq_broker, tmp_path, "--trigger", "0.2", log="stopped.log") as running:
            eventually(lambda: len(list(manifests.glob("*.json"))) > published, WHOLE_PATIENCE, what="another batch")
            running.terminate()
            assert running.wait(WHOLE_PATIENCE) == 0, (tmp_path / "stopped.log").read_text()[-3000:]
    assert commands.chatter((tmp_path / "stopped.log").read_text()) == [], "no library says anything at a stop"
    done = commands.run_here(spark, "archive", *words(metaq_broker, tmp_path), "--once")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    dumped = run_metaq("store", "dump", str(metaq_broker.data))
    assert dumped.returncode == 0, dumped.stderr
    stored = [message for line in dumped.stdout.splitlines() if (message := json.loads(line))["topic"] == TOPIC]
    rows = ds.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    assert Counter((row["queue_id"], row["queue_offset"], row["message_id"], row["body"].decode()) for row in rows) == (
        Counter((one["queue_id"], one["queue_offset"], one["message_id"], one["body"]) for one in stored)
    )
    (first,) = [row for row in rows if row["body"] == b"first"]
    assert (first["tag"], first["keys"], dict(first["properties"])["colour"]) == ("t", ["k"], "red")
    assert all(line["repeats"] == 0 for line in lines)
    with Admin(metaq_broker.namesrv) as admin:
        assert admin.group_progress("archiver").lag == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_java_gets_is_told_in_a_line(metaq_broker, tmp_path, number):
    """SIGTERM for all processes, as `systemctl stop` sends it, is a stop; a Java that is killed alone is named."""
    topic = f"archived-{number.name.lower()}"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"first")
    manifests, log = tmp_path / "out" / "_manifests", tmp_path / "pipeline.log"
    where = ["-n", metaq_broker.namesrv, "--topic", topic, "--output", str(tmp_path / "out"), "--json"]
    with commands.pipeline(log, "archive", *where, "--trigger", "0.2") as running:
        eventually(
            lambda: running.poll() is not None or len(list(manifests.glob("*.json"))) >= 1,
            WHOLE_PATIENCE, what="a published batch",
        )  # fmt: skip
        assert running.poll() is None, log.read_text()
        if number == signal.SIGTERM:
            os.killpg(running.pid, number)
        else:
            os.kill(java_of(running.pid), number)
        status = running.wait(WHOLE_PATIENCE)
    said = commands.chatter(log.read_text())
    if number == signal.SIGTERM:
        assert (status, said, status_of(tmp_path / "out").state) == (0, [], "stopped")
    else:
        assert (status, len(said), "Java process ended, by signal 9" in said[0]) == (1, 1, True), said


def java_of(parent: int) -> int:
    """The child that is Java."""
    children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    [found] = [one for one in children if Path(f"/proc/{one}/comm").read_text().strip() == "java"]
    return found


def test_java_has_the_stack_for_the_pattern_by_which_spark_knows_a_stop():
    """On the text of an error with the traces of Python and Java in it, as a batch ends with that is stopped half way."""
    program = """
from metaq.spark import session
spark = session(master="local[1]")
pattern = spark._jvm.java.util.regex.Pattern.compile(r"calling((.|\\r\\n|\\r|\\n)*)(InterruptedException)")
print(pattern.matcher("calling" + "at x\\n" * 3000 + "InterruptedException").find())
spark.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=WHOLE_PATIENCE, env=environment(PYTHONPATH=python_path()), check=False,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr[-2000:]
