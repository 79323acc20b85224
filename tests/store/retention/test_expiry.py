"""Which log files go, when, and what goes with them."""

from __future__ import annotations

import datetime as dt
import errno
import os

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreFull
from metaq.store.checkpoint import Tails
from metaq.store.retention.expiry import FILES_PER_RUN_MAX, FileAge, decide, is_due
from metaq.testing.faults import FaultyDisk
from tests.crash.simulation.bare import log_files
from tests.store.support import checkpoint, message, open_store, put, read_all, small_options
from tests.support import eventually

HOUR_MS = 3_600_000
FOUR = int(dt.datetime(2026, 5, 5, 4, 30).timestamp() * 1000)  # noqa: DTZ001  deleteWhen is local time
NOON = FOUR + 8 * HOUR_MS


@pytest.mark.parametrize(
    ("now_ms", "used", "changes", "hours_old", "files", "writable"),
    [
        (FOUR, 10, {}, [100, 90, 80, 10], 3, True),
        (NOON, 10, {}, [100, 90, 80, 10], 0, True),
        (NOON, 10, {"delete_when": "04;12"}, [100, 90, 80, 10], 3, True),
        (NOON, 76, {}, [100, 90, 80, 10], 3, True),
        (NOON, 76, {}, [71, 10], 0, True),
        (NOON, 86, {}, [71, 10], 2, True),
        (NOON, 86, {"clean_file_forcibly_enable": False}, [71, 10], 0, True),
        (NOON, 91, {"clean_file_forcibly_enable": False}, [100, 10], 1, False),
        (NOON, 91, {}, [10, 1], 2, False),
        (FOUR, 10, {"file_reserved_time": 200}, [100, 90], 0, True),
        (FOUR, 10, {}, [100] * 40, FILES_PER_RUN_MAX, True),
        (FOUR, 10, {}, [], 0, True),
    ],
)
def test_which_files_go(tmp_path, now_ms, used, changes, hours_old, files, writable):
    """Hours of deleteWhen, disk ratios 75, 85 and 90, at most ten files a run."""
    ages = [FileAge(i * 100, i * 100 + 100, now_ms - hours * HOUR_MS) for i, hours in enumerate(hours_old)]
    expired = decide(ages, used_percent=used, now_ms=now_ms, options=small_options(tmp_path, **changes))
    assert (expired.files, expired.writable) == (files, writable)
    assert expired.drop_before == files * 100


@pytest.mark.parametrize(
    ("used", "owed", "files", "held", "given_up"),
    [
        (10, None, 3, None, False),
        (10, 300, 3, None, False),
        (10, 299, 2, 200, False),
        (10, 0, 0, 0, False),
        (90, 150, 1, 100, False),
        (91, 150, 1, 100, False),
        (91, 99, 1, None, True),
        (91, 400, 4, None, False),
    ],
)
def test_what_is_owed_stays_unless_nothing_can_be_stored_any_more(tmp_path, used, owed, files, held, given_up):
    """Also above 85 percent, where files go before their time. Above 90 the oldest goes if it is that or nothing: no debt
    could be settled by waiting.
    """
    ages = [FileAge(i * 100, i * 100 + 100, FOUR - hours * HOUR_MS) for i, hours in enumerate([100, 90, 80, 10])]
    expired = decide(ages, used_percent=used, now_ms=FOUR, options=small_options(tmp_path), owed=owed)
    assert (expired.files, expired.held, expired.given_up) == (files, held, given_up)


class Debtor:
    """Owes all from a log offset on."""

    what = "things to do"

    def __init__(self, place):
        self.place = place
        self.asked = []

    def oldest(self):
        return self.place

    def carry(self, before):
        self.asked.append(before)


def test_a_log_file_waits_for_all_who_need_it(tmp_path, caplog):
    """The oldest debt counts, whoever has it; what settled it is durable before the file goes."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        owners = [Debtor(None), Debtor(None)]
        for owner in owners:
            store.keeper.owes(owner)
        for number in range(30):
            put(store, "T", 0, b"%d" % number * 10_000)
        starts = [file.start for file in store.log.run.files]
        owners[0].place, owners[1].place = starts[3], starts[1] + 100
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) == 1
        assert store.log.min == starts[1]
        assert f"the log file at {starts[1]} stays" in caplog.text
        assert "things to do" in caplog.text
        owners[1].place = None
        end = put(store, "T", 0, b"settled").log_end
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) == 2
        assert store.state.flushed >= end
        disk.used = 91
        while len(owners[0].asked) < 6:  # it may still write anew what it owes
            assert store.keeper.retain(store.clock.now_ms() + 1) == 0
        assert set(owners[0].asked) == {starts[4]}
        assert store.keeper.retain(store.clock.now_ms() + 1) == 1
        assert store.log.min == starts[4]
        assert "which are lost; free some space" in caplog.text


def test_owner_whose_records_keep_a_file_is_asked_to_write_them_anew(tmp_path):
    """Up to the file's end; one that owes nothing there is not. The file goes when he has done it, even on a full disk."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        for number in range(30):
            put(store, "T", 0, b"%d" % number * 10_000)
        starts = [file.start for file in store.log.run.files]
        first, second = Debtor(starts[0] + 50), Debtor(starts[2])
        store.keeper.owes(first)
        store.keeper.owes(second)
        disk.used = 91
        assert store.keeper.retain(store.clock.now_ms() + 1) == 0
        assert (first.asked, second.asked) == ([starts[1]], [])
        with pytest.raises(StoreFull):
            put(store, "T", 0, b"refused")
        store.writer.put([message("T", 0, b"anew")], carrying=True)
        first.place = starts[1]
        assert store.keeper.retain(store.clock.now_ms() + 1) == 1
        assert store.log.min == starts[1]


