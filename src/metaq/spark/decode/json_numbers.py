"""Check for decimals in JSON bodies whose exponent takes Spark's parser hours.

Spark sets the scale of every number that it reads for a decimal: `1e10000000` takes it 46 s, and `1e500000000`, 11 bytes with
half a billion digits, hours. Whoever sends such a body could stop a query for good, so they are found before Spark sees them.
"""

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
"""Stands for any field name: the decimals are values of a map, whose keys may be anything."""
_SUSPICIOUS = re.compile(rb"[eE][-+0-9,]{4,}|[eE][-+0-9,]*[\x80-\xff]|\\u")
"""Quick look: matches every body with such an exponent, also one hidden by commas, escapes or other scripts' digits."""
_EXPONENT = re.compile(r"[eE][-+]?\d{4,}")
_NO_DIGITS = re.compile(r"[^\deE]")


def bounded(kind: StructType, body: Any) -> Any | None:
    """Return a Boolean Column: all decimals of a body have exponents of at most 3 digits. None: the schema has no decimals.

    Raises: ConfigError: PySpark is too old for Arrow UDFs.
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
    """Return whether no number, and no text of a decimal field, has an exponent of 4 digits or more.

    Texts count because Spark reads decimals from them too; of a field that comes twice both values count, because Spark
    reads both. Returns False also for invalid JSON that has such an exponent.
    """
    if not _SUSPICIOUS.search(body):
        return True

    def look(pairs: list[tuple[str, Any]]) -> None:
        for name, value in pairs:
            if name in names or _ANY in names:
                _check(value)

    try:
        # len and not int: Python refuses whole numbers of more than 4300 digits, and their value does not matter here.
        json.loads(body.decode(), parse_float=_check_number, parse_int=len, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return False
    return True


def _check_number(text: str) -> None:
    if _EXPONENT.search(text):
        raise ValueError("an exponent of more than 3 digits")


def _check(value: Any) -> None:
    if isinstance(value, str):
        # Spark takes the commas out of such texts: `1e1,0000` is a number to it.
        _check_number(_NO_DIGITS.sub("", value))
    elif isinstance(value, list):
        for one in value:
            _check(one)


def _names(kind: DataType, name: str) -> Iterator[str]:
    """Yield the names of fields that are decimals, or lists of them."""
    if isinstance(kind, DecimalType):
        yield name
    elif isinstance(kind, ArrayType):
        yield from _names(kind.elementType, name)
    elif isinstance(kind, MapType):
        yield from _names(kind.valueType, _ANY)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from _names(field.dataType, field.name)
