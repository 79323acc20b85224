"""Avro schemas: the Arrow types of their columns, and a check that no body can exhaust a worker's memory or stack."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa

from metaq.errors import ConfigError
from metaq.spark.decode.batches import day, instant

Convert = Callable[[Any], Any]
"""Converts a value that fastavro reads without logical types to one that Arrow accepts."""

_PLAIN = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_SMALLEST = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
_INSTANT, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_TIMES: dict[tuple[str, str], tuple[pa.DataType, Convert | None]] = {
    ("int", "date"): (pa.date32(), day),
    ("long", "timestamp-millis"): (_INSTANT, lambda value: instant(value * 1000)),
    ("long", "timestamp-micros"): (_INSTANT, instant),
    ("long", "timestamp-nanos"): (_INSTANT, lambda value: instant(value // 1000)),
    ("long", "local-timestamp-millis"): (_LOCAL, lambda value: instant(value * 1000)),
    ("long", "local-timestamp-micros"): (_LOCAL, instant),
    ("long", "local-timestamp-nanos"): (_LOCAL, lambda value: instant(value // 1000)),
}
FIELDS_MAX = 10_000
"""Most fields of a record, with those of the records in it."""
_DECIMAL_DIGITS_MAX = 38
"""Of Spark's and Arrow's decimals."""
# 38 digits and a sign fit into 16 bytes of two's complement.
_DECIMAL_BYTES_MAX = 16


def parsed(schema: Any, whose: str) -> tuple[Any, dict[str, Any]]:
    """Return the schema with full names, and its named types. Raises ConfigError: not an Avro schema."""
    named: dict[str, Any] = {}
    try:
        return fastavro.parse_schema(schema, named_schemas=named, _write_hint=False), named
    except Exception as fault:
        raise ConfigError(f"{whose} is no Avro schema: {type(fault).__name__}: {fault}") from fault


def bare(schema: Any) -> Any:
    """Return the schema without logical types: fastavro reads raw values, and `column` converts them by the reader schema."""
    if isinstance(schema, list):
        return [bare(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in {"logicalType", "precision", "scale"}}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = bare(kept[key])
    if "fields" in kept:
        kept["fields"] = [{**field, "type": bare(field["type"])} for field in kept["fields"]]
    return kept


def smallest(schema: Any, named: dict[str, Any]) -> int:
    """Return the fewest bytes of a value.

    Raises: ConfigError: a small body could exhaust a worker: a schema that contains itself has nesting without bound; an
        array of items of no bytes has 2 billion of them in a body of 5 bytes; of records that contain others twice, level
        by level, the smallest body has more than FIELDS_MAX fields.
    """
    try:
        return _least(schema, named, (), {})[0]
    except RecursionError:
        raise ConfigError("it is nested too deep") from None


def _least(
    schema: Any, named: dict[str, Any], around: tuple[str, ...], done: dict[str, tuple[int, int]]
) -> tuple[int, int]:
    """Return the fewest bytes, and the most fields with one item per list.

    Args:
        around: names of the enclosing records.
        done: results of records, so that none is looked at twice.
    """
    if isinstance(schema, list):
        found = [_least(branch, named, around, done) for branch in schema]
        # The number of the branch takes a byte at least.
        return 1 + min((size for size, _ in found), default=0), 1 + max((fields for _, fields in found), default=0)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, (dict, list)):
        return _least(kind, named, around, done)
    if kind in _SMALLEST:
        return _SMALLEST[kind], 1
    if kind in {"enum", "fixed"}:
        return int(schema["size"]) if kind == "fixed" else 1, 1
    if kind in {"map", "array"}:
        size, fields = _least(schema["items" if kind == "array" else "values"], named, around, done)
        # A map's items cannot be of no bytes: each has a key.
        if kind == "array" and size == 0:
            raise ConfigError("it has an array of items that take no bytes")
        # An empty array or map is one byte, the count of its first block.
        return 1, fields + 1
    whole = schema if kind in {"record", "error"} else named[kind]
    if whole["type"] not in {"record", "error"}:
        return _least(whole, named, around, done)
    name = whole["name"]
    if name in around:
        raise ConfigError(f"its record {name} holds itself")
    # Once per record: of thirty records, each twice in the next, it took a quarter of an hour.
    if name not in done:
        inner = [_least(field["type"], named, (*around, name), done) for field in whole["fields"]]
        done[name] = sum(size for size, _ in inner), 1 + sum(fields for _, fields in inner)
        if done[name][1] > FIELDS_MAX:
            raise ConfigError(f"its record {name} has more than {FIELDS_MAX} fields, with those of the records in it")
    return done[name]


def column(schema: Any, named: dict[str, Any], path: str) -> tuple[pa.DataType, Convert | None]:
    """Return the Arrow type of a schema and the conversion of its values (None: as they are). `path`: for errors.

    Raises: ConfigError: no column has that type: a union of several types, a decimal of more than 38 digits.
    """
    if isinstance(schema, list):
        return _union(schema, named, path)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, (dict, list)):
        return column(kind, named, path)
    if not isinstance(schema, dict):
        return _named(kind, named, path)
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return _decimal(schema, path)
    if (kind, logical) in _TIMES:
        return _TIMES[kind, str(logical)]
    if kind in {"record", "error"}:
        return _record(schema, named, path)
    if kind in {"array", "map"}:
        inner, convert = column(schema["items" if kind == "array" else "values"], named, f"{path}[]")
        if kind == "array":
            return pa.list_(inner), None if convert is None else lambda items: list(map(_or_null(convert), items))
        # Arrow builds a map from pairs; fastavro gives a dict.
        if convert is None:
            return pa.map_(pa.string(), inner), lambda pairs: list(pairs.items())
        each = _or_null(convert)
        return pa.map_(pa.string(), inner), lambda pairs: [(key, each(value)) for key, value in pairs.items()]
    if kind == "enum":
        return pa.string(), None
    return (pa.binary(), _raw) if kind == "fixed" else _named(kind, named, path)


def _named(kind: str, named: dict[str, Any], path: str) -> tuple[pa.DataType, Convert | None]:
    if kind == "null":
        raise ConfigError(
            f"{path} is null and nothing else, which is no column: leave it out of the schema that is read"
        )
    if kind in _PLAIN:
        return _PLAIN[kind], _raw if kind == "bytes" else None
    return column(named[kind], named, path)


def _raw(value: bytes | str) -> bytes:
    """Return the bytes of a `bytes` value. A field's default is text in Avro JSON, a character for each byte."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _union(branches: list[Any], named: dict[str, Any], path: str) -> tuple[pa.DataType, Convert | None]:
    real = [branch for branch in branches if branch != "null"]
    for pair, wide in (({"int", "long"}, "long"), ({"float", "double"}, "double")):
        if len(real) > 1 and all(isinstance(branch, str) for branch in real) and set(real) <= pair:
            real = [wide]
    if len(real) != 1:
        raise ConfigError(
            f"{path} is a union of several types, which is no column: "
            "give a schema without it, and its values are passed over"
        )
    return column(real[0], named, path)


