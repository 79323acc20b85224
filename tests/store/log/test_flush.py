"""Syncs by a thread that does not need the interpreter: who is told, when, and what happens when one fails."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import selectors
import threading
from collections.abc import Iterator

import pytest

from metaq.store.log import sync_thread
from metaq.testing.faults import FaultyDisk
from tests.store.support import open_store, put, read_all
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.skipif(sync_thread._Syncs is None, reason="the compiled module is not there")
SYNCED = {"flush_disk_type": "SYNC_FLUSH"}


class Loop:
    """What a store needs of an event loop."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.forgotten = 0

    def look_at(self, descriptor, call) -> None:
        self.selector.register(descriptor, selectors.EVENT_READ, call)

    def forget(self, descriptor) -> None:
        self.selector.unregister(descriptor)
        self.forgotten += 1

    def turn(self) -> None:
        """Wait until something is readable, and call who looks at it."""
        ready = self.selector.select(PATIENCE)
        assert ready, "nothing was told"
        for key, _ in ready:
            key.data()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.selector.close()


@pytest.fixture
def store(tmp_path, loop):
    with open_store(tmp_path, **SYNCED) as opened:
        assert opened.flusher.watch(loop.look_at, loop.forget)
        yield opened


NOWHERE = mmap.PAGESIZE
"""The address of a page that the kernel never gives: so low is nothing but what null pointers lead to. One that is only unmapped
is soon another thread's, and a sync of that succeeds."""


def wait_for(store, loop, log_end):
    """What `when_flushed` says, and in which thread."""
    told = []
    store.flusher.when_flushed(log_end, lambda good: told.append((good, threading.get_ident())))
    while not told:
        loop.turn()
    [(good, thread)] = told
    assert thread == threading.get_ident()
    return good


def test_who_waits_is_told_in_the_thread_of_the_loop(store, loop):
    """One after the other, and several by one sync."""
    for number in range(20):
        done = put(store, "T", 0, b"x" * number)
        assert wait_for(store, loop, done.log_end)
        assert store.state.flushed >= done.log_end
    told = []
    ends = [put(store, "T", 0, b"y").log_end for _ in range(5)]
    for end in ends:
        store.flusher.when_flushed(end, lambda good, end=end: told.append((good, end)))
    while len(told) < 5:
        loop.turn()
    assert told == [(True, end) for end in ends]


def test_what_is_durable_already_is_told_at_once(store, loop):
    """Nothing would wake the loop for it."""
    done = put(store, "T", 0, b"x")
    assert wait_for(store, loop, done.log_end)
    told = []
    store.flusher.when_flushed(done.log_end, told.append)
    assert told == [True]


def test_a_wait_reaches_over_the_end_of_a_file(store, loop):
    """Files of 64 KiB: each is asked for when the one before it is durable."""
    for _ in range(3):
        ends = [put(store, "T", 0, b"x" * 30_000).log_end for _ in range(5)]
        assert wait_for(store, loop, ends[-1])
    assert len(store.log.run.files) >= 6
    assert store.state.flushed == store.log.end


def test_a_long_stretch_is_synced_in_steps(store, loop, monkeypatch):
    """Who waits for its begin is told before its end is durable."""
    monkeypatch.setattr(sync_thread, "STEP_BYTES", 10_000)
    ends = [put(store, "T", 0, b"x" * 4_000).log_end for _ in range(12)]
    told = []
    for end in ends:
        store.flusher.when_flushed(end, lambda good, end=end: told.append((good, end, store.state.flushed)))
    while len(told) < len(ends):
        loop.turn()
    assert [(good, end) for good, end, _ in told] == [(True, end) for end in ends]
    assert told[0][2] < ends[-1]
    put(store, "T", 0, b"x" * 40_000)
    store.flusher.flush()
    assert store.state.flushed == store.log.end


def test_others_may_flush_beside_the_loop(store, loop):
    """`flush` waits for the same thread, and tells those who wait, too."""
    done = put(store, "T", 0, b"x" * 30_000)
    told = []
    store.flusher.when_flushed(done.log_end, told.append)
    store.flusher.flush()
    assert store.state.flushed == store.log.end
    assert told == [True]
    end = put(store, "T", 0, b"x" * 50_000).log_end
    store.flusher.flush()
    assert store.state.flushed == end == store.log.end


