"""Trace messages as rows, one per trace record and message: the function for `mapInArrow` on the workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from metaq.model.trace import Begun, Handled, Kind, Record, Sent, Settled
from metaq.wire.trace import decode

SENT, BEGUN, ENDED, SETTLED, UNREADABLE = "sent", "begun", "ended", "settled", "unreadable"

ROWS = pa.schema(
    [
        pa.field("what", pa.string()),
        pa.field("id", pa.string()),
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("time_ms", pa.int64()),
        pa.field("success", pa.bool_()),
        pa.field("half", pa.bool_()),
        pa.field("delayed", pa.bool_()),
        pa.field("copy", pa.string()),
        pa.field("lane", pa.string()),
        pa.field("place", pa.int64()),
        pa.field("request", pa.string()),
    ]
)
"""`time_ms`: when a send began, a delivery began or ended; 0 if an old client's record lacks it. `copy`: the offset id of the
stored message; `lane` and `place`: the broker's address and the log offset, parsed from that id. `request`: id that a delivery's
begin and end records share. Rows `unreadable` have the number of unreadable records in `place`."""

DDL = (
    "what string, id string, `group` string, topic string, key string, tag string, time_ms bigint, success boolean, "
    "half boolean, delayed boolean, copy string, lane string, place bigint, request string"
)

ROWS_MAX = 10_000
"""Approximate rows per batch: the unpacked rows of one whole batch of trace messages would take gigabytes."""
_OFFSET_DIGITS = 16
"""Hex digits at the end of an offset id: the offset in the log."""


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of ROWS from batches with the column `body`, trace messages' bodies."""
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for body in batch["body"]:
            rows.extend(rows_of_body(body.as_py() or b""))
            if len(rows) >= ROWS_MAX:
                yield pa.RecordBatch.from_pylist(rows, schema=ROWS)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=ROWS)


def rows_of_body(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the rows of one trace message. Unreadable records become one row with their number."""
    trace = decode(body)
    for record in trace.records:
        yield from _rows(record)
    if trace.unreadable:
        yield {"what": UNREADABLE, "id": "", "place": trace.unreadable}


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    if isinstance(record, Sent):
        copies = record.offset_id.split(",")
        for number, message_id in enumerate(record.message_ids):
            copy = copies[number] if number < len(copies) else ""
            yield {
                "what": SENT, "id": message_id, "group": record.group, "topic": record.topic, "key": record.keys,
                "tag": record.tags, "time_ms": record.time_ms, "success": record.success, "half": record.kind == Kind.HALF,
                "delayed": record.kind == Kind.DELAYED, "copy": copy or f"{record.time_ms}", **_place(copy),
            }  # fmt: skip
    elif isinstance(record, Settled):
        yield {
            "what": SETTLED, "id": record.message_id, "group": record.group, "topic": record.topic,
            "time_ms": record.time_ms, "success": record.state == "COMMIT_MESSAGE",
        }  # fmt: skip
    elif isinstance(record, Begun):
        yield {
            "what": BEGUN, "id": record.message_id, "group": record.group, "key": record.keys,
            "time_ms": record.time_ms, "request": record.request_id,
        }  # fmt: skip
    elif isinstance(record, Handled):
        yield {
            "what": ENDED, "id": record.message_id, "group": record.group, "key": record.keys,
            "time_ms": record.time_ms, "success": record.success, "request": record.request_id,
        }  # fmt: skip


def _place(offset_id: str) -> dict[str, Any]:
    """Return the broker's address and the log offset in an offset id; {} if it is not one."""
    if len(offset_id) <= _OFFSET_DIGITS:
        return {}
    try:
        place = int(offset_id[-_OFFSET_DIGITS:], 16)
    except ValueError:
        return {}
    # Larger numbers are no offset, and fit no bigint of Spark's.
    return {"lane": offset_id[:-_OFFSET_DIGITS], "place": place} if place < 1 << 63 else {}
