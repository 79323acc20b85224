"""One run of a pipeline: what it tells, who may ask it to end, and what is left of one that was killed."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from metaq.cli.pipeline.run import earlier_line, last_line, status_line
from metaq.errors import ConfigError, StoreLocked
from metaq.pipelines import driver
from metaq.pipelines.driver import supervised
from metaq.pipelines.lease import LEASE
from metaq.pipelines.run import STATUS, STOP, Outcome, Run, ask_to_stop, status_of
from tests.support import eventually


class Query:
    """A streaming query of which only the end matters."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.isActive, self.lastProgress, self._fault = True, None, fault
        self._over = threading.Event()

    def awaitTermination(self) -> None:  # noqa: N802  Spark's name
        self._over.wait()
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        self.isActive = False
        self._over.set()

    fail = finish = stop

    def exception(self) -> Exception | None:
        return self._fault


def test_it_tells_what_it_has_done(tmp_path):
    """The sums of what can be added, the last batch, and the backlog."""
    lines = []
    with Run(
        "archive", tmp_path / "new", on_batch=lambda line, figures: lines.append((line, dict(figures)))
    ).begin() as run:
        run.tell("one", batch=0, rows=3, seconds=0.5, replayed=True)
        run.tell("two", batch=1, rows=4, seconds=0.25, replayed=False)
        run.behind(7)
        told = status_of(tmp_path / "new")
    assert (told.state, told.batches, told.total, told.behind) == ("running", 2, {"rows": 7}, 7)
    assert told.last == {"batch": 1, "rows": 4, "seconds": 0.25, "replayed": False}
    assert lines[0] == ("one", {"batch": 0, "rows": 3, "seconds": 0.5, "replayed": True})
    assert status_of(tmp_path / "new").state == "ended"


def test_a_folder_has_one_run(tmp_path):
    """The second is refused and leaves what the first one tells as it is."""
    with Run("archive", tmp_path).begin():
        before = (tmp_path / STATUS).read_bytes()
        with pytest.raises(StoreLocked, match="another run writes into"):
            Run("archive", tmp_path).begin(0)
        assert (tmp_path / STATUS).read_bytes() == before
    Run("archive", tmp_path).begin(0).end()


def test_a_folder_is_one_pipeline_s(tmp_path):
    """Only merging works on the archive's; a status that a power cut left empty says nothing."""
    Run("archive", tmp_path).begin().end()
    with pytest.raises(ConfigError, match="is the folder of the pipeline archive, and mirror would take"):
        Run("mirror", tmp_path).begin()
    Run("compact", tmp_path).begin().end()
    Run("archive", tmp_path).begin().end()
    (tmp_path / STATUS).write_bytes(b"")
    Run("archive", tmp_path).begin().end()


def test_a_folder_with_others_files_is_refused(tmp_path):
    """Unless a pipeline has been there before, or they are hidden, as those of file managers and new file systems are."""
    for name in (".DS_Store", "lost+found", "_SUCCESS"):
        (tmp_path / name).touch()
    Run("archive", tmp_path).begin().end()
    (tmp_path / "mine.txt").touch()
    Run("archive", tmp_path).begin().end()
    for name in (STATUS, LEASE):
        (tmp_path / name).unlink()
    with pytest.raises(
        ConfigError, match=r"is no pipeline's and has other files in it \(mine\.txt\): give an empty or a new"
    ):
        Run("archive", tmp_path).begin()
    assert not (tmp_path / LEASE).exists()
    (tmp_path / "_manifests").mkdir()  # Copied, without what is a run's own.
    Run("archive", tmp_path).begin().end()


def test_a_killed_run_is_told_as_lost(tmp_path):
    """It says that it runs, and nobody holds its lease."""
    run = Run("archive", tmp_path).begin()
    run._lease.release()
    assert status_of(tmp_path).state == "lost"
    assert ask_to_stop(tmp_path) is None, "there is nobody to ask"


def test_a_request_to_stop_is_for_the_run_that_was_meant(tmp_path):
    """One that came too late does not end the next."""
    first = Run("archive", tmp_path).begin()
    assert ask_to_stop(tmp_path).run == first.status.run
    assert first.stopping
    left = (tmp_path / STOP).read_text()
    first.end()
    with Run("archive", tmp_path).begin() as second:
        (tmp_path / STOP).write_text(left)
        assert not second.stopping


def test_a_failed_run_says_why(tmp_path):
    """And what was to be called at its end was."""
    ended = []
    run = Run("archive", tmp_path)
    run.at_end(lambda: ended.append(status_of(tmp_path).state))
    with pytest.raises(ConfigError), run.begin():
        raise ConfigError("the topic has gone")
    assert (status_of(tmp_path).state, status_of(tmp_path).fault) == ("failed", "the topic has gone")
    assert ended == ["running"], "before the folder was given free"


