"""`metaq pipeline run archive` against a real broker: killed, stopped, finished. The oracle is `metaq store dump`."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import metaq
from metaq.admin import Admin
from metaq.archive.folder import ArchiveFolder
from tests.pipelines import commands
from tests.spark.test_kill import producing
from tests.support import PATIENCE, WHOLE_PATIENCE, environment, eventually, metaq_command

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
TOPIC = "archived"


def pipeline(broker, folder: Path, *more: str):
    words = ["-n", broker.namesrv, "--topic", TOPIC, "--output", str(folder / "out"), "--group", "archiver"]
    return commands.pipeline(folder / "pipeline.log", "archive", *words, "--json", *more)


def test_killed_stopped_and_finished_the_archive_is_what_the_store_holds(metaq_broker, tmp_path):
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
        with pipeline(metaq_broker, tmp_path, "--trigger", "0.2") as running:
            eventually(lambda: len(list(manifests.glob("*.json"))) > published, WHOLE_PATIENCE, what="another batch")
            running.terminate()
            assert running.wait(WHOLE_PATIENCE) == 0, (tmp_path / "pipeline.log").read_text()[-3000:]
    with pipeline(metaq_broker, tmp_path, "--once") as running:
        lines = [json.loads(line) for line in running.stdout]
        assert running.wait(WHOLE_PATIENCE) == 0, (tmp_path / "pipeline.log").read_text()[-3000:]

    dumped = subprocess.run(
        metaq_command("store", "dump", str(metaq_broker.data)),
        env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip
    stored = [message for line in dumped.splitlines() if (message := json.loads(line))["topic"] == TOPIC]
    rows = ds.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    assert Counter((row["queue_id"], row["queue_offset"], row["message_id"], row["body"].decode()) for row in rows) == (
        Counter((one["queue_id"], one["queue_offset"], one["message_id"], one["body"]) for one in stored)
    )
    (first,) = [row for row in rows if row["body"] == b"first"]
    assert (first["tag"], first["keys"], dict(first["properties"])["colour"]) == ("t", ["k"], "red")
    assert all(line["repeats"] == 0 for line in lines)
    with Admin(metaq_broker.namesrv) as admin:
        assert admin.group_progress("archiver").lag == 0
