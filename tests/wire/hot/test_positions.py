"""Sizes of 1.x frames, read off stored records, and the end of a file of byte positions: native and pure-Python fallback."""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model.message import COMPRESSION_LZ4, SysFlag
from metaq.wire.frame_size import FRAME_BODY_BYTES_MAX, expanded_bytes, frame_bytes
from metaq.wire.record import encode_record
from tests.wire.hot.support import BORN_HOST, BORN_MS, FALLBACK, NATIVE, STORE_HOST, STORE_MS, both, needs_native

BASE = 1 << 20
"""Where the log file of these tests begins."""
COMPRESSED = int(SysFlag.COMPRESSED)
GOLDEN_UNITS = "8000000000000000a488000000000019"
GOLDEN_UNIT_FAR = "d66a010000000019"


def record(offset: int, place: int, body: bytes = b"hello", properties: bytes = b"", sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=b"T", queue_id=3, queue_offset=offset, log_offset=place, flag=0, sys_flag=sys_flag, born_ms=BORN_MS,
        born_host=BORN_HOST, store_ms=STORE_MS, store_host=STORE_HOST, reconsume_times=0, prepared_offset=0, body=body,
        properties=properties,
    )  # fmt: skip


def laid_out(rows: list[tuple[bytes, bytes, int]], first: int = 0) -> tuple[bytes, bytes]:
    """(log file, units) of messages of these (body, properties, sys flag)."""
    data, units = b"", b""
    for row, (body, properties, sys_flag) in enumerate(rows):
        place = BASE + len(data)
        one = record(first + row, place, body, properties, sys_flag)
        units += struct.pack(">qiq", place, len(one), 0)
        data += one
    return data, units


def sizes(hot: Any, data: bytes, units: bytes, expanded: Any = expanded_bytes, first: int = 0) -> tuple[list[int], int]:
    """The sizes of the rows that were done, and why it stopped."""
    count = len(units) // 20
    found = array("i", bytes(4 * count))
    row, why = hot.frame_sizes(data, BASE, units, 0, count, b"T", 3, first, found, expanded)
    return list(found[:row]), why


@both
@pytest.mark.parametrize(
    ("properties", "block"),
    [
        (b"", 0),
        (b"TAGS\x01a", 5),
        (b"KEYS\x01k\x02TAGS\x01red\x02WAIT\x01true", 7),
        (b"TAGS\x01\x02KEYS\x01k", 0),
        (b"TAGS\x01one\x02TAGS\x01twenty\x02", 10),
        (b"XTAGS\x01a", 0),
        (b"TAGS\x01a\x02METAQ_ATTRIBUTE\x01a || b", 10),
        (b"METAQ_ATTRIBUTE\x01a || b\x02TAGS\x01a", 10),
        (b"METAQ_ATTRIBUTE\x01\x02TAGS\x01a", 5),
        (b"TAGS\x01a\x02METAQ_BLOCK\x011", 0),
        (b"METAQ_BLOCK\x01\x02TAGS\x01a", 5),
        (b"TAGS\x01\xc3\xa4", 6),
    ],
)
def test_a_frame_has_a_block_for_an_attribute_or_a_tag_unless_it_is_in_the_body(hot, properties, block):
    """20 bytes of header, 4 and the attribute if there is one, the body."""
    assert sizes(hot, *laid_out([(b"hello", properties, 0)])) == ([20 + block + 5], hot.SIZES_END)


@both
def test_a_compressed_body_counts_as_it_is_handed_out(hot):
    """Expanded; as it is stored if it is no compressed body, though its checksum is right."""
    rows = [(zlib.compress(bytes(10_000)), b"TAGS\x01a", COMPRESSED), (b"no zlib", b"", COMPRESSED), (b"plain", b"", 0)]
    assert sizes(hot, *laid_out(rows)) == ([20 + 5 + 10_000, 20 + 7, 20 + 5], hot.SIZES_END)
    assert sizes(hot, *laid_out(rows), expanded=None) == ([], hot.SIZES_COMPRESSED)


