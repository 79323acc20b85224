"""JSON bodies in Python's workers. The oracle is Python's own json."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.spark.decode.batches import struct_array
from metaq.spark.decode.typed_json import json_plan
from tests.spark.decode.bodies import anything

KIND = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int32()),
        pa.field("a name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("paid", pa.bool_()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("lines", pa.list_(pa.struct([pa.field("sku", pa.string()), pa.field("many", pa.list_(pa.int64()))]))),
    ]
)
TIMES = pa.struct(
    [
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("sum", pa.decimal128(8, 2)),
        pa.field("raw", pa.binary()),
        pa.field("rate", pa.float32()),
    ]
)


def read(kind, *bodies):
    """The fields of each body, None for those that do not decode; as workers do it, where the plan comes pickled."""
    plan = pickle.loads(pickle.dumps(json_plan(kind)))
    return struct_array(
        pa.array(bodies, pa.binary()), plan.make(*plan.arguments), plan.kind, plan.build
    ).to_pylist()  # fmt: skip


def fields(kind, body):
    """Those that are not null; None: it does not decode."""
    (found,) = read(kind, body)
    return None if found is None else {name: value for name, value in found.items() if value is not None}


# ------------------------------------------------------------------ whatever is JSON
text = st.text(st.characters(codec="utf-8"), max_size=8)
whole = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "a name": st.none() | text,
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "paid": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | text, max_size=3),
        "counts": st.none() | st.dictionaries(text, st.none() | st.integers(0, 9), max_size=3),
        "lines": st.none()
        | st.lists(
            st.none() | st.fixed_dictionaries({}, optional={"sku": text, "many": st.lists(st.integers(0, 9))}),
            max_size=3,
        ),
        "unknown": st.none() | text | st.lists(st.integers()) | st.dictionaries(text, text),
    },
)


def expected(value):
    """What the columns hold of an object."""
    found = {field.name: value.get(field.name) for field in KIND}
    if found["counts"] is not None:
        found["counts"] = list(found["counts"].items())
    if found["lines"] is not None:
        found["lines"] = [
            None if one is None else {"sku": one.get("sku"), "many": one.get("many")} for one in found["lines"]
        ]
    return found


@given(st.lists(st.tuples(whole, st.booleans(), st.sampled_from([None, 1, "\t"])), min_size=1, max_size=5))
def test_what_json_writes_comes_back(values):
    """Whatever is in the fields, however it is spaced and escaped."""
    bodies = [json.dumps(value, ensure_ascii=plain, indent=indent).encode() for value, plain, indent in values]
    assert read(KIND, *bodies) == [expected(value) for value, _, _ in values]


def test_what_is_broken_is_told_from_what_is_not():
    """Thousands of bodies with something changed, each judged for itself, beside each other in one batch."""
    good = [
        b'{"id": 7, "small": -1, "a name": "\xc3\xa9\\u00e9", "price": 1.5e3, "paid": true, "tags": ["a", null]}',
        b'{"counts": {"a": 1}, "lines": [{"sku": "x", "many": [1, 2]}, null, {}], "more": {"x": [1, {}]}}',
        b' {"id": null}\n',
    ]
    bodies = anything(5, good, 4000) + good
    kinds = {True: 0, False: 0}
    for body, found in zip(bodies, read(KIND, *bodies), strict=True):
        judged = by_json(body)
        kinds[judged is None] += 1
        assert found == judged, body
    assert min(kinds.values()) > 500


def by_json(body):
    """The fields, or None: by Python's json and the types' own rules."""
    try:
        value = json.loads(body.decode(), parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        return None
    if not isinstance(value, dict) or body.startswith(b"\xef\xbb\xbf"):
        return None

    def fits(kind, one):
        if one is None:
            return True
        if pa.types.is_struct(kind):
            return isinstance(one, dict) and all(fits(field.type, one.get(field.name)) for field in kind)
        if pa.types.is_list(kind):
            return isinstance(one, list) and all(fits(kind.value_type, item) for item in one)
        if pa.types.is_map(kind):
            return isinstance(one, dict) and all(fits(kind.item_type, item) for item in one.values())
        if pa.types.is_string(kind):
            assert isinstance(one, str), "the bodies of this test have nothing else there"
            return one.encode("utf-8", "replace").decode() == one
        if pa.types.is_boolean(kind):
            return isinstance(one, bool)
        if pa.types.is_floating(kind):
            return type(one) in {int, float} and math.isfinite(one)
        return type(one) is int and abs(one) < 2 ** (kind.bit_width - 1)

    return expected(value) if fits(KIND, value) else None


# ------------------------------------------------------------------ one by one
@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"7", b'{"id":1}x', b'{"id":1}{"id":2}', b'{"id":1.0}', b'{"id":1.5}', b'{"id":"1"}', b'{"id":1e3}',
        b'{"id":9223372036854775808}', b'{"small":2147483648}', b'{"paid":1}', b'{"price":"1"}', b'{"price":1e999}', b'{"tags":"a"}',
        b'{"unknown":NaN}', b'{"unknown":"\xff"}', b'{"a name":"\xff"}', b'{"a name":"\\ud800"}', b'{"a name":tru}', b"\xef\xbb\xbf{}",
        b'{"unknown":"a\nb"}', b'{"unknown":01}', b"{'id':1}", b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)  # fmt: skip
def test_what_does_not_decode(body):
    """Not one object to its last byte, or a value that its column cannot hold as it is."""
    assert fields(KIND, body) is None


def test_a_string_takes_any_value_as_its_text():
    """As it stands in the body: objects of no schema, numbers of any size."""
    bodies = [b'{"a name": {"x": [1,  2.50]} }', b'{"a name": 123456789012345678901234.50, "tags": [1, "x", null, {}]}']
    assert [fields(KIND, body) for body in bodies] == [
        {"a name": '{"x": [1,  2.50]}'},
        {"a name": "123456789012345678901234.50", "tags": ["1", "x", None, "{}"]},
    ]


def test_times_and_numbers_that_are_texts():
    """Times without a zone are UTC; nothing is rounded or cut to make it fit."""
    utc = dt.UTC
    good = b'{"at":"2026-03-01T01:00:00.25+01:00","local":"2026-03-01T00:00:00","day":"2026-03-01","sum":"-1.5","raw":"aGk=","rate":1}'
    assert fields(TIMES, good) == {
        "at": dt.datetime(2026, 3, 1, 0, 0, 0, 250_000, utc), "local": dt.datetime.fromisoformat("2026-03-01"), "day": dt.date(2026, 3, 1),
        "sum": decimal.Decimal("-1.50"), "raw": b"hi", "rate": 1.0,
    }  # fmt: skip
    assert fields(TIMES, b'{"at":"2026-03-01T00:00:00"}') == {"at": dt.datetime(2026, 3, 1, tzinfo=utc)}
    assert fields(TIMES, b'{"sum":123456.78}') == {"sum": decimal.Decimal("123456.78")}
    for bad in (
        b'{"at":1}', b'{"at":"2026-03-01"}', b'{"at":"9999-12-31T23:59:59-01:00"}', b'{"at":"0001-01-01T00:00:00+01:00"}',
        b'{"local":"2026-03-01T00:00:00Z"}', b'{"day":"2026-02-30"}', b'{"sum":1.255}', b'{"sum":1234567}', b'{"sum":"NaN"}',
        b'{"sum":1e500000000}', b'{"sum":"1e-500000000"}', b'{"raw":"?"}', b'{"rate":1e300}',
    ):  # fmt: skip
        assert fields(TIMES, bad) is None, bad
        assert [one is None for one in read(TIMES, b"{}", bad, good)] == [False, True, False]


def test_of_a_field_that_comes_twice_the_last_counts_and_names_have_their_case():
    """As in decode.json."""
    assert fields(KIND, b'{"id":1,"id":2,"ID":3}') == {"id": 2}


def test_a_body_that_grows_without_measure_is_corrupt():
    """An empty object takes every column of its struct."""
    wide = pa.struct([pa.field("l", pa.list_(pa.struct([pa.field(f"f{i}", pa.int64()) for i in range(200)])))])
    assert fields(wide, b'{"l":[' + b",".join([b"{}"] * 10_000) + b"]}") is None
    assert fields(wide, b'{"l":[{"f7":1}]}')["l"][0]["f7"] == 1


def test_types_that_json_has_no_value_for_are_refused():
    """And names that readers could not tell apart."""
    for kind, match in (
        (pa.struct([pa.field("x", pa.duration("us"))]), "no JSON value is of the type of x"),
        (pa.struct([pa.field("m", pa.map_(pa.int32(), pa.int32()))]), "the keys of JSON's objects are strings"),
        (pa.struct([pa.field("x", pa.int32()), pa.field("X", pa.int32())]), "two fields"),
        (pa.struct([pa.field("s", pa.struct([pa.field("a", pa.int32()), pa.field("A", pa.int32())]))]), "two fields"),
        (pa.struct([pa.field("_corrupt", pa.int32())]), "where bodies go that do not decode"),
    ):
        with pytest.raises(ConfigError, match=match):
            json_plan(kind)