def test_delete_when_names_local_hours():
    """`04`, `4`, several; anything else is never due."""
    assert is_due("04", FOUR)
    assert is_due("4", FOUR)
    assert is_due("12; 4", FOUR)
    assert not is_due("12", FOUR)
    assert not is_due("", FOUR)
    assert not is_due("x;-4", FOUR)


def test_expired_files_go_with_what_points_into_them(tmp_path):
    """Log files, consume-queue files and index files; min offsets follow, later messages stay."""
    clock = FakeClock(NOON)
    with open_store(tmp_path, clock) as store:
        for i in range(400):
            put(store, "T", i % 2, b"%d" % i * 100, key=f"k{i}")
        put(store, "old", 0, b"gone soon", key="o")
        for i in range(400, 800):
            clock.advance(180)
            put(store, "T", i % 2, b"%d" % i * 100, key=f"k{i}")
        files, index_files = len(store.log.run.files), len(store.index.files)
        queue = store.reader.queue("T", 0)
        assert store.keeper.retain(clock.now_ms()) == 0, "not yet time"
        clock.advance(60 * 3600)
        first = store.keeper.retain(clock.now_ms(), at_once=True)
        assert 0 < first < files - 1, "those whose newest record is older than 72 hours"
        clock.set_wall(FOUR + 24 * HOUR_MS * 30)
        gone = store.keeper.retain(clock.now_ms())
        assert gone == files - 1 - first, "all but the newest file, which always stays"
        (left,) = log_files(tmp_path)
        assert store.log.min == int(left.name)
        assert queue.unit(queue.min_offset).log_offset >= store.log.min
        assert queue.unit(queue.min_offset - 1) is None or queue.unit(queue.min_offset - 1).log_offset < store.log.min
        assert len(queue.run.files) == 1
        assert len(store.index.files) < index_files
        old = store.reader.queue("old", 0)
        assert (old.min_offset, old.max_offset) == (1, 1)
        assert read_all(store, "T", 0)[-1] == b"798" * 100
        assert store.reader.query("T", "k1", 10, 0, 1 << 60) == []
        assert put(store, "old", 0, b"again").queue_offset == 1
        assert read_all(store, "old", 0) == [b"again"]
    with open_store(tmp_path, clock) as store:
        assert (store.reader.queue("old", 0).min_offset, store.reader.queue("old", 0).max_offset) == (1, 2)
        assert read_all(store, "T", 1)[-1] == b"799" * 100


def test_what_the_tails_speak_of_goes_only_when_newer_ones_are_written(tmp_path):
    """Else a crash would find nothing that says what of queues and index is durable. A full disk keeps nothing from going."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        put(store, "T", 0, b"first", key="k")
        checkpoint(store)
        for number in range(12):
            put(store, "T", 0, b"%d" % number * 20_000, key="k")
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) > 0
        tails = Tails.load(store.folder.tails)
        assert tails is not None
        assert tails.last_record >= store.log.min > 0
        for number in range(12):
            put(store, "T", 0, b"%d" % number * 20_000, key="k")
        disk.make_error = errno.ENOSPC
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) > 0
        disk.make_error = 0


def test_a_deletion_that_fails_in_the_middle_is_taken_up_by_the_next(tmp_path):
    """Two files go, and the folder cannot be synced between them. The second stays known: forgotten, it would lie in front
    of a hole after the next deletion, and the store would not open.
    """
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        for number in range(16):
            put(store, "T", 0, b"%d" % number * 10_000)
        checkpoint(store)
        files = [file.start for file in store.log.run.files]
        assert len(files) > 3
        disk.sync_error = errno.EIO
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            store.keeper.retain(store.clock.now_ms() + 1, at_once=True)
        disk.sync_error = 0
        assert [file.start for file in store.log.run.files] == [int(path.name) for path in log_files(tmp_path)]
        assert store.log.min == files[1]
        put(store, "T", 0, b"more" * 10_000)
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) > 0
        last = read_all(store, "T", 0)[-1]
    with open_store(tmp_path) as store:
        assert read_all(store, "T", 0)[-1] == last == b"more" * 10_000


class WatchedDisk(FaultyDisk):
    """Counts who asks how full it is: retention does so once per look."""

    looks = 0

    def used_percent(self, path):
        self.looks += 1
        return super().used_percent(path)


def test_tick_has_the_thread_look_every_clean_resource_interval(tmp_path):
    """`tick` itself only looks at the time."""
    clock, disk = FakeClock(FOUR), WatchedDisk()
    with open_store(tmp_path, clock, disk=disk) as store:
        for seconds, looks in ((0, 1), (4, 1), (8, 1), (12, 2), (16, 2), (22, 3)):
            clock.set_wall(FOUR + seconds * 1000)
            store.keeper.tick(clock.now_ms())
            eventually(lambda looks=looks: disk.looks == looks)
