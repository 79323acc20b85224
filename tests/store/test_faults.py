"""Full disks, broken disks, wrong folders and hostile values: a clear error, and nothing else harmed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading

import pytest

from metaq.clock import FakeClock
from metaq.errors import (
    ConfigError,
    MessageIllegal,
    Refused,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreLocked,
)  # fmt: skip
from metaq.options import StoreOptions
from metaq.store.checkpoint import Tails
from metaq.store.disk import Disk
from metaq.store.message_store import MessageStore
from metaq.testing.faults import FaultyDisk
from tests.store.support import (
    HOST,
    checkpoint,
    crash,
    dumped,
    log_file,
    message,
    open_store,
    overwrite,
    put,
    read_all,
    small_options,
)  # fmt: skip
from tests.support import PATIENCE, ROOT, environment, eventually


def tree(root):
    """Every path with what it holds: what "nothing was touched" compares.

    Not what `lock` holds: a process that closes any descriptor of a file gives up its lock on it.
    """
    return {str(path): path.read_bytes() if path.is_file() and path.name != "lock" else b"" for path in root.rglob("*")}


# ---------------------------------------------------------------------- full disk


def test_full_disk_refuses_a_put_and_keeps_what_is_there(tmp_path):
    """No room for the next log file: StoreFull, and the same message is taken once there is room."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk) as store:
        store._populator.stop()
        put(store, "T", 0, b"x" * 40_000)
        disk.room = 0
        for _ in range(3):
            with pytest.raises(StoreFull, match=r"no room on the disk for .*commitlog.*nothing was written"):
                put(store, "T", 0, b"y" * 40_000)
        assert read_all(store, "T", 0) == [b"x" * 40_000]
        put(store, "T", 0, b"small")
        disk.room = None
        put(store, "T", 0, b"y" * 40_000)
        assert read_all(store, "T", 0) == [b"x" * 40_000, b"small", b"y" * 40_000]


@pytest.mark.parametrize("room", range(0, 400_000, 16_384))
def test_whatever_does_not_fit_nothing_is_written_by_halves(tmp_path, room):
    """Log file, units and index entries: when one of them finds no room, the whole put has not happened."""
    disk = FaultyDisk()
    stored = []
    with open_store(tmp_path, disk=disk) as store:
        store._populator.stop()
        disk.room = room
        for i in range(200):
            queue_id = i % 3
            try:
                put(store, "T", queue_id, b"%d" % i * 100, b"and", key=f"k{i}")
            except StoreFull:
                continue
            stored.append((queue_id, b"%d" % i * 100))
        for queue_id in range(3):
            assert read_all(store, "T", queue_id) == [
                part for owner, body in stored if owner == queue_id for part in (body, b"and")
            ]
    with open_store(tmp_path) as store:
        assert sum(len(read_all(store, "T", queue_id)) for queue_id in range(3)) == 2 * len(stored)
        put(store, "T", 0, b"goes on")


def test_a_disk_that_is_nearly_full_is_not_written(tmp_path):
    """Above 90 percent puts are refused; they work again when there is room."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, clean_file_forcibly_enable=False) as store:
        disk.used = 91.0
        store.keeper.retain(store.clock.now_ms())
        assert not store.state.writable
        with pytest.raises(StoreFull, match="more than 90 percent full"):
            put(store, "T", 0, b"x")
        disk.used = 50.0
        store.keeper.retain(store.clock.now_ms())
        put(store, "T", 0, b"x")


def test_opening_on_a_full_disk_still_reads(tmp_path):
    """A store that cannot write any more can be opened and drained."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"kept")
    with open_store(tmp_path, disk=FaultyDisk(room=0)) as store:
        assert read_all(store, "T", 0) == [b"kept"]


# ---------------------------------------------------------------------- broken disk


def test_a_failed_sync_is_final(tmp_path):
    """Waiters are told False, the owner is told once, and no later put is taken, though the disk works again."""
    disk, told = FaultyDisk(), []
    store = open_store(tmp_path, disk=disk)
    store.state.when_failed(told.append)
    done = put(store, "T", 0, b"x")
    disk.sync_error = errno.EIO
    outcome, ready = [], threading.Event()
    store.flusher.when_flushed(done.log_end, lambda ok: (outcome.append(ok), ready.set()))
    assert ready.wait(PATIENCE)
    assert outcome == [False]
    assert store.state.failed
    assert f"could not be made durable: {os.strerror(errno.EIO)}" in store.state.failed
    eventually(lambda: told == [store.state.failed])
    disk.sync_error = 0
    with pytest.raises(StoreFailed, match="what is durable is unknown"):
        put(store, "T", 0, b"y")
    late = []
    store.flusher.when_flushed(done.log_end, late.append)
    eventually(lambda: late == [False])
    store.close()
    assert (tmp_path / "abort").exists(), "a failed store has not ended in order"


