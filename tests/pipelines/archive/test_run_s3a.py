"""`metaq pipeline run archive` to a store of objects, by Hadoop's own S3 client: what a conditional write decides, and what is
refused without one. The oracles are `metaq store dump`, and pyarrow over what the server hands out.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import metaq
from tests.hadoop import s3 as servers
from tests.pipelines import commands
from tests.pipelines.archive.cut_archive import HALF_RENAMED, MANIFEST_MADE
from tests.pipelines.archive.test_run_hdfs import cut, log_of, stored
from tests.support import WHOLE_PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with servers.running(tmp_path_factory.mktemp("s3")) as running:
        yield running


def configuration(s3, broker, topic: str, folder: Path, **more: str) -> str:
    lines = [
        'pipeline = "archive"', f'nameServers = "{broker.namesrv}"', f'topics = "{topic}"', f'output = "s3a://bucket/{topic}/out"',
        f'runFolder = "{folder / "run"}"', "leaseSeconds = 2", "once = true", "[spark]",
        *(f'"{key}" = "{value}"' for key, value in (s3.settings | more).items()),
    ]  # fmt: skip
    (folder / "archive.toml").write_text("\n".join(lines))
    return str(folder / "archive.toml")


def archived(s3, topic: str, folder: Path) -> Counter:
    rows = ds.dataset(s3.copy(f"{topic}/out", folder / "copy"), partitioning="hive").to_table().to_pylist()
    return Counter((row["queue_id"], row["queue_offset"], row["message_id"], row["body"].decode()) for row in rows)


def test_killed_before_and_after_its_conditional_write_the_archive_is_what_the_store_holds(metaq_broker, s3, tmp_path):
    """Objects are copied to their names, each whole; a run that was killed in between leaves copies to the next."""
    topic = "s3a-killed"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(60):
            producer.send(topic, b"%d" % number)
        words = ["-c", configuration(s3, metaq_broker, topic, tmp_path)]
        for point in (MANIFEST_MADE, HALF_RENAMED):
            with cut(tmp_path, "SIGKILL", point, words) as (running, mark):
                running.wait(WHOLE_PATIENCE)
                assert mark.exists(), log_of(tmp_path)
        for number in range(60, 80):
            producer.send(topic, b"%d" % number)
    with commands.pipeline(tmp_path / "pipeline.log", "archive", *words, "--json") as last:
        lines = [json.loads(line) for line in last.stdout]
        assert last.wait(WHOLE_PATIENCE) == 0, log_of(tmp_path)
    assert next(line["replayed"] for line in lines)
    assert archived(s3, topic, tmp_path) == stored(metaq_broker, topic)
    left = [name for name in s3.names() if name.startswith(f"{topic}/.")]
    assert not [name for name in left if name.endswith(".parquet")]


def test_without_conditional_writes_it_is_refused(metaq_broker, s3, tmp_path):
    topic = "s3a-refused"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, b"one")
    more = {"spark.hadoop.fs.s3a.create.conditional.enabled": "false"}
    words = ["-c", configuration(s3, metaq_broker, topic, tmp_path, **more)]
    with commands.pipeline(tmp_path / "pipeline.log", "archive", *words) as refused:
        assert refused.wait(WHOLE_PATIENCE) == 2, log_of(tmp_path)
    assert (
        "s3a://bucket/s3a-refused/out is on a file system that cannot hold an archive: renames there are copies"
        in log_of(tmp_path)
    )
    assert not [name for name in s3.names() if topic in name and not name.endswith("/")]
