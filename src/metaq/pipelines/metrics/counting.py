"""Worker side of the metrics: counts the messages of one slice. No message leaves the worker, only sums.

Records of the trace topic name their message by its id only. To join them, the driver gets 8-byte keys of ids with their times,
of messages (FOLLOWED) and of trace records (TOLD): of all messages, or of one in `every`, sampled by the key so that both sides
choose the same.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from metaq.client.arrow.records import Decoded
from metaq.model.offsets import Slice
from metaq.model.trace import Begun, Handled
from metaq.pipelines.archive.dedupe import ids_of
from metaq.pipelines.metrics.histogram import Histogram
from metaq.spark.cluster.client import client_of
from metaq.spark.schema import slices_of
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.wire import trace

_LOG = logging.getLogger(__name__)

STORED, FOLLOWED, TOLD, READ = "stored", "followed", "told", "read"
"""Kinds of rows: counts of a window; messages to follow, by key; a group's trace records, by key; how far a queue was read."""
COUNTED = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("grp", pa.string()),
        pa.field("start_ms", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("newest_ms", pa.int64()),
        pa.field("data", pa.binary()),
    ]
)
"""Schema of `Counter`'s rows. Columns that a kind does not have are null; `messages` of READ: undecodable trace records."""
FOLLOWED_TYPE = np.dtype([("key", "<u8"), ("born_ms", "<i8"), ("store_ms", "<i8")])
TOLD_TYPE = np.dtype([("key", "<u8"), ("time_ms", "<i8"), ("cost_ms", "<i4"), ("failed", "?")])
"""A group's trace record. `cost_ms`: duration of the handling; -1 for the begin of a delivery."""
BEGUN = -1
_COST_MAX = (1 << 31) - 1
_TRACE_COLUMNS = ("body", "store_time")
_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """Function for `mapInArrow`: slices in, rows of COUNTED out. Plain values: it is pickled for the workers."""

    name_servers: str
    settings: FetchSettings
    window_ms: int
    trace_topic: str
    """Empty: no message is followed."""
    every: int = 1

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in slices_of(batches):
            yield self.counted(wanted)

    def counted(self, wanted: Slice) -> pa.RecordBatch:
        """Fetch one slice and count it. Raises: what `read_slice` does."""
        client = client_of(
            self.name_servers, self.settings.retry_seconds, self.settings.read_from, self.settings.access
        )
        found = read_slice(client, wanted, self.settings)
        if wanted.queue.topic == self.trace_topic:
            rows, newest_ms, unreadable = self._traced(found)
        else:
            (rows, newest_ms), unreadable = self._stored(found), 0
        topic, broker, queue_id = wanted.queue
        size = sum(row.get("bytes", 0) for row in rows)
        # Also of a slice that retention has emptied: its queue counts as read to the slice's end.
        rows.append(
            {
                "kind": READ,
                "queue_id": queue_id,
                "messages": unreadable,
                "start_offset": wanted.start,
                "end_offset": wanted.end,
                "bytes": size,
                "newest_ms": newest_ms,
            }
        )
        rows = [row | {"topic": topic, "broker": broker} for row in rows]
        return pa.RecordBatch.from_pylist(rows, schema=COUNTED)

    def _stored(self, found: Iterator[Decoded]) -> tuple[list[dict[str, Any]], int]:
        windows: dict[int, tuple[list[int], Histogram]] = {}
        followed: list[Any] = []
        newest_ms = 0
        for decoded in found:
            store_ms = np.frombuffer(decoded.parts["store_ms"], np.int64, len(decoded))
            born_ms = np.frombuffer(decoded.parts["born_ms"], np.int64, len(decoded))
            sizes = np.frombuffer(decoded.parts["size"], np.int32, len(decoded)).astype(np.int64)
            if not len(decoded):
                continue
            newest_ms = max(newest_ms, int(store_ms.max()))
            starts = store_ms - store_ms % self.window_ms
            for start in np.unique(starts).tolist():
                mine = starts == start
                sums, born_stored = windows.setdefault(start, ([0, 0], Histogram()))
                sums[0] += int(mine.sum())
                sums[1] += int(sizes[mine].sum())
                born_stored.add(_span(born_ms[mine], store_ms[mine]))
            if self.trace_topic:
                ids = decoded.to_batch(("message_id",))["message_id"]
                followed.append(self._followed(ids, born_ms, store_ms))
        rows: list[dict[str, Any]] = [
            {"kind": STORED, "start_ms": start, "messages": sums[0], "bytes": sums[1], "data": spread.encode()}
            for start, (sums, spread) in sorted(windows.items())
        ]
        if followed and sum(map(len, followed)):
            rows.append({"kind": FOLLOWED, "data": np.concatenate(followed).tobytes()})
        return rows, newest_ms

    def _followed(self, message_ids: pa.Array, born_ms: Any, store_ms: Any) -> Any:
        keys = keys_of(message_ids)
        chosen = self._chosen(keys)
        rows = np.empty(int(chosen.sum()), FOLLOWED_TYPE)
        rows["key"], rows["born_ms"], rows["store_ms"] = keys[chosen], born_ms[chosen], store_ms[chosen]
        return rows

    def _chosen(self, keys: Any) -> Any:
        # Ids of one producer count up: the middle bits of a product spread them, so that the sample is even.
        return ((keys * _SPREAD) >> _HALF) % np.uint64(self.every) == 0

    def _traced(self, found: Iterator[Decoded]) -> tuple[list[dict[str, Any]], int, int]:
        groups: dict[str, tuple[list[str], list[tuple[int, int, bool]]]] = {}
        newest_ms, unreadable = 0, 0
        for decoded in itertools.chain.from_iterable(map(_readable, found)):
            if isinstance(decoded, int):
                unreadable += decoded
                continue
            stored = np.frombuffer(decoded.parts["store_ms"], np.int64, len(decoded)).tolist()
            newest_ms = max(newest_ms, *stored, 0)
            for body, store_ms in zip(decoded.to_batch(("body",))["body"], stored, strict=True):
                told = trace.decode(body.as_py() or b"")
                unreadable += told.unreadable
                for record in told.records:
                    if isinstance(record, Begun):
                        one = (record.time_ms, BEGUN, False)
                    elif isinstance(record, Handled):
                        cost = min(max(record.cost_ms, 0), _COST_MAX)
                        # An old client's end record has no time.
                        one = (record.time_ms or store_ms, cost, not record.success)
                    else:
                        continue
                    ids, ones = groups.setdefault(record.group, ([], []))
                    ids.append(record.message_id)
                    ones.append(one)
        rows = [row for group, (ids, ones) in sorted(groups.items()) for row in self._told_row(group, ids, ones)]
        return rows, newest_ms, unreadable

    def _told_row(self, group: str, ids: list[str], ones: list[tuple[int, int, bool]]) -> Iterator[dict[str, Any]]:
        keys = keys_of(pa.array(ids, pa.string()))
        rows = np.array([(0, _time(time_ms), cost, failed) for time_ms, cost, failed in ones], TOLD_TYPE)
        rows["key"] = keys
        rows = rows[self._chosen(keys)]
        if len(rows):
            yield {"kind": TOLD, "grp": group, "data": rows.tobytes()}


def _readable(decoded: Decoded) -> Iterator[Decoded | int]:
    """Yield records with readable bodies, in pieces, and the number of others: one corrupt body must not stop the pipeline."""
    for piece in decoded.pieces(_TRACE_COLUMNS):
        if piece.marked:
            yield len(piece.marked)
        if len(piece) > len(piece.marked):
            yield piece.without_marked()


def keys_of(message_ids: pa.Array) -> Any:
    """Return a 64-bit hash of each id; collisions are negligible."""
    nothing = np.zeros(len(message_ids), np.int64)
    return ids_of(message_ids, nothing, nothing).keys


def _span(begin_ms: Any, end_ms: Any) -> Any:
    """Return the milliseconds from one array to the other, bounded to int64: clocks may be far off."""
    return end_ms - np.clip(begin_ms, 0, 1 << 60)


def _time(time_ms: int) -> int:
    """Return a consumer's time, bounded to int64."""
    return min(max(time_ms, 0), 1 << 60)
