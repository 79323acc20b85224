"""Decoder of JSON bodies in Python workers: for rows that never pass through the JVM, as the archive's.

msgspec reads a body into an object of the schema's types, a microsecond a body, and judges each body by itself. pyarrow's
JSON reader takes as long, and one malformed body fails the whole batch.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from metaq.errors import ConfigError
from metaq.spark.decode.batches import MICROS, Decode, Plan
from metaq.spark.decode.columns import checked_names

_FLOAT_MAX = 3.4028234663852886e38
_EXPONENT_MAX = 999
"""Largest exponent of a decimal: `1e500000000` has 11 bytes and half a billion digits."""
_INTS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_FIELD = "f{}"
"""Attribute names of the objects: a JSON name need not be a Python identifier."""

_PLAIN: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.binary(): bytes,
    pa.bool_(): bool,
    pa.float64(): float,
    pa.float32(): Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    pa.date32(): dt.date,
    pa.timestamp("us", tz="UTC"): dt.datetime,
    pa.timestamp("us"): Annotated[dt.datetime, msgspec.Meta(tz=False)],
    **{kind: Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)] for kind, bits in _INTS.items()},
}


def json_plan(kind: pa.StructType) -> Plan:
    """Return the plan that decodes one JSON object in UTF-8 to the struct `kind`.

    Its fields may be strings, binaries (base64), booleans, ints, floats, decimals, dates, timestamps, lists, maps with string
    keys, and structs of these.

    A body is corrupt if it is not one JSON object to its last byte, or if a field holds what its type cannot: a number with
    digits that would be lost, a text that is no date. Times without a zone are UTC. Fields that are missing are null,
    fields that the schema does not name are passed over; of a field that comes twice the last one counts. A string takes
    any other value too, as the JSON text that it is. Names are compared with their case.

    Raises: ConfigError: a type that is none of these, names that differ in their case only.
    """
    checked_names([field.name for field in kind], "the JSON schema")
    _check(kind, "")
    return Plan(kind, decoder, (kind,), columns_of)


def decoder(kind: pa.StructType) -> Decode:
    """Return a function that reads one body into an object for `columns_of`. Called once per task."""
    exact = msgspec.json.Decoder(_type(kind, str))
    # A string field with an object or number in it is rare: only such bodies take the slower decoder, with raw strings.
    as_text = msgspec.json.Decoder(_type(kind, msgspec.Raw)) if _has_text(kind) else None

    def decode(body: bytes) -> Any:
        if not body.isascii():
            body.decode()  # msgspec does not validate the UTF-8 of fields that it skips.
        try:
            return exact.decode(body)
        except msgspec.ValidationError:
            if as_text is None:
                raise
            return as_text.decode(body)

    return decode


def columns_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array from objects of the decoder. Raises ValueError or ArithmeticError: one does not fit."""
    if pa.types.is_struct(kind):
        mask = pa.array([value is None for value in values], pa.bool_())
        names = [_FIELD.format(number) for number in range(kind.num_fields)]
        children = [
            columns_of([None if value is None else getattr(value, name) for value in values], field.type)
            for name, field in zip(names, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        items = columns_of([item for value in values if value is not None for item in value], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), items, type=kind)
    if pa.types.is_map(kind):
        some = [value for value in values if value is not None]
        keys = pa.array([key for value in some for key in value], kind.key_type)
        items = columns_of([item for value in some for item in value.values()], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind)
    if pa.types.is_string(kind):
        return pa.array([_text(value) if type(value) is msgspec.Raw else value for value in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else _bounded(value) for value in values], kind)
    found = pa.array(values, kind)
    if pa.types.is_timestamp(kind) and len(found) and found.null_count < len(found):
        bounds = pc.min_max(found.cast(pa.int64())).as_py()
        # By its time zone: 9999-12-31T23:59-12:00.
        if bounds["min"] not in MICROS or bounds["max"] not in MICROS:
            raise ValueError("a time before the year 1 or after 9999")
    return found


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return Arrow's offsets of lists, null where a list is null, with the end as the last."""
    offsets: list[int | None] = []
    at = 0
    for value in values:
        offsets.append(None if value is None else at)
        at += 0 if value is None else len(value)
    return pa.array([*offsets, at], pa.int32())


def _text(raw: msgspec.Raw) -> str | None:
    found = bytes(raw).strip(b" \t\r\n")
    if found.startswith(b'"'):
        return msgspec.json.decode(found, type=str)
    return None if found == b"null" else found.decode()


def _bounded(value: decimal.Decimal) -> decimal.Decimal:
    if not value.is_finite() or abs(value.adjusted()) > _EXPONENT_MAX:
        raise ValueError("no number that a decimal holds")
    return value


def _type(kind: pa.DataType, text: Any) -> Any:
    """Return msgspec's type of an Arrow type. `text`: its type for strings."""
    if pa.types.is_struct(kind):
        fields = [(_FIELD.format(number), _or_null(field.type, text), None) for number, field in enumerate(kind)]
        names = {_FIELD.format(number): field.name for number, field in enumerate(kind)}
        # gc=False: the collector would walk through a whole batch of objects, none of which can be in a cycle.
        return msgspec.defstruct("Body", fields, rename=names, gc=False)
    if pa.types.is_list(kind):
        return list[_or_null(kind.value_type, text)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _or_null(kind.item_type, text)]  # type: ignore[misc]
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    return text if pa.types.is_string(kind) else _PLAIN[kind]


def _or_null(kind: pa.DataType, text: Any) -> Any:
    found = _type(kind, text)
    return found if found is msgspec.Raw else found | None  # Raw takes any value, null too.


def _check(kind: pa.DataType, path: str) -> None:
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if not names:
            raise ConfigError(f"the JSON schema has a struct without fields, {path}")
        if len({name.lower() for name in names}) < len(names):
            raise ConfigError(f"the JSON schema has two fields of one name in {path or 'it'}, but for their case")
        for field in kind:
            _check(field.type, f"{path}.{field.name}" if path else field.name)
    elif pa.types.is_list(kind):
        _check(kind.value_type, f"{path}[]")
    elif pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise ConfigError(f"the keys of JSON's objects are strings, those of {path} are not")
        _check(kind.item_type, f"{path}[]")
    elif not pa.types.is_decimal(kind) and kind not in _PLAIN:
        raise ConfigError(f"no JSON value is of the type of {path}")


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_text(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_text(kind.value_type)
    if pa.types.is_map(kind):
        return _has_text(kind.item_type)
    return bool(pa.types.is_string(kind))
