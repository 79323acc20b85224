"""Records of a pull as Arrow columns."""

from __future__ import annotations

import datetime as dt
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.arrow import records as arrow
from metaq.errors import BadRequest, ConfigError, RemoteProtocolError
from metaq.model import properties as props
from metaq.model.message import BODY_AS_STORED, host_bytes
from metaq.model.queue import MessageQueue
from metaq.wire.record import encode_record

QUEUE = MessageQueue("orders", "broker-a", 3)
ID = "7F00000100002A9F0000000000000320"


def record(
    offset: int = 0, body: bytes = b"hello", *, sys_flag: int = 0, raw: bytes | None = None, **pairs: str
) -> bytes:
    return encode_record(
        topic=b"orders", queue_id=3, queue_offset=offset, log_offset=1000 + offset, flag=7, sys_flag=sys_flag,
        born_ms=1_700_000_000_123, born_host=host_bytes("10.0.0.1", 5000), store_ms=1_700_000_000_456,
        store_host=host_bytes("127.0.0.1", 10911), reconsume_times=2, prepared_offset=0, body=body,
        properties=props.join(pairs).encode() if raw is None else raw,
    )  # fmt: skip


def rows(data: bytes, columns=arrow.LEAN) -> list[dict]:
    return arrow.decode(data, QUEUE, 50).to_batch(columns).to_pylist()


def test_every_column_of_a_record():
    """Each column holds what the record holds; times are UTC."""
    utc = dt.UTC
    assert rows(record(9, TAGS="paid", KEYS="a b", UNIQ_KEY=ID, color="red"), tuple(arrow.TYPES)) == [
        {
            "topic": "orders", "broker": "broker-a", "queue_id": 3, "queue_offset": 9, "message_id": ID,
            "tag": "paid", "keys": ["a", "b"], "body": b"hello",
            "born_time": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, utc),
            "store_time": dt.datetime(2023, 11, 14, 22, 13, 20, 456_000, utc),
            "properties": [("TAGS", "paid"), ("KEYS", "a b"), ("UNIQ_KEY", ID), ("color", "red")],
            "flag": 7, "sys_flag": 0, "reconsume_times": 2, "born_host": "10.0.0.1:5000",
            "store_host": "127.0.0.1:10911", "offset_id": "7F00000100002A9F00000000000003F1", "log_offset": 1009,
            "max_offset": 50, "attribute": None, "metaq1_id": None, "position": None,
        }
    ]  # fmt: skip


def test_the_batch_has_exactly_the_promised_schema():
    """Spark refuses a batch whose types, order or nullability differ, also an empty-looking one."""
    batch = arrow.decode(record(), QUEUE).to_batch(tuple(arrow.TYPES))
    assert batch.schema == arrow.schema_of(tuple(arrow.TYPES))
    batch.validate(full=True)


def test_what_a_client_of_metaq_1_x_has_put_shows_its_attribute_and_id():
    """The attribute is the tag, or a property of its own; a block that could not be read as one is in the body."""
    pairs = [{"TAGS": "a"}, {"METAQ_ATTRIBUTE": "a | b"}, {"METAQ_BLOCK": "1"}, {}]
    data = b"".join(record(i, METAQ_ID=str(70 + i), **more) for i, more in enumerate(pairs))
    data += record(4, TAGS="a") + record(5, METAQ_ID="x") + record(6, METAQ_ID="9" * 19) + record(7, METAQ_ID="-7")
    got = rows(data, ("attribute", "metaq1_id", "position"))
    assert [row["attribute"] for row in got] == ["a", "a | b", None, None, None, None, None, None]
    assert [row["metaq1_id"] for row in got] == [70, 71, 72, 73, None, None, None, -7]
    assert {row["position"] for row in got} == {None}