def test_a_log_that_was_cut_goes_on(store, loop):
    """Who waits for what is gone is told; what comes in its place is synced anew."""
    keep = put(store, "T", 0, b"kept")
    lost = put(store, "T", 0, b"lost")
    assert wait_for(store, loop, lost.log_end)
    store.writer.truncate(keep.log_end)
    assert store.state.flushed == keep.log_end
    again = put(store, "T", 0, b"again")
    assert wait_for(store, loop, again.log_end)
    assert store.state.flushed == again.log_end
    assert read_all(store, "T", 0) == [b"kept", b"again"]


def test_a_failed_sync_is_final(store, loop, monkeypatch):
    """The errno of msync itself: memory that is not mapped any more. Nobody is acknowledged, nothing more is taken."""
    monkeypatch.setattr(sync_thread, "pages", lambda *_: (NOWHERE, mmap.PAGESIZE))
    done = put(store, "T", 0, b"x")
    waits = [done.log_end, done.log_end]
    told = []
    for end in waits:
        store.flusher.when_flushed(end, told.append)
    while not told:
        loop.turn()
    eventually(lambda: told == [False, False])
    assert f"could not be made durable: {os.strerror(errno.ENOMEM)}" in store.state.failed
    store.flusher.when_flushed(done.log_end, told.append)
    assert told[2:] == [False]
    assert store.state.flushed < done.log_end


def test_a_file_that_cannot_be_mapped_stops_the_store(tmp_path, loop, monkeypatch):
    """An error of our side, before the kernel is asked."""
    with open_store(tmp_path, **SYNCED) as store:
        assert store.flusher.watch(loop.look_at, loop.forget)
        done = put(store, "T", 0, b"x")

        def refuse(self, flushed):
            raise OSError(12, "no")

        monkeypatch.setattr(sync_thread.SyncThread, "ask", refuse)
        told = []
        store.flusher.when_flushed(done.log_end, told.append)
        eventually(lambda: told == [False])
        assert store.state.failed


def test_the_end_makes_everything_durable_and_lets_the_loop_go(tmp_path, loop):
    """Who still waits is told, no thread is left, and the folder opens without a look at the log."""
    before = set(threading.enumerate())
    with open_store(tmp_path, **SYNCED) as store:
        assert store.flusher.watch(loop.look_at, loop.forget)
        told = []
        store.flusher.when_flushed(put(store, "T", 0, b"x").log_end, told.append)
    assert told == [True]
    assert loop.forgotten == 1
    assert set(threading.enumerate()) <= before  # other tests' may end meanwhile
    with open_store(tmp_path, **SYNCED) as store:
        assert read_all(store, "T", 0) == [b"x"]


def test_a_disk_of_a_tests_own_syncs_itself(tmp_path, loop):
    """What it counts or refuses would be passed over."""
    with open_store(tmp_path, disk=(disk := FaultyDisk()), **SYNCED) as store:
        assert not store.flusher.watch(loop.look_at, loop.forget)
        told = threading.Event()
        disk.synced.clear()
        store.flusher.when_flushed(put(store, "T", 0, b"x").log_end, lambda good: good and told.set())
        assert told.wait(PATIENCE)
        assert disk.synced


def test_what_is_asked_for_replaces_what_has_not_begun(tmp_path):
    """And the end comes after it; a wait for more than was asked for returns."""
    told = os.eventfd(0)
    syncs = sync_thread._Syncs(told, 0)
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for place in (10, 20, 30):
        syncs.ask(address, mmap.PAGESIZE, place)
    syncs.end()
    thread = threading.Thread(target=syncs.run)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert syncs.look() == (30, 0)
    assert os.eventfd_read(told) == 1  # one sync for all three
    syncs.wait(1000)
    syncs.rewind(15)
    assert syncs.look() == (15, 0)
    syncs.ask(address, mmap.PAGESIZE, 40)  # after its end
    assert syncs.look() == (15, 0)
    os.close(told)


def test_without_a_descriptor_records_are_written_in_place(tmp_path, caplog):
    """It is said, and nothing is lost."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, **SYNCED) as store:
        put(store, "T", 0, b"x" * 40_000)
        disk.open_error = errno.EMFILE
        # The next file is there, and mapped: only the descriptor for writing cannot be had.
        store.log._attach(store.log._attached, store.log.end)
        disk.open_error = 0
        put(store, "T", 0, b"y")
        assert read_all(store, "T", 0) == [b"x" * 40_000, b"y"]
    assert "is written in place" in caplog.text
