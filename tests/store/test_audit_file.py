"""Files of the audit log: bounded in all, whole lines after a torn one, and what is dropped is told."""

from __future__ import annotations

import os
import pathlib
import threading

from metaq.store.audit_file import QUEUE_MAX, REFUSED_QUEUE_MAX, AuditFile
from metaq.store.disk import Disk
from tests.support import PATIENCE, eventually


def left_out(count: int) -> bytes:
    return b"left out %d\n" % count


def test_nothing_is_made_before_the_first_line_and_a_stop_writes_all(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "audit"
    file = AuditFile(folder, 1 << 20, 2, left_out)
    assert not folder.exists()
    file.put(b"done\n", refused=False)
    file.put(b"refused\n", refused=True)
    file.close()
    assert (folder / "audit.log").read_bytes() == b"done\n"
    assert (folder / "refused.log").read_bytes() == b"refused\n"
    assert (folder / "audit.log").stat().st_mode & 0o777 == 0o600


def test_files_are_put_aside_and_all_together_stay_below_the_bound(tmp_path: pathlib.Path) -> None:
    file = AuditFile(tmp_path, 1000, 3, left_out)
    for number in range(1000):
        file.put(b"%099d\n" % number, refused=True)
        file.put(b"administrative\n", refused=False) if number == 0 else None
    file.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.log", "refused.log", "refused.log.1", "refused.log.2", "refused.log.3"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    newest = [line for name in names[4:0:-1] for line in (tmp_path / name).read_bytes().splitlines()]
    assert [int(line) for line in newest] == list(range(960, 1000)), "the oldest went"
    assert (tmp_path / "audit.log").read_bytes() == b"administrative\n", "refusals push out none of these"


def test_a_line_that_a_power_cut_has_torn_spoils_no_other(tmp_path: pathlib.Path) -> None:
    (tmp_path / "audit.log").write_bytes(b'whole\n{"to')
    file = AuditFile(tmp_path, 1000, 1, left_out)
    file.put(b"next\n", refused=False)
    file.close()
    assert (tmp_path / "audit.log").read_bytes().splitlines() == [b"whole", b'{"to', b"next"]


class StuckDisk(Disk):
    """One whose files cannot be opened before they may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.asked = threading.Event()

    def open(self, path: pathlib.Path, flags: int) -> int:
        self.asked.set()
        assert self.may.wait(PATIENCE)
        return super().open(path, flags)


def test_lines_beyond_the_queue_are_dropped_and_told_and_the_last_quarter_is_for_administrators(
    tmp_path: pathlib.Path,
) -> None:
    disk = StuckDisk()
    file = AuditFile(tmp_path, 1 << 24, 1, left_out, disk)
    file.put(b"first\n", refused=True)
    assert disk.asked.wait(PATIENCE)
    taken = [file.put(b"refused\n", refused=True) for _ in range(REFUSED_QUEUE_MAX + 5)]
    assert taken.count(False) == 5
    done = [file.put(b"done\n", refused=False) for _ in range(QUEUE_MAX)]
    assert done.count(True) == QUEUE_MAX - REFUSED_QUEUE_MAX
    dropped = 5 + done.count(False)
    assert file.dropped == dropped
    disk.may.set()
    file.close()
    assert b"left out %d\n" % dropped in (tmp_path / "refused.log").read_bytes()


class FullDisk(Disk):
    def __init__(self) -> None:
        self.full = True

    def make_folder(self, path: pathlib.Path) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))
        super().make_folder(path)


def test_a_full_disk_loses_lines_and_says_how_many_when_there_is_room(tmp_path: pathlib.Path) -> None:
    disk = FullDisk()
    file = AuditFile(tmp_path / "audit", 1000, 1, left_out, disk)
    file.put(b"lost\n", refused=False)
    eventually(lambda: file.dropped == 1)
    disk.full = False
    file.put(b"kept\n", refused=False)
    file.close()
    assert (tmp_path / "audit" / "audit.log").read_bytes() == b"kept\nleft out 1\n"


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.synced = 0

    def sync_file(self, descriptor: int) -> None:
        self.synced += 1
        super().sync_file(descriptor)


def test_lines_are_synced_by_interval_and_not_each(tmp_path: pathlib.Path) -> None:
    disk = CountingDisk()
    file = AuditFile(tmp_path, 1 << 20, 1, left_out, disk, sync_seconds=0.05)
    for _ in range(500):
        file.put(b"line\n", refused=False)
    eventually(lambda: disk.synced >= 1)
    file.close()
    assert disk.synced < 50
