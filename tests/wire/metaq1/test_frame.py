"""Frames of MetaQ 1.x, as the original stores and sends them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.wire.metaq1.frame import Frame, checksum, frame, frames, split_attribute, with_attribute

GOLDEN = bytes.fromhex("00000005 3610a686 b41a7ec0a6001000 00000000") + b"hello"


def test_a_recorded_frame_is_written_and_read() -> None:
    """The checksum of `hello` is the one that the Java client sends with it."""
    assert checksum(b"hello") == 907060870
    wanted = Frame(-5468919431604203520, 0, b"hello")
    assert frame(*wanted) == GOLDEN
    assert list(frames(GOLDEN * 2 + GOLDEN[:24])) == [wanted, wanted]
    assert list(frames(b"junk" + GOLDEN, 4)) == [wanted]
    assert wanted.size == 25


def test_an_attribute_stands_before_the_payload() -> None:
    """Its checksum is the recorded one of the transcript."""
    body = with_attribute("attr1", b"hi")
    assert body == b"\x00\x00\x00\x05attr1hi"
    assert checksum(body) == 1871851234
    assert split_attribute(1, body) == (b"attr1", b"hi")
    assert split_attribute(2, body) == (None, body)
    assert split_attribute(3, with_attribute("", b"")) == (b"", b"")


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\5attr", b"\xff\xff\xff\xffabc", b"\x7f\xff\xff\xffabc"]
)
def test_a_body_without_the_promised_attribute_is_told(body) -> None:
    """Too short, negative, longer than the body."""
    with pytest.raises(BadRequest, match=f"a body of {len(body)} bytes does not hold the attribute that its flag 1"):
        split_attribute(1, body)


def test_a_damaged_frame_is_told_with_its_place() -> None:
    """A body that does not fit its checksum, and a negative length."""
    with pytest.raises(BadRequest, match="the frame at byte 25, of 25 bytes, has checksum 907060870 instead of"):
        list(frames(GOLDEN + GOLDEN[:-1] + b"O"))
    with pytest.raises(BadRequest, match="the frame at byte 0 says that its body has -1 bytes"):
        list(frames(b"\xff" * 20))


@given(
    st.lists(
        st.builds(Frame, st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50))
    ),
    st.integers(0, 19),
)
def test_frames_are_read_back(wanted, cut) -> None:
    """And of one that is cut off nothing."""
    data = b"".join(frame(*each) for each in wanted)
    assert list(frames(data + bytes(cut))) == wanted


@given(st.text(), st.binary())
def test_attributes_are_read_back(attribute, payload) -> None:
    """Whatever stands in them."""
    assert split_attribute(1, with_attribute(attribute, payload)) == (attribute.encode(), payload)
