"""The lease on a file system without locks, on one that is in memory and by a clock that stands still."""

from __future__ import annotations

import threading

import pytest

from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreLocked
from metaq.pipelines.archive.hadoop.lease import BEATS, HadoopLease
from tests.hadoop.memory import MemoryFiles
from tests.support import eventually

SECONDS = 20.0


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def files():
    return MemoryFiles()


def lease(files, clock, act=lambda: None) -> HadoopLease:
    """Args: act: what happens whenever it waits."""

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        act()

    return HadoopLease(files, SECONDS, clock, pause)


def names(files) -> list[str]:
    return [entry.name for entry in files.entries("_lease")]


def test_a_lease_that_was_given_back_is_taken_at_once(files, clock):
    first, second = lease(files, clock), lease(files, clock)
    first.take()
    first.check()
    first.release()
    first.release()
    second.take()
    assert clock.monotonic() == 0
    assert names(files) == ["0000000002"]
    second.check()
    second.release()


def test_whoever_lives_keeps_it_and_is_named(files, clock):
    """A new beat is enough, however late by anybody's clock."""
    holder = lease(files, clock)
    holder.take()
    with pytest.raises(
        StoreLocked, match=r"another run writes into memory://host/home/out: process \d+ on .*, since 20"
    ):
        lease(files, clock, holder.beat).take(5.0)
    assert 5.0 <= clock.monotonic() < 6.0
    holder.check()
    holder.release()


def test_whoever_is_not_heard_of_for_long_enough_loses_it_and_is_told_when_it_wakes(files, clock, caplog):
    sleeper, other = lease(files, clock), lease(files, clock)
    sleeper.take()
    other.take(5.0)
    assert clock.monotonic() >= SECONDS
    assert "nothing was heard for 20 s of the run that has it (process" in caplog.text
    for _ in range(2):
        with pytest.raises(
            StoreLocked, match=r"This one, not heard of for more than 20 s, was taken for dead; start it again"
        ):
            sleeper.check()
    with pytest.raises(StoreLocked):
        sleeper.beat()
    sleeper.release()  # Which is nobody's business any more.
    other.check()
    with pytest.raises(StoreLocked):
        lease(files, clock, other.beat).take(1.0)
    other.release()


def test_a_beat_just_before_the_end_saves_it(files, clock):
    holder = lease(files, clock)
    holder.take()
    beats = iter([False] * 90 + [True] + [False] * 60)
    taker = lease(files, clock, lambda: holder.beat() if next(beats, True) else None)
    with pytest.raises(StoreLocked):
        taker.take(5.0)
    assert 18.0 <= clock.monotonic() < 19.0
    holder.release()


def test_of_two_who_want_it_one_gets_it(files, clock):
    """Both have seen the same dead run for as long."""
    dead = lease(files, clock)
    dead.take()
    dead._ended.set()
    got, refused = [], []
    gate = threading.Barrier(2)

    def run() -> None:
        own = FakeClock()
        held = HadoopLease(files, SECONDS, own, own.advance)
        gate.wait()
        try:
            held.take(5.0)
            got.append(held)
        except StoreLocked:
            refused.append(held)

    # The second sees the first one's term, waits for it for its own 20 s of a clock that runs as it waits, and so takes it too;
    # what counts is that never two of them pass `check`.
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passing = []
    for held in got:
        try:
            held.check()
            passing.append(held)
        except StoreLocked:
            pass
    assert len(passing) == 1
    assert len({held._term for held in got}) == len(got)
    for held in got:
        held.release()


def test_a_term_that_was_tidied_away_is_not_begun_again(files, clock):
    """Who looked, slept, and then takes the next number, while others have come and gone, does not have it."""
    dead = lease(files, clock)
    dead.take()
    dead._ended.set()
    late = lease(files, clock)
    seen = late._look()
    for _ in range(2):
        other = lease(files, clock)
        other.take(0.0)
        other.release()
    assert "0000000002" not in names(files)
    assert not late._claim(seen)
    assert "0000000002" not in names(files)


def test_it_beats_by_itself_and_a_fault_of_the_file_system_does_not_end_it(files, caplog):
    held = HadoopLease(files, 0.04)
    held.take()
    eventually(lambda: held._beat > BEATS)
    files.fault = OSError(111, "Connection refused")
    eventually(lambda: "this run cannot tell that it lives: Connection refused" in caplog.text)
    with pytest.raises(OSError, match="Connection refused"):
        held.check()
    files.fault = None
    before = held._beat
    eventually(lambda: held._beat > before)
    held.check()
    held.release()


def test_a_thread_that_fails_is_no_secret(files, monkeypatch, caplog):
    held = HadoopLease(files, 0.04)
    monkeypatch.setattr(held, "beat", lambda: 1 // 0)
    held.take()
    eventually(lambda: held.fault)
    with pytest.raises(
        StoreLocked, match="the thread that keeps memory://host/home/out for this run has failed: ZeroDivision"
    ):
        held.check()
    held.release()


def test_a_folder_that_cannot_be_written_to_is_a_wrong_configuration(files, clock):
    files.fault = PermissionError(13, "Permission denied: user=me")
    with pytest.raises(ConfigError, match="memory://host/home/out cannot be written to: Permission denied: user=me"):
        lease(files, clock).take()
