"""Data files of MetaQ 1.x."""

from __future__ import annotations

import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.errors import StoreForeign
from metaq.store.offline.segments import SegmentReader, segment_at, segments_in
from metaq.wire.metaq1.frame import frame
from tests.effort import repeats

HELLO = bytes.fromhex("000000053610a686") + (77).to_bytes(8, "big") + bytes(4) + b"hello"


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(path.name.removesuffix(".zip").removesuffix(".meta") + ".meta", data)
    else:
        path.write_bytes(data)
    return path


def read(path, start=None):
    reader = SegmentReader(segment_at(path), start)
    return [(found.position, found.frame.message_id, found.frame.body) for found in reader], reader.end, reader.why


@pytest.mark.parametrize("ending", [".meta", ".meta.arc", ".arc", ".meta.zip", ".zip"])
def test_frames_of_each_kind_of_file_are_read_with_their_positions(tmp_path, ending):
    """As the original server writes them: the recorded frame of `hello`."""
    path = write(
        tmp_path / "meta-test-3" / f"{100:020d}{ending}", HELLO + frame(-5, 1, b"\0\0\0\1ax") + frame(6, 0, b"")
    )
    segment = segment_at(path)
    assert (segment.topic, segment.partition, segment.start) == ("meta-test", 3, 100)
    assert read(path) == ([(100, 77, b"hello"), (125, -5, b"\0\0\0\1ax"), (151, 6, b"")], 171, "")
    assert read(path, 125) == ([(125, -5, b"\0\0\0\1ax"), (151, 6, b"")], 171, "")


@pytest.mark.parametrize("ending", [".meta", ".meta.zip"])
@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (b"x" * 11, "11 bytes that are no whole frame"),
        (HELLO[:-1], "24 bytes of a longer frame"),
        (HELLO[:-1] + b"!", "whose checksum is"),
        (b"\xff" * 30, "its body has -1 bytes"),
        (b"\x7f" * 30, "its body has 2139062143 bytes"),
        (bytes(4096), "untouched bytes"),
    ],
)
def test_damage_ends_the_file_with_what_it_is(tmp_path, ending, tail, why):
    """The frames before it are read; a length that cannot be takes no memory."""
    path = write(tmp_path / "T-0" / f"{0:020d}{ending}", HELLO + tail)
    frames, end, told = read(path)
    assert (frames, end) == ([(0, 77, b"hello")], 25)
    assert why in told


def test_zip_file_that_is_none_or_holds_more_than_one_entry_is_told(tmp_path):
    """Also one that is cut off, or whose compressed bytes are damaged."""
    path = tmp_path / "T-0" / f"{0:020d}.meta.zip"
    data = write(path, b"".join(frame(n, 0, b"%d" % n * 1000) for n in range(500))).read_bytes()
    for broken in (b"no zip", data[: len(data) // 2]):
        path.write_bytes(broken)
        assert "zip file that cannot be read" in read(path)[2]
    path.write_bytes(data[:200] + b"????" + data[204:])
    assert read(path)[2] != ""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"")
        archive.writestr("b", b"")
    assert "2 entries" in read(path)[2]


def test_segments_of_a_folder_are_found_in_order(tmp_path):
    """By topic, partition and position, whatever the width of the names; other files are passed over."""
    for name in ("T-10/0.meta", "T-2/00000000000000000050.meta.arc", "T-2/7.meta", "a-b-1/3.zip"):
        write(tmp_path / name, HELLO)
    for name in ("T-2/x.meta", "T-2/5.meta.tmp", "transactions/redo.0", "T/5.meta", f"T-2/{1 << 63}.meta"):
        write(tmp_path / name, b"")
    found = [(segment.topic, segment.partition, segment.start) for segment in segments_in(tmp_path)]
    assert found == [("T", 2, 7), ("T", 2, 50), ("T", 10, 0), ("a-b", 1, 3)]
    assert [segment.start for segment in segments_in(tmp_path / "T-2")] == [7, 50]
    assert [segment.start for segment in segments_in(tmp_path / "T-2" / "7.meta")] == [7]
    with pytest.raises(StoreForeign, match="no data files of MetaQ"):
        segments_in(tmp_path / "transactions")


@settings(max_examples=repeats(50))
@given(
    st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=300)), max_size=30),
    st.integers(20, 200),
    st.sampled_from([".meta", ".meta.zip"]),
)
def test_any_frames_come_back_however_they_fall_into_blocks(tmp_path_factory, messages, block, ending):
    """Round trip. Without an id and a body a frame is 20 zeros, which are none."""
    messages = [(number or 1, body) for number, body in messages]
    path = tmp_path_factory.mktemp("s") / "T-0" / f"{9}{ending}"
    write(path, b"".join(frame(number, 0, body) for number, body in messages))
    reader = SegmentReader(segment_at(path), block_bytes=block)
    assert [(found.frame.message_id, found.frame.body) for found in reader] == messages
    assert reader.why == ""
