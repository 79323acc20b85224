"""Stored bytes to heads, messages and columns."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.errors import RemoteProtocolError
from metaq.model import StoredMessage
from metaq.wire.record import decode_record, encode_record
from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_HOST,
    BORN_MS,
    FALLBACK,
    GOLDEN_RECORD,
    NATIVE,
    STORE_HOST,
    STORE_MS,
    both,
    needs_native,
)


def record(offset=0, **changes):
    fields = {
        "topic": b"TopicA", "queue_id": 1, "queue_offset": 5, "log_offset": offset, "flag": 0, "sys_flag": 0,
        "born_ms": BORN_MS, "born_host": BORN_HOST, "store_ms": STORE_MS, "store_host": STORE_HOST,
        "reconsume_times": 0, "prepared_offset": 0, "body": b"hello", "properties": GOLDEN_RECORD[-89:], **changes,
    }  # fmt: skip
    return encode_record(**fields)


def run_of(*changes, base=0):
    data = b""
    for change in changes:
        data += record(base + len(data), **change)
    return data


HEAD_FIELDS = (
    "log_offset", "size", "topic", "queue_id", "queue_offset", "sys_flag", "store_ms", "prepared_offset", "tags",
    "delay_level", "unique_id", "keys",
)  # fmt: skip


def heads(hot, data, start=0, end=None, base=0, limit=100, check_crc=True):
    found, at, why = hot.scan_records(data, start, len(data) if end is None else end, base, limit, check_crc)
    return [tuple(getattr(head, name) for name in HEAD_FIELDS) for head in found], at, why


@both
def test_scan_golden(hot):
    """The captured record gives what dispatch needs."""
    assert heads(hot, GOLDEN_RECORD) == (
        [(0, 191, b"TopicA", 1, 0, 0, STORE_MS, 0, b"TagA", 0, b"7F00000128E55FFD2B27676F493F0000", b"k1 k2")],
        191, hot.END_CLEAN,
    )  # fmt: skip


@both
def test_scan_goes_on(hot):
    """A run is scanned from anywhere, up to a limit, and goes on at the place told."""
    data = run_of({}, {"properties": b"DELAY\x013\x02DELAY\x0114"}, {"body": b""}, base=1000)
    size = len(record())
    first, at, why = heads(hot, data, base=1000, limit=2)
    assert ([head[0] for head in first], at, why) == ([1000, 1000 + size], 2 * size - 89 + 16, hot.END_CLEAN)
    assert first[1][9] == 14
    rest, at, why = heads(hot, b"x" + data, 1 + at, base=999)
    assert ([head[0] for head in rest], at, why) == ([1000 + 2 * size - 73], 1 + len(data), hot.END_CLEAN)


@both
@pytest.mark.parametrize(
    ("tail", "end"),
    [(bytes(4), 1), (bytes(100), 1), (bytes(3), 4), (b"\0\0\0\1", 4), (bytes.fromhex("00000010cbd43194"), 2),
     (bytes.fromhex("00000007cbd43194"), 3), (bytes.fromhex("00000010daa320a7"), 3), (bytes.fromhex("0000ffffdaa320a7"), 4),
     (b"garbage bytes", 3), (bytes.fromhex("ffffffffdaa320a7"), 3), (record(0), 3), (record(191)[:-1], 4)],
)  # fmt: skip
def test_scan_ends(hot, tail, end):
    """Each way that a log ends is told apart: untouched area, blank record, broken, cut off."""
    found, at, why = heads(hot, GOLDEN_RECORD + tail)
    assert (len(found), at, why) == (1, len(GOLDEN_RECORD), end)


@both
def test_scan_without_checksums(hot):
    """A changed body is bad with check_crc, and passes without."""
    data = GOLDEN_RECORD.replace(b"hello", b"hullo")
    assert heads(hot, data)[2] == hot.END_BAD
    assert heads(hot, data, check_crc=False)[1:] == (len(data), hot.END_CLEAN)


@both
@settings(max_examples=repeats(60))
@given(
    st.lists(st.binary(max_size=40), max_size=6), st.binary(max_size=30), st.integers(0, 7), st.integers(0, 900),
    st.booleans(), st.integers(-1, 500),
)  # fmt: skip
def test_a_run_of_records_is_as_long_as_a_scan_finds(hot, bodies, tail, limit, until, check_crc, hurt):
    """The same judgement without a value for each record; none of those that begin at `until` or behind."""
    data = bytearray(run_of(*({"body": body} for body in bodies), base=50) + tail)
    if 0 <= hurt < len(data):
        data[hurt] ^= 1
    found, _, _ = heads(hot, data, base=50, limit=limit, check_crc=check_crc)
    wanted = [head for head in found if head[0] - 50 < until]
    rows, stop, outcome = hot.record_run(data, 0, len(data), 50, limit, until, check_crc)
    assert (rows, stop) == (len(wanted), sum(head[1] for head in wanted))
    bounded = rows == limit or stop >= until or stop == len(data)
    assert outcome == (hot.END_CLEAN if bounded else heads(hot, data, stop, base=50, check_crc=check_crc)[2])


@both
def test_a_run_outside_its_buffer_is_refused(hot):
    for start, end in ((-1, 5), (6, 5), (0, 400)):
        with pytest.raises(ValueError, match="run of records in"):
            hot.record_run(GOLDEN_RECORD, start, end, 0, 9, 9, True)


@both
@pytest.mark.parametrize(
    "text", [b"DELAY\x01x", b"DELAY\x01-1", b"DELAY\x01" + b"9" * 30, b"DELAYS\x013", b"", b"\x02\x01", b"DELAY"]
)
def test_a_delay_that_is_none(hot, text):
    """A level that is no small number is no level."""
    assert heads(hot, record(properties=text))[0][0][9] == 0


class Mine(StoredMessage):
    """As a consumer's own class: with slots of its own."""

    __slots__ = ("done",)