def _record(schema: Any, named: dict[str, Any], path: str) -> tuple[pa.DataType, Convert | None]:
    fields, converts = [], {}
    for field in schema["fields"]:
        kind, convert = column(field["type"], named, f"{path}.{field['name']}" if path else field["name"])
        fields.append(pa.field(field["name"], kind))
        if convert is not None:
            converts[field["name"]] = _or_null(convert)
    if not fields:
        raise ConfigError(f"{path or 'the record'} has no fields, which is no column: leave it out of the schema")
    if not converts:
        return pa.struct(fields), None

    def whole(record: dict[str, Any]) -> dict[str, Any]:
        for name, convert in converts.items():
            record[name] = convert(record[name])
        return record

    return pa.struct(fields), whole


def _decimal(schema: Any, path: str) -> tuple[pa.DataType, Convert]:
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(digits, int) or not 0 < digits <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= digits:
        raise ConfigError(f"{path} is a decimal of {digits} digits, {scale} of them behind the point: at most 38 fit")
    # `scaleb` rounds to its context, and the default one has 28 digits.
    exact = decimal.Context(prec=_DECIMAL_DIGITS_MAX + 2)

    def convert(value: bytes | str) -> decimal.Decimal:
        raw = _raw(value)
        # Before the conversion, which takes long for a number of 4 MiB.
        if len(raw) > _DECIMAL_BYTES_MAX:
            raise ValueError("more than 38 digits")
        return decimal.Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, exact)

    return pa.decimal128(digits, scale), convert


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
