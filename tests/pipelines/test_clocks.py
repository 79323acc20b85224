"""Clocks that jump, a broker's and the driver's: nothing is lost or doubled, the next run goes on, and a word says whose is wrong.

The archive's are in archive/test_service.py, those of keepDays in compact/test_retention.py, the metrics' in metrics/test_state.py.
"""

from __future__ import annotations

import functools
import itertools

import msgspec
import pytest

import metaq
from metaq.clock import FakeClock
from metaq.pipelines.audit import job
from metaq.pipelines.audit.figures import AuditFigures
from metaq.pipelines.audit.options import Span
from metaq.pipelines.changes.options import ChangesOptions
from metaq.pipelines.changes.snapshot import SnapshotFolder
from metaq.pipelines.changes.to_snapshot import SnapshotTarget
from metaq.pipelines.lease import FileLease
from metaq.pipelines.metrics.reading import read_metrics
from metaq.pipelines.redrive.job import Pace
from metaq.pipelines.run import RUNNING, Run, status_of
from metaq.spark import snapshot
from metaq.spark.pipelines import audit, changes, metrics, mirror
from tests.pipelines.changes.batches import apply, body
from tests.pipelines.metrics.test_service import summed
from tests.pipelines.test_full_disk import full
from tests.scripted import ScriptedCluster
from tests.spark.running import finished
from tests.support import eventually

TODAY = 1_700_006_400_000  # 2023-11-15, 00:00 UTC
CENTURY = 36_525 * 86_400_000
HOUR = 3_600_000


# ------------------------------------------------------------------ the driver's
class StubRun:
    """A run that waits by moving the clock."""

    def __init__(self, clock: FakeClock, stopping: bool = False) -> None:
        self._clock, self.stopping, self.lines = clock, stopping, []

    def tell(self, line, **_) -> None:
        self.lines.append(line)

    def wait(self, seconds: float) -> bool:
        self._clock.advance(seconds)
        return self.stopping


@pytest.mark.parametrize("jump", [-CENTURY, CENTURY])
def test_an_audit_waits_for_its_grace_and_no_longer_if_its_clock_is_set(jump):
    """Nor shorter: it has been told how long it waits."""
    clock = FakeClock(TODAY)
    run, began = StubRun(clock), clock.monotonic()
    wait = run.wait

    def jumping(seconds: float) -> bool:
        run.wait = wait
        clock.set_wall(TODAY + jump)
        return wait(seconds)

    run.wait = jumping
    job._await_grace(run, Span(None, TODAY, TODAY + 10_000), clock)
    assert clock.monotonic() - began == pytest.approx(10)
    assert run.lines == ["waiting 10 s: what is consumed until then counts (graceSeconds)"]


def test_an_audit_says_whose_clock_is_wrong():
    """Its own, that was set while it ran; a broker's, that is ahead. A second or a minute is nobody's fault."""
    clock = FakeClock(TODAY)
    watch = job.ClockCheck(clock)
    clock.advance(30)
    assert list(watch.sentences(None)) == list(watch.sentences(TODAY + 80_000)) == []
    (sentence,) = watch.sentences(TODAY + CENTURY)
    assert sentence.startswith(
        "The newest message of these topics was stored at 2123-11-16T00:00:00Z by its broker's clock"
    )
    clock.set_wall(TODAY - HOUR)
    (sentence,) = watch.sentences(TODAY)
    assert sentence.startswith("This machine's clock was set back by 3,630 s while the audit ran")
    clock.set_wall(TODAY + HOUR)
    assert "set forward by 3,570 s" in next(watch.sentences(1 << 62))


def test_a_snapshot_s_generations_go_in_their_time_though_the_clock_was_ahead(tmp_path):
    """One that was written in the next century is an old one an hour after the clock was mended; readers keep theirs."""
    chosen = ChangesOptions(topics="t", folder="x", buckets=1, keep_generations=2, keep_seconds=3600)
    clock = FakeClock(TODAY + CENTURY)

    def batch(number: int) -> list[int]:
        apply(
            SnapshotTarget(tmp_path, chosen, clock),
            chosen,
            "12345678-q",
            number,
            [body("insert", 1, number, {"a": number})],
        )
        assert [row["a"] for row in snapshot(tmp_path).dataset().to_table().to_pylist()] == [number]
        return SnapshotFolder(tmp_path)._generations()

    for number in (1, 2, 3):
        batch(number)
    clock.set_wall(TODAY)
    assert batch(4) == [1, 2, 3, 4]
    clock.advance(3601)
    assert batch(5) == [4, 5]


