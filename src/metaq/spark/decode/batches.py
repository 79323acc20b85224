"""Decoders that run in Spark's Python workers: an Arrow batch of bodies in, a batch of structs out."""

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
"""Bytes of bodies that are decoded at a time: bounds a worker's memory, whose Arrow batches may be 10 000 large bodies."""
GROWTH_MAX, SMALL_BYTES = 64, 1 << 20
"""A body whose fields take more than 64 times its bytes, and more than 1 MiB, counts as corrupt: it could fill a worker."""

MICROS = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
_DAYS = range(-719_162, 2_932_897)
"""Years 1 to 9999: the range of Spark's and Python's timestamps and dates."""

Value = Any
"""The fields of one body: a dict by name, or whatever the plan's `build` accepts."""
Decode = Callable[[bytes], Value]
"""Decodes one body into its fields. Any exception means that the body is corrupt."""
Build = Callable[[Sequence[Any], pa.DataType], pa.Array]
"""Builds an array of structs from values. Raises ValueError, TypeError or ArithmeticError: one does not fit."""


def built(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array of structs from dicts."""
    return pa.array(values, type=kind)


class Plan(NamedTuple):
    """A decoder for workers. Plain values and importable functions: it is pickled."""

    kind: pa.StructType
    """Type of the result, a field per column."""
    make: Callable[..., Decode]
    """Makes the decoding function; called with `arguments` once per task."""
    arguments: tuple[Any, ...] = ()
    """Plain values."""
    build: Build = built
    """Builds an array from the decoded values."""


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
    """Return `micros` (since 1970). Raises ValueError: outside the years 1 to 9999, which Python's datetime ends at."""
    # A damaged body can hold any 64 bits as a time. Arrow takes them, and `collect()` fails for the whole query.
    if micros not in MICROS:
        raise ValueError("a time before the year 1 or after 9999")
    return micros


def day(days: int) -> int:
    """Return `days` (since 1970). Raises ValueError: outside the years 1 to 9999, which Python's date ends at."""
    if days not in _DAYS:
        raise ValueError("a day before the year 1 or after 9999")
    return days


def spark_type(kind: pa.DataType) -> types.DataType:
    """Return Spark's type of an Arrow type; everything is nullable."""
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
    """Decode bodies to an array of type `kind`, null where a body is null or does not decode.

    No body can make this raise.
    """
    sizes = pc.binary_length(bodies).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(sizes)
    done: list[pa.Array] = []
    begin = 0
    while begin < len(bodies):
        before = int(ends[begin - 1]) if begin else 0
        # One body at least, however large it is.
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
        raise  # The body is not at fault: the task fails, and Spark starts a new worker.
    except Exception:  # noqa: BLE001 - a body may be anything, and libraries fail on it in any way
        return None


def _arrow(values: list[Value | None], sizes: list[int], kind: pa.StructType, build: Build) -> pa.Array:
    try:
        array = build(values, kind)
        if array.nbytes <= max(SMALL_BYTES, sum(sizes) * GROWTH_MAX):
            return array
    except (ValueError, TypeError, ArithmeticError):  # pa.ArrowInvalid is a ValueError
        pass
    # Some value is at fault (an int beyond its type, a text that is not UTF-8, a bomb): build one by one to find it.
    single = (_arrow_of_one(value, size, kind, build) for value, size in zip(values, sizes, strict=True))
    return pa.concat_arrays(list(single))


def _arrow_of_one(value: Value | None, size: int, kind: pa.StructType, build: Build) -> pa.Array:
    try:
        array = build([value], kind)
    except (ValueError, TypeError, ArithmeticError):
        return pa.nulls(1, type=kind)
    return array if array.nbytes <= max(SMALL_BYTES, size * GROWTH_MAX) else pa.nulls(1, type=kind)


def by_batches(column: Any, plan: Plan) -> Any:
    """Return the Column of a plan's decoder: a struct of its fields and `_corrupt`.

    Raises: ConfigError: field names that clash, or a PySpark that is too old.
    """
    names = [field.name for field in plan.kind]
    checked_names(names, "the schema")
    body = body_of(column)
    value = value_of(plan, body)
    return decoded(value, value.isNotNull(), names, body)


def value_of(plan: Plan, body: Any) -> Any:
    """Return the Column of decoded bodies, null where they do not decode. Raises ConfigError: PySpark is too old."""
    if not hasattr(sql, "arrow_udf"):  # Since PySpark 4.1.
        raise ConfigError("this decoder needs PySpark 4.1 or newer: pip install 'pymetaq[spark,decode]'")

    # An iterator UDF: schemas are parsed once per task, not once per Arrow batch.
    def decode_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        decode = plan.make(*plan.arguments)
        for bodies in batches:
            yield struct_array(bodies, decode, plan.kind, plan.build)

    return sql.arrow_udf(decode_batches, spark_type(plan.kind))(body)
