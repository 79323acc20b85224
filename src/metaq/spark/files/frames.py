"""Frames of MetaQ 1.x to Arrow record batches, with the columns of all other sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaq.client.arrow import records
from metaq.model.message import is_tag
from metaq.store.offline.segments import SegmentRun
from metaq.wire import hot


def frames_batch(run: SegmentRun, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with a row per frame; null for columns that frames do not have."""
    parts = hot.frame_columns(run.data, 0, len(run.data))
    arrays = [
        _MAKERS[name](run, parts) if name in _MAKERS else pa.nulls(run.rows, records.TYPES[name]) for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=records.schema_of(columns))


Parts = dict[str, Any]


def _fixed(name: str, kind: pa.DataType) -> Callable[[SegmentRun, Parts], pa.Array]:
    return lambda run, parts: pa.Array.from_buffers(kind, run.rows, [None, pa.py_buffer(parts[name])])


def _body(run: SegmentRun, parts: Parts) -> pa.Array:
    return records.views(run.data, parts["body"], run.rows)


def _attribute(run: SegmentRun, parts: Parts) -> pa.Array:
    return records.as_text(records.views(run.data, parts["attribute"], run.rows, parts["attribute_valid"]))


def _tag(run: SegmentRun, parts: Parts) -> pa.Array:
    """Return the attribute where it is a legal tag, by the same rule as the import of 1.x data; else null."""
    attributes = _attribute(run, parts)
    # Judged once per text: tags repeat, and the rule is Python.
    distinct = pc.unique(attributes)
    tags = [text for text in distinct.to_pylist() if text and is_tag(text)]
    if len(tags) == len(distinct):
        return attributes
    return pc.if_else(pc.is_in(attributes, pa.array(tags, pa.string())), attributes, pa.scalar(None, pa.string()))


def _position(run: SegmentRun, parts: Parts) -> pa.Array:
    return pa.array(np.frombuffer(parts["place"], np.int64) + run.position, pa.int64())


def _empty(name: str) -> Callable[[SegmentRun, Parts], pa.Array]:
    """Return a maker of empty lists or maps."""
    kind = records.TYPES[name]

    def make(run: SegmentRun, _parts: Parts) -> pa.Array:
        # Zeros for all offsets: no Python list per row.
        offsets = pa.py_buffer(bytes(4 * run.rows + 4))
        if pa.types.is_map(kind):
            none = pa.array([], pa.string())
            entries = pa.StructArray.from_arrays([none, none], fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(kind, run.rows, [None, offsets], children=[entries])
        return pa.Array.from_buffers(kind, run.rows, [None, offsets], children=[pa.array([], kind.value_type)])

    return make


_MAKERS: dict[str, Callable[[SegmentRun, Parts], pa.Array]] = {
    "topic": lambda run, _parts: pa.repeat(pa.scalar(run.segment.topic, pa.string()), run.rows),
    "queue_id": lambda run, _parts: pa.repeat(pa.scalar(run.segment.partition, pa.int32()), run.rows),
    "tag": _tag,
    "keys": _empty("keys"),
    "properties": _empty("properties"),
    "body": _body,
    "flag": _fixed("flag", pa.int32()),
    "attribute": _attribute,
    "metaq1_id": _fixed("id", pa.int64()),
    "position": _position,
}
