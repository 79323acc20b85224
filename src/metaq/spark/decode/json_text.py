"""Decoder of JSON bodies by Spark's own parser, made strict: alone it accepts anything behind the first object."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from metaq.errors import ConfigError
from metaq.spark.decode.batches import MICROS
from metaq.spark.decode.columns import CORRUPT, body_of, checked_names, decoded
from metaq.spark.decode.json_numbers import bounded
from metaq.spark.decode.utf8 import utf8_of

_OBJECTS = "objects"
_SEAL = "_metaq_end_of_body"
"""Field of the object that follows a body in the array, see `json`."""

OPTIONS = (
    "dateFormat", "enableDateTimeParsingFallback", "locale", "primitivesAsString", "timestampFormat", "timestampNTZFormat",
    "timeZone",
)  # fmt: skip
"""Options of Spark's JSON reader that may be set: those for the meaning of values, not those that relax the syntax."""


def json(schema: str | StructType, column: Any = "body", *, options: Mapping[str, str] | None = None) -> Any:
    """One JSON object in UTF-8: a struct of the schema's fields and `_corrupt binary`.

    A body is corrupt if it is not one JSON object to its last byte, or if a field holds what its type cannot, or a time that is
    not in the years 1 to 9999; with decimals in the schema also if a number has an exponent of more than 3 digits. Fields that
    are missing are null, fields that the schema does not name are passed over; of a field that comes twice the last one
    counts. Names are compared with their case.

    Args:
        schema: `"id bigint, tags array<string>"` or a StructType. NOT NULL is ignored: every field may be null.
        column: name of the binary column, or a Column.
        options: of Spark's JSON reader, those in `OPTIONS`: `{"timestampFormat": "dd.MM.yyyy HH:mm"}`.

    Raises: ConfigError: a malformed schema, or an option that is not in `OPTIONS`.
    """
    wanted = columns_of_schema(schema)
    if _SEAL in wanted.names:
        raise ConfigError(f"the JSON schema has a field {_SEAL}, which is needed to find where a body ends: rename it")
    known = {name.lower() for name in OPTIONS}
    strange = [name for name in options or {} if name.lower() not in known]
    if strange:
        raise ConfigError(f"decode.json has no option {', '.join(strange)}; there are {', '.join(OPTIONS)}")
    body = body_of(column)
    text = utf8_of(body)
    harmless = bounded(wanted, body)
    if harmless is not None:  # Bodies with huge exponents must never reach Spark's parser.
        text = sql.when(harmless, text)
    # Spark's parser stops behind the first value: {"a":1}garbage is {"a":1} to it. So the body is put into an array, followed
    # by a second element of ours with a hash of the body, which no body can contain. A body is whole if it is the first of
    # exactly two elements, the second is ours, and it begins with `{`, so that it cannot close the array around it.
    seal = sql.xxhash64(text)
    array = sql.concat(
        sql.lit(f'{{"{_OBJECTS}":['), text, sql.lit(f',{{"{_SEAL}":'), seal.cast("string"), sql.lit("}]}")
    )
    element = StructType([*wanted.fields, StructField(_SEAL, LongType())])
    shape = StructType([StructField(_OBJECTS, ArrayType(element)), StructField(CORRUPT, StringType())])
    parsed = sql.from_json(
        array,
        shape,
        {
            **{name: str(value) for name, value in (options or {}).items()},
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": CORRUPT,
            # Spark's defaults relax JSON: texts in single quotes, and NaN as a number.
            "allowSingleQuotes": "false",
            "allowNonNumericNumbers": "false",
        },
    )
    objects = parsed.getField(_OBJECTS)
    # `get`, not `[]`: in ANSI mode a missing element is an error, and Spark may compute both sides of a conjunction.
    first, second = sql.get(objects, sql.lit(0)), sql.get(objects, sql.lit(1))
    ok = (
        text.rlike(r"^[ \t\r\n]*\{")
        & parsed.getField(CORRUPT).isNull()
        & (sql.size(objects) == 2)
        & first.isNotNull()
        & (second.getField(_SEAL) == seal)
    )
    beyond = _beyond(first, wanted)
    if beyond is not None:
        ok = ok & ~sql.coalesce(beyond, sql.lit(False))
    return decoded(first, ok, wanted.names, body)


def _beyond(value: Any, kind: DataType) -> Any | None:
    """Return a Boolean Column: a date or time in it is outside the years 1 to 9999. None: the type has neither.

    Spark reads such times, but `collect()` fails on them for the whole query, as Python's datetime has no such years.
    """
    if isinstance(kind, DateType):
        return ~value.between(sql.make_date(*map(sql.lit, (1, 1, 1))), sql.make_date(*map(sql.lit, (9999, 12, 31))))
    if isinstance(kind, TimestampType):
        return ~sql.unix_micros(value).between(MICROS[0], MICROS[-1])
    if isinstance(kind, TimestampNTZType):
        return ~sql.year(value).between(1, 9999)
    if isinstance(kind, (ArrayType, MapType)):
        inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        # Asked with a null: only whether the element's type has times at all.
        if _beyond(sql.lit(None), inner) is None:
            return None
        items = value if isinstance(kind, ArrayType) else sql.map_values(value)
        return sql.exists(items, lambda item: sql.coalesce(_beyond(item, inner), sql.lit(False)))
    if not isinstance(kind, StructType):
        return None
    found = [_beyond(value.getField(field.name), field.dataType) for field in kind.fields]
    some = [sql.coalesce(one, sql.lit(False)) for one in found if one is not None]
    return functools.reduce(operator.or_, some) if some else None


def columns_of_schema(schema: Any) -> StructType:
    """Parse `"id bigint, tags array<string>"` or `struct<id:bigint,…>`; a StructType stays. Raises ConfigError."""
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except ParseException as fault:
            reason = str(fault).strip().splitlines()[0]
            raise ConfigError(
                f"decode.json takes a schema such as 'id bigint, tags array<string>': {reason}"
            ) from fault
    if not isinstance(schema, StructType):
        raise ConfigError(f"decode.json takes the schema of an object, columns with types, not {schema!r}")
    checked_names(schema.names, "the JSON schema")
    return schema
