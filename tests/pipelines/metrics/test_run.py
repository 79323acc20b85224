"""`metaq pipeline run metrics` against a real broker: killed, stopped, finished. The oracle is the broker's queues."""

from __future__ import annotations

from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.pipelines.metrics.reading import read_metrics
from metaq.pipelines.metrics.state import STATE, decode
from tests.pipelines import commands
from tests.spark.test_kill import producing
from tests.support import WHOLE_PATIENCE, eventually, run_metaq

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
TOPIC = "measured"


def words(broker, folder: Path) -> list[str]:
    given = ["-n", broker.namesrv, "--topic", TOPIC, "--folder", str(folder / "m")]
    return [*given, "--window-seconds", "1", "--sample-seconds", "0.2"]


def pipeline(broker, folder: Path, *more: str, log: str = "pipeline.log"):
    return commands.pipeline(folder / log, "metrics", *words(broker, folder), *more)


def test_killed_stopped_and_finished_every_message_is_counted_once(spark, metaq_broker, tmp_path):
    """kill -9 in full run, then SIGTERM, then `--once`: the windows hold what the queues hold, and `show` tells it."""
    state, log = tmp_path / "m" / STATE, tmp_path / "stopped.log"

    def batches() -> int:
        return decode(state.read_bytes()).batch if state.exists() else -1

    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(TOPIC, b"first")
    with producing(metaq_broker, TOPIC):
        with pipeline(metaq_broker, tmp_path, "--trigger", "0.2"):
            eventually(lambda: batches() >= 2, WHOLE_PATIENCE, what="some batches")
        seen = batches()
        with pipeline(metaq_broker, tmp_path, "--trigger", "0.2", log=log.name) as running:
            eventually(lambda: batches() > seen + 1, WHOLE_PATIENCE, what="another batch")
            running.terminate()
            assert running.wait(WHOLE_PATIENCE) == 0, log.read_text()[-3000:]
    # Another test may have made the trace topic.
    told = [line for line in commands.chatter(log.read_text()) if "there is no trace topic" not in line]
    assert told == [], "no library says anything at a stop"
    done = commands.run_here(spark, "metrics", *words(metaq_broker, tmp_path), "--once")
    assert done.returncode == 0, done.stderr

    with Admin(metaq_broker.namesrv) as admin:
        stored = sum(stats.max_offset for stats in admin.describe_topic(TOPIC).queues.values())
    ((series, windows),) = read_metrics(tmp_path / "m").of("messages").items()
    assert sum(window.sums["messages"] for window in windows.values()) == stored
    assert all(window.spreads["born_stored"].count == window.sums["messages"] for window in windows.values())
    shown = run_metaq("pipeline", "show", "metrics", "--folder", str(tmp_path / "m"), "--last", "1d")
    assert f"{stored:,}" in shown.stdout
    assert series.topic == TOPIC