def test_a_query_that_runs_in_this_process_heeds_a_request_too(tmp_path):
    """Whoever started it from Python."""
    run, query = Run("archive", tmp_path), Query()
    assert supervised(run, lambda: query) is query
    ask_to_stop(tmp_path)
    eventually(lambda: status_of(tmp_path).state == "stopped", what="its end")
    assert not query.isActive


def test_a_query_that_fails_is_told_as_failed(tmp_path):
    """In the words of our own error."""
    run, query = Run("archive", tmp_path), Query(ValueError("at x\nmetaq.errors.MessagesLost: 5 messages are gone\n"))
    supervised(run, lambda: query)
    query.fail()
    eventually(lambda: status_of(tmp_path).state == "failed", what="its end")
    assert status_of(tmp_path).fault == "the query failed: 5 messages are gone"


def test_a_query_that_ends_frees_its_folder_at_once(tmp_path, monkeypatch):
    """Not at the next look: a run from cron is over when its work is."""
    monkeypatch.setattr(driver, "LOOK_SECONDS", 3600)
    run, query = Run("archive", tmp_path), Query()
    supervised(run, lambda: query)
    query.finish()
    eventually(lambda: status_of(tmp_path).state == "ended", what="its end")


def test_a_job_ends_its_run(tmp_path):
    """Also where it cannot even start."""
    outcome = supervised(Run("redrive", tmp_path), lambda: Outcome({"rows": 1}))
    assert (outcome.figures, status_of(tmp_path).state) == ({"rows": 1}, "ended")

    def fails() -> None:
        raise ConfigError("no such topic")

    with pytest.raises(ConfigError):
        supervised(Run("redrive", tmp_path), fails)
    assert status_of(tmp_path).fault == "no such topic"


def test_a_status_that_cannot_be_read_is_an_error(tmp_path):
    """Not the same as none."""
    (tmp_path / STATUS).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        status_of(tmp_path)


class Tracker:
    """Spark's status tracker: a job of the run `r` with 12 tasks of which 3 are done, and one of another query."""

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802  Spark's name
        return [4, 5]

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802  Spark's name
        return [3, 4] if group == "r" else [5]

    def getJobInfo(self, job: int):  # noqa: N802  Spark's name
        return SimpleNamespace(stageIds=[40]) if job == 4 else None

    def getStageInfo(self, stage: int):  # noqa: N802  Spark's name
        return SimpleNamespace(numTasks=12, numCompletedTasks=3)


def test_it_tells_how_far_its_batch_is(tmp_path, monkeypatch):
    """Before the first one is done there is nothing else to see; between batches it waits."""
    query = Query()
    query.runId, query.status = "r", {"isTriggerActive": False, "isDataAvailable": False}
    context = SimpleNamespace(statusTracker=Tracker)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", context)
    with Run("archive", tmp_path).begin() as run:
        run.doing("starting Spark")
        assert status_of(tmp_path).doing == "starting Spark"
        run.doing(*driver._under_way(query, run))
        told = status_of(tmp_path)
        assert (told.doing, told.slices, told.slices_done) == ("the first batch of this run: 3 of 12 slices", 12, 3)
        assert status_line(told) == "0 batches; the first batch of this run: 3 of 12 slices"
        run.tell("one", batch=7, rows=3)
        assert status_of(tmp_path).doing == ""
        assert driver._under_way(query, run)[0] == "batch 8: 3 of 12 slices"
        query.runId = "idle"
        assert driver._under_way(query, run) == ("waiting for messages", 0, 0)
        monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
        del query.status
        assert driver._under_way(query, run) == ("", 0, 0)
    assert status_of(tmp_path).doing == ""


def test_it_knows_what_earlier_runs_did(tmp_path):
    """Of its own pipeline, through runs of `compact` between them; a status that cannot be read is forgotten."""
    for rows in (3, 4):
        with Run("archive", tmp_path).begin() as run:
            run.tell("one", batch=0, rows=rows)
    with Run("compact", tmp_path).begin() as run:
        run.tell("merged", files=9)
    with Run("archive", tmp_path).begin():
        told = status_of(tmp_path)
        assert (told.batches, told.runs) == (0, 4)
        assert earlier_line(told) == "earlier runs: 2 batches: 7 rows"
    (tmp_path / STATUS).write_bytes(b"{")
    with Run("archive", tmp_path).begin():
        assert (status_of(tmp_path).runs, earlier_line(status_of(tmp_path))) == (1, "")


def test_the_last_batch_is_told_without_what_is_not_so(tmp_path):
    """Of an archive: it was not replayed, and retention holds nothing."""
    with Run("archive", tmp_path).begin() as run:
        run.tell("", batch=7, rows=31063, rate=4.567915075997007, replayed=False, held="", came_around=0)
        assert last_line(run.status) == "last batch: batch 7, rows 31,063, rate 4.6, came around 0"
        run.tell("", batch=8, replayed=True, held="2 files of 2026-03-01 stay")
        assert last_line(run.status) == "last batch: batch 8, replayed, held 2 files of 2026-03-01 stay"
