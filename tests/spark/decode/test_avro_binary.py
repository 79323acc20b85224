"""Avro bodies, by given schemas and by those of a registry file."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import logging
import subprocess
from typing import NamedTuple

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.spark import decode
from metaq.spark.decode import avro_schema
from metaq.spark.decode.avro_binary import Writers, decoder, fingerprint
from metaq.spark.decode.batches import struct_array

TEST = {"type": "record", "name": "test", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}
TEST_BODY = bytes.fromhex("3606666f6f")
"""The example in Avro's specification: a = 27, b = "foo"."""

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "paid", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}, "default": 0},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            "default": "\u0001",
        },
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}, "default": "\u00fe\u0000"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}, "default": "NEW"},
        {"name": "wide", "type": ["int", "long"], "default": 0},
        {"name": "share", "type": "double", "default": 0.5},
        {"name": "open", "type": "boolean", "default": True},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "float"}, {"name": "kind", "type": "Kind"}]},
            },
            "default": [],
        },
        {"name": "days", "type": {"type": "map", "values": {"type": "int", "logicalType": "date"}}, "default": {}},
    ],
}  # fmt: skip
NAIVE, NAIVE_START = dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local time has no zone
FULL = {
    "id": 7, "note": "é", "paid": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC),
    "local": NAIVE, "day": dt.date(1969, 12, 31), "price": decimal.Decimal("-12.34"),
    "raw": b"\x00\xff", "mark": b"ab", "kind": "OLD", "wide": 1 << 40, "share": -1.5, "open": False,
    "lines": [{"n": 0.5, "kind": "NEW"}, {"n": 2.0, "kind": "OLD"}], "days": {"x": dt.date(2026, 1, 2)},
}  # fmt: skip
EMPTY = {
    "id": 1, "note": None, "paid": None, "local": NAIVE_START, "day": dt.date(1970, 1, 1),
    "price": decimal.Decimal("0.01"), "raw": b"\xff", "mark": b"\xfe\x00", "kind": "NEW", "wide": 0, "share": 0.5, "open": True,
    "lines": [], "days": {},
}  # fmt: skip


def written(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def record(name="r", **fields):
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def read(schema, bodies, framing="plain", writers=None):
    """What each body became: its fields, or None for corrupt."""
    known, named = avro_schema.parsed(schema, "the schema")
    kind, _ = avro_schema.column(known, named, "")
    keys = {key: json.dumps(each) for key, each in (writers or {b"": schema}).items()}
    rows = struct_array(
        pa.array(bodies, pa.binary()), decoder(json.dumps(schema), framing, Writers(keys)), kind
    ).to_pylist()
    maps = [field.name for field in kind if pa.types.is_map(field.type)]
    return [row and {**row, **{name: dict(row[name]) for name in maps}} for row in rows]


def test_the_specifications_example_is_read():
    """And nothing that is a byte shorter or longer."""
    assert read(TEST, [TEST_BODY, TEST_BODY[:-1], TEST_BODY + b"\0", b"", None]) == [{"a": 27, "b": "foo"}, *[None] * 4]


def test_every_type_with_a_column_comes_back():
    """Logical types as times, days and decimals; what is null is null."""
    assert read(ORDER, [written(ORDER, FULL), written(ORDER, EMPTY)]) == [FULL, EMPTY]


@pytest.mark.parametrize(
    ("schema", "mark"),
    [("null", "63dd24e7cc258f8a"), ("int", "7275d51a3f395c8f"), ({"type": "int", "doc": "x"}, "7275d51a3f395c8f")],
)
def test_fingerprints_are_those_of_the_reference_implementation(schema, mark):
    """Its own test vectors; a body has the bytes the other way round."""
    assert fingerprint(schema)[::-1].hex() == mark


def test_the_schema_of_a_header_is_resolved_to_the_one_that_is_read():
    """A field less, one more with its default, one wider; a header that is not known is corrupt."""
    old = record("shop.Order", id="int", gone=["string", "int"], paid="long")
    other = record("shop.Other", id="int")
    writers = {fingerprint(old): old, fingerprint(ORDER): ORDER, fingerprint(other): other}
    head = b"\xc3\x01" + fingerprint(old)
    body = head + written(old, {"id": 1, "gone": "x", "paid": 1_000})
    now = b"\xc3\x01" + fingerprint(ORDER) + written(ORDER, FULL)
    wanted = EMPTY | {"paid": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)}
    bad = [body[1:], body[10:], head, b"", b"\xc3\x02" + body[2:], body[:2] + b"12345678" + body[10:], body + b"x"]
    bad.append(b"\xc3\x01" + fingerprint(other) + b"\x02")
    assert read(ORDER, [body, now, *bad], "single-object", writers)[:2] == [wanted, FULL]
    assert read(ORDER, bad[:-1], "single-object", writers) == [None] * (len(bad) - 1)


