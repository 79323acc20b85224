"""The struct with `_corrupt` that all decoders return, and its expansion into columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from metaq.errors import ConfigError

CORRUPT = "_corrupt"
"""Field of a body that did not decode."""


def body_of(column: Any) -> Any:
    """Return a column, given by name or as a Column, cast to binary."""
    return (sql.col(column) if isinstance(column, str) else column).cast("binary")


def checked_names(names: Sequence[str], whose: str) -> None:
    """Validate field names. Raises ConfigError: none, `_corrupt` among them, or two that Spark cannot tell apart."""
    if not names:
        raise ConfigError(f"{whose} has no fields: there is nothing to decode")
    seen: set[str] = set()
    for name in names:
        if name.lower() == CORRUPT:
            raise ConfigError(f"{whose} has a field {name}, which is where bodies go that do not decode: rename it")
        if name.lower() in seen:
            raise ConfigError(f"{whose} has two fields {name}, also in another case, which Spark cannot tell apart")
        seen.add(name.lower())


def decoded(value: Any, ok: Any, names: Iterable[str], body: Any) -> Any:
    """Return a decoder's Column: a struct of the fields `names` and `_corrupt`.

    Args:
        value: a struct Column with the fields `names`.
        ok: Boolean Column: whether `body` decoded; null counts as no.
        body: binary Column. Where it is null, all fields and `_corrupt` are null.
    """
    fields = [sql.when(ok, value.getField(name)).alias(name) for name in names]
    return sql.struct(*fields, sql.when(~sql.coalesce(ok, sql.lit(False)), body).alias(CORRUPT))


def expand(frame: Any, struct: Any, *, prefix: str = "") -> Any:
    """Append the fields of a decoded struct to a DataFrame's columns, `_corrupt` last.

    Args:
        frame: the DataFrame.
        struct: the Column that `decode.json(...)` or another decoder returns.
        prefix: of the fields' names, not of `_corrupt`.

    Raises: ConfigError: a field has the name of a column of the frame, in whatever case, or `struct` is not a struct.
    """
    kind = frame.select(struct).schema.fields[0].dataType
    if not isinstance(kind, StructType):
        raise ConfigError(f"expand takes what a decoder gives, a struct, not a {kind.simpleString()}")
    names = {field.name: field.name if field.name == CORRUPT else prefix + field.name for field in kind.fields}
    taken = {name.lower() for name in frame.columns}
    clash = [name for name in names.values() if name.lower() in taken]
    if clash:
        raise ConfigError(
            f"the frame has columns {', '.join(clash)} already: select less of it, rename them, "
            "or give expand a prefix for the decoded fields"
        )
    whole = "decoded"
    while whole in taken:
        whole += "_"
    # Not select(struct.getField(..), ...): the optimizer would decode the body once for each field.
    return frame.withColumn(whole, struct).select(
        *(sql.col(quoted(name)) for name in frame.columns),
        *(sql.col(whole).getField(name).alias(column) for name, column in names.items()),
    )


def quoted(name: str) -> str:
    """Return a column's name quoted for `col`, which takes dots for fields."""
    return f"`{name.replace('`', '``')}`"
