"""Bodies as Canal and Debezium write them, and what is wrong with others."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.changes import canal, debezium, kinds
from metaq.pipelines.changes.change import NotAChange, Statement, keys_named
from metaq.pipelines.changes.decoding import Decoder, sequence_of
from tests.pipelines.changes import bodies
from tests.pipelines.changes.bodies import as_bytes

BY_ID = {"": ("id",)}


def decoded(body, message_keys=(), **options):
    return Decoder(**options).decode(body if isinstance(body, bytes) else as_bytes(body), message_keys)


def values(change):
    return {name: kinds.python_value(value, change.kinds.get(name, "string")) for name, value in change.row.items()}


def test_a_canal_insert_has_a_change_for_each_row():
    """Texts become values of the column's type; MySQL's zero date is no date."""
    first, second = decoded(bodies.CANAL_INSERT)
    assert (first.op, first.table, first.key, first.sequence) == ("insert", "shop.orders", {"id": 1}, None)
    assert values(first) == {
        "id": 1, "state": "new", "amount": decimal.Decimal("12.50"), "photo": b"\x00\xff",
        "made": dt.datetime.fromisoformat("2026-03-01 10:00"),
    }  # fmt: skip
    assert second.row == {"id": 2, "state": None, "amount": "-3.00", "made": None, "photo": None}
    assert first.kinds == {
        "id": "long",
        "state": "string",
        "amount": "decimal(10,2)",
        "made": "datetime",
        "photo": "binary",
    }


def test_canal_updates_deletes_and_moves():
    """An update that changes the key deletes the old one."""
    (update,) = decoded(bodies.CANAL_UPDATE)
    assert (update.op, update.key, update.row["state"], update.row["photo"]) == ("update", {"id": 1}, "paid", None)
    (delete,) = decoded(bodies.CANAL_DELETE)
    assert (delete.op, delete.key, dict(delete.row)) == ("delete", {"id": 2}, {})
    assert [(one.op, one.key) for one in decoded(bodies.CANAL_MOVE)] == [("delete", {"id": 1}), ("insert", {"id": 9})]


def test_canal_ddl_is_a_statement():
    """It is told, not applied."""
    with pytest.raises(Statement, match=r"ALTER of shop\.orders: ALTER TABLE orders ADD COLUMN note TEXT"):
        decoded(bodies.CANAL_DDL)


@pytest.mark.parametrize(
    ("mysql", "kind"),
    [
        ("int(11)", "long"), ("bigint(20) unsigned", "decimal(20,0)"), ("decimal(65,30)", "string"),
        ("decimal(8)", "decimal(8,0)"), ("float", "double"), ("varchar(255)", "string"), ("timestamp(6)", "datetime"),
        ("varbinary(16)", "binary"), ("enum('a','b')", "string"), ("json", "string"), (None, "string"),
    ],
)  # fmt: skip
def test_types_of_mysql_have_their_kinds(mysql, kind):
    """What has no kind of its own stays the text that Canal sends."""
    assert canal.kind_of(mysql) == kind


@pytest.mark.parametrize("envelope", [True, False])
def test_a_debezium_event_is_read_with_its_schema_and_without(envelope):
    """With the schema, numbers and base64 become what they mean; without, they stay what they are."""
    (change,) = decoded(bodies.debezium("c", None, bodies.DEBEZIUM_ROW, envelope=envelope), keys=BY_ID)
    assert (change.op, change.table, change.key, change.sequence) == (
        "insert", "public.orders", {"id": 1}, (24023128,),
    )  # fmt: skip
    if envelope:
        assert values(change) == {
            "id": 1, "state": "new", "amount": decimal.Decimal("12.50"), "day": dt.date(2026, 3, 1),
            "made": dt.datetime.fromisoformat("2026-03-01 10:00:00.000001"), "seen": dt.datetime(2026, 3, 1, 10, tzinfo=dt.UTC),
            "hour": "01:00:00", "photo": b"\x00\xff", "good": True, "weight": 1.5,
        }  # fmt: skip
    else:
        assert values(change) == bodies.DEBEZIUM_ROW


def test_debezium_deletes_tombstones_and_what_is_about_no_row():
    """The tombstone behind a delete, heartbeats and transactions are nothing."""
    (change,) = decoded(bodies.debezium("d", bodies.DEBEZIUM_ROW, None), keys=BY_ID)
    assert (change.op, change.key, dict(change.row)) == ("delete", {"id": 1}, {})
    for nothing in (b"null", b"", {"schema": None, "payload": None}, {"ts_ms": 5},
                    {"status": "BEGIN", "id": "5", "ts_ms": 5}, bodies.debezium("m", None, None)):  # fmt: skip
        assert decoded(nothing, keys=BY_ID, format="debezium") == []
    with pytest.raises(Statement, match=r"TRUNCATE of public\.orders"):
        decoded(bodies.debezium("t", None, None))


def test_the_key_of_debezium_comes_from_the_options_or_from_the_message():
    """keyColumns beats; Debezium's own key may have the schema's envelope, and blanks, at which keys are cut."""
    event = bodies.debezium("u", None, bodies.DEBEZIUM_ROW)
    key = json.dumps({"schema": {"type": "struct"}, "payload": {"id": 1}}).split()
    assert decoded(event, key)[0].key == {"id": 1}
    assert decoded(event, ['{"id":1}'], keys={"public.orders": ("state",)})[0].key == {"state": "new"}
    with pytest.raises(NotAChange, match=r"which columns of public.orders are its key\? Name them with keyColumns"):
        decoded(event, ["order-1"])


def test_a_value_that_debezium_could_not_get_stays_as_it_is():
    """PostgreSQL does not log large values that have not changed."""
    row = bodies.DEBEZIUM_ROW | {"photo": debezium.UNAVAILABLE}
    (change,) = decoded(bodies.debezium("u", None, row), keys=BY_ID)
    assert "photo" not in change.row


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (bodies.POSTGRES, (24023128,)),
        (bodies.MYSQL, (3, 484, 1)),
        (bodies.MYSQL | {"file": "mysql-bin.1000000", "row": None}, (1000000, 484, 0)),
        (bodies.SQL_SERVER, (0x27, 0x758, 3, 2)),
        ({"scn": "5"}, None),
    ],
)
def test_debezium_says_where_it_was_in_the_log(source, expected):
    """The number of a binlog file counts, not its text."""
    assert debezium.sequence(source) == expected


def test_a_sequence_can_be_anywhere():
    """A path into the body; of Debezium's into the payload."""
    (first, second) = decoded(bodies.CANAL_INSERT, sequence="id")
    assert first.sequence == second.sequence == (3,)
    (change,) = decoded(bodies.debezium("c", None, bodies.DEBEZIUM_ROW), keys=BY_ID, sequence="after.made")
    assert change.sequence == (1772359200000001,)
    with pytest.raises(NotAChange, match=r"there is no sequence at after\.version"):
        decoded(bodies.debezium("c", None, bodies.DEBEZIUM_ROW), keys=BY_ID, sequence="after.version")
    assert sequence_of(["mysql-bin.000003", 7, "12"]) == (3, 7, 12)
    assert sequence_of("-4") == (-4,)
    assert sequence_of("3e11fa47-71ca-11e1-9e33-c80aa9429562:23") == (23,)
    for wrong in (None, True, 1.5, "x", [], [None], {}, 1 << 63, "9" * 30):
        assert sequence_of(wrong) is None


