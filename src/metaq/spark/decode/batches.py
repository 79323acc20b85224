"""Decoders that are Python: batches of bodies in, batches of structs out, in Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql import types

from metaq.errors import ConfigError
from metaq.spark.decode.columns import body_of, checked_names, decoded

CHUNK_BYTES = 1 << 20
"""Bytes of bodies that are Python values at a time: bounds a worker's memory."""
GROWTH_MAX, SMALL_BYTES = 64, 1 << 20
"""A body whose fields take more than 64 times its bytes, and more than 1 MiB, is a bomb and counts as corrupt."""

MICROS = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
_DAYS = range(-719_162, 2_932_897)
"""Years 1 to 9999: the range of Spark's and Python's timestamps and dates."""

Value = Any
"""The fields of one body: a dict by their names, or what the plan's `build` takes."""
Decode = Callable[[bytes], Value]
"""Decodes one body into its fields. Any exception means that the body is corrupt."""
Build = Callable[[Sequence[Any], pa.DataType], pa.Array]
"""Values → an array of structs. Raises ValueError, TypeError or ArithmeticError where one does not fit."""


def built(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The `Build` of dicts."""
    return pa.array(values, type=kind)


class Plan(NamedTuple):
    """A decoder that is Python, as it travels to workers: it is pickled."""

    kind: pa.StructType
    """The columns."""
    make: Callable[..., Decode]
    """Called with `arguments` once in each task."""
    arguments: tuple[Any, ...] = ()
    build: Build = built


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
    """DDL of an Arrow type; everything may be null."""
    if pa.types.is_struct(kind):
        return types.StructType([types.StructField(field.name, spark_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return types.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return types.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    return _SPARK_TYPES[kind]


def struct_array(bodies: pa.Array, decode: Decode, kind: pa.StructType, build: Build = built) -> pa.Array:
    """A struct of type `kind` for each body; null for a body that is null or does not decode.

    Raises: nothing that a body can bring about.
    """
    sizes = pc.binary_length(bodies).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(sizes)
    done: list[pa.Array] = []
    begin = 0
    while begin < len(bodies):
        before = int(ends[begin - 1]) if begin else 0
        stop = max(begin + 1, int(np.searchsorted(ends, before + CHUNK_BYTES)) + 1)
        values = [_decoded(body, decode) for body in bodies.slice(begin, stop - begin).to_pylist()]
        done.append(_arrow(values, sizes[begin:stop].tolist(), kind, build))
        begin = stop
    return pa.concat_arrays(done) if done else pa.nulls(0, type=kind)


def _decoded(body: bytes | None, decode: Decode) -> Value | None:
    if body is None:
        return None
    try:
        return decode(body)
    except MemoryError:
        raise  # what a worker can do about is to be started again
    except Exception:  # noqa: BLE001 - a body may be anything, and libraries fail on it in any way
        return None


def _arrow(values: list[Value | None], sizes: list[int], kind: pa.StructType, build: Build) -> pa.Array:
    try:
        array = build(values, kind)
        if array.nbytes <= max(SMALL_BYTES, sum(sizes) * GROWTH_MAX):
            return array
    except (ValueError, TypeError, ArithmeticError):  # pa.ArrowInvalid is a ValueError
        pass
    # One of them is at fault: an int beyond its type, a text that is none, or too much of everything.
    single = (_arrow_of_one(value, size, kind, build) for value, size in zip(values, sizes, strict=True))
    return pa.concat_arrays(list(single))


def _arrow_of_one(value: Value | None, size: int, kind: pa.StructType, build: Build) -> pa.Array:
    try:
        array = build([value], kind)
    except (ValueError, TypeError, ArithmeticError):
        return pa.nulls(1, type=kind)
    return array if array.nbytes <= max(SMALL_BYTES, size * GROWTH_MAX) else pa.nulls(1, type=kind)


def by_batches(column: Any, plan: Plan) -> Any:
    """The Column of a plan's decoder: a struct of its fields and `_corrupt`.

    Raises: ConfigError: the fields cannot be those of a struct with `_corrupt`.
    """
    names = [field.name for field in plan.kind]
    checked_names(names, "the schema")
    body = body_of(column)
    value = value_of(plan, body)
    return decoded(value, value.isNotNull(), names, body)


def value_of(plan: Plan, body: Any) -> Any:
    """The Column of what bodies hold, null where they do not decode. Raises ConfigError: PySpark is too old for it."""
    if not hasattr(sql, "arrow_udf"):
        raise ConfigError("this decoder needs PySpark 4.1 or newer: pip install 'pymetaq[spark,decode]'")

    def decode_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        decode = plan.make(*plan.arguments)
        for bodies in batches:
            yield struct_array(bodies, decode, plan.kind, plan.build)

    return sql.arrow_udf(decode_batches, spark_type(plan.kind))(body)
