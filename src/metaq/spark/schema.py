"""Row schemas as Spark's DDL and types; `metaq.client.arrow.records` makes the columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from metaq.client.arrow import records
from metaq.errors import ConfigError
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue

RANGE = (
    pa.field("topic", pa.string()),
    pa.field("broker", pa.string()),
    pa.field("queue_id", pa.int32()),
    pa.field("start_offset", pa.int64()),
    pa.field("end_offset", pa.int64()),
)
"""The messages [start_offset, end_offset) of one queue."""
SLICE_SCHEMA = pa.schema([*RANGE, pa.field("generation", pa.int64())])
"""A row of `rows=slices`: a range, and the generation of its topic when it was planned, if that is known."""

_NAMES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.list_(pa.string()): "array<string>",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
}


def columns_of(text: str | None) -> tuple[str, ...]:
    """Parse the `columns` option: None gives the lean columns, `*` all. Raises ConfigError: no such column."""
    if text is None or not text.strip():
        return records.LEAN
    if text.strip() == "*":
        return tuple(records.TYPES)
    columns = tuple(name.strip() for name in text.split(","))
    records.schema_of(columns)
    return columns


def ddl(schema: pa.Schema) -> str:
    """Return a schema as DDL, `topic string, queue_id int, ...`, for `DataSource.schema`."""
    return ", ".join(f"{field.name} {_NAMES[field.type]}" for field in schema)


def columns_of_struct(struct: Any, schema: pa.Schema) -> tuple[str, ...]:
    """Return the column names of `struct`, the query's `.schema(...)` or our own: a choice among those of `schema`.

    Raises: ConfigError: a column that does not exist, of another type, or declared NOT NULL: Spark compares the first Arrow
        batch with the schema, nullability included, and ours may all be null.
    """
    for field in struct.fields:
        known = schema.field(field.name) if field.name in schema.names else None
        if known is None:
            raise ConfigError(f"there is no column {field.name!r}; the columns are {', '.join(schema.names)}")
        if field.dataType.simpleString() != _NAMES[known.type] or not field.nullable:
            wanted = f"{field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            raise ConfigError(f"the column {field.name} is a nullable {_NAMES[known.type]}, not {wanted}")
    return tuple(struct.names)


def queue_of_row(row: Mapping[str, Any]) -> MessageQueue:
    """Return the queue of a row with SLICE_SCHEMA's columns."""
    return MessageQueue(row["topic"], row["broker"], row["queue_id"])


def slice_of_row(row: Mapping[str, Any]) -> Slice:
    """Return the slice of a row with SLICE_SCHEMA's columns."""
    return Slice(queue_of_row(row), row["start_offset"], row["end_offset"], row.get("generation"))


def slices_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Slice]:
    """Yield a slice per row of a task's batches, which have SLICE_SCHEMA's columns."""
    for batch in batches:
        yield from map(slice_of_row, batch.to_pylist())


def slice_batch(wanted: Slice, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a batch of one row, the slice, with the given columns of SLICE_SCHEMA."""
    topic, broker, queue_id = wanted.queue
    row = {
        "topic": topic, "broker": broker, "queue_id": queue_id,
        "start_offset": wanted.start, "end_offset": wanted.end, "generation": wanted.generation,
    }  # fmt: skip
    # With the schema: Arrow would make int64 of queue_id, and Spark takes no other type than it was told.
    return pa.RecordBatch.from_pylist([row], schema=pa.schema([SLICE_SCHEMA.field(name) for name in columns]))