def test_group_commit_answers_each_waiter_once_its_bytes_are_durable(tmp_path):
    """Many waiters, few syncs, and none of them is told early."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH") as store:
        told, all_told = [], threading.Event()
        ends = []
        for i in range(200):
            end = put(store, "T", 0, b"%d" % i).log_end
            ends.append(end)

            def done(ok, end=end):
                told.append((ok, end, store.state.flushed >= end))
                if len(told) == 200:
                    all_told.set()

            store.flusher.when_flushed(end, done)
        assert all_told.wait(PATIENCE)
        assert sorted(told) == [(True, end, True) for end in ends]
        assert len(disk.synced) < 200
        early = []
        store.flusher.when_flushed(0, early.append)
        eventually(lambda: early == [True])


def test_a_store_without_threads_does_only_what_it_is_told(tmp_path):
    """Nothing is flushed or written down until a test takes that step."""
    with MessageStore(small_options(tmp_path), FakeClock(), HOST, "DefaultCluster", threads=False) as store:
        before = threading.active_count()
        outcome = []
        done = put(store, "T", 0, b"x" * 60_000)
        store.flusher.when_flushed(done.log_end, outcome.append)
        assert (outcome, store.state.flushed, len(store.log.run.files)) == ([], 0, 1)
        store.flusher.flush()
        store.writer.populate()
        store.keeper.checkpoint()
        assert (outcome, store.state.flushed, len(store.log.run.files)) == ([True], done.log_end, 2)
        assert Tails.load(store.folder.tails).log_end == done.log_end
        assert threading.active_count() == before


def test_close_flushes_and_answers_those_who_still_wait(tmp_path):
    """Nobody is left without an answer."""
    store = open_store(tmp_path)
    done = put(store, "T", 0, b"x")
    outcome = []
    store.flusher.when_flushed(done.log_end, outcome.append)
    store.close()
    assert outcome == [True]
    with pytest.raises(StoreFailed, match="closed"):
        put(store, "T", 0, b"y")
    store.close()


# ---------------------------------------------------------------------- wrong folders


def test_a_second_process_is_refused(tmp_path):
    """Another process, and this one once more; both can open it after the first has closed."""
    code = (
        "import sys, pathlib; from tests.store.support import open_store\n"
        "try: open_store(pathlib.Path(sys.argv[1])).close(); print('opened')\n"
        "except Exception as e: print(type(e).__name__, e)"
    )

    def other():
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "s")],
            capture_output=True, text=True, check=True, cwd=ROOT, env=environment(), timeout=PATIENCE,
        ).stdout  # fmt: skip

    with open_store(tmp_path / "s") as store:
        put(store, "T", 0, b"x")
        before = tree(tmp_path)
        assert other().startswith("StoreLocked the store")
        with pytest.raises(StoreLocked, match="stop that broker"):
            open_store(tmp_path / "s")
        assert tree(tmp_path) == before
    assert other() == "opened\n"


def test_a_foreign_folder_is_refused_untouched(tmp_path):
    """A folder with other files, and a path that is a file."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    before = tree(tmp_path)
    with pytest.raises(StoreForeign, match=r"other files \(photos\) and no message store"):
        open_store(tmp_path)
    with pytest.raises(StoreForeign, match="is not a folder"):
        open_store(tmp_path / "photos" / "cat.jpg")
    assert tree(tmp_path) == before


def test_a_strange_file_in_the_commit_log_is_refused(tmp_path):
    """It might be somebody's only copy of something."""
    open_store(tmp_path).close()
    (tmp_path / "commitlog" / "notes.txt").write_text("mine")
    with pytest.raises(StoreForeign, match=r"notes\.txt is no store file"):
        open_store(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_537, 131_072])
