"""JSON bodies: whole objects become fields, everything else goes to `_corrupt` and costs no other row."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from metaq.errors import ConfigError
from metaq.spark import decode
from metaq.spark.decode.json_numbers import is_bounded
from tests.spark.decode.bodies import anything, decoded

SCHEMA = "a int not null, b string, c double, d timestamp, e array<int>, `f.g` struct<h: boolean>"

GOOD = {
    b'{"a":1,"b":"x"}': {"a": 1, "b": "x"},
    b' {"a":1}\r\n': {"a": 1},
    b"{}": {},
    b'{"a":null,"zzz":[1,{"y":2}]}': {},
    b'{"a":1,"a":2}': {"a": 2},
    b'{"A":1}': {},
    b'{"b":{"c":[1,2]}}': {"b": '{"c":[1,2]}'},
    '{"b":"é€😀"}'.encode(): {"b": "é€😀"},
    b'{"e":[1,null],"f.g":{"h":true}}': {"e": [1, None], "f.g": {"h": True}},
    b'{"b":' + b"[" * 900 + b"]" * 900 + b"}": {"b": "[" * 900 + "]" * 900},
}
BAD = [
    b"",
    b" ",
    b"null",
    b"1",
    b'"a"',
    b"[1]",
    b'[{"a":1}]',
    b"{",
    b'{"a":1',
    b'{"a":1} xyz',
    b'{"a":1}}',
    b'{"a":1}]x',
    b'{"a":1},',
    b',{"a":1}',
    b'{"a":1}{"a":2}',
    b'{"a":1},{"a":2}',
    b'{"a":1},"objects":[]',
    b'],"objects":[{"a":1}',
    b'],"x":[1',
    b'{"a":1}],"x":[1',
    b'{"a":1},{"_metaq_end_of_body":1}]}',
    b"{'a':1}",
    b'{"c":NaN}',
    b'{"a":1}//',
    b'{"a":01}',
    b'\xef\xbb\xbf{"a":1}',
    b'{"a":1}\x00',
    b'\xff{"a":1}',
    b'{"b":"\xed\xa0\x80"}',
    b'{"b":"\xc0\x80"}',
    b'{"a":"q","b":"z"}',
    b'{"a":1.5}',
    b'{"a":99999999999}',
    b'{"a":' + b"1" * 5000 + b"}",
    b'{"d":"yesterday"}',
    b'{"e":[1,2,"x"]}',
    b'{"e":{"q":1}}',
    b"[" * 200_000,
    b'{"b":' + b"[" * 200_000,
    b'{"b":"' + b"x" * 100_000,
]


@pytest.mark.spark
def test_an_object_becomes_fields_and_what_is_none_to_its_last_byte_goes_to_corrupt(spark):
    """Also what Spark's own from_json takes: something behind the object, single quotes, NaN, bytes that are no UTF-8."""
    bodies = [*GOOD, *BAD, None]
    empty = dict.fromkeys(["a", "b", "c", "d", "e", "f.g"])
    wanted = [{**empty, **fields} for fields in GOOD.values()] + BAD + [empty]
    assert decoded(spark, bodies, decode.json(SCHEMA)) == wanted


