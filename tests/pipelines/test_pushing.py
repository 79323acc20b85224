"""`metricsUrl`: a run pushes what its batches were."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.metrics import table
from metaq.metrics.metric import Kind, Of
from metaq.metrics.reference import PREFIX
from metaq.pipelines.pushing import push_from
from metaq.pipelines.run import Run
from tests.metrics.receiver import receiving, values
from tests.support import PATIENCE, eventually


def test_a_run_pushes_each_batch_and_the_last_at_its_end(tmp_path):
    with receiving() as gateway:
        run = Run("archive", tmp_path / "here")
        push_from(run, gateway.url, "archive")
        run.begin(PATIENCE)
        run.doing("batch 0")
        run.behind(70)
        run.tell("batch 0", batch=0, messages=30, seconds=0.25)
        eventually(lambda: gateway.pushes)
        run.behind(40)
        run.tell("batch 1", batch=1, messages=30, seconds=0.5)
        run.end()
        _, path, text = gateway.pushes[-1]
    assert path == "/metrics/job/metaq-archive"
    told = values(text)
    assert told["metaq_pipeline_rows_total"] == 60
    assert told["metaq_pipeline_batches_total"] == 2
    assert told["metaq_pipeline_behind_messages"] == 40
    assert told["metaq_pipeline_batch_seconds_sum"] == 0.75
    suffixes = {Kind.COUNTER: ("_total",), Kind.HISTOGRAM: ("_count", "_sum")}
    wanted = {
        PREFIX + metric.name + suffix for metric in table.of(Of.PIPELINE) for suffix in suffixes.get(metric.kind, ("",))
    }
    assert set(told) == wanted


def test_a_gateway_that_is_away_does_not_hold_a_run_up(tmp_path):
    run = Run("archive", tmp_path / "here")
    push_from(run, "http://127.0.0.1:1", "archive")
    run.begin(PATIENCE)
    run.tell("batch 0", batch=0, messages=30)
    run.end()
    assert run.status.batches == 1


def test_a_wrong_target_is_refused_before_anything_is_begun(tmp_path):
    with pytest.raises(ConfigError, match="metricsUrl"):
        push_from(Run("archive", tmp_path / "here"), "nowhere", "archive")
    assert not (tmp_path / "here").exists()
