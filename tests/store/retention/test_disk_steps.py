"""What a full disk comes to, step by step: warn, clean, refuse; with `cleanFileForciblyEnable` on and off."""

from __future__ import annotations

import logging
import os

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreFull
from metaq.store.disk import Disk
from metaq.store.retention.expiry import DiskStep, disk_step
from tests.store.support import START_MS, open_store, put, read_all, small_options

TOTAL = 100_000
"""Blocks of the file system that the tests invent."""
NOT_DUE = {"delete_when": "99"}


class FullDisk(Disk):
    """The real disk, whose file system says what a test has it say: the seam is `os.statvfs`."""


@pytest.fixture
def usage(monkeypatch):
    """Set how full the file system is, in percent: usage(87.5)."""
    real, told = os.statvfs, [50.0]

    def statvfs(path):
        fields = list(real(path))
        free = round(TOTAL * (1 - told[0] / 100))
        fields[2:5] = TOTAL, free, free
        return os.statvfs_result((*fields, 0))

    monkeypatch.setattr(os, "statvfs", statvfs)

    # The suite caps what `Disk` says (conftest.py); this says what statvfs does.
    def used_percent(_self, path):
        facts = os.statvfs(path)
        used = facts.f_blocks - facts.f_bfree
        return 100.0 * used / max(1, used + facts.f_bavail)

    monkeypatch.setattr(FullDisk, "used_percent", used_percent, raising=False)
    return lambda percent: told.__setitem__(0, percent)


def fill(store, messages=20):
    for number in range(messages):
        put(store, "T", 0, b"%d " % number * 4000)


@pytest.mark.parametrize(
    ("used", "changes", "step"),
    [
        (75.0, {}, DiskStep.OK),
        (75.1, {}, DiskStep.WARN),
        (85.0, {}, DiskStep.WARN),
        (85.1, {}, DiskStep.CLEAN),
        (90.0, {}, DiskStep.CLEAN),
        (90.1, {}, DiskStep.REFUSE),
        (85.1, {"clean_file_forcibly_enable": False}, DiskStep.WARN),
        (90.1, {"clean_file_forcibly_enable": False}, DiskStep.REFUSE),
        (50.0, {"disk_space_clean_forcibly_ratio": 0.4}, DiskStep.CLEAN),
        (50.0, {"disk_space_warning_level_ratio": 0.4}, DiskStep.REFUSE),
        (92.0, {"disk_space_warning_level_ratio": 0.95}, DiskStep.CLEAN),
    ],
)
def test_steps_begin_where_rocketmqs_do(tmp_path, used, changes, step):
    assert disk_step(used, small_options(tmp_path, **changes)) is step


def test_a_full_disk_with_nothing_expired_loses_nothing_and_takes_nothing(tmp_path, usage):
    """cleanFileForciblyEnable=false: no message goes before its time, and none is taken until there is room."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock, disk=FullDisk(), clean_file_forcibly_enable=False, **NOT_DUE) as store:
        fill(store)
        before = read_all(store, "T", 0)
        for used in (86, 95, 100):
            usage(used)
            assert store.keeper.retain(clock.now_ms()) == 0
        assert store.keeper.disk_step is DiskStep.REFUSE
        with pytest.raises(StoreFull, match="more than 90 percent full"):
            put(store, "T", 0, b"one more")
        assert (store.log.min, read_all(store, "T", 0)) == (0, before)
        usage(60)
        store.keeper.retain(clock.now_ms())
        put(store, "T", 0, b"one more")
        assert read_all(store, "T", 0) == [*before, b"one more"]


def test_a_full_disk_loses_its_oldest_log_files(tmp_path, usage):
    """cleanFileForciblyEnable=true: above 85 percent, though nothing has expired; the newest file stays."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock, disk=FullDisk(), **NOT_DUE) as store:
        fill(store)
        before, files = read_all(store, "T", 0), [file.start for file in store.log.run.files]
        assert len(files) > 3
        usage(84)
        assert store.keeper.retain(clock.now_ms()) == 0
        usage(86)
        assert store.keeper.retain(clock.now_ms()) > 0
        left = read_all(store, "T", 0)
        assert 0 < len(left) < len(before)
        assert left == before[-len(left) :]
        assert [file.start for file in store.log.run.files] == files[-len(store.log.run.files) :]
        put(store, "T", 0, b"taken: it is below 90 percent")


def test_other_ratios_are_obeyed(tmp_path, usage):
    """diskSpaceCleanForciblyRatio and diskSpaceWarningLevelRatio."""
    clock = FakeClock(START_MS)
    ratios = {"disk_space_clean_forcibly_ratio": 0.5, "disk_space_warning_level_ratio": 0.6}
    with open_store(tmp_path, clock, disk=FullDisk(), **ratios, **NOT_DUE) as store:
        fill(store)
        usage(49)
        assert store.keeper.retain(clock.now_ms()) == 0
        usage(55)
        assert store.keeper.retain(clock.now_ms()) > 0
        usage(61)
        store.keeper.retain(clock.now_ms())
        with pytest.raises(StoreFull, match="more than 60 percent full"):
            put(store, "T", 0, b"x")


def test_the_log_tells_each_change_once_and_says_when_it_is_over(tmp_path, usage, caplog):
    """Looks in between say nothing, however many."""
    caplog.set_level(logging.INFO, logger="metaq.store.retention.housekeeping")
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock, disk=FullDisk(), **NOT_DUE) as store:
        for used in (50, 76, 77, 80, 86, 87, 91, 99, 88, 89, 78, 60, 50):
            usage(used)
            for _ in range(3):
                clock.advance(11)
                store.keeper.retain(clock.now_ms())
    told = [(one.levelno, one.getMessage()) for one in caplog.records if "percent full" in one.getMessage()]
    assert [(level, text.split(" is ")[1].split(" percent")[0]) for level, text in told] == [
        (logging.WARNING, "76.0"), (logging.WARNING, "86.0"), (logging.ERROR, "91.0"), (logging.WARNING, "88.0"),
        (logging.WARNING, "78.0"), (logging.INFO, "60.0"),
    ]  # fmt: skip
    assert "refused until there is room" in told[2][1]
    assert "messages are taken again" in told[3][1]
    assert str(tmp_path) in told[0][1]