def is_object(body):
    """What Python's parser calls one, told to keep to the RFC."""

    def refuse(name):
        raise ValueError(name)

    try:
        return isinstance(json.loads(body.decode(), parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False


@pytest.mark.spark
def test_any_bytes_are_decoded_exactly_where_they_are_an_object(spark):
    """2 000 bodies, most of them damaged: the query lives, and agrees with Python's parser about each."""
    whole = [body for body in GOOD if len(body) < 100]
    bodies = anything(11, whole, 2000)
    results = decoded(spark, bodies, decode.json("a string, b string"))
    wrong = [body for body, result in zip(bodies, results, strict=True) if (result == body) != (not is_object(body))]
    assert wrong == []
    assert 200 < sum(map(is_object, bodies)) < 1800


@pytest.mark.spark
def test_options_say_what_a_value_means(spark):
    """A time in a format of its own; and the body may be in another column."""
    from pyspark.sql import functions as sql

    struct = decode.json("t timestamp", sql.col("body"), options={"timestampFormat": "dd.MM.yyyy HH:mm"})
    (result, bad) = decoded(spark, [b'{"t":"31.12.2025 23:59"}', b'{"t":"2025"}'], struct)
    assert str(result["t"]).startswith("2025-12-31 23:59")
    assert bad == b'{"t":"2025"}'


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        ("a nonsense", None, "decode.json takes a schema such as"),
        ("int", None, "takes the schema of an object"),
        ("_Corrupt string", None, "a field _Corrupt, which is where bodies go"),
        ("a int, A int", None, "two fields A"),
        ("_metaq_end_of_body int", None, "rename it"),
        ("a int", {"mode": "FAILFAST"}, "no option mode; there are dateFormat"),
        ("a int", {"allowComments": "true"}, "no option allowComments"),
    ],
)
def test_a_schema_or_option_that_cannot_be_is_refused_in_one_sentence(spark, schema, options, text):
    """Before any query runs."""
    with pytest.raises(ConfigError, match=text):
        decode.json(schema, options=options)


BOMBS = [
    b'{"p":1e500000000}',
    b'{"p":-1.5E-500000000}',
    b'{"p":"1e500000000"}',
    b'{"p":"1e5\\u003000000000"}',
    b'{"p":"1\\u0065500000000"}',
    b'{"p":"1e5,00,00,00,00"}',
    '{"p":"1e\u0665\u0660\u0660\u0660\u0660\u0660"}'.encode(),
    b'{"p":1e500000000,"p":1}',
    b'{"p":"1e500000000","p":1}',
    b'{"list":[1,"1e500000000"]}',
    b'{"p":1e500000000',
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_decimal_that_would_take_hours_is_found(bomb):
    """Hidden however Spark's parser would still see it."""
    assert not is_bounded(bomb, frozenset({"p", "list"}))


def test_exponents_elsewhere_are_nobodys_matter():
    """Ids often look like numbers; only a text that Spark would take for a decimal is looked at."""
    for body in (
        b'{"id":"12e45678","p":1.5e3}',
        b'{"id":"\\u00e9","p":"-1.5e-30"}',
        b'{"p":1,"x":{"id":"1e999999"}}',
        b"{}",
    ):
        assert is_bounded(body, frozenset({"p"}))
    assert not is_bounded(b'{"id":"12e45678"}', frozenset({"*"}))


@pytest.mark.spark
def test_bodies_that_hold_up_a_parser_or_no_python_can_show_are_corrupt(spark):
    """Decimals of half a billion digits; dates that cannot be collected, at any depth."""
    good = [
        b'{"p":1.5}',
        b'{"p":"2e1","id":"12e45678"}',
        b'{"m":{"k":["2026-01-01"]}}',
        b'{"t":"9999-12-31T00:00:00Z"}',
    ]
    far = [
        b'{"n":"+10000-01-01T00:00:00"}',
        b'{"t":"+294247-01-10T04:00:54Z"}',
        b'{"m":{"k":["2026-01-01","+10000-01-01"]}}',
    ]
    schema = (
        "p decimal(10,2), id string, t timestamp, m map<string,array<date>>, list array<decimal(5,1)>, n timestamp_ntz"
    )
    rows = decoded(spark, [*good, *BOMBS, *far], decode.json(schema))
    assert rows[len(good) :] == [*BOMBS, *far]
    assert [str(row["p"]) for row in rows[: len(good)]] == ["1.50", "20.00", "None", "None"]
    assert rows[1]["id"] == "12e45678"
    assert rows[2]["m"] == {"k": [dt.date(2026, 1, 1)]}
    assert rows[3]["t"] is not None
