"""Columns of archived messages: enough to rebuild each message byte for byte (docs/formats/archive.md).

Most columns are those of `format("metaq")`. Four are the archive's own: `prepared_offset`, and three that are null except
where other columns lose something: `properties_raw` where the property text is not exactly its pairs, `born_ms` and
`store_ms` where no timestamp can hold the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from metaq.archive.records import COLUMNS
from metaq.client.arrow import records
from metaq.model.message import BODY_AS_STORED, SysFlag

_OWN: dict[str, pa.DataType] = {
    "prepared_offset": pa.int64(),
    "properties_raw": pa.binary(),
    "born_ms": pa.int64(),
    "store_ms": pa.int64(),
}
_SHARED = tuple(name for name in COLUMNS if name not in {*_OWN, "properties", "body"})
SCHEMA = pa.schema([pa.field(name, _OWN.get(name) or records.TYPES[name]) for name in COLUMNS])

_ENDED = b"\x02"
_ENDED_TEXT = 1
"""Code of `hot.property_pairs` for a text with a separator after its last pair."""
_FIXED_BYTES = 4 + 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8 + 8 + 8 + 8 + 4
"""Bytes of a record before PREPAREDTRANSACTIONOFFSET, with two IPv4 hosts (docs/formats/record.md)."""
_V6_BYTES = 12
"""Additional bytes of an IPv6 host."""

Numbers = np.ndarray[Any, Any]


def with_prepared_offsets(decoded: records.Decoded) -> records.Decoded:
    """Return the records, as they were pulled, with one more part, `prepared_offset`: the decoder has no column for it."""
    count = len(decoded)
    sizes = np.frombuffer(decoded.parts["size"], np.int32, count).astype(np.int64)
    flags = np.frombuffer(decoded.parts["sys_flag"], np.int32, count)
    hosts = ((flags & SysFlag.BORN_HOST_V6.value) != 0) * _V6_BYTES + (
        (flags & SysFlag.STORE_HOST_V6.value) != 0
    ) * _V6_BYTES
    places = np.cumsum(sizes) - sizes + _FIXED_BYTES + hosts
    # Reads 8 bytes at any position: a view whose numbers overlap, one beginning at each byte.
    anywhere = np.ndarray((max(0, len(decoded.data) - 7),), ">i8", decoded.data, strides=(1,))
    numbers = anywhere[places].astype(np.int64)
    return structs.replace(decoded, parts={**decoded.parts, "prepared_offset": numbers.tobytes()})


def archived_batch(decoded: records.Decoded, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return a batch of one row per record, with the columns of `SCHEMA`. Raises: as `Decoded.to_batch`.

    Args: schema: SCHEMA, or the same `with_views`.
    """
    # All rows first, as the makers below give them; `chosen` leaves out those that are not wanted.
    shared = structs.replace(decoded, wanted=None).to_batch(_SHARED)
    properties, codes = records.pairs_of(decoded)
    own = {name: make(decoded, shared) for name, make in _MAKERS.items()}
    own |= {"properties": properties, "properties_raw": _properties_raw(decoded, codes), "body": _body(decoded, schema)}
    arrays = [own[name] if name in own else shared.column(name) for name in COLUMNS]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if decoded.wanted is None else chosen(batch, decoded.wanted)


def marked(rows: pa.RecordBatch | pa.Table) -> Numbers:
    """Return a mask of the rows whose bodies could not be decompressed. All false for rows of version 1."""
    if "sys_flag" not in rows.schema.names:
        return np.zeros(len(rows), np.bool_)
    flags = pc.fill_null(rows.column("sys_flag"), 0).to_numpy()
    return np.asarray((flags & BODY_AS_STORED) != 0)


def chosen(batch: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
    """Return the rows for which the mask is true. Bodies are copied, so that a few rows do not keep a whole pull in memory."""
    place = batch.schema.get_field_index("body")
    bodies = batch.column(place).cast(pa.binary())
    return batch.set_column(place, "body", bodies).filter(rows).cast(batch.schema)


def _body(decoded: records.Decoded, schema: pa.Schema) -> pa.Array:
    views = records.body_views(decoded)
    return views if schema.field("body").type == views.type else views.cast(pa.binary())


def _prepared_offset(decoded: records.Decoded, _: pa.RecordBatch) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(decoded), [None, pa.py_buffer(decoded.parts["prepared_offset"])])


def _properties_raw(decoded: records.Decoded, codes: Numbers) -> pa.Array:
    """Return null where the property text is its joined pairs, one separator where it ends with one, else the text itself.

    Args: codes: results of `hot.property_pairs` per text. A text that is not UTF-8 has replacement characters in its pairs.
    """
    if not codes.any():
        return pa.nulls(len(decoded), pa.binary())
    raw = records.views(decoded.data, decoded.parts["properties"], len(decoded))
    odd = pc.if_else(pa.array(codes == _ENDED_TEXT), pa.scalar(_ENDED), raw)
    return pc.if_else(pa.array(codes == 0), pa.scalar(None, pa.binary()), odd)


def _beyond(name: str, shown: str) -> Callable[[records.Decoded, pa.RecordBatch], pa.Array]:
    """Return a maker of a column: the milliseconds where the timestamp column differs (it was out of range), else null."""

    def make(decoded: records.Decoded, shared: pa.RecordBatch) -> pa.Array:
        ms = np.frombuffer(decoded.parts[name], np.int64, len(decoded))
        # Nearly all pulls: their times fit into a timestamp.
        if not len(ms) or records.MS_MIN <= ms.min() <= ms.max() <= records.MS_MAX:
            return pa.nulls(len(ms), pa.int64())
        visible = shared.column(shown).cast(pa.int64()).to_numpy() // 1000
        return pa.array(ms, mask=ms == visible)

    return make


_MAKERS: dict[str, Callable[[records.Decoded, pa.RecordBatch], pa.Array]] = {
    "prepared_offset": _prepared_offset,
    "born_ms": _beyond("born_ms", "born_time"),
    "store_ms": _beyond("store_ms", "store_time"),
}