@both
@pytest.mark.parametrize("cls", [StoredMessage, Mine])
def test_decode_records(hot, cls):
    """Every slot is filled as the readable codec fills it; the shared ones come from the caller."""
    changes = (
        {},
        {"topic": "主题".encode(), "sys_flag": 1, "body": b"", "flag": -1},
        {"born_host": bytes(range(20))},
        {"store_host": bytes(20)},
    )
    data = run_of(*changes, base=77)
    found = hot.decode_records(b"xx" + data + b"yy", 2, 2 + len(data), cls, "broker-a", 3, 99)
    at = 0
    for message in found:
        expected = decode_record(data, at)
        expected.broker, expected.min_offset, expected.max_offset = "broker-a", 3, 99
        assert type(message) is cls
        assert message == expected
        assert message.properties == expected.properties
        at += int.from_bytes(data[at : at + 4], "big")
    assert len(found) == 4


@both
def test_decoded_messages_are_ordinary(hot):
    """Messages live on without the buffer, can be changed, and are freed with what they hold."""
    import gc
    import sys

    data = bytearray(GOLDEN_RECORD * 1)
    (message,) = hot.decode_records(data, 0, len(data), StoredMessage, "b", 0, 1)
    data[:] = b"gone"
    message.body = b"new"
    assert (message.tag, message.backlog) == ("TagA", 1)
    broker = "broker-" + "x" * 20
    before = sys.getrefcount(broker)
    for _ in range(3):
        hot.decode_records(GOLDEN_RECORD, 0, len(GOLDEN_RECORD), StoredMessage, broker, 0, 1)
    gc.collect()
    assert sys.getrefcount(broker) == before


@both
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("at", [0, 3, 7, 8, 39, 84, 90, 93, 101])
def test_broken_records_are_refused(hot, columns, at):
    """A broken second record is named with its place; nothing is returned."""
    data = bytearray(GOLDEN_RECORD * 2)
    data[191 + at] ^= 0x10
    with pytest.raises(RemoteProtocolError, match="record 1 at byte 191"):
        hot.decode_columns(data, 0, 382) if columns else hot.decode_records(data, 0, 382, StoredMessage, "", 0, 0)


@both
def test_bounds_of_decoding(hot):
    """Ranges outside the buffer and classes that are no message are refused."""
    for start, end in ((0, 192), (-1, 5), (9, 8)):
        with pytest.raises(ValueError, match=r"(of|in) a buffer"):
            hot.decode_records(GOLDEN_RECORD, start, end, StoredMessage, "", 0, 0)
        with pytest.raises(ValueError, match=r"(of|in) a buffer"):
            hot.decode_columns(GOLDEN_RECORD, start, end)
        with pytest.raises(ValueError, match=r"(of|in) a buffer"):
            hot.scan_records(GOLDEN_RECORD, start, end, 0, 9, True)
    with pytest.raises(TypeError):
        hot.decode_records(GOLDEN_RECORD, 0, 191, dict, "", 0, 0)


def text_of(view, data):
    (size,) = struct.unpack_from("=i", view)
    if size <= 12:
        return view[4 : 4 + size]
    prefix, buffer, at = struct.unpack_from("=4sii", view, 4)
    assert (buffer, prefix) == (0, data[at : at + 4])
    return data[at : at + size]