def test_a_log_file_of_a_wrong_size_is_refused(tmp_path, size):
    """The error names the file, its size, the expected size and the setting."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"x")
    with log_file(tmp_path).open("r+b") as file:
        file.truncate(size)
    before = (tmp_path / "consumequeue").stat().st_mtime_ns
    with pytest.raises(StoreCorrupt, match=rf"has {size} bytes, expected are 65536 \(mappedFileSizeCommitLog\)"):
        open_store(tmp_path)
    assert (tmp_path / "consumequeue").stat().st_mtime_ns == before


def test_other_file_sizes_in_the_settings_are_refused(tmp_path):
    """The setting to use is in the text."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"x")
    with pytest.raises(StoreCorrupt, match="set mappedFileSizeCommitLog=65536"):
        open_store(tmp_path, mapped_file_size_commit_log=128 * 1024)
    with pytest.raises(StoreCorrupt, match=r"set mappedFileSizeConsumeQueue=2000.*can also be deleted"):
        open_store(tmp_path, mapped_file_size_consume_queue=4000)
    with open_store(tmp_path, max_index_num=500, max_hash_slot_num=10) as store:
        put(store, "T", 0, b"the index is simply made anew")


def test_a_missing_log_file_between_two_is_refused(tmp_path):
    """Messages would be missing in the middle."""
    with open_store(tmp_path) as store:
        for _ in range(8):
            put(store, "T", 0, b"x" * 30_000)
    log_file(tmp_path, 65_536).unlink()
    with pytest.raises(StoreCorrupt, match="the file 00000000000000065536 is missing"):
        open_store(tmp_path)


def test_damage_in_front_of_flushed_records_is_stepped_over_or_refused(tmp_path, caplog):
    """A crash does not do that; cutting the log there would throw away good messages. The checkpoint alone says that they
    were flushed."""
    store = open_store(tmp_path / "a")
    for _ in range(8):
        put(store, "T", 0, b"x" * 30_000)
        store.clock.advance(5)
    checkpoint(store)
    root = crash(store, tmp_path / "b")
    for name in ("metaqTails.json", "metaqTails.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
    shutil.rmtree(root / "consumequeue" / "T")  # so that all of the log is read
    overwrite(log_file(root), 500, b"damage")
    before = tree(root)
    with pytest.raises(StoreCorrupt, match=r"a broken record at byte 0 .*nothing was touched"):
        open_store(root, refuse_damaged_log=True)
    assert tree(root) == before
    with open_store(root) as store:
        assert store.reader.queue("T", 0).max_offset == 8
    assert f"{log_file(root)} holds a broken record at byte 0" in caplog.text


@pytest.mark.parametrize("name", ["checkpoint", "abort", "consumequeue", "index", "lock", "config", "commitlog"])
@pytest.mark.parametrize("folder", [True, False])
def test_a_folder_where_a_file_belongs_or_the_other_way_round_is_a_clear_error(tmp_path, name, folder):
    """No traceback: the path is named; or it does not matter."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"x")
    path = tmp_path / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if folder:
        path.mkdir()
    else:
        path.write_text("no store's")
    try:
        with open_store(tmp_path) as store:
            assert name == "commitlog" or read_all(store, "T", 0) == [b"x"]
    except (StoreError, ConfigError) as error:
        assert name in str(error)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOSPC])
def test_a_start_that_cannot_open_its_files_ends_in_a_clear_error(tmp_path, code):
    """Too many open files, no permission: a StoreError that names the file, and the folder can be opened afterwards."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"x")
    disk = FaultyDisk()
    disk.open_error = code
    with pytest.raises(StoreError, match=str(tmp_path)):
        open_store(tmp_path, disk=disk)
    with open_store(tmp_path) as store:
        assert read_all(store, "T", 0) == [b"x"]


# ---------------------------------------------------------------------- hostile values


@pytest.mark.parametrize("topic", ["../../etc", "a/b", "", " ", "x" * 128, ".b", "..", "a.deleted-1", "ä", "a\0b"])
def test_no_topic_leaves_its_folder(tmp_path, topic):
    """Neither by put nor by asking for a queue."""
    with open_store(tmp_path / "s") as store:
        with pytest.raises(MessageIllegal):
            store.writer.put([message(topic, 0, b"x")])
        with pytest.raises(Refused):
            store.reader.queue(topic, 0)
        assert store.log.end == 0


def test_a_topic_in_a_log_record_is_checked_before_a_path_is_made_of_it(tmp_path):
    """A record with `../` in its topic ends the log; no folder appears."""
    store = open_store(tmp_path / "a")
    put(store, "aaaaaaaa", 0, b"good")
    bad = put(store, "bbbbbbbb", 0, b"evil")
    root = crash(store, tmp_path / "b")
    path = log_file(root)
    place = path.read_bytes().index(b"bbbbbbbb")
    overwrite(path, place, b"../../zz")
    with open_store(root) as store:
        assert read_all(store, "aaaaaaaa", 0) == [b"good"]
        assert store.log.end == bad.log_offset
        assert set(store.reader.queues()) <= {("aaaaaaaa", 0), ("bbbbbbbb", 0)}
    assert not list(tmp_path.rglob("zz"))
    assert [found[3] for found in dumped(root)] == [b"good"]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (message("T", 0, b"x" * 5000), "allowed are 4000"),
        (message("T", -1, b"x"), "no queue -1"),
        (message("T", 0, b"x", key="k" * 40_000), "allowed are 32767"),
    ],
)
def test_what_can_never_be_stored_is_illegal(tmp_path, record, text):
    """Nothing is written."""
    with open_store(tmp_path, max_message_size=4000) as store:
        with pytest.raises(MessageIllegal, match=text):
            store.writer.put([record])
        assert store.log.end == 0