def test_records_of_a_log_say_their_topic_and_queue_themselves():
    """Who stored them, and how far their queues went on, is not in a log."""
    decoded = arrow.decode_log(record(0, UNIQ_KEY=ID) + record(1))
    (first, second) = decoded.to_batch(("topic", "broker", "queue_id", "queue_offset", "max_offset")).to_pylist()
    assert first == {"topic": "orders", "broker": None, "queue_id": 3, "queue_offset": 0, "max_offset": None}
    assert second["queue_offset"] == 1
    decoded.to_batch(tuple(arrow.TYPES)).validate(full=True)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.booleans(), st.booleans(), st.booleans()), max_size=20)
)
def test_chosen_records_are_the_same_rows_as_without_the_choice(choices):
    """In every column, with tags and without, compressed or not."""
    data = b"".join(
        record(
            i,
            zlib.compress(body) if packed else body,
            sys_flag=int(packed),
            **({"TAGS": "t", "KEYS": "k"} if tagged else {}),
        )
        for i, (body, packed, tagged, _) in enumerate(choices)
    )
    decoded = arrow.decode_log(data)
    mask = np.array([chosen for *_, chosen in choices], np.bool_)
    columns = tuple(arrow.TYPES)
    assert decoded.only(mask).to_batch(columns).to_pylist() == [
        row for row, chosen in zip(decoded.to_batch(columns).to_pylist(), mask, strict=True) if chosen
    ]


def test_a_message_without_an_id_shows_its_offset_id():
    """As in the client: the unique id if there is one, else store host and log offset."""
    got = rows(record(0, UNIQ_KEY=ID) + record(1))
    assert [row["message_id"] for row in got] == [ID, "7F00000100002A9F00000000000003E9"]


def test_keys_are_split_at_blanks_and_never_null():
    """No KEYS, or nothing but blanks, is an empty list."""
    data = record(0) + record(1, KEYS=" ") + record(2, KEYS=" a  b ") + record(3, KEYS="x")
    assert [row["keys"] for row in rows(data)] == [[], [], ["a", "b"], ["x"]]
    assert [row["keys"] for row in rows(record(0) + record(1))] == [[], []]


def test_a_compressed_body_is_inflated_short_or_long():
    """Bodies of any size come out as they were sent, beside uncompressed ones."""
    bodies = [b"tiny", b"x" * 12, b"y" * 13, b"z" * 100_000, b"plain"]
    data = b"".join(record(i, zlib.compress(body), sys_flag=1) for i, body in enumerate(bodies[:4])) + record(
        4, bodies[4]
    )
    assert [row["body"] for row in rows(data)] == bodies


def test_batches_are_cut_where_expanded_bodies_are_large(monkeypatch):
    """A few MB of compressed bodies may be gigabytes: no row is lost at a cut, and none that is not wanted comes in."""
    monkeypatch.setattr(arrow, "EXPANDED_BYTES", 25_000)
    bodies = [bytes([i]) * (1000 * i + 5) for i in range(12)]
    data = b"".join(
        record(i, zlib.compress(body) if i % 4 else body, sys_flag=int(i % 4 > 0)) for i, body in enumerate(bodies)
    )
    decoded = arrow.decode(data, QUEUE)
    batches = list(decoded.to_batches(("queue_offset", "body")))
    assert pa.Table.from_batches(batches).to_pylist() == decoded.to_batch(("queue_offset", "body")).to_pylist()
    assert [batch["queue_offset"].to_pylist() for batch in batches] == [[*range(9)], [9, 10], [11]]
    assert len(list(decoded.to_batches(("queue_offset",)))) == 1
    some = [batch["body"].to_pylist() for batch in decoded.sifted(9).to_batches(("body",))]
    assert some == [bodies[:9], [], []]
    monkeypatch.setattr(arrow, "EXPANDED_BYTES_MAX", 25_000)
    with pytest.raises(BadRequest, match="12 messages are more than 25000 bytes once they are expanded"):
        decoded.to_batch()


def test_a_body_that_cannot_be_decompressed_is_a_row_as_it_is_stored(monkeypatch, caplog):
    """Marked, and logged with its place; the others are as they were sent. A bomb too, before the memory is taken."""
    monkeypatch.setattr(arrow, "INFLATED_BYTES_MAX", 1000)
    bomb, sent = zlib.compress(bytes(1_000_000)), [b"y" * number for number in range(1, 30)]
    stored = [zlib.compress(body) for body in sent]
    stored[3], stored[20], stored[21] = b"no zlib", b"", bomb
    decoded = arrow.decode(b"".join(record(i, body, sys_flag=1) for i, body in enumerate(stored)), QUEUE)
    (piece,) = decoded.pieces(("body", "sys_flag"))
    assert piece.marked == (3, 20, 21)
    got = piece.to_batch(("queue_offset", "body", "sys_flag")).to_pylist()
    assert got == decoded.to_batch(("queue_offset", "body", "sys_flag")).to_pylist()
    for i, row in enumerate(got):
        bad = i in piece.marked
        assert (row["body"], row["sys_flag"]) == (stored[i] if bad else sent[i], 1 | (BODY_AS_STORED if bad else 0))
    assert "the compressed body of orders@broker-a:3 offset 21 cannot be read" in caplog.text
    left = piece.without_marked()
    assert left.marked == ()
    assert left.to_batch(("body",))["body"].to_pylist() == [sent[i] for i in range(len(sent)) if i not in piece.marked]
    some = piece.only(np.arange(len(piece)) >= 4)
    assert some.marked == (16, 17)
    # Whoever asks for no bodies pays for none, and is told nothing of them.
    assert {row["sys_flag"] for row in decoded.to_batch(("sys_flag",)).to_pylist()} == {1}


