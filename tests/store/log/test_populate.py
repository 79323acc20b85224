"""Pages and files ahead of the log's end."""

from __future__ import annotations

import pathlib
import threading

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreFull
from metaq.store import disk as disk_module
from metaq.store.log.populate import AHEAD_BYTES_MAX, AHEAD_BYTES_MIN, Populator, window
from metaq.store.mapped_file import MappedFile
from metaq.testing.faults import FaultyDisk
from tests.store.support import log_file, open_store, put, read_all
from tests.support import eventually

MIB = 1 << 20


def test_window_grows_with_the_write_rate_within_its_bounds():
    """A quarter of a second's worth, 4 to 64 MiB."""
    assert window(0, 1.0) == AHEAD_BYTES_MIN
    assert window(40 << 20, 1.0) == 10 << 20
    assert window(1 << 30, 0.1) == AHEAD_BYTES_MAX
    assert window(0, 0.0) == AHEAD_BYTES_MIN


def rss_kib(kind):
    with pathlib.Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith(kind))


def test_populated_pages_are_the_files_and_bounded(tmp_path):
    """A round maps in one window, writes nothing, and does not count as our own memory."""
    with open_store(tmp_path, mapped_file_size_commit_log=256 << 20) as store:
        store._populator.stop()
        clock = FakeClock()
        populator = Populator(store.log, clock)
        put(store, "T", 0, b"x")
        before = log_file(tmp_path).read_bytes()[:10_000], rss_kib("RssAnon")
        for _ in range(5):
            populator.round()
            clock.advance(1)
        assert populator._populated <= store.log.end + AHEAD_BYTES_MIN
        assert populator.due_at == store.log.end + AHEAD_BYTES_MIN // 8 * 7
        assert log_file(tmp_path).read_bytes()[:10_000] == before[0]
        assert rss_kib("RssAnon") - before[1] < 8192


def test_page_by_page_until_a_flood_comes_and_again_behind_it(tmp_path, monkeypatch):
    """A flood gains by the kernel's reading ahead; else it delays others for nothing, and rounds are small. A burst is no flood."""
    told = []
    with open_store(tmp_path, mapped_file_size_commit_log=256 << 20) as store:
        store._populator.stop()
        clock = FakeClock()
        populator = Populator(store.log, clock)
        put(store, "T", 0, b"x")
        monkeypatch.setattr(MappedFile, "touch_singly", lambda _file, *, singly=True: told.append(singly))

        def turn(seconds, size):
            """What the kernel was told in a round, and how many MiB are written until the next."""
            put(store, "T", 0, b"x" * size)
            told.clear()
            clock.advance(seconds)
            populator.round()
            return told[:], pytest.approx((populator.due_at - store.log.end) / MIB, abs=0.1)

        assert turn(0.1, 1) == ([True], 3.5)
        assert turn(0.1, 3_000_000) == ([], 6.3)  # 30 MB/s: seven eighths of what a quarter of a second brings
        assert turn(0.01, 1_000_000) == ([], 4.2)  # 100 MB/s, but not for long
        assert turn(0.01, 4_000_000) == ([False], 11.9)  # and half of that
        assert turn(1.0, 1) == ([], 3.5)  # there is enough
        assert [told for _ in range(6) for told in turn(0.5, 4_000_000)[0]] == [True]


def test_reading_ahead_can_be_told_off_and_on(tmp_path):
    """The mapping says so: the flag is the kernel's (`rr`)."""

    def is_single(file):
        here = f"{file._mapping().address:x}-"
        lines = iter(pathlib.Path("/proc/self/smaps").read_text().splitlines())
        next(line for line in lines if line.startswith(here))
        return " rr" in next(line for line in lines if line.startswith("VmFlags"))

    with open_store(tmp_path) as store:
        store._populator.stop()
        put(store, "T", 0, b"x")
        (file,) = store.log.run.files
        file.touch_singly()
        assert is_single(file)
        file.touch_singly(singly=False)
        assert not is_single(file)


def test_next_file_is_there_before_it_is_needed(tmp_path):
    """At four fifths of the current one."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"x" * 40_000)
        store.writer.populate()
        assert not log_file(tmp_path, 65_536).exists()
        put(store, "T", 0, b"x" * 15_000)
        store._populator.wake()
        eventually(log_file(tmp_path, 65_536).exists)


def test_a_next_file_that_cannot_be_made_is_tried_again_when_it_is_needed(tmp_path):
    """The thread only warns: the writer that needs it gets the error."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk) as store:
        put(store, "T", 0, b"x" * 55_000)
        disk.room = 0
        store.writer.populate()
        assert not log_file(tmp_path, 65_536).exists()
        try:
            put(store, "T", 0, b"y" * 55_000)
        except StoreFull:
            disk.room = None
        put(store, "T", 0, b"y" * 55_000)
        assert len(read_all(store, "T", 0)) == 2


def test_a_kernel_that_cannot_populate_is_asked_once(tmp_path, monkeypatch):
    """Then the thread only makes files; the figure shows in `describe`."""
    asked = []
    monkeypatch.setattr("metaq.store.mapped_file.populate", lambda *_: bool(asked.append(1)))
    with open_store(tmp_path) as store:
        store._populator.stop()
        populator = Populator(store.log, FakeClock())
        put(store, "T", 0, b"x")
        asked.clear()
        populator.round()
        populator.round()
        assert (len(asked), populator.works) == (1, False)


def test_two_threads_that_map_a_file_get_the_same_mapping(tmp_path):
    """Else one of them would sync or populate memory that is unmapped again."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"x")
        (file,) = store.log.run.files
        for _ in range(20):
            file.release()
            gate = threading.Barrier(4)
            seen = []

            def look(gate=gate, seen=seen, file=file):
                gate.wait()
                seen.append(file._mapping())

            threads = [threading.Thread(target=look) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({mapped.address for mapped in seen}) == 1


def test_process_settings_answer_what_they_did():
    """glibc takes the thresholds; the limit of open files is the hard one."""
    assert disk_module.keep_freed_memory() in {True, False}
    assert disk_module.raise_file_limit() >= 256
