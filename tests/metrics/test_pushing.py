"""Metrics that are pushed: to a real HTTP receiver, or into a file, and never at the cost of the work."""

from __future__ import annotations

import threading

import pytest

from metaq.errors import ConfigError
from metaq.metrics.pushing import Pusher, check_target
from metaq.metrics.queries import QueryFigures
from metaq.testing.ports import free_port
from tests.metrics.receiver import receiving, values
from tests.support import PATIENCE, eventually


@pytest.fixture
def figures():
    figures = QueryFigures(lambda: 1_700_000_000_000)
    figures.batch("copies", 10, 0.5, 7)
    return figures


def test_a_gateway_gets_what_was_counted(figures):
    with receiving() as gateway:
        pusher = Pusher(gateway.url, "metaq-copies", figures.samples)
        pusher.note()
        eventually(lambda: gateway.pushes)
        figures.batch("copies", 5, 1.5, 2)
        pusher.note()
        pusher.close(PATIENCE)
        method, path, text = gateway.pushes[-1]
    assert (method, path) == ("PUT", "/metrics/job/metaq-copies")
    assert values(text) == {
        "metaq_pipeline_rows_total": 15,
        "metaq_pipeline_batches_total": 2,
        "metaq_pipeline_batch_seconds_count": 2,
        "metaq_pipeline_batch_seconds_sum": 2.0,
        "metaq_pipeline_behind_messages": 2,
        "metaq_pipeline_last_batch_timestamp_seconds": 1_700_000_000,
    }


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_is_whole_whenever_it_is_read(figures, tmp_path, scheme):
    path = tmp_path / "metaq.prom"
    pusher = Pusher(f"{scheme}{path}", "job", figures.samples)
    pusher.note()
    pusher.close(PATIENCE)
    assert values(path.read_text())["metaq_pipeline_rows_total"] == 10
    assert [one.name for one in tmp_path.iterdir()] == ["metaq.prom"]


def test_many_notes_while_a_gateway_is_slow_are_one_push(figures):
    slow, begun, told = threading.Event(), threading.Event(), []

    def samples():
        told.append(1)
        begun.set()
        assert slow.wait(PATIENCE)
        return figures.samples()

    with receiving() as gateway:
        pusher = Pusher(gateway.url, "job", samples)
        pusher.note()
        assert begun.wait(PATIENCE)
        for _ in range(100):
            pusher.note()
        slow.set()
        pusher.close(PATIENCE)
        assert len(told) == len(gateway.pushes) == 2


def test_a_gateway_that_is_away_or_refuses_is_logged_and_nothing_else(figures, caplog):
    port = free_port()
    pusher = Pusher(f"http://me:secret@127.0.0.1:{port}", "job", figures.samples)
    pusher.note()
    eventually(lambda: "metrics were not pushed" in caplog.text)
    pusher.close(PATIENCE)
    assert "secret" not in caplog.text
    with receiving() as gateway:
        gateway.status = 500
        pusher = Pusher(gateway.url, "job", figures.samples)
        pusher.note()
        eventually(lambda: "500" in caplog.text)
        gateway.status = 200
        pusher.note()
        pusher.close(PATIENCE)
        assert len(gateway.pushes) == 2, "it goes on"


@pytest.mark.parametrize("wrong", ["", "ftp://host/x.prom", "http:///", "/var/lib/metaq.txt", "gateway:9091"])
def test_what_is_no_target_is_refused(wrong):
    with pytest.raises(ConfigError, match="metricsUrl"):
        check_target(wrong)
