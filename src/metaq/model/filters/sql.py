"""SQL92 filters: the text of a condition on a message's properties, checked and compiled (docs/filters.md).

The language is RocketMQ 4.9's, with its types and its rules for what is missing, and of RocketMQ 5 CONTAINS, STARTSWITH
and ENDSWITH. `compile_sql` makes a `Program` of a text: steps for a machine with a stack, that `metaq.wire.hot.Sql` runs
on the properties of one message after the other. One program is made per subscription.

RocketMQ ends quietly where it cannot read on, so that `a > 5 b` means `a > 5` there; here that is an error.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from metaq.errors import ConfigError

SQL92: Final = "SQL92"
TEXT_BYTES_MAX: Final = 64 * 1024
DEPTH_MAX: Final = 64
"""Of parentheses and of NOT, + and - before an operand."""
STEPS_MAX: Final = 2048
CONTAINS_MAX: Final = 16
"""Each goes through a whole value, of up to 32 KiB, and slowly if that looks much like what is searched."""
FEW_TEXTS: Final = 8
"""A longer list of IN is looked up by the whole value's hash."""
NAMES_MAX: Final = 64
"""Different properties that one expression may name."""
STACK_MAX: Final = 256
"""More values than nesting of `DEPTH_MAX` can put on the stack: three for each level."""


class Op(enum.IntEnum):
    """What a step does with the stack. Its argument is named in parentheses.

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
    """Of anything but a number, whose minus is taken when the text is compiled: nothing."""
    NOT = 9
    CAST = 10
    """Of a property as a condition: a text is false."""
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
    """The properties that it looks at, in UTF-8."""
    steps: tuple[Step, ...]
    stack_max: int
    """So many values at most are on the stack at once."""
    cost: int
    """What one run of it costs beside the look at the properties, as bytes of properties that are looked at meanwhile."""
    searches: int
    """Of its steps those that go through a whole value."""
    never: str = ""
    """Why a condition in it is never true, if one is: RocketMQ takes such a text and delivers nothing."""


class Sql(Struct, frozen=True):
    """A condition on the properties of messages, by which brokers choose: `Sql("amount > 10 AND region IN ('eu', 'us')")`.

    docs/filters.md has the language. Raises ConfigError: the text is wrong, or a condition in it is never true; says where.
    """

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise TypeError(f"an SQL filter is a str, not {self.expression!r}")
        never = compile_sql(self.expression).never
        if never:
            raise ConfigError(never)


class SqlError(ConfigError):
    """An expression that is not in the language. `line` and `column` count characters from 1."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(line, column, text)
        self.line, self.column, self.text = line, column, text

    def __str__(self) -> str:
        return f"SQL filter, line {self.line}, column {self.column}: {self.text}"


def compile_sql(text: str) -> Program:
    """Check a text and compile it. Raises SqlError: what is wrong, where, and what was expected."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise SqlError(1, 1, f"an expression of {size} bytes, the limit is {TEXT_BYTES_MAX}")
    if not text.strip():
        raise SqlError(1, 1, "an empty expression, expected a condition such as amount > 10")
    from metaq.model.filters.sql_compiler import (
        SqlCompiler,  # here and not above: few brokers and clients ever see an SQL filter
    )

    return SqlCompiler(text).program()
