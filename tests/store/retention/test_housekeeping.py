"""What housekeeping writes down is one moment, whatever happens beside it: queues are made, topics deleted, the log rolls."""

from __future__ import annotations

import errno
import os
import pathlib
import sys
import threading

import pytest

from metaq.store.disk import SyncNotBegun
from metaq.testing.faults import FaultyDisk
from tests.store.support import checkpoint, crash, log_file, open_store, overwrite, put, read_all


@pytest.fixture
def _threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_a_snapshot_of_the_store_counts_every_message_below_its_end(tmp_path):
    """Each message makes a queue, while snapshots are taken. Tails that left one out would have the next start read the log
    from the newest record of the others on, and never look for the message before it.
    """
    seen, done = [], threading.Event()
    with open_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
        put(store, "often", 0, b"y")

        def take():
            while not done.is_set():
                seen.append(store._writer.snapshot())

        thread = threading.Thread(target=take)
        thread.start()
        for number in range(400):
            put(store, f"T{number}", 0, b"x")
            put(store, "often", 0, b"y")
        done.set()
        thread.join()
    for snapshot in seen:
        ends = {queue.topic: end for queue, end in snapshot.filled()}
        assert len(ends) >= ends["often"], "one queue for each message that came before the newest in `often`"


class DeletingDisk(FaultyDisk):
    """Deletes a topic and makes it anew when a queue's oldest unit is read to see which of its files go."""

    def __init__(self):
        super().__init__()
        self.now = None

    def open(self, path: pathlib.Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        if self.now and path.parent.name == "0" and flags & os.O_ACCMODE == os.O_RDONLY:
            again, self.now = self.now, None
            again()
        return descriptor


def test_retention_leaves_the_queue_alone_that_has_taken_a_deleted_ones_name(tmp_path):
    """The files of both have the same paths. The old queue's time is over; deleting its files by their names would take
    those of the new one, whose messages could not be read any more.
    """
    disk = DeletingDisk()
    bodies = [b"%d:" % number + b"x" * 900 for number in range(300)]
    store = open_store(tmp_path, disk=disk, file_reserved_time=0)
    put(store, "T", 0, *bodies[:60])
    put(store, "T", 0, *bodies[:60])
    for body in bodies:
        put(store, "other", 0, body)
    checkpoint(store)
    for file in store.reader.queue("T", 0).run.files:
        file.close()

    def again():
        store.writer.delete_topic("T")
        for start in range(0, 300, 50):
            put(store, "T", 0, *bodies[start : start + 50])

    disk.now = again
    assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) > 0
    assert disk.now is None
    queue = store.reader.queue("T", 0)
    assert [file.path.exists() for file in queue.run.files] == [True] * len(queue.run.files)
    for file in queue.run.files:
        file.close()
    assert read_all(store, "T", 0) == bodies
    with open_store(crash(store, tmp_path / "b")) as store:
        assert read_all(store, "T", 0) == bodies


@pytest.mark.parametrize("what", ["descriptor", "buffer"])
def test_a_file_that_is_opened_while_its_name_changes_hands_is_not_taken_for_the_old_one(tmp_path, what):
    """Between the decision to open it and the opening itself the topic is deleted and made again."""
    disk = DeletingDisk()
    with open_store(tmp_path, disk=disk) as store:
        put(store, "T", 0, b"old")
        (file,) = store.reader.queue("T", 0).run.files
        file.close()

        def again():
            store.writer.delete_topic("T")
            put(store, "T", 0, b"new")

        if what == "buffer":
            again()  # files are mapped under a lock: the deletion comes just before
        else:
            disk.now = again
        with pytest.raises(FileNotFoundError):
            getattr(file, what)
        assert read_all(store, "T", 0) == [b"new"]


class MeddledDisk(FaultyDisk):
    """Does something, once, before a folder of a given path is synced; or cannot open that folder."""

    def __init__(self):
        super().__init__()
        self.place, self.act = "", None
        self.synced = []

    def sync_folder(self, path: pathlib.Path) -> None:
        if self.act and path.as_posix().endswith(self.place):
            act, self.act = self.act, None
            act()
        super().sync_folder(path)
        self.synced.append(path.name)

    def out_of_descriptors(self) -> None:
        raise SyncNotBegun(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("place", ["consumequeue/T/0", "consumequeue/T"])
def test_a_topic_that_is_deleted_while_its_queues_are_synced_stops_nothing(tmp_path, place):
    """Its folders are gone, which is no disk that fails: the store would take nothing until it is restarted."""
    disk = MeddledDisk()
    with open_store(tmp_path, disk=disk) as store:
        put(store, "T", 0, b"x")
        put(store, "U", 0, b"y")
        disk.place, disk.act = place, lambda: store.writer.delete_topic("T")
        checkpoint(store)
        assert disk.act is None
        assert store.state.failed is None
        put(store, "T", 0, b"new")
        checkpoint(store)
        assert store.state.failed is None
        assert (read_all(store, "T", 0), read_all(store, "U", 0)) == ([b"new"], [b"y"])


@pytest.mark.parametrize("place", ["consumequeue/T/0", "consumequeue/T", "consumequeue", "index"])
def test_a_sync_that_could_not_begin_is_made_up_for_by_the_next(tmp_path, place):
    """For want of descriptors: nothing is lost by it, and nothing taken for durable."""
    disk = MeddledDisk()
    with open_store(tmp_path, disk=disk) as store:
        put(store, "T", 0, b"x", key="k")
        store.clock.advance(60)  # the index is due too
        disk.place, disk.act = place, disk.out_of_descriptors
        with pytest.raises(SyncNotBegun):
            checkpoint(store)
        assert disk.act is None
        assert store.state.failed is None
        disk.synced.clear()
        checkpoint(store)
        assert store.state.failed is None
        assert pathlib.Path(place).name in disk.synced


def test_a_damaged_record_at_a_log_files_begin_makes_no_file_old(tmp_path):
    """A file is as old as the first record of the next one, which has no time any more."""
    with open_store(tmp_path, file_reserved_time=1) as store:
        for _ in range(5):
            put(store, "T", 0, b"x" * 30_000)
    overwrite(log_file(tmp_path, 65_536), 4, b"!")
    with open_store(tmp_path, file_reserved_time=1) as store:
        assert store.keeper.retain(store.clock.now_ms() + 60_000, at_once=True) == 0
        assert store.keeper.retain(store.clock.now_ms() + 3_700_000, at_once=True) == 2