def test_who_may_write_and_how_fast_is_no_matter_of_the_wall_clock(tmp_path, monkeypatch):
    """The lease is the kernel's, the wait for it and the rate go by a clock that never steps."""
    (tmp_path / "f").mkdir()
    clock = FakeClock(TODAY)
    monkeypatch.setattr("metaq.pipelines.lease.SYSTEM", clock)
    first, second = FileLease(tmp_path / "f"), FileLease(tmp_path / "f")
    first.take()
    for now_ms in (TODAY - CENTURY, TODAY + CENTURY):
        clock.set_wall(now_ms)
        with pytest.raises(metaq.MetaqError, match="another run writes into"):
            second.take(0)
    first.release()
    second.take(0)
    second.release()
    pace = Pace(10)
    pace.sent(10, clock.monotonic())
    before = pace.pause(clock.monotonic())
    clock.set_wall(TODAY)
    assert pace.pause(clock.monotonic()) == before > 0


def test_a_run_s_status_is_told_by_any_clock(tmp_path, monkeypatch):
    """Seen before it began: `status` shows the two times, and that it runs."""
    clock = FakeClock(TODAY)
    monkeypatch.setattr("metaq.pipelines.run.SYSTEM", clock)
    with Run("mirror", tmp_path / "f").begin() as run:
        clock.set_wall(TODAY - CENTURY)
        run.tell("batch 1")
        found = status_of(tmp_path / "f")
        assert (found.state, found.since, found.seen) == (RUNNING, "2023-11-15T00:00:00Z", "1923-11-15T00:00:00Z")


# ------------------------------------------------------------------ a broker's
TIMES = (TODAY, TODAY + CENTURY, TODAY + 1000, 1000)


def ended(place) -> None:
    eventually(lambda: status_of(place).state != RUNNING, what="the run's end")
    assert status_of(place).fault == ""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
@pytest.mark.parametrize("name", ["changes", "mirror", "metrics"])
def test_a_broker_s_clock_that_jumps_loses_and_doubles_nothing(spark, metaq_broker, tmp_path, name):
    """A century forwards and back, a run for each message and one more for nothing."""
    folder, topic = tmp_path / "place", "clock-orders"
    with ScriptedCluster(tmp_path / "cluster") as source:
        given = {"nameServers": source.namesrv, "topics": topic, "folder": str(folder), "once": True}
        given |= {
            "changes": {"buckets": 1, "dense": True},
            "mirror": {"to": metaq_broker.namesrv, "sourceName": "a", "targetName": "b"},
            "metrics": {"traceTopic": "off", "graceSeconds": 0},
        }[name]
        start = {"changes": changes, "mirror": mirror, "metrics": metrics}[name]
        sent = []
        for number, store_ms in enumerate((*TIMES, None), 1):
            if store_ms is not None:
                sent.append(body("update", 1, number, {"a": number}))
                source.put(topic, 0, [sent[-1]], store_ms)
            finished(functools.partial(start, spark, given))
            ended(folder)
            if name == "changes":
                (row,) = snapshot(folder).dataset().to_table().to_pylist()
                assert row["a"] == len(sent)
            elif name == "mirror":
                with metaq.Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
                    assert [message.body for message in reader] == sent
            else:
                found = read_metrics(folder)
                assert summed(found, "messages", "messages") == len(sent)
                windows = {start for mine in found.of("messages").values() for start in mine}
                stored = itertools.accumulate(
                    TIMES[: len(sent)], max
                )  # Ours waits until its clock has come that far again.
                assert windows == {ms - ms % 60_000 for ms in stored}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
def test_an_audit_of_a_wrong_clock_says_so_and_a_full_disk_leaves_the_last_one(spark, tmp_path, monkeypatch):
    """The message of the next century is not judged, which is said. What could not be written is one error; the report of before is
    there, nothing half is, and the next run has its own."""
    folder = tmp_path / "audit"
    with ScriptedCluster(tmp_path / "cluster") as cluster:
        cluster.put("orders", 0, [b"x"], TODAY + 1000, f"UNIQ_KEY\x01{1:032X}")
        given = {
            "nameServers": cluster.namesrv, "folder": str(folder), "topics": "orders", "since": "2023-11-15T00:00:00Z",
            "consumed": "progress", "groups": "g", "graceSeconds": 0,
        }  # fmt: skip

        def told() -> AuditFigures:
            return msgspec.json.decode((folder / "audit.json").read_bytes(), type=AuditFigures)

        audit(spark, given)
        first = told()
        assert first.sent == 1
        assert not any("clock" in note for note in first.notes)
        for number, store_ms in ((2, TODAY + 2000), (3, TODAY + 10 * CENTURY)):
            cluster.put("orders", 0, [b"x"], store_ms, f"UNIQ_KEY\x01{number:032X}")
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full())
            for _ in range(2):
                with pytest.raises(
                    metaq.MetaqError, match=r"what the audit found cannot be written .*No space left on device"
                ):
                    audit(spark, given)
                assert told() == first
                assert not (folder / "_making").exists()
        audit(spark, given)
        last = told()
        assert last.sent == 2
        assert any("which this machine's has not come to" in note for note in last.notes)