def test_confluents_header_holds_an_id():
    """A zero, four bytes of id, the record."""
    good, *bad = [
        b"\x00\x00\x00\x00\x07" + TEST_BODY,
        b"\x00\x00\x00\x00\x08" + TEST_BODY,
        b"\x01\x00\x00\x00\x07" + TEST_BODY,
        b"\x00\x00\x07" + TEST_BODY,
        b"\x00\x00\x00\x00\x07",
    ]
    writers = {(7).to_bytes(4, "big"): TEST}
    assert read(TEST, [good, *bad], "confluent", writers) == [{"a": 27, "b": "foo"}, *[None] * 4]


def test_values_that_no_column_holds_are_corrupt_by_themselves():
    """Their neighbours in the batch are not: an int of 33 bits, a decimal of too many digits, a time after the year 9999."""
    good = {**EMPTY, "paid": None}
    as_long = json.loads(
        json.dumps(ORDER)
        .replace('"timestamp-millis"', '"x"')
        .replace('"decimal"', '"x"')
        .replace('"local-timestamp-micros"', '"x"')
        .replace('"date"', '"x"')
    )
    as_long["fields"][0]["type"] = "long"
    raw = {**EMPTY, "price": b"\1", "paid": None, "day": 0, "local": 0}
    bodies = [
        written(as_long, raw),
        written(as_long, raw | {"id": 1 << 33}),
        written(as_long, raw | {"price": b"\x7f" * 8}),
        written(as_long, raw | {"price": b"\x7f" * 1_000_000}),
        written(as_long, raw | {"paid": 1 << 62}),
        written(as_long, raw | {"paid": 253_402_300_800_000}),
        written(as_long, raw | {"local": -62_135_596_800_000_001}),
        written(as_long, raw | {"day": 2_932_897}),
        written(as_long, raw),
    ]
    assert read(ORDER, bodies) == [good, *[None] * 7, good]


@pytest.mark.parametrize(
    "body",
    [
        b"\x36" + b"\xfe\xff\xff\xff\x0f" + b"x" * 100,  # a string of 2 GiB
        b"\x36" + b"\xff\xff\xff\xff\x0f" + b"x" * 100,  # of less than none
        b"\xff" * (4 << 20),  # a number without end
        b"\x36\x06\xff\xfe\xfd",  # no UTF-8
    ],
)
def test_bodies_that_claim_much_cost_little_and_are_corrupt(body):
    """Of 4 MiB at most, and without waiting for what is not there."""
    assert read(TEST, [body, TEST_BODY]) == [None, {"a": 27, "b": "foo"}]


def test_a_body_whose_fields_take_far_more_than_its_bytes_is_corrupt():
    """An enum's long name for each byte: 200 KB would become 200 MB."""
    kind = {"type": "enum", "name": "e", "symbols": ["x" * 1000]}
    schema = record(es={"type": "array", "items": kind})
    bomb, good = (written(schema, {"es": ["x" * 1000] * count}) for count in (200_000, 2))
    assert read(schema, [good, bomb, good]) == [{"es": ["x" * 1000] * 2}, None, {"es": ["x" * 1000] * 2}]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_give_a_row_each(bodies):
    """Fields or nothing, in their places; those between are not touched."""
    order, whole = written(ORDER, FULL), written(TEST, {"a": 27, "b": "foo"})
    assert read(TEST, [*bodies, whole])[-1] == {"a": 27, "b": "foo"}
    damaged = [order[: len(body)] + body + order[len(body) :] for body in bodies]
    rows = read(ORDER, [*bodies, order, *damaged])
    assert len(rows) == 2 * len(bodies) + 1
    assert rows[len(bodies)] == FULL


class Case(NamedTuple):
    text: str
    schema: object = TEST
    registry: object = None
    framing: str | None = None


@pytest.mark.parametrize(
    "case",
    [
        Case("is no JSON", schema="{"),
        Case("is no Avro schema: ", schema={"type": "recor"}),
        Case("takes the schema of a record", schema='"int"'),
        Case("needs a schema", schema=None),
        Case("knows no framing 'none'", framing="none"),
        Case("plain Avro bodies do not say", registry=[TEST], framing="plain"),
        Case("Confluent's header holds an id", framing="confluent"),
        Case("has no fields", schema=record()),
        Case("x is null and nothing else", schema=record(x="null")),
        Case(r"x\.y is a union of several types", schema=record(x=record("i", y=["int", "string"]))),
        Case("its record r holds itself", schema=record(next=["null", "r"])),
        Case("an array of items that take no bytes", schema=record(x={"type": "array", "items": "null"})),
        Case("a field _corrupt", schema=record(_corrupt="int")),
        Case("decimal of 40 digits", schema=record(x={"type": "bytes", "logicalType": "decimal", "precision": 40})),
        Case("needs the schema whose fields are the columns.*holds 2", schema=None, registry=[TEST, ORDER]),
        Case("schemas by id or fingerprint", registry=TEST),
        Case("'seven', which is neither an id", registry={"seven": TEST}),
        Case("'99999999999', which is neither an id", registry={"99999999999": TEST}),
        Case("schema 63dd24e7cc258f8a of .* has another fingerprint: ", registry={"63dd24e7cc258f8a": TEST}),
        Case("schema 7 of .* is no Avro schema", registry={"7": "nonsense"}),
        Case("holds no schema for bodies with the framing confluent", registry=[TEST], framing="confluent"),
        Case("holds no schema", registry=[record(next=["null", "r"])]),
    ],
    ids=lambda case: case.text,
)  # fmt: skip
def test_what_cannot_be_decoded_at_all_is_refused_in_one_sentence(case, tmp_path):
    """Before any query, and without Spark."""
    file = tmp_path / "schemas.json"
    file.write_text(json.dumps(case.registry))
    with pytest.raises(ConfigError, match=case.text):
        decode.avro(case.schema, registry_file=None if case.registry is None else file, framing=case.framing)


