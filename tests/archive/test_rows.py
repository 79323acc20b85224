"""A message, archived and read back, is the message that a pull brings."""

from __future__ import annotations

import datetime as dt
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.archive.parquet import parquet_writer
from metaq.archive.records import COLUMNS
from metaq.archive.rows import messages_of
from metaq.client.arrow.records import decode
from metaq.client.shared.pulling import _expand
from metaq.errors import StoreCorrupt
from metaq.model import StoredMessage, SysFlag
from metaq.model.message import host_bytes
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.archived_rows import SCHEMA, archived_batch, with_prepared_offsets
from metaq.wire import hot
from metaq.wire.record import encode_record

QUEUE = MessageQueue("orders", "broker-a", 3)
V4, V6 = host_bytes("192.0.2.7", 41000), host_bytes("2001:db8::7", 41000)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


def record(number: int, **changes) -> bytes:
    values = {
        "topic": b"orders", "queue_id": 3, "queue_offset": number, "log_offset": 1000 + number, "flag": 0, "sys_flag": 0,
        "born_ms": 1_700_000_000_123, "born_host": V4, "store_ms": 1_700_000_000_456, "store_host": V4, "reconsume_times": 0,
        "prepared_offset": 0, "body": b"body", "properties": b"UNIQ_KEY\x01AB",
    }  # fmt: skip
    return encode_record(**(values | changes))


def pulled(records: bytes) -> list[StoredMessage]:
    messages = hot.decode_records(records, 0, len(records), StoredMessage, "broker-a", 5, 1 << 40)
    _expand(messages, 1 << 20)
    return messages


def archived(records: bytes) -> pa.Table:
    decoded = with_prepared_offsets(decode(records, QUEUE))
    return pa.Table.from_batches([archived_batch(piece) for piece in decoded.pieces(COLUMNS)], SCHEMA)


def replayed(table: pa.Table) -> list[StoredMessage]:
    return [
        message for batch in table.to_batches() for message in messages_of(batch, StoredMessage, "orders", 5, 1 << 40)
    ]


@st.composite
def any_record(draw) -> dict:
    body, sys_flag = draw(st.binary(max_size=40)), draw(st.sampled_from([0, 0x4, 0x8, 0xC, 0x2]))
    born, store = draw(st.sampled_from([V4, V6])), draw(st.sampled_from([V4, V6]))
    if draw(st.booleans()):
        body, sys_flag = zlib.compress(body), sys_flag | SysFlag.COMPRESSED.value
    sys_flag |= (SysFlag.BORN_HOST_V6.value if born is V6 else 0) | (SysFlag.STORE_HOST_V6.value if store is V6 else 0)
    piece = st.one_of(st.sampled_from([b"", b"A\x01b", b"TAGS\x01t", b"UNIQ_KEY\x01x", b"KEYS\x01k l", b"\x01v", b"n\x01", b"a\x01b\x01c"]),
                      st.binary(max_size=4), st.text(max_size=3).map(lambda text: text.encode("utf-8", "replace")))  # fmt: skip
    return {
        "body": body, "sys_flag": sys_flag, "born_host": born, "store_host": store, "born_ms": draw(INT64),
        "store_ms": draw(INT64), "flag": draw(INT32), "reconsume_times": draw(INT32), "prepared_offset": draw(INT64),
        "log_offset": draw(st.integers(0, (1 << 63) - 1)), "properties": b"\x02".join(draw(st.lists(piece, max_size=5))),
    }  # fmt: skip


@given(st.lists(any_record(), max_size=6))
def test_whatever_is_archived_comes_back_whole(rows):
    """Every field, of texts that are no UTF-8 and pairs that are none, wild clocks and both kinds of hosts."""
    records = b"".join(record(number, **row) for number, row in enumerate(rows))
    table, messages = archived(records), pulled(records)
    assert replayed(table) == messages
    for start in range(len(rows)):  # A slice of a batch is what a reader makes messages of.
        assert replayed(table.combine_chunks().slice(start, 2)) == messages[start : start + 2]


def test_usual_messages_need_no_column_of_the_archives_own(tmp_path):
    """Property texts that are their pairs, with or without a separator behind them, cost nothing."""
    records = record(0) + record(1, properties=b"A\x01b\x02UNIQ_KEY\x01AB\x02") + record(2, properties=b"")
    table = archived(records)
    assert table["properties_raw"].to_pylist() == [None, b"\x02", None]
    assert table["born_ms"].null_count == table["store_ms"].null_count == 3
    with parquet_writer(tmp_path / "a.parquet", table.schema) as writer:
        writer.write_table(table)
    read = pq.read_table(tmp_path / "a.parquet")
    assert read.schema.names == list(COLUMNS)
    assert replayed(read) == pulled(records)


def test_a_row_is_what_the_format_says():
    """docs/formats/archive.md, column by column."""
    time = dt.datetime(2026, 3, 1, 12, 0, 0, 123_000, dt.UTC)
    sent = record(
        7, sys_flag=0x38, born_host=V6, store_host=V6, born_ms=int(time.timestamp() * 1000),
        store_ms=int(time.timestamp() * 1000), prepared_offset=99, properties=b"TAGS\x01t\x02KEYS\x01k l\x02broken",
    )  # fmt: skip
    (row,) = archived(sent).to_pylist()
    assert row == {
        "broker": "broker-a", "queue_id": 3, "queue_offset": 7,
        "message_id": "20010DB80000000000000000000000070000A028" + "00000000000003EF", "tag": "t", "keys": ["k", "l"],
        "body": b"body", "born_time": time, "store_time": time, "properties": [("TAGS", "t"), ("KEYS", "k l")], "flag": 0,
        "reconsume_times": 0, "sys_flag": 0x38, "born_host": "2001:db8::7:41000", "store_host": "2001:db8::7:41000",
        "log_offset": 1007, "prepared_offset": 99, "properties_raw": b"TAGS\x01t\x02KEYS\x01k l\x02broken", "born_ms": None,
        "store_ms": None,
    }  # fmt: skip


@pytest.mark.parametrize("host", [V4, V6])
def test_of_version_1_what_was_stored_comes_back(host):
    """Hosts and places were not stored, except as the id of a message without another."""
    records = record(0, flag=5, reconsume_times=2) + record(
        1, properties=b"TAGS\x01t", store_host=host, sys_flag=0x20 if host is V6 else 0
    )
    one, two = replayed(archived(records).select(list(COLUMNS[:12])))
    first, second = pulled(records)
    assert (one.body, one.flag, one.reconsume_times, one.born_ms, one.store_ms, one.properties, one.message_id) == (
        first.body, first.flag, first.reconsume_times, first.born_ms, first.store_ms, first.properties, "AB",
    )  # fmt: skip
    assert (one.born_host, one.store_host, one.log_offset) == (("0.0.0.0", 0), ("0.0.0.0", 0), 0)
    assert (two.message_id, two.store_host, two.log_offset) == (second.message_id, second.store_host, second.log_offset)


def test_a_host_that_is_none_is_told():
    """Somebody else wrote into the archive."""
    table = archived(record(0)).set_column(13, "born_host", pa.array(["nowhere"]))
    with pytest.raises(StoreCorrupt, match="'nowhere' in an archived row is no host and port"):
        replayed(table)
