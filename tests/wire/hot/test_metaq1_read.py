"""Frames of MetaQ 1.x, as its data files have them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.errors import RemoteProtocolError
from metaq.wire.metaq1.frame import frame, with_attribute
from tests.effort import repeats
from tests.wire.hot.support import FALLBACK, NATIVE, both, needs_native

HELLO = bytes.fromhex("000000053610a686") + (77).to_bytes(8, "big") + bytes(4) + b"hello"
"""As the original server writes it."""
TAGGED = frame(-5, 1, with_attribute("paid", b"a body of more than twelve bytes"))


@both
def test_a_run_ends_at_its_bounds_or_where_no_frame_is(hot):
    """At most so many frames, none that begins at `until` or behind it."""
    data = HELLO + TAGGED + HELLO
    whole = len(data)
    assert hot.frame_run(data, 0, whole, 1000, 9, whole, True) == (3, whole, hot.END_CLEAN)
    assert hot.frame_run(data, 0, whole, 1000, 2, whole, True) == (2, whole - 25, hot.END_CLEAN)
    assert hot.frame_run(data, 0, whole, 1000, 9, 25, True) == (1, 25, hot.END_CLEAN)
    assert hot.frame_run(data, 25, whole, 1000, 9, 26, True) == (1, whole - 25, hot.END_CLEAN)
    assert hot.frame_run(data, 0, whole, 4, 9, whole, True) == (0, 0, hot.END_BAD)


@both
@pytest.mark.parametrize(
    ("tail", "end"),
    [(b"x" * 19, 4), (HELLO[:-1], 4), (bytes(20), 1), (b"\xff" * 30, 3), (HELLO[:-1] + b"!", 3), (b"\0\0\0\1" + bytes(30), 3)],
)  # fmt: skip
def test_each_way_that_a_run_ends_is_told_apart(hot, tail, end):
    """Cut off, untouched, broken."""
    assert hot.frame_run(HELLO + tail, 0, 25 + len(tail), 1000, 9, 999, True) == (1, 25, end)


@both
def test_a_wrong_checksum_passes_where_it_is_not_looked_at(hot):
    data = HELLO[:-1] + b"!"
    assert hot.frame_run(data, 0, 25, 1000, 9, 999, False) == (1, 25, hot.END_CLEAN)


@both
def test_bounds_outside_the_buffer_are_refused(hot):
    for start, end in ((-1, 5), (6, 5), (0, 400)):
        with pytest.raises(ValueError, match="run of frames in"):
            hot.frame_run(HELLO, start, end, 1000, 9, 9, True)
        with pytest.raises(ValueError, match="frames in"):
            hot.frame_columns(HELLO, start, end)


@both
def test_lengths_that_do_not_fit_are_refused(hot):
    for data in (HELLO[:-1], HELLO + b"x", b"\xff" * 30):
        with pytest.raises(RemoteProtocolError, match="at byte"):
            hot.frame_columns(data, 0, len(data))


@both
def test_columns_of_frames(hot):
    """Where the attribute that a flag promises is not there, all is body."""
    data = b"?" + HELLO + TAGGED + frame(9, 1, b"\0\0\0\x09x")
    found = hot.frame_columns(data, 1, len(data))
    assert found["rows"] == 3
    assert [int.from_bytes(found["place"][8 * i : 8 * i + 8], "little") for i in range(3)] == [0, 25, 25 + len(TAGGED)]
    assert found["attribute_valid"] == b"\x02"
    assert found["body"][:9] == b"\5\0\0\0hello"
    assert found["attribute"][16:24] == b"\4\0\0\0paid"


@needs_native
@settings(max_examples=repeats(100))
@given(
    st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 3), st.binary(max_size=40)), max_size=20),
    st.binary(max_size=30),
    st.integers(-1, 900),
)
def test_both_twins_find_the_same(messages, tail, hurt):
    """Whatever is damaged."""
    data = bytearray(b"".join(frame(*message) for message in messages) + tail)
    if 0 <= hurt < len(data):
        data[hurt] ^= 1
    for check_crc in (False, True):
        found = FALLBACK.frame_run(data, 0, len(data), 100, 15, 700, check_crc)
        assert NATIVE.frame_run(data, 0, len(data), 100, 15, 700, check_crc) == found
        assert NATIVE.frame_columns(data, 0, found[1]) == FALLBACK.frame_columns(data, 0, found[1])
