"""Kinds of values: the type of a column's JSON, the merging of two kinds, and the Python value of a kind.

    long                whole number of 64 bits         decimal(p,s)    text or number, p <= 38 digits, s behind the point
    double              number                          date            YYYY-MM-DD
    boolean             true or false                   datetime        YYYY-MM-DD HH:MM:SS.ffffff, in no time zone
    string              text, or anything as JSON       timestamp       the same in UTC, with an offset or Z behind it
    binary              base64

A kind is a text, stored in manifests. A column has none while all its values were null.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import re
from collections.abc import Mapping
from typing import Any

import msgspec

LONG, DOUBLE, BOOLEAN, STRING, BINARY = "long", "double", "boolean", "string", "binary"
DATE, DATETIME, TIMESTAMP = "date", "datetime", "timestamp"
DIGITS_MAX = 38
"""Most digits of a decimal, in Parquet and in Spark."""
LONG_DIGITS = 19

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# Inexact raises: no digit is lost silently.
_EXACT = decimal.Context(prec=DIGITS_MAX, traps=[decimal.InvalidOperation, decimal.Inexact])


def decimal_kind(digits: int, scale: int) -> str:
    """Return the kind of a decimal; `string` if it has too many digits."""
    return f"decimal({max(digits, scale, 1)},{scale})" if scale >= 0 and max(digits, scale) <= DIGITS_MAX else STRING


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return digits and scale of a decimal kind; None: another kind."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def kind_of(value: Any) -> str | None:
    """Return the kind of a JSON value without a schema; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return LONG if -(1 << 63) <= value < 1 << 63 else decimal_kind(len(str(abs(value))), 0)
    return DOUBLE if isinstance(value, float) else STRING


def plain(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return columns and kinds of a JSON object; nested values become JSON texts."""
    values = {name: json_text(value) if isinstance(value, dict | list) else value for name, value in row.items()}
    kinds = {name: kind for name, value in values.items() if (kind := kind_of(value)) is not None}
    return values, kinds


def merged(one: str | None, other: str | None) -> str | None:
    """Return the narrowest kind for the values of both."""
    if one == other or other is None:
        return one
    if one is None:
        return other
    if {one, other} == {LONG, DOUBLE}:
        return DOUBLE
    mine, yours = ((LONG_DIGITS, 0) if kind == LONG else digits_of(kind) for kind in (one, other))
    if mine is not None and yours is not None:
        # Digits before and behind the point are merged apart, so that neither side loses one.
        scale = max(mine[1], yours[1])
        return decimal_kind(max(mine[0] - mine[1], yours[0] - yours[1]) + scale, scale)
    return STRING


def merge_all(known: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Merge column → kind of both. Known columns stay in their order, new ones follow."""
    result = dict(known)
    for name, kind in more.items():
        joined = merged(result.get(name), kind)
        assert joined is not None
        result[name] = joined
    return result


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def python_value(value: Any, kind: str) -> Any:
    """Convert a JSON value to int, float, bool, str, bytes, Decimal, date, or datetime (aware for `timestamp`).

    Raises ValueError: not a value of that kind.
    """
    if value is None:
        return None
    try:
        return _READERS[kind](value) if kind in _READERS else _decimal(value, kind)
    except (ValueError, TypeError, AttributeError, decimal.DecimalException, binascii.Error):
        raise ValueError(f"{value!r} is no {kind}") from None


def _decimal(value: Any, kind: str) -> decimal.Decimal:
    digits = digits_of(kind)
    if digits is None or isinstance(value, bool) or not decimal.Decimal(str(value)).is_finite():
        raise ValueError
    number = decimal.Decimal(str(value)).quantize(decimal.Decimal(1).scaleb(-digits[1]), context=_EXACT)
    if len(number.as_tuple().digits) > digits[0] and number.adjusted() >= digits[0] - digits[1]:
        raise ValueError
    return number


def _long(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool | float) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError
    return number


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _double(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _datetime(value: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(value)
    if found.tzinfo is not None:
        raise ValueError
    return found


def _timestamp(value: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(value)
    return (found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)


_READERS = {
    LONG: _long,
    DOUBLE: _double,
    BOOLEAN: _boolean,
    STRING: _string,
    BINARY: lambda value: base64.b64decode(value, validate=True),
    DATE: dt.date.fromisoformat,
    DATETIME: _datetime,
    TIMESTAMP: _timestamp,
}
