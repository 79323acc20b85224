"""The result of all decoders, a struct with `_corrupt`, and its expansion into columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from metaq.errors import ConfigError

CORRUPT = "_corrupt"
"""The field that holds a body which did not decode."""


def body_of(column: Any) -> Any:
    """The binary Column of a column's name, or of a Column."""
    return (sql.col(column) if isinstance(column, str) else column).cast("binary")


def checked_names(names: Sequence[str], whose: str) -> None:
    """Raises ConfigError: a struct with these fields could not be read again, or has no place for `_corrupt`."""
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
    """The Column that a decoder gives.

    Args:
        value: a struct with the fields `names`. ok: whether it is what `body` says; null counts as no.
        body: the bytes. Where they are null, all is null: there was nothing to decode.
    """
    fields = [sql.when(ok, value.getField(name)).alias(name) for name in names]
    return sql.struct(*fields, sql.when(~sql.coalesce(ok, sql.lit(False)), body).alias(CORRUPT))


def expand(frame: Any, struct: Any, *, prefix: str = "") -> Any:
    """The frame with the fields of a decoded struct as columns behind its own, `_corrupt` last.

    Args:
        struct: what `decode.json(...)` and the others give. prefix: before the fields' names, not before `_corrupt`.

    Raises: ConfigError: a field has the name of a column of the frame, in whatever case, or the struct is none.
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
    """A column's name as `col` takes it, dots and all."""
    return f"`{name.replace('`', '``')}`"
