"""SQL92 filters: the text of a condition on a message's properties, checked and compiled (docs/filters.md).

The language is RocketMQ 4.9's, with its types and its rules for missing properties, and RocketMQ 5's CONTAINS,
STARTSWITH and ENDSWITH. `compile_sql` makes a `Program` of a text, once per subscription: steps for a stack machine,
which `metaq.wire.hot.Condition` runs on the properties of each message.

RocketMQ's parser stops silently where it cannot read on: `a > 5 b` means `a > 5` there. Here it is an error.
"""

from __future__ import annotations

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.model.filters.sql_program import SQL92, STACK_MAX, TEXT_BYTES_MAX, Argument, Op, Program, SqlError

__all__ = ["SQL92", "STACK_MAX", "TEXT_BYTES_MAX", "Argument", "Op", "Program", "Sql", "SqlError", "compile_sql"]


class Sql(Struct, frozen=True):
    """A condition on the properties of messages, by which brokers choose: `Sql("amount > 10 AND region IN ('eu', 'us')")`.

    docs/filters.md has the language. Raises ConfigError: the text is wrong, or a condition in it is never true; says where.
    """

    expression: str
    """The condition, as text."""

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise TypeError(f"an SQL filter is a str, not {self.expression!r}")
        never = compile_sql(self.expression).never
        if never:
            raise ConfigError(never)


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
