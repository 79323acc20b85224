"""Damaged records are replaced in place by those of another replica: durably, with what was there kept, and read again."""

from __future__ import annotations

import errno

import pytest

from metaq.errors import StoreError, StoreFailed
from metaq.testing import FaultyDisk
from metaq.testing.power import PowerLossDisk
from metaq.wire import hot
from tests.store.log.test_raw import raw_log
from tests.store.support import checkpoint, log_file, open_store, overwrite, put, read_all

BODIES = [b"%d:" % number + b"x" * 300 for number in range(50)]


def filled(store) -> bytes:
    """The log's bytes, all of them on the disk."""
    for body in BODIES:
        put(store, "T", 0, body)
    checkpoint(store)
    return raw_log(store.folder.root, 0, store.log.end)


def record(data: bytes, number: int) -> tuple[int, int]:
    head = hot.scan_records(data, 0, len(data), 0, 100, check_crc=True)[0][number]
    return head.log_offset, head.size


@pytest.mark.parametrize("damaged_at", [2, 5, 150])
def test_a_damaged_record_is_whole_again_and_read(tmp_path, damaged_at):
    """In its head or its body; consumers had passed over it. The damaged bytes are kept, and a start finds nothing wrong."""
    with open_store(tmp_path) as store:
        data = filled(store)
        start, size = record(data, 20)
        overwrite(log_file(tmp_path), start + damaged_at, bytes([data[start + damaged_at] ^ 1]))
        damaged = raw_log(tmp_path, start, start + size)
        store.reader.repairs.repair(store.reader.existing_queue("T", 0), 20)
        assert read_all(store, "T", 0) == BODIES[:20] + BODIES[21:]
        assert "1 messages of queue 0 of topic T are damaged" in store.keeper.trouble
        kept = store.writer.mend(start, data[start : start + size])
        assert read_all(store, "T", 0) == BODIES
        assert store.keeper.trouble == ""
        (path,) = kept.iterdir()
        assert (path.name, path.read_bytes()) == (f"{start:020d}", damaged)
        assert kept.parent == tmp_path / "cut"
    assert raw_log(tmp_path, 0, len(data)) == data
    with open_store(tmp_path) as store:
        assert read_all(store, "T", 0) == BODIES


def test_a_message_that_a_start_has_stepped_over_is_read_again(tmp_path):
    """Its unit was lost with it."""
    with open_store(tmp_path) as store:
        data = filled(store)
    start, size = record(data, 20)
    overwrite(log_file(tmp_path), start + 5, b"\xff")
    for path in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    (tmp_path / "abort").touch()
    with open_store(tmp_path) as store:
        store.reader.repairs.step()
        read_all(store, "T", 0)
        store.reader.repairs.step()
        assert read_all(store, "T", 0) == BODIES[:20] + BODIES[21:]
        store.writer.mend(start, data[start : start + size])
        assert read_all(store, "T", 0) == BODIES


def test_a_repair_survives_a_power_cut(tmp_path):
    """As soon as it is told, and the kept bytes with it."""
    disk = PowerLossDisk(tmp_path / "store")
    store = open_store(tmp_path / "store", disk=disk)
    data = filled(store)
    start, size = record(data, 20)
    overwrite(log_file(tmp_path / "store"), start + 150, b"\xff")
    store.writer.mend(start, data[start : start + size])
    disk.cut(tmp_path / "after")
    store.close()
    assert raw_log(tmp_path / "after", 0, len(data)) == data
    kept = tmp_path / "after" / "cut" / f"{start:020d}" / f"{start:020d}"
    assert kept.read_bytes() == data[start : start + 150] + b"\xff" + data[start + 151 : start + size]


def test_only_whole_records_at_their_own_places_are_written(tmp_path):
    """Whatever the other side sends."""
    with open_store(tmp_path) as store:
        data = filled(store)
        (start, size), (other, _) = record(data, 20), record(data, 21)
        good = data[start : start + size]
        for place, wrong in (
            (start, good[:-1]), (start, good[:150] + b"\xff" + good[151:]), (other, good), (start, b""), (start - 1, b"\0" + good),
            (len(data), good), (store.log.file_bytes - 5, good),
        ):  # fmt: skip
            with pytest.raises(StoreError):
                store.writer.mend(place, wrong)
        assert raw_log(tmp_path, 0, len(data)) == data
        assert not (tmp_path / "cut").exists()
        store.writer.mend(start, good + data[other : other + record(data, 21)[1]])


def test_without_room_for_what_is_there_nothing_is_replaced(tmp_path):
    """The damaged bytes may be all that is left of a message."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk) as store:
        data = filled(store)
        start, size = record(data, 20)
        overwrite(log_file(tmp_path), start + 150, b"\xff")
        disk.make_error = errno.ENOSPC
        with pytest.raises(StoreError, match="no room"):
            store.writer.mend(start, data[start : start + size])
        assert raw_log(tmp_path, start + 150, start + 151) == b"\xff"
        disk.make_error = 0
        store.writer.mend(start, data[start : start + size])


def test_a_repair_whose_sync_fails_stops_the_store(tmp_path, monkeypatch):
    """As any failed sync of the log: what of it is on the disk is unknown."""
    with open_store(tmp_path) as store:
        data = filled(store)
        start, size = record(data, 20)

        def fail(_descriptor):
            raise OSError(errno.EIO, "bad disk")

        kept = []
        monkeypatch.setattr("metaq.store.message_writer.keep_piece", lambda *_: kept.append(1) or tmp_path)
        monkeypatch.setattr(store.disk, "sync_file", fail)
        with pytest.raises(StoreFailed, match="could not be repaired"):
            store.writer.mend(start, data[start : start + size])
        with pytest.raises(StoreFailed):
            put(store, "T", 0, b"more")
        assert kept == [1]
