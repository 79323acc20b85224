"""The replication stream: the bytes that a RocketMQ pair exchanged, and what no peer of it sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import RemoteProtocolError
from metaq.wire.ha import (
    CHUNK_BYTES_MAX,
    Chunk,
    decode_chunks,
    decode_reports,
    decode_ticket,
    encode_acknowledged,
    encode_head,
    encode_report,
    encode_ticket,
)


def test_the_bytes_of_a_rocketmq_pair():
    """Observed between a master and a slave of 4.9.7."""
    assert encode_report(0).hex() == "0000000000000000"
    assert encode_report(0x23D9).hex() == "00000000000023d9"
    assert encode_head(0, 0).hex() == "000000000000000000000000"
    assert encode_head(0, 0x23D9).hex() == "0000000000000000000023d9"
    blank = bytes.fromhex("0000045bcbd43194") + bytes(0x45B - 8)
    stream = bytes.fromhex("000000000000fba50000045b") + blank + bytes.fromhex("0000000000010000000023d9") + bytes(9177)
    chunks, taken, needed, _ = decode_chunks(memoryview(stream))
    assert [(chunk.log_offset, len(chunk.data)) for chunk in chunks] == [(0xFBA5, 1115), (0x10000, 9177)]
    assert (bytes(chunks[0].data), taken, needed) == (blank, len(stream), 0)
    assert decode_reports(memoryview(bytes.fromhex("00000000000023d9"))) == (9177, 8)


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=300)), max_size=20), st.data())
def test_chunks_come_as_they_went_however_the_bytes_are_cut(sent, data):
    """Each byte is taken once, and the size of an unfinished chunk is told as soon as its head is there."""
    stream = b"".join(encode_head(place, len(part)) + part for place, part in sent)
    found, rest = [], b""
    while stream or rest:
        step = data.draw(st.integers(1, max(1, len(stream))))
        rest, stream = rest + stream[:step], stream[step:]
        chunks, taken, needed, _ = decode_chunks(memoryview(rest))
        found += [(chunk.log_offset, bytes(chunk.data)) for chunk in chunks]
        rest = rest[taken:]
        assert needed == 0 or needed > len(rest)
        assert stream or not rest
    assert found == sent


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=20), st.integers(0, 7))
def test_of_several_reports_the_newest_counts(sent, more):
    """What is not a whole one stays."""
    stream = b"".join(map(encode_report, sent)) + bytes(more)
    assert decode_reports(memoryview(stream)) == (sent[-1] if sent else None, 8 * len(sent))


@pytest.mark.parametrize("head", [(0, -1), (-1, 10), (0, CHUNK_BYTES_MAX + 1), (1 << 62, (1 << 31) - 1)])
def test_a_head_that_no_master_sends_ends_the_stream(head):
    """RocketMQ's slave moves the end of its log back by one for a size of -1, and waits for ever for more than 4 MiB."""
    with pytest.raises(RemoteProtocolError, match="the head of a chunk says"):
        decode_chunks(memoryview(encode_head(5, 0) + encode_head(*head)))
    assert decode_chunks(memoryview(encode_head(5, CHUNK_BYTES_MAX)))[2] == 12 + CHUNK_BYTES_MAX
    assert decode_chunks(memoryview(encode_head(5, 0))) == ([Chunk(5, memoryview(b""))], 12, 0, -1)


def test_a_follower_shows_its_ticket_and_is_told_what_was_acknowledged():
    """Both are numbers that no RocketMQ sends; a master that was shown no ticket may not tell anything of the kind."""
    assert encode_ticket(0x123456789ABCDEF).hex() == "fedcba9876543211"
    assert decode_ticket(memoryview(encode_ticket(77) + encode_report(5))) == 77
    assert [decode_ticket(memoryview(encode_report(end))) for end in (0, 5)] == [0, 0]
    assert decode_ticket(memoryview(encode_ticket(77)[:7])) == 0
    assert encode_acknowledged(0x23D9).hex() == "ffffffffffffdc2600000000"
    stream = memoryview(encode_acknowledged(7) + encode_head(5, 2) + b"ab" + encode_acknowledged(0x23D9))
    chunks, taken, needed, acknowledged = decode_chunks(stream, told=True)
    assert ([bytes(chunk.data) for chunk in chunks], taken, needed, acknowledged) == ([b"ab"], len(stream), 0, 0x23D9)
    with pytest.raises(RemoteProtocolError):
        decode_chunks(stream)