@both
def test_what_a_row_does_not_find_is_damage_and_what_lies_in_another_file_is_elsewhere(hot):
    """Each field of a record that names its place is looked at."""
    rows = [(b"one", b"", 0), (b"two", b"", 0)]
    data, units = laid_out(rows)
    assert sizes(hot, data, units, first=1) == ([], hot.SIZES_DAMAGED)
    size = len(data) // 2
    for place, value in ((4, 0), (12 + 3, 9), (20 + 7, 9), (28 + 7, 9), (0, 9), (size - 3, ord("U"))):
        broken = bytearray(data)
        broken[size + place] = value
        assert sizes(hot, bytes(broken), units) == ([23], hot.SIZES_DAMAGED), place
    assert sizes(hot, data[:size], units) == ([23], hot.SIZES_ELSEWHERE)
    assert sizes(hot, data[:-1], units) == ([23], hot.SIZES_DAMAGED)
    fill = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
    assert sizes(hot, data, fill + units) == ([], hot.SIZES_ELSEWHERE)
    body = zlib.compress(bytes(100))
    data, units = laid_out([(body, b"", COMPRESSED)])
    broken = bytearray(data)
    broken[data.index(body) + 5] ^= 0xFF
    assert sizes(hot, bytes(broken), units) == ([], hot.SIZES_DAMAGED)


@both
def test_rows_outside_the_units_or_the_sizes_are_refused(hot):
    """Nothing is read or written behind a buffer."""
    data, units = laid_out([(b"one", b"", 0)])
    for row, end, room in ((0, 2, 2), (0, 1, 0), (-1, 1, 1), (1, 0, 1)):
        with pytest.raises(ValueError, match="rows"):
            hot.frame_sizes(data, BASE, units, row, end, b"T", 3, 0, bytearray(4 * room), None)


@needs_native
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=60),
            st.lists(
                st.tuples(
                    st.sampled_from([b"TAGS", b"METAQ_ATTRIBUTE", b"METAQ_BLOCK", b"KEYS", b"T", b"M", b""]),
                    st.binary(max_size=9).map(lambda text: text.replace(b"\x02", b"")),
                ),
                max_size=5,
            ).map(lambda pairs: b"\x02".join(name + b"\x01" + value for name, value in pairs)),
            st.sampled_from([0, COMPRESSED]),
        ),
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
)
def test_native_and_fallback_measure_the_same(rows, damage):
    """Whatever the messages, and whatever has happened to the bytes."""
    data, units = laid_out(rows)
    hurt = bytearray(data)
    for place, value in damage:
        if hurt:
            hurt[place % len(hurt)] = value
    assert sizes(NATIVE, bytes(hurt), units) == sizes(FALLBACK, bytes(hurt), units)


@both
def test_the_tail_writes_the_unit_of_the_message_to_come(hot):
    """As far as there is room; each unit with the bit that says that it is known."""
    tail, file = hot.PositionTail(), bytearray(8 * 4)
    assert (tail.room(), tail.put(1)) == (0, False)
    tail.start_at(101, 5_000_000_000)
    tail.attach(file, 100, 4)
    assert (tail.room(), tail.put(25), tail.put(30), tail.put(1), tail.room()) == (2, True, True, False, 0)
    assert (tail.next_offset, tail.next_position) == (103, 5_000_000_055)
    assert bytes(file[:16]) == bytes(16)
    assert [hot.position_of(file[place : place + 8], 100 + place // 8) for place in (0, 8, 16, 24)] == [
        -1, -1, 5_000_000_025, 5_000_000_055,
    ]  # fmt: skip
    tail.detach()
    assert (tail.room(), tail.next_offset) == (0, 103)
    for first, units in ((-1, 1), (0, 5)):
        with pytest.raises(ValueError, match="units from"):
            tail.attach(file, first, units)


@both
def test_golden_units(hot):
    """The first bit, a check of fifteen, the position: of messages at 0, 25 and 2^40 + 25."""
    assert hot.position_units(array("i", [25]), 0, 0) == (bytes.fromhex(GOLDEN_UNITS), 25)
    assert hot.position_of(bytes.fromhex(GOLDEN_UNITS)[:8], 0) == 0
    units, end = hot.position_units(array("i", []), 1_000_000, (1 << 40) + 25)
    assert (units.hex(), end) == (GOLDEN_UNIT_FAR, (1 << 40) + 25)


@both
def test_a_unit_that_is_damaged_or_of_another_place_says_nothing(hot):
    """Nor does one that nobody has written, or half of one."""
    units, _ = hot.position_units(array("i", [25, 30, 70_000]), 1_000, 5_000_000_000)
    for row in range(4):
        unit = units[8 * row : 8 * row + 8]
        assert hot.position_of(unit, 1_000 + row) == (5_000_000_000, 5_000_000_025, 5_000_000_055, 5_000_070_055)[row]
        assert hot.position_of(unit[:7], 1_000 + row) == hot.position_of(bytes(8), 1_000 + row) == -1
        flips = [int.from_bytes(unit, "big") ^ 1 << bit for bit in range(64)]
        assert sum(hot.position_of(flip.to_bytes(8, "big"), 1_000 + row) >= 0 for flip in flips) <= 1
        assert sum(hot.position_of(unit, other) >= 0 for other in range(1_000)) <= 2


@needs_native
@given(
    st.lists(st.integers(20, 1 << 30), max_size=20),
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 46),
    st.binary(max_size=9),
)
def test_native_and_fallback_write_the_same_units(counts, offset, position, unit):
    """And read the same of any bytes."""
    found = NATIVE.position_units(array("i", counts), offset, position)
    assert found == FALLBACK.position_units(array("i", counts), offset, position)
    assert [FALLBACK.position_of(found[0][8 * row : 8 * row + 8], offset + row) for row in range(len(counts) + 1)] == [
        position + sum(counts[:row]) for row in range(len(counts) + 1)
    ]
    assert NATIVE.position_of(unit, offset) == FALLBACK.position_of(unit, offset)