def test_plain_changes():
    """For producers of one's own."""
    (change,) = decoded({"op": "update", "table": "t", "key": {"id": 7}, "seq": 42, "row": {"state": "paid", "l": [1]}})
    assert (change.op, change.table, change.key, change.sequence) == ("update", "t", {"id": 7}, (42,))
    assert change.row == {"state": "paid", "l": "[1]", "id": 7}
    (change,) = decoded({"op": "d", "key": 7, "seq": 43}, keys=BY_ID)
    assert (change.op, change.key) == ("delete", {"id": 7})
    (change,) = decoded({"op": "c", "key": 7, "row": {}}, keys=BY_ID, sequenced=False)
    assert change.sequence is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\xff", "it is no JSON"),
        (b"[1]", "it is no JSON object"),
        ({}, "neither Canal's nor Debezium's"),
        ({"op": "x", "key": {"id": 1}}, "op is 'x': need insert, update or delete"),
        ({"op": "c", "key": 5, "seq": 1, "row": {}}, "key is 5: need an object"),
        ({"op": "c", "key": {"id": None}, "seq": 1, "row": {}}, "need columns with one value each"),
        ({"op": "c", "key": {"id": 1}, "seq": 1}, "row is None: an insert needs an object"),
        ({"op": "c", "key": {"id": 1}, "seq": 1.5, "row": {}}, "seq is 1.5"),
        ({"op": "c", "key": {"id": 1}, "row": {}}, "there is no sequence"),
        (bodies.CANAL_INSERT | {"pkNames": None}, "shop.orders has no primary key: name its columns with keyColumns"),
        (bodies.CANAL_INSERT | {"data": "x"}, "data of a Canal INSERT of shop.orders is no list"),
        (bodies.CANAL_INSERT | {"old": []}, "old of a Canal INSERT of shop.orders does not go with its data"),
        (bodies.CANAL_INSERT | {"data": [{"id": "x"}]}, "id of shop.orders is 'x', which is no long"),
        (bodies.CANAL_INSERT | {"data": [{"state": "x"}]}, "a row of shop.orders has no id"),
        (bodies.debezium("x", None, None), "op is 'x'"),
        (bodies.debezium("c", None, {"id": "x"}, envelope=True), "id of public.orders is 'x'"),
        (bodies.debezium("d", None, None), "which columns of public.orders"),
    ],
)
def test_what_is_no_change_is_told(body, text):
    """What is wrong, and of which table."""
    with pytest.raises(NotAChange, match=text.replace("(", r"\(")):
        decoded(body)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["op", "key", "row", "seq", "table", "type", "data", "old", "payload", "schema", "source", "after",
                         "before", "fields", "field", "mysqlType", "pkNames", "isDdl", "id", "lsn", "ts_ms", "name"]),
        inner | st.sampled_from(["c", "u", "INSERT", "UPDATE", "bigint", "io.debezium.time.Date", "after"]), max_size=8),
    max_leaves=30,
), st.sampled_from(["auto", "canal", "debezium", "plain"]))  # fmt: skip
def test_no_json_brings_the_decoder_down(body, kind):
    """Whatever comes is changes, or is told by one of two errors."""
    with contextlib.suppress(NotAChange, Statement):
        decoded(body, ["{"], keys=BY_ID, format=kind)


