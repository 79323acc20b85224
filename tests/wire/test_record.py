"""The readable codec of records, batches and ids, against captured bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest, LocalProtocolError, RemoteProtocolError
from metaq.wire.record import (
    decode_batch,
    decode_record,
    encode_batch,
    encode_record,
    offset_id,
    parse_offset_id,
    tags_code,
)
from tests.wire.hot.support import BORN_HOST, BORN_MS, GOLDEN_RECORD, STORE_HOST, STORE_MS, UNIQUE_ID

GOLDEN_ENTRY = bytes.fromhex(
    "0000005d000000000000000000000000000000026d310045"
    "4b45595301623102554e49515f4b455901374630303030303132384535354646443242323736373646343938313030303202574149540174"
    "72756502544147530154616741"
)
"""Appendix A.2: the first entry of a captured batch."""


def fields(**changes):
    return {
        "topic": b"TopicA", "queue_id": 1, "queue_offset": 0, "log_offset": 0, "flag": 0, "sys_flag": 0,
        "born_ms": BORN_MS, "born_host": BORN_HOST, "store_ms": STORE_MS, "store_host": STORE_HOST,
        "reconsume_times": 0, "prepared_offset": 0, "body": b"hello", "properties": GOLDEN_RECORD[-89:], **changes,
    }  # fmt: skip


def test_golden_record_is_decoded():
    """The captured record gives the values that its producer sent."""
    message = decode_record(b"before" + GOLDEN_RECORD + b"after", 6)
    assert (message.topic, message.queue_id, message.body, message.tag, message.keys) == (
        "TopicA",
        1,
        b"hello",
        "TagA",
        ("k1", "k2"),
    )
    assert (message.born_ms, message.store_ms, message.message_id) == (BORN_MS, STORE_MS, UNIQUE_ID)
    assert (message.born_host, message.store_host) == (("127.0.0.1", 56910), ("127.0.0.1", 10911))
    assert message.offset_id == "7F00000100002A9F0000000000000000"


def test_golden_record_is_encoded():
    """The same values give the captured bytes."""
    assert encode_record(**fields()) == GOLDEN_RECORD


def test_ipv6_hosts():
    """A host of 20 bytes sets its flag bit and comes back."""
    host = bytes(range(16)) + (10911).to_bytes(4, "big")
    record = encode_record(**fields(born_host=host, store_host=host))
    message = decode_record(record)
    assert len(record) == len(GOLDEN_RECORD) + 24
    assert (message.sys_flag, message.born_host_raw, message.store_host_raw) == (0x30, host, host)


@pytest.mark.parametrize(
    "changes",
    [{"topic": b""}, {"topic": b"t" * 128}, {"properties": bytes(32768)}, {"queue_id": 1 << 31}, {"born_ms": 1 << 63},
     {"born_host": b"1234"}],
)  # fmt: skip
def test_what_a_record_has_no_room_for(changes):
    """A value that does not fit its field is refused before a byte is made."""
    with pytest.raises(LocalProtocolError):
        encode_record(**fields(**changes))


@pytest.mark.parametrize("at", [0, 3, 4, 7, 8, 39, 84, 88, 93, 101])
def test_a_broken_record_is_refused(at):
    """A flipped bit in a length, the magic, the checksum or the body is found."""
    broken = bytearray(GOLDEN_RECORD)
    broken[at] ^= 0x10
    with pytest.raises(RemoteProtocolError, match="no record at byte 0"):
        decode_record(broken)


@pytest.mark.parametrize("stop", [0, 4, 90, 190])
def test_a_record_cut_off_is_refused(stop):
    """A record that ends early is no record."""
    with pytest.raises(RemoteProtocolError):
        decode_record(GOLDEN_RECORD[:stop])


def test_golden_batch():
    """A captured batch entry is read and written."""
    properties = f"KEYS\x01b1\x02UNIQ_KEY\x01{UNIQUE_ID[:-8]}98100002\x02WAIT\x01true\x02TAGS\x01TagA".encode()
    assert decode_batch(GOLDEN_ENTRY)[0][:2] == (0, b"m1")
    assert len(decode_batch(GOLDEN_ENTRY)[0][2]) == len(properties) == 69
    assert encode_batch(decode_batch(GOLDEN_ENTRY * 2)) == GOLDEN_ENTRY * 2


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)), min_size=1)
)
def test_batches_come_back(entries):
    """Any entries survive the batch body."""
    assert decode_batch(encode_batch(entries)) == entries


@pytest.mark.parametrize(
    "body", [b"", b"x", GOLDEN_ENTRY[:-1], GOLDEN_ENTRY + b"\0", bytes(22), b"\0\0\0\x16" + b"\xff" * 18,
             GOLDEN_ENTRY[:16] + b"\x7f\xff\xff\xff" + GOLDEN_ENTRY[20:], GOLDEN_ENTRY[:22] + b"\xff\xff" + GOLDEN_ENTRY[24:]],
)  # fmt: skip
def test_a_broken_batch_is_refused(body):
    """Sizes that overrun or do not add up are the sender's error."""
    with pytest.raises(BadRequest):
        decode_batch(body)


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        (None, 0),
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TagD", 0x27A80A),
        ("TagT", 0x27A81A),
        ("polygenelubricants", -2147483648),
    ],
)
def test_tags_code(tag, code):
    """Golden hashes of captured consume queues (A.3)."""
    assert tags_code(tag) == code


def test_offset_id():
    """The id of offset 800 on 127.0.0.1:10911, both ways, and for IPv6."""
    assert offset_id(STORE_HOST, 800) == "7F00000100002A9F0000000000000320"
    assert parse_offset_id("7f00000100002a9f0000000000000320") == ("127.0.0.1", 10911, 800)
    long_id = offset_id(bytes(15) + b"\1" + (10911).to_bytes(4, "big"), 7)
    assert (len(long_id), parse_offset_id(long_id)) == (56, ("::1", 10911, 7))


@pytest.mark.parametrize("text", ["", "7F", "zz" * 16, "0" * 33, "0" * 34, "é" * 16])
def test_what_is_no_offset_id(text):
    """Other text is refused."""
    with pytest.raises(BadRequest, match="is no offset id"):
        parse_offset_id(text)
