"""`MetricsListener`: what queries have done is pushed to a real HTTP receiver."""

from __future__ import annotations

import re
from typing import Any

import pytest

from metaq.model import offsets
from metaq.model.queue import MessageQueue
from metaq.spark import MetricsListener
from tests.metrics.receiver import receiving, values
from tests.scripted import ScriptedCluster
from tests.spark.running import finished
from tests.spark.source.test_listener import copy, ended, progress
from tests.support import ROOT, eventually

PAGE = (ROOT / "docs" / "monitoring.md").read_text()
A0 = MessageQueue("orders", "broker-a", 0)


def test_batches_are_pushed_and_those_of_other_sources_are_not():
    with receiving() as gateway:
        listener = MetricsListener(gateway.url, "queries")
        listener.onQueryProgress(progress(offsets.to_json({A0: 7}), offsets.to_json({A0: 20})))
        listener.onQueryProgress(progress(5, 9, run=1))
        listener.onQueryTerminated(ended(0))
        listener.close()
        _, path, text = gateway.pushes[-1]
    assert path == "/metrics/job/queries"
    told = values(text)
    assert told["metaq_pipeline_rows_total"] == 10
    assert told["metaq_pipeline_behind_messages"] == 13
    assert 'query="copies"' in text


@pytest.mark.spark
def test_a_query_of_spark(spark, tmp_path):
    """With the listener that the program of docs/monitoring.md adds."""
    (program,) = (one for one in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "MetricsListener" in one)
    with ScriptedCluster(tmp_path / "cluster") as cluster, receiving() as gateway:
        cluster.put("orders", 0, [b"x"] * 20)
        names: dict[str, Any] = {}
        exec(program.replace("http://pushgateway:9091", gateway.url), names)
        listener = names["listener"]
        try:
            finished(copy(spark, cluster, tmp_path / "checkpoint").start)
            told = eventually(
                lambda: (
                    gateway.pushes
                    and (found := values(gateway.pushes[-1][2])).get("metaq_pipeline_rows_total") == 20
                    and found
                )
            )
        finally:
            spark.streams.removeListener(listener)
            listener.close()
    assert gateway.pushes[-1][1] == "/metrics/job/orders"
    assert told["metaq_pipeline_batches_total"] >= 2
    assert told["metaq_pipeline_batch_seconds_count"] == told["metaq_pipeline_batches_total"]
    assert told["metaq_pipeline_behind_messages"] == 0