@both
def test_a_position_is_found_among_units(hot):
    """The last one at or below it; of messages without a size, which are lost, the last."""
    units, _ = hot.position_units(array("i", [25, 30, 0, 0, 40]), 7, 1_000)
    found = {
        wanted: hot.find_position(units, 7, wanted)
        for wanted in (999, 1_000, 1_024, 1_025, 1_055, 1_094, 1_095, 1 << 50)
    }
    assert found == {
        999: (-1, -1), 1_000: (0, 1_000), 1_024: (0, 1_000), 1_025: (1, 1_025), 1_055: (4, 1_055), 1_094: (4, 1_055),
        1_095: (5, 1_095), 1 << 50: (5, 1_095),
    }  # fmt: skip
    assert hot.find_position(b"", 7, 5) == (-1, -1)
    row, offset = hot.find_position(units[:16] + bytes(8) + units[24:], 7, 1_030)
    assert (row, offset) == (-1, 9)


@needs_native
@given(st.lists(st.integers(0, 90), max_size=60), st.integers(-10, 6_000), st.none() | st.integers(0, 500))
def test_native_and_fallback_find_the_same_position(counts, wanted, hurt):
    """Also among damaged units."""
    units = bytearray(NATIVE.position_units(array("i", counts), 3, 100)[0])
    if hurt is not None:
        units[hurt % len(units)] ^= 0x55
    assert NATIVE.find_position(units, 3, wanted) == FALLBACK.find_position(units, 3, wanted)


def test_one_record_has_a_frame_of_that_size():
    """And what is none has none."""
    one = record(7, 4711, b"hello", b"TAGS\x01abc")
    assert frame_bytes(one) == 20 + 7 + 5
    with pytest.raises(ValueError, match="no whole record"):
        frame_bytes(one[:-1])


@given(st.binary(max_size=5000).map(lambda body: body * 7))
def test_an_inflated_body_is_counted_as_it_would_be_read(body):
    """In steps, without the memory for all of it."""
    assert expanded_bytes(zlib.compress(body), COMPRESSED) == len(body)
    assert expanded_bytes(zlib.compress(body)[:-1], COMPRESSED) == -1
    assert expanded_bytes(zlib.compress(body) + b"more", COMPRESSED) == len(body)


def test_a_body_that_expands_to_more_than_the_limit_counts_as_it_is_stored():
    """A few kilobytes can expand to gigabytes."""
    assert expanded_bytes(zlib.compress(bytes(FRAME_BODY_BYTES_MAX), 1), COMPRESSED) == FRAME_BODY_BYTES_MAX
    assert expanded_bytes(zlib.compress(bytes(FRAME_BODY_BYTES_MAX + 1), 1), COMPRESSED) == -1
    assert expanded_bytes(b"", COMPRESSED) == -1


def test_what_cannot_be_expanded_for_want_of_a_library_is_not_counted_wrong(monkeypatch):
    """A guess would move every position behind it, once the library is there."""
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(ConfigError, match="lz4"):
        expanded_bytes(b"x", COMPRESSED | COMPRESSION_LZ4)