@both
def test_decode_columns(hot):
    """Columns hold the fields of the rows; views lead into the data, short texts lie in the view itself."""
    run = run_of(
        {"flag": -3, "reconsume_times": 2},
        {"body": b"x" * 40, "properties": b"", "sys_flag": 0x301},
        {"topic": b"t" * 20},
    )
    data = b"head" + run + b"tail"
    got = hot.decode_columns(data, 4, 4 + len(run))
    assert (got["rows"], got["compressed"]) == (3, (1,))
    for name, code, values in (
        ("queue_id", "i", [1, 1, 1]), ("queue_offset", "q", [5, 5, 5]), ("log_offset", "q", [0, 191, 328]),
        ("flag", "i", [-3, 0, 0]), ("sys_flag", "i", [0, 0x301, 0]), ("born_ms", "q", [BORN_MS] * 3),
        ("store_ms", "q", [STORE_MS] * 3), ("reconsume_times", "i", [2, 0, 0]), ("size", "i", [191, 137, 205]),
    ):  # fmt: skip
        assert list(struct.unpack(f"={len(values)}{code}", got[name])) == values, name
    for name, texts in (
        ("body", [b"hello", b"x" * 40, b"hello"]), ("topic", [b"TopicA", b"TopicA", b"t" * 20]),
        ("tag", [b"TagA", b"", b"TagA"]), ("keys", [b"k1 k2", b"", b"k1 k2"]),
        ("unique_id", [b"7F00000128E55FFD2B27676F493F0000", b"", b"7F00000128E55FFD2B27676F493F0000"]),
        ("properties", [GOLDEN_RECORD[-89:], b"", GOLDEN_RECORD[-89:]]), ("born_host", [BORN_HOST] * 3),
        ("store_host", [STORE_HOST] * 3),
    ):  # fmt: skip
        assert [text_of(got[name][16 * row : 16 * row + 16], data) for row in range(3)] == texts, name
    assert (got["tag_valid"], got["keys_valid"], got["unique_id_valid"]) == (b"\x05", b"\x05", b"\x05")
    assert hot.decode_columns(data, 4, 4)["rows"] == 0


def pairs_of(hot, *texts):
    run = run_of(*({"properties": text} for text in texts))
    return hot.property_pairs(run, hot.decode_columns(run, 0, len(run))["properties"])


def ends(*values):
    return struct.pack(f"={len(values)}i", *values)


@both
def test_property_texts_become_buffers_of_a_map(hot):
    """Name and value of each pair, and of each text whether it is more than its pairs."""
    texts = (b"a\x01bc\x02d\x01e", b"", b"k\x01v\x02", b"\x02k\x01", b"k\x01v\x01w", b"\xff\x01v", "ü\x01é".encode())
    assert pairs_of(hot, *texts) == (
        ends(0, 2, 2, 3, 3, 4, 5, 6),
        ends(0, 1, 2, 3, 4, 5, 7), b"adkk\xff\xc3\xbc",
        ends(0, 2, 3, 4, 7, 8, 10), b"bcevv\x01wv\xc3\xa9",
        bytes([0, 0, 1, 2, 0, 4, 0]),
    )  # fmt: skip
    assert pairs_of(hot) == (ends(0), ends(0), b"", ends(0), b"", b"")


@both
def test_property_views_that_are_not_of_the_data_are_refused(hot):
    for size, at in ((40, 1), (40, -1), (-1, 0), (2**31 - 1, 0)):
        with pytest.raises(ValueError, match="row 1 are not in the data"):
            hot.property_pairs(bytes(40), bytes(16) + struct.pack("=i4sii", size, b"xxxx", 0, at))


@needs_native
@given(
    st.lists(
        st.lists(st.sampled_from([b"\x01", b"\x02", b"k", b"value of some length", b"\xe4"])).map(b"".join), max_size=8
    )
)
def test_property_texts_are_taken_apart_by_both_alike(texts):
    assert pairs_of(NATIVE, *texts) == pairs_of(FALLBACK, *texts)


def double(body, sys_flag):
    assert sys_flag in {1, 0x301}
    return body * 2


def expanded_texts(got, data, count):
    views, texts, _ = got
    found = []
    for row in range(count):
        size, _, buffer, at = struct.unpack_from("=i4sii", views, 16 * row)
        inline = views[16 * row + 4 : 16 * row + 4 + size]
        found.append(inline if size <= 12 else (data, texts)[buffer][at : at + size])
        assert size <= 12 or found[-1][:4] == inline[:4]
    return found


