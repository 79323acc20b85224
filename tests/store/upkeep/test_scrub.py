"""`scrub` finds each flipped bit of a closed log file; a running broker keeps the checksums true."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.errors import StoreForeign
from metaq.store.log.sums import Sums, SumsFolder, decode, encode
from metaq.store.upkeep.check import check
from metaq.store.upkeep.scrub import scrub
from tests.effort import repeats
from tests.store.support import checkpoint, log_file, open_store, overwrite, put
from tests.store.upkeep.support import all_damage, filled

FILE_BYTES = 64 * 1024

GOLDEN = bytes.fromhex(
    "4d514353" "0001" "0000"  # magic, version, nothing
    "0000000000200000" "0000000000180000"  # begins at 2 MiB, 1.5 MiB of it
    "00100000" "00000002"  # ranges of 1 MiB, two of them
    "deadbeef" "00c0ffee"
    "5e3a26d1"
)  # fmt: skip


@pytest.fixture(scope="module")
def scrubbed(tmp_path_factory):
    """A folder with three closed log files and their checksums."""
    root = filled(tmp_path_factory.mktemp("scrubbed") / "store")
    first = scrub(root)
    assert all_damage(first) == []
    assert "checksums made of" in first.notes[0]
    return root


def test_the_file_of_checksums_is_as_its_page_says():
    """Golden vector of docs/formats/checksums.md, both ways; each flipped bit of it is found."""
    sums = Sums(2 << 20, 3 << 19, 1 << 20, (0xDEADBEEF, 0xC0FFEE))
    assert encode(sums).hex() == GOLDEN.hex()
    assert decode(GOLDEN, "x") == sums
    for place in range(len(GOLDEN) * 8):
        flipped = bytearray(GOLDEN)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(Exception, match="x "):
            decode(bytes(flipped), "x")


def test_checksums_of_a_later_version_are_refused_by_name(tmp_path):
    """With what to do; they are not overwritten."""
    import struct
    import zlib

    root = filled(tmp_path)
    scrub(root)
    path = SumsFolder(root, None).path(0)  # type: ignore[arg-type]  nothing is written
    data = bytearray(path.read_bytes()[:-4])
    data[5] = 9
    path.write_bytes(bytes(data) + struct.pack(">I", zlib.crc32(data)))
    with pytest.raises(StoreForeign, match=f"{path} is of version 9"):
        scrub(root)


@settings(max_examples=repeats(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bit=st.integers(0, FILE_BYTES * 8 - 1), number=st.integers(0, 1))
def test_one_flipped_bit_anywhere_in_a_closed_log_file_is_found(scrubbed, bit, number):
    """In heads, bodies, properties, blank ends: the range is named with its file, and nothing else is."""
    path = log_file(scrubbed, number * FILE_BYTES)
    place, byte = bit // 8, path.read_bytes()[bit // 8]
    overwrite(path, place, bytes([byte ^ 1 << bit % 8]))
    try:
        (found,) = all_damage(scrub(scrubbed))
    finally:
        overwrite(path, place, bytes([byte]))
    assert found.path == str(path)
    assert found.place <= place < found.place + found.size


def test_what_a_flip_has_hit_is_said_as_far_as_records_tell(scrubbed, tmp_path):
    """A body, with its byte; properties, by the records' being whole."""
    root = shutil.copytree(scrubbed, tmp_path / "store")
    data = log_file(root).read_bytes()
    overwrite(log_file(root), data.index(b"KEYS\x01k1") + 6, b"9")
    assert "its records' bodies fit theirs: properties" in all_damage(scrub(root))[0].why
    overwrite(log_file(root), 90, b"\xff\xff")
    assert "a record's body does not fit its checksum at byte 0" in all_damage(scrub(root))[0].why


def test_a_file_that_is_damaged_already_gets_no_checksums(tmp_path):
    """Else its damage would count as right."""
    root = filled(tmp_path)
    overwrite(log_file(root), 90, b"\xff\xff")
    for _ in range(2):
        (found,) = all_damage(scrub(root))
        assert (found.path, found.place) == (str(log_file(root)), 0)
    assert not (root / "sums" / log_file(root).name).exists()
    assert (root / "sums" / log_file(root, FILE_BYTES).name).exists()


def test_a_damaged_file_of_checksums_is_told_and_made_anew(scrubbed, tmp_path):
    """And `check` tells of it, too."""
    root = shutil.copytree(scrubbed, tmp_path / "store")
    path = root / "sums" / log_file(root).name
    overwrite(path, 33, b"\x99")
    assert [one.path for one in all_damage(check(root))] == [str(path)]
    assert [one.path for one in all_damage(scrub(root))] == [str(path)]
    assert all_damage(scrub(root)) == []


def test_a_running_store_makes_them_when_a_file_is_closed_and_keeps_them_true(tmp_path):
    """Of files that it has closed itself; they go before a file is changed or deleted, and come again."""
    with open_store(tmp_path, file_reserved_time=0) as store:
        for number in range(200):
            put(store, "T", 0, b"%03d" % number * 300, key="k")
        checkpoint(store)
        sums, maker = SumsFolder(tmp_path, store.disk), store.writer._housekeeper.sums
        for _ in range(10):
            maker.step()
        closed = [file.start for file in store.log.run.files if file.end <= store.log.end]
        assert sums.starts() == closed
        assert all_damage(scrub(tmp_path)) == []

        path, good = log_file(tmp_path), log_file(tmp_path).read_bytes()
        size = int.from_bytes(good[:4], "big")
        overwrite(path, 100, b"\xff")
        assert all_damage(scrub(tmp_path))[0].path == str(path)
        store.writer.mend(0, good[:size])
        assert sums.starts() == closed[1:]
        maker.step()
        assert sums.starts() == closed
        assert all_damage(scrub(tmp_path)) == []

        store.keeper.retain(store.clock.now_ms() + 3_700_000, at_once=True)
        assert sums.starts() == [start for start in closed if start >= store.log.min] != closed


def test_checksums_of_what_a_start_cuts_off_are_dropped(tmp_path):
    """A log that ends inside a file that was closed: what is written there next is other bytes."""
    root = filled(tmp_path)
    scrub(root)
    known = SumsFolder(root, None).starts()  # type: ignore[arg-type]  nothing is written
    for path in (root / "config").glob("metaqTails.json*"):
        path.unlink()  # another broker's
    with open_store(root) as store:
        place = store.log.end
        assert SumsFolder(root, store.disk).starts() == []
        assert place > known[-1]
    assert "checksums made of" in scrub(root).notes[0]
