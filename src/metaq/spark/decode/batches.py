"""Decoders that are Python: batches of bodies in, batches of structs out, in Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql import types

from metaq.errors import ConfigError
from metaq.spark.decode.columns import body_of, checked_names, decoded

CHUNK_BYTES = 1 << 20
"""Bodies of so many bytes are turned into Python values before these become Arrow: what bounds a worker's memory."""
GROWTH_MAX, SMALL_BYTES = 64, 1 << 20
"""A body whose fields take more than 64 times its bytes, and more than 1 MiB, is a bomb and counts as corrupt."""

MICROS = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
_DAYS = range(-719_162, 2_932_897)
"""From the year 1 to 9999: what Spark's timestamps and dates, and Python's, are made for."""

Value = dict[str, Any]
Decode = Callable[[bytes], Value]
"""The fields of one body. Raises whatever it likes: then the body is corrupt."""

_SPARK_TYPES: dict[pa.DataType, types.DataType] = {
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    pa.bool_(): types.BooleanType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float32(): types.FloatType(),
    pa.float64(): types.DoubleType(),
    pa.date32(): types.DateType(),
    pa.timestamp("us", tz="UTC"): types.TimestampType(),
    pa.timestamp("us"): types.TimestampNTZType(),
    pa.duration("us"): types.DayTimeIntervalType(),
}


def instant(micros: int) -> int:
    """Microseconds since 1970, if a timestamp can be made of them. Raises ValueError."""
    if micros not in MICROS:
        raise ValueError("a time before the year 1 or after 9999")
    return micros


def day(days: int) -> int:
    """Days since 1970, if a date can be made of them. Raises ValueError."""
    if days not in _DAYS:
        raise ValueError("a day before the year 1 or after 9999")
    return days


def spark_type(kind: pa.DataType) -> types.DataType:
    """What Spark calls an Arrow type; everything may be null."""
    if pa.types.is_struct(kind):
        return types.StructType([types.StructField(field.name, spark_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return types.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return types.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    return _SPARK_TYPES[kind]


def struct_array(bodies: pa.Array, decode: Decode, kind: pa.StructType) -> pa.Array:
    """A struct of type `kind` for each body; null for a body that is null or does not decode.

    Raises: nothing that a body can bring about.
    """
    done: list[pa.Array] = []
    values: list[Value | None] = []
    sizes: list[int] = []
    size = 0

    def close() -> None:
        done.append(_arrow(values, sizes, kind))
        values.clear()
        sizes.clear()

    for scalar in bodies:
        body = scalar.as_py()
        value = None
        if body is not None:
            try:
                value = decode(body)
            except MemoryError:
                raise  # what a worker can do about is to be started again
            except Exception:  # noqa: BLE001 - a body may be anything, and libraries fail on it in any way
                value = None
        values.append(value)
        sizes.append(len(body or b""))
        size += sizes[-1]
        if size >= CHUNK_BYTES:
            close()
            size = 0
    close()
    return pa.concat_arrays(done)


def _arrow(values: list[Value | None], sizes: list[int], kind: pa.StructType) -> pa.Array:
    try:
        array = pa.array(values, type=kind)
        if array.nbytes <= max(SMALL_BYTES, sum(sizes) * GROWTH_MAX):
            return array
    except (ValueError, TypeError, ArithmeticError):  # pa.ArrowInvalid is a ValueError
        pass
    # One of them is at fault: an int beyond its type, a text that is none, or too much of everything.
    single = (_arrow_of_one(value, size, kind) for value, size in zip(values, sizes, strict=True))
    return pa.concat_arrays(list(single))


def _arrow_of_one(value: Value | None, size: int, kind: pa.StructType) -> pa.Array:
    try:
        array = pa.array([value], type=kind)
    except (ValueError, TypeError, ArithmeticError):
        return pa.nulls(1, type=kind)
    return array if array.nbytes <= max(SMALL_BYTES, size * GROWTH_MAX) else pa.nulls(1, type=kind)


def by_batches(column: Any, kind: pa.StructType, make: Callable[..., Decode], *arguments: Any) -> Any:
    """The Column of a decoder that `make(*arguments)` makes in each task; both are pickled.

    Raises: ConfigError: the fields of `kind` cannot be those of a struct with `_corrupt`.
    """
    names = [field.name for field in kind]
    checked_names(names, "the schema")
    if not hasattr(sql, "arrow_udf"):
        raise ConfigError("this decoder needs PySpark 4.1 or newer: pip install 'pymetaq[spark,decode]'")

    def decode_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        decode = make(*arguments)
        for bodies in batches:
            yield struct_array(bodies, decode, kind)

    body = body_of(column)
    value = sql.arrow_udf(decode_batches, spark_type(kind))(body)
    return decoded(value, value.isNotNull(), names, body)