def test_a_registry_file_that_is_away_or_none_is_named(tmp_path):
    """With its path."""
    for content in (None, b"\xff", b"["):
        if content is not None:
            (tmp_path / "schemas.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"schemas\.json"):
            decode.avro(TEST, registry_file=tmp_path / "schemas.json")


@pytest.mark.spark
def test_a_schema_of_the_registry_that_could_kill_a_worker_is_left_out_and_named(spark, tmp_path, caplog):
    """The others serve."""
    file = tmp_path / "schemas.json"
    file.write_text(json.dumps({"1": record(next=["null", "r"]), "2": json.dumps(TEST)}))
    with caplog.at_level(logging.WARNING):
        decode.avro(TEST, registry_file=file, framing="confluent")
    assert "schema 1 of" in caplog.text
    assert "its record r holds itself, so bodies that were written with it go to _corrupt" in caplog.text


PROGRAM = """
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import org.apache.avro.*;
import org.apache.avro.generic.*;
import org.apache.avro.io.*;
import org.apache.avro.message.BinaryMessageEncoder;
public class Encode {
    public static void main(String[] names) throws Exception {
        Schema schema = new Schema.Parser().parse(new String(Files.readAllBytes(Paths.get("schema.json")), "UTF-8"));
        String json = new String(Files.readAllBytes(Paths.get("value.json")), "UTF-8");
        Object value = new GenericDatumReader<Object>(schema).read(null, DecoderFactory.get().jsonDecoder(schema, json));
        ByteBuffer whole = new BinaryMessageEncoder<Object>(new GenericData(), schema).encode(value);
        byte[] bytes = new byte[whole.remaining()];
        whole.get(bytes);
        Files.write(Paths.get("body"), bytes);
    }
}
"""


@pytest.mark.interop
@pytest.mark.all
def test_single_objects_of_avros_own_java_library_are_read(tmp_path):
    """Header, fingerprint and record of the reference implementation."""
    from tests.interop import maven

    jars = f"{maven.jars('org.apache.avro:avro:1.11.4', 'org.slf4j:slf4j-nop:1.7.36')}/*"
    (tmp_path / "Encode.java").write_text(PROGRAM)
    (tmp_path / "schema.json").write_text(json.dumps(ORDER))
    value = {
        "id": 7, "note": {"string": "é"}, "paid": {"long": 1767323045006}, "local": 1767323045000006, "day": -1,
        "price": "\u00fb\u002e", "raw": "\u0000\u00ff", "mark": "ab", "kind": "OLD", "wide": {"long": 1 << 40}, "share": -1.5,
        "open": False, "lines": [{"n": 0.5, "kind": "NEW"}, {"n": 2.0, "kind": "OLD"}], "days": {"x": 20455},
    }  # fmt: skip
    (tmp_path / "value.json").write_text(json.dumps(value))
    compiler = [maven.java(compiler=True), "-cp", jars, "-d", str(tmp_path), str(tmp_path / "Encode.java")]
    subprocess.run(compiler, check=True, timeout=600)
    java = [maven.java(), "-Xmx256m", "-cp", f"{tmp_path}:{jars}", "Encode"]
    subprocess.run(java, cwd=tmp_path, check=True, timeout=600)
    body = (tmp_path / "body").read_bytes()
    assert read(ORDER, [body], "single-object", {fingerprint(ORDER): ORDER}) == [FULL]


def test_a_schema_of_records_that_double_is_refused_at_once():
    """Thirty of them make a thousand million fields: of no bytes, if the first holds nothing but null."""
    schema = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "null"}]}
    for number in range(1, 31):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{number - 1}"}]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    with pytest.raises(ConfigError, match="more than 10000 fields"):
        decode.avro(schema)
    deep = "int"
    for _ in range(20_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConfigError, match="nested too deep"):
        avro_schema.smallest(deep, {})
