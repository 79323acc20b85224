"""A slave that cannot compare its log checks the records of its own, piece by piece."""

from __future__ import annotations

import errno
import os
import pathlib

from metaq.store.log.check import check_records
from tests.store.log.test_raw import fill
from tests.store.support import log_file, open_store, overwrite


def checked(store, stop: int, budget: int) -> list[tuple[int, int]]:
    place, found, steps = store.log.min, [], 0
    while place < stop:
        following, places = check_records(store.log.run, place, stop, budget)
        assert following > place
        place, steps = following, steps + 1
        found += [(one.start, one.size) for one in places]
    assert steps >= stop // max(budget, 64 * 1024)
    return found


def test_damage_is_found_wherever_it_lies_and_nothing_else(tmp_path):
    """Over several files, in pieces of any size; not what is written just now."""
    with open_store(tmp_path, mapped_file_size_commit_log=64 * 1024) as store:
        fill(store)
        store.flusher.flush()
        end = store.log.end
        assert len(store.log.run.files) > 2
        for budget in (1, 5000, 1 << 20):
            assert checked(store, end, budget) == []
            assert checked(store, end - 50, budget) == []
        first, second = log_file(tmp_path), log_file(tmp_path, 64 * 1024)
        overwrite(first, 5, b"\0")
        overwrite(second, 0, bytes(700))
        overwrite(second, 30_000, b"\0\1\2\3")
        for budget in (1, 5000, 1 << 20):
            found = checked(store, end, budget)
            assert [start for start, _ in found[:2]] == [0, 64 * 1024]
            assert len(found) == 3
            assert found[2][0] <= 64 * 1024 + 30_000 < sum(found[2])


def test_what_the_disk_cannot_read_is_damage(tmp_path, monkeypatch):
    """To the end of its file; the walk goes on behind it."""
    bad, preadv = 30_000, os.preadv

    def failing(descriptor, buffers, place, *more):
        if (
            place <= bad < place + len(buffers[0])
            and pathlib.Path(f"/proc/self/fd/{descriptor}").readlink().name == "0" * 20
        ):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, buffers, place, *more)

    with open_store(tmp_path) as store:
        fill(store)
        monkeypatch.setattr(os, "preadv", failing)
        found = checked(store, store.log.end, 1 << 20)
        assert len(found) == 1
        assert found[0][0] + found[0][1] == 64 * 1024


def test_a_file_that_retention_has_taken_is_no_damage(tmp_path):
    """The walk stays where it is, and its driver looks where the log begins."""
    with open_store(tmp_path) as store:
        fill(store)
        store.log.run.drop_before(64 * 1024)
        assert check_records(store.log.run, 0, store.log.end, 1) == (0, [])
