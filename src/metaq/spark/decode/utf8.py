"""Decoder of bodies that are UTF-8 text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql

from metaq.spark.decode.batches import Decode, Plan
from metaq.spark.decode.columns import body_of, decoded


def utf8_of(body: Any) -> Any:
    """Return the string Column of a binary Column; null where it is not strict UTF-8.

    A mere cast to string keeps invalid bytes in Spark.
    """
    return sql.try_validate_utf8(body.cast("string"))


def text(column: Any = "body") -> Any:
    """Decode UTF-8: `struct<text string, _corrupt binary>`.

    Strict: overlong forms and surrogates are corrupt. A byte order mark stays.
    """
    body = body_of(column)
    found = utf8_of(body)
    return decoded(sql.struct(found.alias("text")), found.isNotNull(), ["text"], body)


def utf8_plan() -> Plan:
    """Return the plan of the same in Python workers, for rows that never pass through the JVM."""
    return Plan(pa.struct([pa.field("text", pa.string())]), _decoder)


def _decoder() -> Decode:
    return lambda body: {"text": body.decode()}
