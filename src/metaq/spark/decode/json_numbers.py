"""Decimals in JSON bodies whose exponent takes Spark's parser hours: `1e500000000` has 11 bytes and half a billion digits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, BooleanType, DataType, DecimalType, MapType, StructType

from metaq.errors import ConfigError

_ANY = "*"
"""Instead of names: the decimals are values of a map, whose keys may be anything."""
_SUSPICIOUS = re.compile(rb"[eE][-+0-9,]{4,}|[eE][-+0-9,]*[\x80-\xff]|\\u")
"""Every body with such an exponent, also one that commas, escapes or digits of other scripts hide; and others."""
_EXPONENT = re.compile(r"[eE][-+]?\d{4,}")
_NO_DIGITS = re.compile(r"[^\deE]")


def bounded(kind: StructType, body: Any) -> Any | None:
    """A Column: whether the decimals of a body have exponents of at most 3 digits. None: the schema has no decimals.

    Raises: ConfigError: PySpark is too old to look.
    """
    names = frozenset(_names(kind, ""))
    if not names:
        return None
    if not hasattr(sql, "arrow_udf"):
        raise ConfigError("decimals of JSON bodies need PySpark 4.1 or newer: pip install 'pymetaq[spark]'")

    def look(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for bodies in batches:
            yield pa.array([one is None or is_bounded(one, names) for one in bodies.to_pylist()], pa.bool_())

    return sql.arrow_udf(look, BooleanType())(body)


def is_bounded(body: bytes, names: frozenset[str]) -> bool:
    """Whether neither a number nor a text of the names, which Spark takes for a decimal too, has an exponent of 4 digits.

    All that come, since of a name that comes twice Spark reads both. False: also for what is no JSON, if it looks like it.
    """
    if not _SUSPICIOUS.search(body):
        return True

    def look(pairs: list[tuple[str, Any]]) -> None:
        for name, value in pairs:
            if name in names or _ANY in names:
                _check(value)

    try:
        json.loads(body.decode(), parse_float=_check_number, parse_int=len, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return False
    return True


def _check_number(text: str) -> None:
    if _EXPONENT.search(text):
        raise ValueError("an exponent of more than 3 digits")


def _check(value: Any) -> None:
    if isinstance(value, str):
        _check_number(_NO_DIGITS.sub("", value))
    elif isinstance(value, list):
        for one in value:
            _check(one)


def _names(kind: DataType, name: str) -> Iterator[str]:
    """Of the fields that are decimals, or lists of them."""
    if isinstance(kind, DecimalType):
        yield name
    elif isinstance(kind, ArrayType):
        yield from _names(kind.elementType, name)
    elif isinstance(kind, MapType):
        yield from _names(kind.valueType, _ANY)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from _names(field.dataType, field.name)
