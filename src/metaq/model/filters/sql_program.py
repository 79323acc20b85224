"""Programs of SQL filters, and the limits of expressions."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from metaq.errors import ConfigError

SQL92: Final = "SQL92"
TEXT_BYTES_MAX: Final = 64 * 1024
DEPTH_MAX: Final = 64
"""Deepest nesting of parentheses and of NOT, + and - before an operand."""
STEPS_MAX: Final = 2048
CONTAINS_MAX: Final = 16
"""Most CONTAINS in one expression: each searches a whole value of up to 32 KiB, slowly if it is full of near
matches."""
FEW_TEXTS: Final = 8
"""Longest list of IN that is compared text by text; a longer one is looked up by the value's hash."""
NAMES_MAX: Final = 64
"""Most different properties in one expression."""
STACK_MAX: Final = 256
"""Size of the stack: more than nesting of `DEPTH_MAX` can use, three values for each level."""


class Op(enum.IntEnum):
    """Operations on the stack. The argument of a step is named in parentheses.

    Values on the stack are nothing (NULL), a boolean, an int of 32 bits, a long of 64, a double, or a text.
    """

    NULL = 0
    FALSE = 1
    TRUE = 2
    INT = 3
    """(the number)"""
    LONG = 4
    """(the number)"""
    DOUBLE = 5
    """(the number)"""
    TEXT = 6
    """(its UTF-8)"""
    PROPERTY = 7
    """(number of the name) Push the value of a property, or nothing."""
    NEGATE = 8
    """Minus of anything but a number: nothing. That of a number is computed when the text is compiled."""
    NOT = 9
    CAST = 10
    """A property as a condition: a text is false, as in RocketMQ."""
    AND_NEXT = 11
    """(how many steps) False on top: skip so many, and leave it there."""
    AND = 12
    OR_NEXT = 13
    """(how many steps) True on top: skip so many, and leave it there."""
    OR = 14
    IF_ANY = 15
    """(how many steps) Nothing on top: skip so many, and leave it there."""
    EQUAL = 16
    LESS = 17
    LESS_EQUAL = 18
    GREATER = 19
    GREATER_EQUAL = 20
    IS_NULL = 21
    IN = 22
    """(the texts)"""
    NOT_IN = 23
    """(the texts)"""
    CONTAINS = 24
    """(the text)"""
    NOT_CONTAINS = 25
    """(the text)"""
    STARTS = 26
    """(the text)"""
    NOT_STARTS = 27
    """(the text)"""
    ENDS = 28
    """(the text)"""
    NOT_ENDS = 29
    """(the text)"""


Argument = int | float | bytes | tuple[bytes, ...]
Step = tuple[int, Argument]


class Program(Struct, frozen=True):
    """A compiled expression."""

    text: str
    names: tuple[bytes, ...]
    """Names of the properties that it reads, in UTF-8."""
    steps: tuple[Step, ...]
    stack_max: int
    """Most values on the stack at once."""
    cost: int
    """Cost of one run beside reading the properties, as the bytes of properties that are read in the same time."""
    searches: int
    """Steps that search a whole value."""
    never: str = ""
    """Why a condition in it is never true, if one is. RocketMQ takes such a text and silently delivers nothing."""


class SqlError(ConfigError):
    """An expression that cannot be compiled. `line` and `column` count characters from 1."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(line, column, text)
        self.line, self.column, self.text = line, column, text

    def __str__(self) -> str:
        return f"SQL filter, line {self.line}, column {self.column}: {self.text}"
