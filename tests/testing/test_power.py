"""The disk whose power can be cut: it may take what was not synced, and never what was."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from metaq.store.config_file import ConfigFile
from metaq.testing import PowerLossDisk

SEEDS = range(30)


def write(disk, path, data, *, sync=True, name=True, place=0):
    """Write into a file at `place`; `sync` its bytes, and its `name`."""
    descriptor = disk.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, data, place)
    if sync:
        disk.sync_file(descriptor)
    os.close(descriptor)
    if name:
        disk.sync_folder(path.parent)


def after(tmp_path, work, seeds=SEEDS):
    """What is found under the name "f" after a cut, None if nothing is, for each seed."""
    found = set()
    for seed in seeds:
        with PowerLossDisk(tmp_path / f"{seed}", seed) as disk:
            work(disk, disk.root / "f")
            disk.cut(tmp_path / f"{seed}-after").close()
        path = tmp_path / f"{seed}-after" / "f"
        found.add(path.read_bytes() if path.exists() else None)
    return found


def test_what_was_synced_with_its_name_is_there(tmp_path):
    """Whatever the seed, and whatever was written elsewhere since."""

    def work(disk, path):
        write(disk, path, b"kept")
        write(disk, path.with_name("g"), b"other", sync=False, name=False)

    assert after(tmp_path, work) == {b"kept"}


def test_a_name_needs_its_folder_and_bytes_need_their_file(tmp_path):
    """Bytes without name, a name without bytes, and neither."""
    assert after(tmp_path / "a", lambda disk, path: write(disk, path, b"x", name=False)) == {b"x", None}
    assert after(tmp_path / "b", lambda disk, path: write(disk, path, b"x", sync=False)) == {b"x", b"", b"\0"}
    assert after(tmp_path / "c", lambda disk, path: write(disk, path, b"x", sync=False, name=False), range(100)) == {
        b"x", b"", b"\0", None,
    }  # fmt: skip


def test_unsynced_pages_are_old_new_or_torn_at_sectors(tmp_path):
    """Each page for itself; inside a torn one each sector is old or new."""

    def work(disk, path):
        write(disk, path, b"o" * 8192)
        write(disk, path, b"n" * 8192, sync=False)

    found = after(tmp_path, work, range(200))
    assert {b"o" * 8192, b"n" * 8192, b"o" * 4096 + b"n" * 4096, b"n" * 4096 + b"o" * 4096} <= found
    torn = [data for data in found if len(set(data[:4096])) == 2]
    assert torn
    assert all(len(set(data[place : place + 512])) == 1 for data in torn for place in range(0, 8192, 512))


def test_a_synced_range_is_durable_and_its_neighbours_are_not(tmp_path):
    """A mapping's pages that touch the range, with the file's size."""

    def work(disk, path):
        write(disk, path, bytes(3 * 4096))
        mapped = disk.map(path, 3 * 4096)
        mapped.buffer[:] = b"n" * (3 * 4096)
        disk.sync_range(mapped, 4096 + 17, 1)

    found = after(tmp_path, work)
    assert {data[4096:8192] for data in found} == {b"n" * 4096}
    assert {data[0] for data in found} == {data[-1] for data in found} == {0, ord("n")}


def test_a_rename_is_whole(tmp_path):
    """The old file or the new one under the name, never none; with the folder synced, the new one."""

    def replace(disk, path):
        write(disk, path, b"old")
        write(disk, path.with_name("f.tmp"), b"new", name=False)
        path.with_name("f.tmp").replace(path)

    def replace_and_sync(disk, path):
        replace(disk, path)
        disk.sync_folder(path.parent)

    def save_twice(disk, path):
        file = ConfigFile(path, disk)
        file.save("old")
        disk.on_call = lambda name: name == "sync_folder" and pytest.fail("only the first half")
        with pytest.raises(pytest.fail.Exception):
            file.save("new")
        disk.on_call = None

    assert after(tmp_path / "a", replace) == {b"old", b"new"}
    assert after(tmp_path / "b", replace_and_sync) == {b"new"}
    assert after(tmp_path / "c", save_twice) == {b"old", b"new"}


def test_a_folder_is_moved_with_what_it_holds_or_not_at_all(tmp_path):
    """The names of one folder never appear twice, nor are they lost."""
    outcomes = set()
    for seed in SEEDS:
        with PowerLossDisk(tmp_path / f"{seed}", seed) as disk:
            disk.make_folder(disk.root / "a")
            write(disk, disk.root / "a" / "f", b"x")
            (disk.root / "a").rename(disk.root / "b")
            disk.cut(tmp_path / f"{seed}-after").close()
        names = sorted(path.relative_to(tmp_path / f"{seed}-after") for path in (tmp_path / f"{seed}-after").rglob("f"))
        outcomes.add(tuple(map(str, names)))
    assert outcomes == {("a/f",), ("b/f",)}


def test_a_deleted_file_may_come_back(tmp_path):
    """Until its folder is synced."""

    def work(disk, path):
        write(disk, path, b"x")
        path.unlink()

    def work_and_sync(disk, path):
        work(disk, path)
        disk.sync_folder(path.parent)

    assert after(tmp_path / "a", work) == {b"x", None}
    assert after(tmp_path / "b", work_and_sync) == {None}


def test_a_sync_after_a_failed_one_does_not_bring_the_pages_back(tmp_path):
    """The kernel has forgotten that they are dirty; written anew, they are durable at the next sync."""

    def work(disk, path):
        write(disk, path, b"o" * 8192)
        disk.sync_error = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            write(disk, path, b"n" * 8192)
        disk.sync_error = 0
        write(disk, path, b"again", place=4096)

    found = after(tmp_path, work)
    assert {data[:4096] for data in found} > {b"o" * 4096, b"n" * 4096}
    assert {data[4096:] for data in found} == {b"again" + b"n" * 4091}


def test_a_kill_keeps_all_and_knows_what_is_not_durable(tmp_path):
    """The page cache survives the process, not the power."""
    outcomes = set()
    for seed in SEEDS:
        with PowerLossDisk(tmp_path / f"{seed}", seed) as disk:
            write(disk, disk.root / "f", b"x")
            write(disk, disk.root / "f", b"y", sync=False)
            write(disk, disk.root / "g", b"z")
            (disk.root / "g").unlink()
            with disk.kill(tmp_path / f"{seed}-killed") as killed:
                assert (killed.root / "f").read_bytes() == b"y"
                assert not (killed.root / "g").exists()
                killed.cut(tmp_path / f"{seed}-cut").close()
        root = tmp_path / f"{seed}-cut"
        outcomes.add(((root / "f").read_bytes(), (root / "g").exists()))
    assert outcomes == {(b"x", False), (b"y", False), (b"x", True), (b"y", True)}


def test_the_same_seed_leaves_the_same(tmp_path):
    """Down to the byte, in another folder too."""

    def end(name):
        with PowerLossDisk(tmp_path / name, 7) as disk:
            for number in range(20):
                write(disk, disk.root / f"{number}", b"x" * number * 1000, sync=number % 2, name=number % 3)
            disk.cut(tmp_path / f"{name}-after").close()
        return {path.name: path.read_bytes() for path in (tmp_path / f"{name}-after").iterdir()}

    assert end("a") == end("b")


def descriptors():
    return sum(1 for _ in pathlib.Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_left(tmp_path):
    """Not even of files that were deleted meanwhile."""
    before = descriptors()
    with PowerLossDisk(tmp_path / "a", 7) as disk:
        for _ in range(50):
            ConfigFile(disk.root / "f", disk).save("x")
        assert descriptors() < before + 10
        disk.kill(tmp_path / "b").close()
    assert descriptors() == before