def test_marks_stay_where_batches_are_cut(monkeypatch):
    """A body that cannot be read before the cut, at it and behind it."""
    monkeypatch.setattr(arrow, "EXPANDED_BYTES", 2500)
    stored = [b"no zlib" if number % 3 == 1 else zlib.compress(b"%d" % number * 1000) for number in range(9)]
    decoded = arrow.decode(b"".join(record(i, body, sys_flag=1) for i, body in enumerate(stored)), QUEUE)
    batches = list(decoded.to_batches(("queue_offset", "body", "sys_flag")))
    rows_ = pa.Table.from_batches(batches).to_pylist()
    assert len(batches) > 1
    assert [row["queue_offset"] for row in rows_] == list(range(9))
    assert [row["queue_offset"] for row in rows_ if row["sys_flag"] & BODY_AS_STORED] == [1, 4, 7]
    assert [row["body"] for row in rows_] == [
        b"no zlib" if number % 3 == 1 else b"%d" % number * 1000 for number in range(9)
    ]


def test_text_that_is_not_utf8_is_shown_with_replacement_characters():
    """A foreign producer's bytes do not stop the query."""
    got = rows(record(0, raw=b"TAGS\x01\xff\xfe\x02KEYS\x01k"), ("tag", "keys", "properties"))
    assert got == [{"tag": "\ufffd\ufffd", "keys": ["k"], "properties": [("TAGS", "\ufffd\ufffd"), ("KEYS", "k")]}]


def test_properties_are_read_as_everywhere_else():
    """Trailing separators, pieces without a separator, empty names and values: as `model.properties.parse`."""
    for raw in (b"", b"a\x01b\x02", b"a\x01b\x02\x02c\x01d", b"junk\x02a\x01b", b"\x01v\x02n\x01\x02a\x01b\x01c"):
        (row,) = rows(record(0, raw=raw), ("properties",))
        assert dict(row["properties"]) == props.parse(raw.decode())


def test_hostile_times_are_clipped_to_what_spark_can_show():
    """A producer's clock may hold anything; the column stays within the years 1 to 9999."""
    data = bytearray(record())
    data[40:48] = (2**63 - 1).to_bytes(8, "big")
    (row,) = rows(bytes(data), ("born_time",))
    assert row["born_time"].year == 9999


def test_a_broken_record_is_an_error_not_a_row():
    """A flipped bit in a body is found by its checksum."""
    data = bytearray(record())
    data[90] ^= 1
    with pytest.raises(RemoteProtocolError):
        rows(bytes(data))


def test_unknown_and_doubled_columns_are_refused():
    """The text lists what there is."""
    with pytest.raises(ConfigError, match="no column 'colour'; the columns are topic, broker"):
        arrow.schema_of(("topic", "colour"))
    with pytest.raises(ConfigError, match="named twice"):
        arrow.schema_of(("topic", "topic"))


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.text("abc ", max_size=5), st.booleans()), min_size=1))
def test_columns_hold_what_was_encoded(messages):
    """Any mix of bodies, keys and compression survives the way into columns."""
    data = b"".join(
        record(i, zlib.compress(body) if packed else body, sys_flag=int(packed), **({"KEYS": keys} if keys else {}))
        for i, (body, keys, packed) in enumerate(messages)
    )
    got = arrow.decode(b"??" + data + b"??", QUEUE, start=2, end=2 + len(data)).to_batch()
    got.validate(full=True)
    assert isinstance(got, pa.RecordBatch)
    assert got["body"].to_pylist() == [body for body, _, _ in messages]
    assert got["keys"].to_pylist() == [keys.split() for _, keys, _ in messages]
    assert got["queue_offset"].to_pylist() == list(range(len(messages)))
