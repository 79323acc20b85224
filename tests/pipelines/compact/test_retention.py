"""Dates go from an archive when the clock and the archived messages agree: neither alone, ahead or behind, lets anything go."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import ArchivedFile, Manifest, final_path
from metaq.archive.replacements import view
from metaq.clock import FakeClock
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.hadoop.retention import HadoopRetention
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.archive.service import ArchivedBatch
from metaq.pipelines.compact.options import CompactOptions
from metaq.pipelines.compact.retention import Dates
from metaq.pipelines.compact.service import compact
from metaq.pipelines.run import Run
from tests.pipelines.archive.hadoop.test_folder import folder as hadoop_folder  # noqa: F401  a fixture
from tests.pipelines.archive.hadoop.test_folder import publish as publish_there
from tests.pipelines.archive.hadoop.test_folder import staged
from tests.pipelines.archive.support import QUERY, publish
from tests.pipelines.compact.test_service import GRACE, NOW_MS, compactor, everything, files_below

A, B = (MessageQueue("orders", f"broker-{name}", 0) for name in "ab")
CENTURY = 36_525 * 86_400
TODAY = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC).date()


def date(days: int) -> str:
    return str(TODAY + dt.timedelta(days=days))


def manifest(batch: int, files: list[tuple[MessageQueue, int, str]]) -> Manifest:
    return Manifest(
        query=QUERY, batch=batch, rows=1, repeats=0, positions={},
        files=[
            ArchivedFile(
                path=final_path(QUERY, batch, Slice(queue, start, start + 1), day), staged="", topic=queue.topic, date=day,
                rows=1, size=1,
            )
            for queue, start, day in files
        ],
    )  # fmt: skip


def kept(folder: ArchiveFolder) -> set[str]:
    return {file.date for file in view(folder).files}


def three_days(folder: ArchiveFolder) -> ArchiveFolder:
    for batch, day in enumerate((-20, -5, 0)):
        publish(folder, batch, {A: range(batch * 10, batch * 10 + 10)}, date(day))
    return folder


def test_a_driver_whose_clock_is_a_century_ahead_lets_nothing_go_and_says_why(tmp_path, caplog):
    """Nor one that is days ahead more than it should; when it is right again, what is really over goes."""
    folder, clock = three_days(ArchiveFolder(tmp_path / "out")), FakeClock(NOW_MS)
    before = everything(folder)
    clock.set_wall(NOW_MS + CENTURY * 1000)
    made = compactor(folder, clock, files=0, keep_days=30)
    assert list(made.look()) == []
    assert list(made.look()) == []
    assert everything(folder) == before
    assert made.held.startswith("3 files of dates before 2126-")
    assert f"the newest messages in the archive are of {date(0)}. They go when newer messages are archived" in made.held
    assert "say trustClock" in made.held
    assert caplog.text.count("files of dates before") == 1
    clock.set_wall(NOW_MS)
    assert list(made.look()) == []
    assert made.held == ""
    again = compactor(folder, clock, files=0, keep_days=7)
    assert [step.what for step in again.look()] == ["expired"]
    assert kept(folder) == {date(-5), date(0)}


def test_a_driver_whose_clock_is_behind_keeps_more(tmp_path):
    folder = three_days(ArchiveFolder(tmp_path / "out"))
    made = compactor(folder, FakeClock(NOW_MS - CENTURY * 1000), files=0, keep_days=1)
    assert (list(made.look()), made.held) == ([], "")


def test_a_broker_s_wrong_date_does_not_vouch_for_a_wrong_clock_once_its_next_messages_are_there(tmp_path):
    """A message of the next century, then right ones; and one broker that was set back takes nothing from the other."""
    dates = Dates()
    dates.take(manifest(1, [(A, 0, date(0)), (B, 0, date(0))]))
    dates.take(manifest(2, [(A, 10, date(36_525)), (B, 10, "1970-01-01")]))
    assert dates.newest == date(36_525)
    dates.take(manifest(3, [(A, 20, date(1)), (B, 20, date(1))]))
    assert dates.newest == date(1)
    dates.take(manifest(2, [(A, 10, date(36_525))]))  # Whatever the order in which they are read.
    assert dates.newest == date(1)
    assert dates.bound(NOW_MS + CENTURY * 1000, 7).first == date(1 - 7)


def test_an_archive_that_gets_no_more_messages_goes_by_the_clock_alone_if_it_is_told_to(tmp_path):
    """Otherwise its newest days stay, which the job says."""
    folder = three_days(ArchiveFolder(tmp_path / "out"))
    clock = FakeClock(NOW_MS + 365 * 86_400_000)
    options = CompactOptions(folder=str(folder.path), compact_files=0, keep_days=30)
    with Run("compact", folder.path) as run:
        said = compact(options, run.begin(), clock)
    assert said.text.startswith("nothing to do\n3 files of dates before ")
    assert said.figures["held"] in said.text
    with Run("compact", folder.path) as run:
        done = compact(options.replace(trust_clock=True), run.begin(), clock)
    assert (done.figures["expired"], done.figures["held"]) == (3, "")
    assert kept(folder) == set()


def test_the_archive_s_line_says_what_stays():
    held = "3 files of dates before 2126-01-30 stay: ..."
    line = str(ArchivedBatch(batch=1, rows=2, repeats=0, files=1, size=0, seconds=1.0, held=held))
    assert line.endswith(f"; {held}")


def test_a_grace_that_began_when_the_clock_was_ahead_begins_when_it_is_right(tmp_path, caplog):
    """And not in a hundred years: what waits for it is done a grace later, and meanwhile every reader finds its files."""
    folder, clock = ArchiveFolder(tmp_path / "out"), FakeClock(NOW_MS)
    for batch in range(4):
        publish(folder, batch, {A: range(batch * 10, batch * 10 + 10)}, date(0))
    before = everything(folder)
    clock.set_wall(NOW_MS + CENTURY * 1000)
    assert [step.what for step in compactor(folder, clock).look()] == ["merged"]
    clock.set_wall(NOW_MS)
    made = compactor(folder, clock)
    assert list(made.look()) == []
    assert "this machine's clock was ahead when it wrote 0000000001.json" in caplog.text
    assert made.due_ms == NOW_MS + GRACE * 1000
    clock.advance(GRACE)
    assert [step.what for step in made.look()] == ["replaced"]
    assert len(files_below(folder)) == 1
    assert everything(folder) == before


def test_on_a_hadoop_file_system_it_is_the_same(hadoop_folder, caplog):  # noqa: F811
    clock = FakeClock(1_772_668_800_000)  # 2026-03-05
    for batch, day in enumerate(("2026-03-01", "2026-03-04", "2026-03-05")):
        publish_there(hadoop_folder, staged(hadoop_folder, batch, "a", day))
    options = ArchiveOptions(output="memory://host/home/out", topics="orders", keep_days=2, grace_seconds=60.0)
    clock.advance(CENTURY)
    ahead = HadoopRetention(hadoop_folder, options, clock)
    ahead.prepare()
    assert [step.what for step in ahead.look()] == ["expired"]  # The one that is over by the messages too.
    assert ahead.held.startswith("2 files of dates before 2126-")
    assert "2 files of dates before 2126-" in caplog.text
    clock.advance(-CENTURY)
    right = HadoopRetention(hadoop_folder, options, clock)
    right.prepare()
    assert list(right.look()) == []
    clock.advance(59)
    assert list(right.look()) == []
    clock.advance(1)
    assert [step.what for step in right.look()] == ["removed"]
    assert {file.date for file in view(hadoop_folder).files} == {"2026-03-04", "2026-03-05"}


@given(now=st.integers(-(10**6), 10**6), newest=st.integers(-(10**5), 10**5), keep=st.integers(1, 10_000))
def test_neither_says_it_alone(now, newest, keep):
    """Whatever they say: what goes is older than both allow, and all that both allow goes."""
    dates = Dates()
    try:
        dates.take(manifest(1, [(A, 0, date(newest))]))
        moment = NOW_MS + now * 86_400_000
        day = dt.datetime.fromtimestamp(moment / 1000, dt.UTC).date()
    except (OverflowError, ValueError):
        return  # No calendar has that day.
    bound = dates.bound(moment, keep)
    try:
        assert bound.first == str(min(day, TODAY + dt.timedelta(days=newest)) - dt.timedelta(days=keep))
    except OverflowError:
        assert bound.first == ""


def test_a_clock_that_is_off_any_calendar_lets_nothing_go():
    dates = Dates()
    dates.take(manifest(1, [(A, 0, date(0))]))
    for now_ms in (0, -(10**17), 10**17):
        assert dates.bound(now_ms, 7).first in ("", "1969-12-25", date(-7))
