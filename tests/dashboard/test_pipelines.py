"""Pages about pipelines and queries of Spark: folders, backlog in queues, what `metrics` has measured."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import metaq
from metaq.admin import Admin
from metaq.clock import FakeClock
from metaq.dashboard.beside import folders
from metaq.dashboard.beside.folders import SHOWN_MAX, WatchedFolders
from metaq.dashboard.rendering.renderer import segment
from metaq.pipelines.lease import LEASE
from metaq.pipelines.run import STATUS
from tests.dashboard.beside import checkpoint, pipeline
from tests.dashboard.running import browsing, cluster, dashboard, looping
from tests.support import PATIENCE

pytestmark = pytest.mark.xdist_group("dashboard")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module")
def client(folder: pathlib.Path) -> Iterator[httpx.Client]:
    """All kinds of folders: one runs, one failed, one was killed, a query of its own, one that cannot be read."""
    checkpoint(folder / "tags", {"orders": {"broker-a": {"0": 3, "1": 0}}, "gone": {"broker-a": {"0": 9}}})
    with pytest.raises(RuntimeError), pipeline(folder / "broken"):
        raise RuntimeError("disk <full>")
    with pipeline(folder / "killed", "mirror"):
        status = (folder / "killed" / STATUS).read_bytes()
    (folder / "killed" / STATUS).write_bytes(status)
    (folder / "torn").mkdir()
    (folder / "torn" / STATUS).write_text("{")
    (folder / "nothing").mkdir()
    places = (str(folder), str(folder / "away"))
    with looping() as loop, cluster(loop, folder / "data") as up, pipeline(folder / "archive-orders"):
        with Admin(up.namesrv.address) as admin:
            admin.create_topic("orders", queues=2)
        with metaq.Producer(up.namesrv.address) as producer:
            queues = producer.queues("orders")
            for number in range(10):
                producer.send("orders", b"x", queue=queues[number % 2])
        with dashboard(loop, up.namesrv.address, pipelines=places) as running, browsing(running) as client:
            yield client


def json_of(client: httpx.Client, path: str) -> Any:
    answer = client.get(path, params={"format": "json"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_folders_are_listed_the_troubled_first(folder: pathlib.Path, client: httpx.Client):
    found = json_of(client, "/pipelines")
    assert found["places"] == [str(folder), str(folder / "away")]
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {"archive-orders", "broken", "killed", "tags", "torn", "away"}
    assert {name: row["state"] for name, row in rows.items() if row["state"]} == {
        "archive-orders": "running", "broken": "failed", "killed": "lost",
    }  # fmt: skip
    assert [row["name"] for row in found["rows"]][3:] == ["killed", "archive-orders", "tags"]
    running = rows["archive-orders"]
    assert (running["kind"], running["batches"], running["behind"]) == ("archive", 2, 42)
    assert (running["doing"], running["slices"], running["slices_done"]) == ("batch 2: 3 of 12 slices", 12, 3)
    assert rows["broken"]["fault"] == "disk <full>"
    assert "cannot be read" in rows["torn"]["fault"]
    assert f"there is no folder {folder / 'away'}" == rows["away"]["fault"]
    html = client.get("/pipelines").text
    assert "disk &lt;full&gt;" in html
    assert 'aria-label="Slices of the batch of archive-orders"' in html


def test_a_query_of_spark_is_behind_by_what_brokers_have(folder: pathlib.Path, client: httpx.Client):
    (row,) = [row for row in json_of(client, "/pipelines")["rows"] if row["name"] == "tags"]
    assert (row["kind"], row["batches"], row["behind"]) == ("query", 8, 7)
    found = json_of(client, f"/pipelines/{segment(str(folder / 'tags'))}")
    assert found["query"] == "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    assert [(one["topic"], one["queue"], one["position"], one["end"], one["behind"]) for one in found["queues"]] == [
        ("orders", 1, 0, 5, 5),
        ("orders", 0, 3, 5, 2),
        ("gone", 0, 9, 9, 0),
    ]
    assert found["notes"] == []


def test_a_pipeline_tells_its_runs_and_figures(folder: pathlib.Path, client: httpx.Client):
    found = json_of(client, f"/pipelines/{segment(str(folder / 'archive-orders'))}")
    assert {one["name"]: one["value"] for one in found["total"]} == {"rows": "500"}
    assert {one["name"]: one["value"] for one in found["last"]} == {"batch": "1", "rows": "300", "replayed": "False"}
    assert (found["runs"], found["query"], found["queues"]) == (1, "", [])
    assert found["host"]
    lost = client.get(f"/pipelines/{segment(str(folder / 'killed'))}").text
    assert "it was killed" in lost


@pytest.mark.parametrize("path", ["/etc", "../etc/passwd", "<script>"])
def test_only_folders_that_it_was_told_of_are_shown(client: httpx.Client, path: str):
    answer = client.get(f"/pipelines/{segment(path)}")
    assert answer.status_code == 404
    assert "<script>" not in answer.text


def test_without_folders_the_page_says_how_to_name_them(folder: pathlib.Path):
    with looping() as loop, dashboard(loop, "127.0.0.1:1") as running, browsing(running) as client:
        assert "--pipelines FOLDER" in client.get("/pipelines").text
        assert json_of(client, "/pipelines")["rows"] == []


def test_backlog_and_rate_have_a_history(tmp_path: pathlib.Path):
    clock = FakeClock()

    async def run() -> None:
        watched = WatchedFolders([str(tmp_path / "one")], clock)
        with pipeline(tmp_path / "one") as run:
            assert [one.status.behind for one in await watched.seen() if one.status] == [42]
            run.tell("batch 2", batch=2, rows=1000)
            run.behind(7)
            assert [one.status.behind for one in await watched.seen() if one.status] == [42], "it was seen just now"
            clock.advance(5)
            await watched.seen()
        path = str(tmp_path / "one")
        assert watched.behind.of(path) == [42, 7]
        assert watched.rates.of(path) == [200]
        await watched.close()

    asyncio.run(run())


def test_a_folder_of_another_user_is_shown_with_the_reason(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """The others beside it, too. The tests may run as root, who may read everything."""
    read = folders.status_of

    def denied(place: pathlib.Path) -> Any:
        if place.name == "theirs":
            raise PermissionError(13, "Permission denied", str(place / "_lease"))
        return read(place)

    monkeypatch.setattr(folders, "status_of", denied)

    async def run() -> None:
        with pipeline(tmp_path / "ours"), pipeline(tmp_path / "theirs"):
            seen = await WatchedFolders([str(tmp_path)], FakeClock()).seen()
            assert [(one.status is not None, "Permission denied" in one.error) for one in seen] == [
                (True, False),
                (False, True),
            ]

    asyncio.run(run())


def test_folders_in_a_folder_are_bounded(tmp_path: pathlib.Path):
    async def run() -> None:
        for number in range(SHOWN_MAX + 5):
            checkpoint(tmp_path / f"query-{number:03d}", {})
        watched = WatchedFolders([str(tmp_path)], FakeClock())
        assert len(await watched.seen()) == SHOWN_MAX
        assert watched.left == 5

    asyncio.run(run())


def test_what_metrics_has_measured_is_drawn(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("metaq.dashboard.pages.pipeline.MEASURE_SECONDS", PATIENCE)
    pytest.importorskip("pyarrow", reason="files of the pipeline metrics are Parquet")
    from tests.pipelines.metrics.test_showing import folder_of

    place = folder_of(tmp_path / "m", 30)  # from an hour ago on
    (place / LEASE).touch()
    with (
        pipeline(place, "metrics"),
        looping() as loop,
        dashboard(loop, "127.0.0.1:1", pipelines=(str(place),)) as running,
        browsing(running) as client,
    ):
        found = json_of(client, f"/pipelines/{segment(str(place))}")
        html = client.get(f"/pipelines/{segment(str(place))}").text
    assert found["notes"] == []
    assert {(one["topic"], one["group"]) for one in found["measured"]} == {
        (topic, group) for topic in ("orders", "payments") for group in ("", "billing")
    }
    (lag,) = [one for one in found["measured"] if (one["topic"], one["group"]) == ("orders", "billing")]
    assert set(lag["lag_points"]) == {80}
    assert len(lag["lag_points"]) > 1
    assert all(point > 10 for one in found["measured"] for point in one["rate_points"])
    assert html.count('aria-label="Messages per second, last hour: now') == 4


def test_a_folder_of_metrics_that_is_not_read_in_time_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("metaq.dashboard.pages.pipeline.MEASURE_SECONDS", 0.0)
    place = tmp_path / "m"
    place.mkdir()
    (place / LEASE).touch()
    with (
        pipeline(place, "metrics"),
        looping() as loop,
        dashboard(loop, "127.0.0.1:1", pipelines=(str(place),)) as running,
        browsing(running) as client,
    ):
        found = json_of(client, f"/pipelines/{segment(str(place))}")
    assert found["notes"] == ["what it has measured: its files are not read in time"]