def test_a_batch_larger_than_a_log_file_is_illegal(tmp_path):
    """It could never lie in one file."""
    with open_store(tmp_path) as store, pytest.raises(MessageIllegal, match="a log file has 65536"):
        put(store, "T", 0, *[b"x" * 30_000] * 3)


def test_wrong_delay_levels_are_refused_before_the_folder_is_made(tmp_path):
    """`1s 5x`: the word is named."""
    with pytest.raises(ConfigError, match="'5x' is not a number followed by"):
        open_store(tmp_path / "s", message_delay_level="1s 5x")
    assert not (tmp_path / "s").exists()


def test_default_sizes_open_fast_and_small(tmp_path):
    """RocketMQ's file sizes: files are reserved, not touched."""
    options = StoreOptions(store_path_root_dir=str(tmp_path))
    assert small_options(tmp_path).mapped_file_size_commit_log < options.mapped_file_size_commit_log
    code = f"""
import pathlib, time
from metaq.clock import SystemClock
from metaq.options import StoreOptions
from metaq.store.message_store import MessageStore
began = time.process_time()
store = MessageStore(StoreOptions(store_path_root_dir={str(tmp_path / "s")!r}), SystemClock(), bytes(8), "C")
from tests.store.support import put
put(store, "T", 0, b"x", key="k")
print(time.process_time() - began)
store.close()
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment(),
        timeout=PATIENCE,
    )
    assert float(run.stdout) < 1.0


class _FailsOnce(Disk):
    """A disk of which one call, the `at`-th from now on, is refused."""

    at = -1

    def _count(self) -> None:
        self.at -= 1
        if self.at == 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def open(self, path, flags):
        self._count()
        return super().open(path, flags)

    def reserve(self, descriptor, start, size):
        self._count()
        super().reserve(descriptor, start, size)

    def map(self, path, size):
        self._count()
        return super().map(path, size)


@pytest.mark.parametrize("count", [7, 12, 40])
def test_a_batch_over_the_end_of_a_queue_file_is_stored_wholly_or_not_at_all(tmp_path, count):
    """Whichever call of the disk is refused, and also when the files were made by a try that was refused before."""
    disk, expected = _FailsOnce(), []
    with open_store(tmp_path, disk=disk, mapped_file_size_consume_queue=100) as store:
        put(store, "T", 0, b"first")
        expected.append(b"first")
        store._populator.stop()
        refused = 0
        for at in range(1, 200):
            batch = [b"%d-%d" % (at, i) for i in range(count)]
            disk.at = at
            try:
                put(store, "T", 0, *batch)
            except (StoreError, OSError):
                refused += 1
            else:
                expected += batch
            finished, disk.at = disk.at > 0, -1
            assert read_all(store, "T", 0) == expected
            if finished:
                break
        assert refused >= 3
        assert finished
    with open_store(tmp_path, mapped_file_size_consume_queue=100) as store:
        assert read_all(store, "T", 0) == expected


def test_a_topic_whose_name_has_a_dot_is_stored_and_found_again_also_without_its_queues(tmp_path):
    """MetaQ 1.x allows such names; what stands in the log makes the queue anew."""
    with open_store(tmp_path / "s") as store:
        store.writer.put([message("com.shop.orders", 2, b"x")])
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    with open_store(tmp_path / "s") as store:
        assert read_all(store, "com.shop.orders", 2) == [b"x"]
        store.writer.delete_topic("com.shop.orders")
        store.writer.put([message("com.shop.orders", 2, b"y")])
        assert read_all(store, "com.shop.orders", 2) == [b"y"]
