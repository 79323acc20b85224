"""Texts to numbers as Java reads them, for SQL filters: of the fallback, and of the compiled extension where a text is
not plain ASCII digits.

Apart from the fallback, so that a process with the compiled extension does not load the fallback's modules for it.
"""

from __future__ import annotations

import math
import re
from typing import Final

_INT_MIN: Final = -(1 << 31)
_LONG_MIN: Final = -(1 << 63)
_DECIMAL: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX: Final = re.compile(rb"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_NAMED: Final = {b"NaN": math.nan, b"Infinity": math.inf}
_TRIMMED: Final = bytes(range(0x21))
_DIGITS_MAX: Final = 40
"""Behind leading zeros; more are out of every range."""


class NoNumber(Exception):
    """A text is no number of the wanted type: the expression has no value, and the message does not match."""


def java_integer(text: bytes, *, long: bool) -> int:
    """As `Integer.valueOf` or `Long.valueOf` reads a text. Raises NoNumber."""
    try:
        import unicodedata  # here and not above: plain ASCII digits go without

        chars = text.decode()
        negative, digits = chars[:1] == "-", chars[1:] if chars[:1] in {"+", "-"} else chars
        if not digits:
            raise NoNumber
        number, seen = 0, 0
        for char in digits:
            if char > "\uffff":  # Java looks at UTF-16 units, and half of a pair is no digit
                raise NoNumber
            digit = unicodedata.decimal(char)
            number, seen = number * 10 + digit, seen + (seen > 0 or digit > 0)
            if seen > _DIGITS_MAX:
                raise NoNumber
    except ValueError:
        raise NoNumber from None
    number = -number if negative else number
    low = _LONG_MIN if long else _INT_MIN
    if not low <= number < -low:
        raise NoNumber
    return number


def java_double(text: bytes) -> float:
    """As `Double.valueOf` reads a text. Raises NoNumber."""
    # As Java's `trim`: everything up to the blank, control characters too.
    text = text.strip(_TRIMMED)
    sign = -1.0 if text[:1] == b"-" else 1.0
    plain = text[1:] if text[:1] in {b"+", b"-"} else text
    if plain in _NAMED:
        return sign * _NAMED[plain]
    # Java's parser takes the suffixes of its literals.
    if text[-1:] in {b"f", b"F", b"d", b"D"}:
        text = text[:-1]
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _HEX.fullmatch(text):
        try:
            return float.fromhex(text.decode())
        except OverflowError:
            return sign * math.inf
    raise NoNumber
