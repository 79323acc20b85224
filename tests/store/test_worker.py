"""A background thread that fails: it is told, tried again, and final when it does not stop."""

from __future__ import annotations

import errno
import os
import sys
import threading

import pytest

from metaq.errors import StoreError, StoreFailed, StoreFull
from metaq.store.worker import FAILURES_MAX, Worker, pause_after
from metaq.testing.faults import FaultyDisk
from tests.store.support import open_store, put, read_all
from tests.support import eventually


def test_pauses_grow_and_end():
    """Doubling from a tenth of a second to half a minute."""
    assert [pause_after(n) for n in (1, 2, 3, 8, 10, 1000)] == [0.1, 0.2, 0.4, 12.8, 30.0, 30.0]


def failing(error, on_failure=None):
    """A worker whose step raises `error` as long as the list it returns with it is not empty."""
    faults, steps = [error], []

    def step():
        steps.append(1)
        if faults:
            raise faults[0]

    return Worker("test", step, lambda: 0.001, on_failure, lambda _: 0.0), faults, steps


@pytest.mark.parametrize("kind", ["oserror", "bug", "memory"])
def test_a_step_that_raises_is_logged_and_tried_again(caplog, kind):
    """Whatever it raises, the thread goes on; the trouble shows until a step works."""
    error = {
        "oserror": OSError(errno.EIO, "broken"),
        "bug": RuntimeError("dictionary changed size"),
        "memory": MemoryError(),
    }
    worker, faults, steps = failing(error[kind])
    worker.start()
    eventually(lambda: len(steps) >= 3)
    assert worker.trouble.startswith("test failed ")
    faults.clear()
    eventually(lambda: worker.trouble == "")
    worker.stop()
    assert not worker.alive
    assert "it is tried again" in caplog.text


def test_failures_in_a_row_are_final_and_told_once():
    """The reason names the thread and what it met."""
    told = []
    worker, _, steps = failing(RuntimeError("always"), told.append)
    worker.start()
    eventually(lambda: len(steps) > FAILURES_MAX + 5)
    worker.stop()
    assert told == [f"test failed {FAILURES_MAX} times in a row: RuntimeError: always"]


def worded(code):
    """As the store words an error of the system."""
    error = StoreError("too many open files")
    error.__cause__ = OSError(code, "x")
    return error


SHORTAGES = [
    OSError(errno.ENOSPC, "full"), StoreFull("full"), OSError(errno.EMFILE, "many"), OSError(errno.ENFILE, "many"),
    worded(errno.EMFILE), MemoryError(),
]  # fmt: skip


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_shortage_is_never_final(error):
    """It passes when somebody makes room, or closes connections. What comes behind it is, if it stays."""
    told = []
    worker, faults, steps = failing(error, told.append)
    worker.start()
    eventually(lambda: len(steps) > FAILURES_MAX + 5)
    assert told == []
    faults[0] = worded(errno.EACCES)
    eventually(lambda: told)
    worker.stop()
    assert len(told) == 1


def test_housekeeping_that_fails_for_good_stops_the_store(tmp_path):
    """Nobody would notice otherwise that there is no checkpoint and no retention any more."""
    disk = BrokenDisk()
    with open_store(tmp_path, disk=disk, flush_interval_consume_queue=1) as store:
        store._housekeeper.worker._pause = lambda _: 0.0
        disk.broken = True
        put(store, "T", 0, b"x")
        eventually(lambda: store.state.failed is not None)
        assert "housekeeping failed 8 times in a row: ZeroDivisionError" in store.state.failed
        with pytest.raises(StoreFailed):
            put(store, "T", 0, b"x")
        disk.broken = False


def test_queues_are_made_while_others_walk_them(tmp_path):
    """The event loop opens gates while housekeeping, reports and retention look at all queues."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with open_store(tmp_path, flush_interval_consume_queue=1, clean_resource_interval=10) as store:
            put(store, "T", 0, b"x")
            done = threading.Event()
            wrong = []

            def walk():
                while not done.is_set():
                    try:
                        store.keeper.checkpoint()
                        assert all(key[0] for key in store.reader.queues())
                    except Exception as error:
                        wrong.append(error)
                        return

            threads = [threading.Thread(target=walk) for _ in range(2)]
            for thread in threads:
                thread.start()
            for number in range(3000):
                store.reader.queue(f"T{number}", 0)
                if number % 500 == 499:
                    store.writer.delete_topic(f"T{number}")
            done.set()
            for thread in threads:
                thread.join()
            assert wrong == []
            assert store.keeper.trouble == ""
    finally:
        sys.setswitchinterval(switch)


def test_files_are_added_while_others_are_dropped(tmp_path):
    """No file gets lost from a run, and none comes back."""
    with open_store(tmp_path) as store:
        run = store.log.run
        put(store, "T", 0, b"x")
        done = threading.Event()

        def drop():
            while not done.is_set():
                run.drop_before(run.files[-1].start)

        thread = threading.Thread(target=drop)
        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        thread.start()
        try:
            for number in range(1, 300):
                file = run.add(number * 65_536, reserved=4096)
                assert run.files[-1] is file
        finally:
            sys.setswitchinterval(switch)
            done.set()
            thread.join()
        assert [file.path.exists() for file in run.files] == [True] * len(run.files)
        assert run.files[0].start + len(run.files) * 65_536 == 300 * 65_536


# ---------------------------------------------------------------------- starts


def damaged(tmp_path):
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"kept", key="k")
    return tmp_path


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b'{"queues":' * 100_000, b"\xff\xfe\x00", b"null", b"1e999", b'{"log_end": 1e400}'],
    ids=["list", "map", "binary", "null", "infinite", "overflow"],
)  # fmt: skip
def test_a_hint_that_is_nonsense_is_ignored(tmp_path, data, caplog):
    """`metaqTails.json` only saves time: a start without it reads more of the log."""
    root = damaged(tmp_path)
    for name in ("metaqTails.json", "metaqTails.json.bak"):
        (root / "config" / name).write_bytes(data)
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"kept"]
        assert len(store.reader.query("T", "k", 10, 0, 1 << 60)) == 1
    assert "metaqTails.json" in caplog.text


def test_stray_files_among_the_queues_are_passed_over(tmp_path, caplog):
    """A note where a topic's folder would be, one where a queue's would be."""
    root = damaged(tmp_path)
    (root / "consumequeue" / "notes").write_text("mine")
    (root / "consumequeue" / "T" / "7").write_text("mine")
    (root / "consumequeue" / "T" / "007").mkdir()
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"kept"]
    assert (root / "consumequeue" / "notes").read_text() == "mine"
    assert "consumequeue/T/7 is no folder of a queue" in caplog.text


def test_a_full_disk_does_not_keep_a_store_from_opening(tmp_path):
    """What it holds can be read, and room made by deleting expired files; the hint is written when there is room."""
    root = damaged(tmp_path)
    (root / "abort").touch()
    disk = FullDisk()
    with open_store(root, disk=disk) as store:
        assert read_all(store, "T", 0) == [b"kept"]
    assert (root / "abort").exists(), "the end could not be written down"
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"kept"]


class BrokenDisk(FaultyDisk):
    """The tails cannot be written, for a reason that no disk has: a fault of ours."""

    broken = False

    def open(self, path, flags):
        if self.broken and path.name.startswith("metaqTails") and flags & os.O_CREAT:
            raise ZeroDivisionError
        return super().open(path, flags)


class FullDisk(FaultyDisk):
    """Not even a small file finds room."""

    def open(self, path, flags):
        if path.name.startswith("metaqTails") and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().open(path, flags)
