"""Stored records as frames of MetaQ 1.x."""

from __future__ import annotations

import itertools
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.errors import RemoteProtocolError
from metaq.model.metaq1.partition import foreign_id
from metaq.wire.metaq1.frame import frame, frames, with_attribute
from metaq.wire.record import encode_record
from tests.effort import repeats
from tests.wire.hot.support import BORN_HOST, BORN_MS, FALLBACK, NATIVE, STORE_HOST, STORE_MS, both, needs_native


def record(offset=0, **changes):
    fields = {
        "topic": b"test", "queue_id": 0, "queue_offset": 5, "log_offset": offset, "flag": 0, "sys_flag": 0,
        "born_ms": BORN_MS, "born_host": BORN_HOST, "store_ms": STORE_MS, "store_host": STORE_HOST,
        "reconsume_times": 0, "prepared_offset": 0, "body": b"hello", "properties": b"METAQ_ID\x0177", **changes,
    }  # fmt: skip
    return encode_record(**fields)


def inflate(body, _sys_flag):
    return zlib.decompress(body)


def refuse(_body, _sys_flag):
    raise AssertionError("nothing is compressed")


@both
def test_a_frame_of_a_message_that_a_client_of_1_x_put_is_the_one_it_would_have_stored(hot):
    """The body `hello` of the recorded transcripts: its checksum is 907060870."""
    assert hot.frames(record(), 0, 0, 100, refuse)[0] == bytes.fromhex(
        "00000005 3610a686 000000000000004d 00000000 68656c6c6f"
    )


@both
@pytest.mark.parametrize(
    ("properties", "flag", "wanted"),
    [
        (b"TAGS\x01a\x02METAQ_ID\x01-3", 8, frame(-3, 9, with_attribute("a", b"hello"))),
        (b"TAGS\x01a\x02METAQ_ATTRIBUTE\x01 b \x02METAQ_ID\x013", 9, frame(3, 9, with_attribute(" b ", b"hello"))),
        (b"METAQ_BLOCK\x011\x02TAGS\x01a\x02METAQ_ID\x013", 0, frame(3, 1, b"hello")),
        (b"", 1, frame(foreign_id(9, 1000), 0, b"hello")),
        (b"TAGS\x01x\x02TAGS\x01y", -2, frame(foreign_id(9, 1000), -1, with_attribute("y", b"hello"))),
        (b"METAQ_ID\x0107\x02METAQ_IDX\x011\x02TAGSX\x01a", 0, frame(foreign_id(9, 1000), 0, b"hello")),
        (b"METAQ_ID\x019223372036854775808", 0, frame(foreign_id(9, 1000), 0, b"hello")),
        (b"METAQ_ID\x01-9223372036854775808", 0, frame(-(1 << 63), 0, b"hello")),
    ],
)
def test_flag_attribute_and_id_come_from_the_properties(hot, properties, flag, wanted):
    """Of a property given twice the last counts; a message of another client gets an id that says where it lies."""
    assert hot.frames(record(1000, properties=properties, flag=flag), 9, 0, 100, refuse) == (wanted, 1, len(wanted))


@both
def test_compressed_bodies_are_handed_out_expanded(hot):
    data = record(body=zlib.compress(bytes(1000)), sys_flag=1) + record(
        body=zlib.compress(b"x"), sys_flag=1, properties=b"TAGS\x01t"
    )
    found = list(frames(hot.frames(data, 0, 0, 5000, inflate)[0]))
    assert [one.body for one in found] == [bytes(1000), with_attribute("t", b"x")]


@both
def test_a_broken_record_is_told_and_its_bytes_are_not_read(hot):
    good = record()
    with pytest.raises(RemoteProtocolError, match="record 1 at byte"):
        hot.frames(good + good[:-1], 0, 0, 100, refuse)
    with pytest.raises(ValueError, match="behind"):
        hot.frames(good, 0, -1, 100, refuse)


names = st.sampled_from([b"TAGS", b"METAQ_ID", b"METAQ_ATTRIBUTE", b"METAQ_BLOCK", b"KEYS", b"METAQ_I", b""])
values = st.one_of(st.binary(max_size=30), st.integers(-(1 << 64), 1 << 64).map(lambda n: str(n).encode()))
texts = st.lists(st.tuples(names, values), max_size=5).map(
    lambda pairs: b"\x02".join(a + b"\x01" + b for a, b in pairs)
)


@needs_native
@settings(max_examples=repeats(200))
@given(
    st.lists(st.tuples(texts, st.binary(max_size=300), st.integers(-(1 << 31), (1 << 31) - 1), st.booleans()), max_size=6),
    st.integers(0, 1023), st.integers(0, 2000), st.integers(0, 2000),
)  # fmt: skip
def test_native_and_fallback_cut_the_same_bytes_out_of_the_same_frames(messages, broker_id, skip, size):
    """Wherever the cut begins and ends, also in the middle of a frame, it is a piece of all of them."""
    data = b""
    for properties, body, flag, packed in messages:
        body = zlib.compress(body) if packed else body
        data += record(len(data), properties=properties, body=body, flag=flag, sys_flag=int(packed))
    whole, count, size_of_all = FALLBACK.frames(data, broker_id, 0, 10_000_000, inflate)
    assert (count, size_of_all) == (len(messages), len(whole))
    assert NATIVE.frames(data, broker_id, 0, 100_000, inflate) == (whole, count, len(whole))
    assert len(list(frames(whole))) == len(messages)
    found = FALLBACK.frames(data, broker_id, skip, size, inflate)
    ends = (
        [end for end in itertools.accumulate(one.size for one in frames(whole)) if end <= skip + size] if size else []
    )
    assert found == (whole[skip : skip + size], len(ends), ends[-1] if ends else 0)
    assert NATIVE.frames(data, broker_id, skip, size, inflate) == found