@both
def test_bodies_are_expanded_up_to_a_limit(hot):
    """Those that were compressed, whatever size they get, lie in a buffer of their own; the others stay where they are."""
    run = run_of(
        {"body": b"x" * 40, "sys_flag": 0x301},
        {"body": b"y" * 40},
        {"body": b"short", "sys_flag": 1},
        {"body": b"z" * 7, "sys_flag": 1},
        {"body": b"w" * 50, "sys_flag": 1},
    )
    found = hot.decode_columns(run, 0, len(run))
    ask = (run, found["body"], found["sys_flag"], found["compressed"])
    got = hot.expand_bodies(*ask, 1 << 20, double)
    assert got[2] == 4
    assert expanded_texts(got, run, 5) == [b"x" * 80, b"y" * 40, b"short" * 2, b"z" * 14, b"w" * 100]
    got = hot.expand_bodies(*ask, 100, double)
    assert got[1:] == (b"x" * 80 + b"z" * 14, 3)
    assert expanded_texts(got, run, 5)[:4] == [b"x" * 80, b"y" * 40, b"short" * 2, b"z" * 14]
    assert hot.expand_bodies(*ask, 0, double)[1:] == (b"x" * 80, 1)
    assert hot.expand_bodies(run, found["body"], found["sys_flag"], (), 0, double) == (found["body"], b"", 0)


@both
def test_views_that_are_not_of_the_data_are_refused(hot):
    run = run_of({"body": b"x" * 40, "sys_flag": 1})
    found = hot.decode_columns(run, 0, len(run))
    views, flags = found["body"], found["sys_flag"]
    for row in (1, -1, 1 << 40):
        with pytest.raises(IndexError):
            hot.expand_bodies(run, views, flags, (row,), 100, double)
    with pytest.raises(IndexError):
        hot.expand_bodies(run, views, b"", (0,), 100, double)
    for size, at in ((40, len(run) - 39), (40, -1), (-1, 0), (2**31 - 1, 0), (2**31 - 1, 2**31 - 1)):
        with pytest.raises(ValueError, match="row 0 is not in the data"):
            hot.expand_bodies(run, struct.pack("=i4sii", size, b"xxxx", 0, at), flags, (0,), 100, double)


@needs_native
@given(st.lists(st.tuples(st.binary(max_size=30), st.booleans()), max_size=8), st.integers(0, 200))
def test_bodies_are_expanded_by_both_alike(bodies, limit):
    run = run_of(*({"body": body, "sys_flag": int(packed)} for body, packed in bodies))
    found = NATIVE.decode_columns(run, 0, len(run))
    ask = (run, found["body"], found["sys_flag"], found["compressed"], limit, double)
    assert NATIVE.expand_bodies(*ask) == FALLBACK.expand_bodies(*ask)


texts = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([GOLDEN_RECORD[-89:], b"TAGS\x01a\x02TAGS\x01bb\x02KEYS\x01", b"TAGS\x01\x02KEYS\x01k"]),
)
hosts = st.sampled_from([BORN_HOST, bytes(range(20))])
changes = st.fixed_dictionaries({
    "topic": st.text(min_size=1, max_size=8).map(lambda t: t.encode("utf-8", "replace")), "body": st.binary(max_size=60), "properties": texts, "born_host": hosts,
    "store_host": hosts, "flag": st.integers(-(2**31), 2**31 - 1), "queue_offset": st.integers(-(2**63), 2**63 - 1),
    "sys_flag": st.sampled_from([0, 1, 0x301]), "prepared_offset": st.integers(0, 2**62),
})  # fmt: skip


@needs_native
@settings(max_examples=repeats(200))
@given(
    rows=st.lists(changes, max_size=4),
    flips=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 255)), max_size=2),
    crc=st.booleans(),
)
def test_fallback_and_native_read_alike(rows, flips, crc):
    """Random records, whole or with bytes changed: the same heads, messages and columns, or the same refusal."""
    data = bytearray(run_of(*rows))
    for at, bits in flips:
        if at < len(data):
            data[at] ^= bits
    assert heads(NATIVE, data, check_crc=crc) == heads(FALLBACK, data, check_crc=crc)
    outcomes = []
    for hot in (NATIVE, FALLBACK):
        try:
            columns = hot.decode_columns(data, 0, len(data), crc)
            messages = hot.decode_records(data, 0, len(data), StoredMessage, "b", 1, 2, crc)
            outcomes.append((columns, messages))
        except RemoteProtocolError as error:
            outcomes.append(str(error).split(" is broken")[0])
    assert outcomes[0] == outcomes[1]
