"""`metaq pipeline run changes`, killed and started again, into Parquet and MariaDB. The oracle is a dict."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

import metaq
from metaq.pipelines.run import status_of
from metaq.spark import snapshot
from tests.interop import mariadb
from tests.pipelines import commands
from tests.pipelines.changes.batches import body
from tests.support import WHOLE_PATIENCE, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
KEYS, ROUNDS = 40, 12


def words(broker, topic: str, folder: Path, *more: str) -> list[str]:
    given = ["-n", broker.namesrv, "--topic", topic, "--folder", str(folder / "out"), "--json", "--dense"]
    return [*given, "--max-offsets-per-trigger", "30", "--buckets", "2", *more]


def expected(producer, topic: str) -> dict[int, int]:
    """Send changes of all keys, dense by key; every third key is deleted in the end. Returns id → value."""
    state: dict[int, int] = {}
    for number in range(1, ROUNDS + 1):
        for key in range(KEYS):
            gone = number == ROUNDS and key % 3 == 0
            change = body("delete" if gone else "update", key, number, {"a": number * 100 + key})
            producer.send(topic, change, ordering_key=str(key))
            state[key] = number * 100 + key
    return {key: value for key, value in state.items() if key % 3}


@pytest.mark.parametrize("where", ["parquet", "mariadb"])
def test_killed_twice_the_tables_are_what_was_sent(spark, metaq_broker, tmp_path, where):
    """kill -9 between any two batches: dense sequences would tell of every change that came twice or never."""
    if where == "mariadb":
        pytest.importorskip("pymysql", reason="pymysql is not installed: it comes with the extra mysql")
    topic = f"killed-changes-{where}"
    with contextlib.ExitStack() as stack:
        more = ["--trigger", "0.2"]
        if where == "mariadb":
            (tmp_path / "server").mkdir()
            address = stack.enter_context(mariadb.running(tmp_path / "server"))
            import pymysql

            user, _, place = address.partition("@")
            host, _, port = place.partition(":")
            database = stack.enter_context(pymysql.connect(host=host, port=int(port), user=user, autocommit=True))
            database.cursor().execute("CREATE DATABASE shop")
            more += ["--target", f"mysql://{address}/shop", "--create-table"]
        with metaq.Producer(metaq_broker.namesrv) as producer:
            rows = expected(producer, topic)
        command = words(metaq_broker, topic, tmp_path, *more)
        for _ in range(2):
            with commands.pipeline(tmp_path / "pipeline.log", "changes", *command) as running:

                def done(running=running):
                    assert running.poll() is None, (tmp_path / "pipeline.log").read_text()[-3000:]
                    status = status_of(tmp_path / "out")
                    return status is not None and status.pid == running.pid and status.batches >= 2

                eventually(done, WHOLE_PATIENCE, what="two batches of this run")
                assert commands.chatter((tmp_path / "pipeline.log").read_text()) == [], (
                    "nothing is wrong until it is killed"
                )
                (tmp_path / "pipeline.log").unlink()
        done = commands.run_here(spark, "changes", *command, "--once")
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert all(line.get("repeats", 0) == line.get("gaps", 0) == line.get("steps_back", 0) == 0 for line in told)
        if where == "parquet":
            found = {row["id"]: row["a"] for row in snapshot(tmp_path / "out").dataset().to_table().to_pylist()}
        else:
            cursor = database.cursor()
            cursor.execute("SELECT id, a FROM shop.t")
            found = dict(cursor.fetchall())
        assert found == rows