KINDS = st.one_of(
    st.sampled_from(["long", "double", "boolean", "string", "binary", "date", "datetime", "timestamp"]),
    st.builds(lambda scale, more: f"decimal({scale + more},{scale})", st.integers(0, 18), st.integers(1, 20)),
)


@given(KINDS, KINDS, KINDS)
def test_kinds_join_in_any_order(one, two, three):
    """So that it does not matter which worker saw which row first."""
    assert kinds.merged(one, one) == one
    assert kinds.merged(one, two) == kinds.merged(two, one)
    assert kinds.merged(kinds.merged(one, two), three) == kinds.merged(one, kinds.merged(two, three))


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9),
)
def test_values_of_one_kind_are_values_of_the_joined_one(number, amount):
    """A long column that turns out to be decimal keeps its numbers."""
    assert kinds.python_value(number, kinds.merged("long", "decimal(13,4)")) == number
    assert kinds.python_value(str(amount), "decimal(23,4)") == amount
    assert kinds.python_value(number, "string") == str(number)


@pytest.mark.parametrize(
    ("value", "kind"),
    [("x", "long"), (1.5, "long"), (True, "long"), (1 << 63, "long"), ("12.345", "decimal(10,2)"), ("123.45", "decimal(4,2)"),
     (1, "boolean"), ("2026-13-01", "date"), ("2026-03-01T00:00:00Z", "datetime"), ("!", "binary"), ("NaN", "decimal(5,1)")],
)  # fmt: skip
def test_a_value_that_is_none_of_its_kind_is_refused(value, kind):
    """No digit is lost silently."""
    with pytest.raises(ValueError, match="is no"):
        kinds.python_value(value, kind)


def test_binary_is_base64_whatever_it_came_as():
    """As JSON has no bytes."""
    assert kinds.python_value(base64.b64encode(b"abc").decode(), "binary") == b"abc"


def test_key_columns_are_for_all_tables_or_for_one():
    """`column` or `table:column`."""
    assert keys_named(["id", "shop.items:order", "shop.items:line"]) == {"": ("id",), "shop.items": ("order", "line")}
