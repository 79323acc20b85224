"""Bodies that are text."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as sql

from metaq.spark.decode.columns import body_of, decoded


def utf8_of(body: Any) -> Any:
    """The string that a binary Column holds; null where it is not UTF-8, to the letter of its definition."""
    return sql.try_validate_utf8(body.cast("string"))


def text(column: Any = "body") -> Any:
    """UTF-8: `struct<text string, _corrupt binary>`.

    Strict: overlong forms and surrogates are no UTF-8. Nothing is taken away, a byte order mark neither.
    """
    body = body_of(column)
    found = utf8_of(body)
    return decoded(sql.struct(found.alias("text")), found.isNotNull(), ["text"], body)
