"""Bodies that are text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql

from metaq.spark.decode.batches import Decode, Plan
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


def utf8_plan() -> Plan:
    """The same in Python's workers, for rows that never pass through the JVM."""
    return Plan(pa.struct([pa.field("text", pa.string())]), _decoder)


def _decoder() -> Decode:
    return lambda body: {"text": body.decode()}
