"""First function on the workers: slices of queues to rows of changes, and notes on them.

A row is either a change or a note. Values are sent as JSON text, because tables differ in their columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.changes import kinds
from metaq.pipelines.changes.change import (
    CORRUPT,
    STATEMENT,
    Change,
    NotAChange,
    Place,
    Problem,
    Sequence_,
    Statement,
    bucket_of,
)
from metaq.pipelines.changes.decoding import Decoder
from metaq.pipelines.changes.folding import KEY, NONE, QUEUE, Sequences
from metaq.spark.cluster.client import client_of
from metaq.spark.schema import slices_of
from metaq.spark.source.fetch import FetchSettings, read_slice

CHANGE, PROBLEM, COLUMNS, LAST, COUNTS, TOUCH = "change", "problem", "columns", "last", "counts", "touch"
"""Kinds of rows (`note`): a change; a problem (its kind is in `op`); a table's columns; the sequence applied last (of the scope
in `text`); counts; or a bucket to rewrite without a change."""

ROW_SCHEMA = pa.schema(
    [
        pa.field("note", pa.string()), pa.field("topic", pa.string()), pa.field("broker", pa.string()),
        pa.field("queue_id", pa.int32()), pa.field("queue_offset", pa.int64()), pa.field("number", pa.int32()),
        pa.field("source", pa.string()), pa.field("bucket", pa.int32()), pa.field("key", pa.string()),
        pa.field("sequence", pa.list_(pa.int64())), pa.field("op", pa.string()), pa.field("row", pa.string()),
        pa.field("text", pa.string()),
    ]
)  # fmt: skip
ROW_DDL = (
    "note string, topic string, broker string, queue_id int, queue_offset bigint, number int, source string, bucket int, "
    "key string, sequence array<bigint>, op string, row string, text string"
)
ORDER = ("source", "bucket", "topic", "broker", "queue_id", "queue_offset", "number")
"""Columns to sort rows by: the changes of a key are then in the order of their queue."""
_ROWS_MAX = 5_000
_COLUMNS = ("queue_offset", "keys", "body")
_TEXT_MAX = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeReader:
    """First function for `mapInArrow`: slices in, rows of `ROW_SCHEMA` out. Plain values: it is pickled for the workers."""

    name_servers: str
    settings: FetchSettings
    decoder: Decoder
    tables: frozenset[str]
    """Tables to read, with or without schema or database; empty: all."""
    scope: str
    """Scope of sequences, one of `folding.SCOPES`."""
    dense: bool
    """Whether each sequence must be one more than the last."""
    last: Mapping[str, Sequence_]
    """Scope → sequence applied last, if they are checked per queue."""
    buckets: int
    """Number of buckets of a table."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in slices_of(batches):
            rows = self.rows(self._messages(wanted), wanted.queue)
            while some := list(itertools.islice(rows, _ROWS_MAX)):
                yield pa.RecordBatch.from_pylist(some, schema=ROW_SCHEMA)

    def _messages(self, wanted: Slice) -> Iterator[tuple[int, list[str], bytes]]:
        client = client_of(
            self.name_servers, self.settings.retry_seconds, self.settings.read_from, self.settings.access
        )
        for decoded in read_slice(client, wanted, self.settings):
            for batch in decoded.to_batches(_COLUMNS):
                columns = (batch[name].to_pylist() for name in _COLUMNS)
                for offset, keys, body in zip(*columns, strict=True):
                    yield offset, keys or [], body or b""

    def rows(self, messages: Iterator[tuple[int, list[str], bytes]], queue: MessageQueue) -> Iterator[dict[str, Any]]:
        """Yield the rows of one queue's messages. Args: messages: (offset, keys, body), in order."""
        # Not distinct: two rows of one transaction may have one place in the log, and so one sequence.
        seen = _SliceSummary(Sequences(dense=self.dense, distinct=False, last=dict(self.last)))
        for offset, keys, body in messages:
            seen.messages += 1
            place = Place(*queue, offset)
            try:
                changes = self.decoder.decode(body, keys)
            except NotAChange as fault:
                yield problem_row(Problem(CORRUPT, place, str(fault)))
                continue
            except Statement as fault:
                yield problem_row(Problem(STATEMENT, place, f"not applied: {fault}"))
                continue
            for number, change in enumerate(changes):
                if not self._wanted(change.table):
                    seen.others += 1
                # By key, sequences are checked where all changes of a key meet: in its bucket, or in the database.
                elif self.scope in {KEY, NONE} or seen.watch.take(
                    self._scope(change, queue), change.sequence, place._replace(number=number)
                ):
                    seen.note(change)
                    yield self._row(change, place._replace(number=number))
        yield from (problem_row(problem) for problem in seen.watch.problems)
        yield from seen.notes(self.last)

    def _wanted(self, table: str) -> bool:
        return not self.tables or table in self.tables or table.rpartition(".")[2] in self.tables

    def _scope(self, change: Change, queue: MessageQueue) -> str:
        return str(queue) if self.scope == QUEUE else f"{change.table} in {queue}"

    def _row(self, change: Change, place: Place) -> dict[str, Any]:
        key = change.key_text
        return {
            **place_of(place), "note": CHANGE, "source": change.table, "bucket": bucket_of(key, self.buckets), "key": key,
            "sequence": None if change.sequence is None else list(change.sequence), "op": change.op,
            "row": kinds.json_text(change.row),
        }  # fmt: skip


@dataclass(slots=True)
class _SliceSummary:
    """Summary of a slice, sent as notes after its changes."""

    watch: Sequences
    messages: int = 0
    others: int = 0
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    keys: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    kinds_seen: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def note(self, change: Change) -> None:
        table = change.table
        self.keys.setdefault(table, set()).add(tuple(sorted(change.key)))
        if self.kinds_seen.get(table) != change.kinds:  # Most changes of a table have the same.
            self.columns[table] = kinds.merge_all(self.columns.get(table, {}), change.kinds)
            self.kinds_seen[table] = change.kinds

    def notes(self, before: Mapping[str, Sequence_]) -> Iterator[dict[str, Any]]:
        for table, keys in self.keys.items():
            columns = kinds.json_text(self.columns.get(table, {}))
            yield _note(COLUMNS, source=table, row=columns, text=kinds.json_text(sorted(keys)))
        for name, sequence in self.watch.last.items():
            if before.get(name) != sequence:
                yield _note(LAST, text=name, sequence=list(sequence))
        counts = {"messages": self.messages, "others": self.others, "repeats": self.watch.repeats}
        yield _note(COUNTS, row=kinds.json_text(counts))


_NOTHING: dict[str, Any] = dict.fromkeys(ROW_SCHEMA.names)


def _note(note: str, **values: Any) -> dict[str, Any]:
    return {**_NOTHING, "note": note, **values}


def place_of(place: Place) -> dict[str, Any]:
    return {
        **_NOTHING, "topic": place.topic, "broker": place.broker, "queue_id": place.queue_id, "queue_offset": place.offset,
        "number": place.number,
    }  # fmt: skip


def problem_row(problem: Problem) -> dict[str, Any]:
    return {**place_of(problem.place), "note": PROBLEM, "op": problem.what, "text": problem.text[:_TEXT_MAX]}


def touch_row(table: str, bucket: int) -> dict[str, Any]:
    """Return the row for a bucket that must be rewritten without a change."""
    return _note(TOUCH, source=table, bucket=bucket)


def place_in(row: Mapping[str, Any]) -> Place:
    return Place(row["topic"], row["broker"], row["queue_id"], row["queue_offset"], row["number"])


def problem_in(row: Mapping[str, Any]) -> Problem:
    return Problem(row["op"], place_in(row), row["text"])


def change_in(row: Mapping[str, Any]) -> tuple[Place, Change]:
    """Return the change of a row, without kinds: those are in the notes."""
    sequence = None if row["sequence"] is None else tuple(row["sequence"])
    key, values = msgspec.json.decode(row["key"]), msgspec.json.decode(row["row"])
    return place_in(row), Change(row["op"], row["source"], key, sequence, values)


@dataclass(slots=True)
class Notes:
    """The workers' notes on a batch, merged."""

    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """Table → column → kind."""
    keys: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    """Table → all key column sets in its changes."""
    last: dict[str, list[int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    messages: int = 0
    others: int = 0
    repeats: int = 0

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> Notes:
        found = cls()
        # Sorted: the order of new columns must not depend on which task was first, or a replay would differ.
        for row in sorted(rows, key=lambda row: (row["source"] or "", row["text"] or "", row["row"] or "")):
            match row["note"]:
                case "problem":
                    found.problems.append(problem_in(row))
                case "columns":
                    table = row["source"]
                    found.columns[table] = kinds.merge_all(
                        found.columns.get(table, {}), msgspec.json.decode(row["row"])
                    )
                    ways = msgspec.json.decode(row["text"], type=list[tuple[str, ...]])
                    found.keys.setdefault(table, set()).update(ways)
                case "last":
                    found.last[row["text"]] = row["sequence"]
                case "counts":
                    counts = msgspec.json.decode(row["row"])
                    found.messages += counts["messages"]
                    found.others += counts["others"]
                    found.repeats += counts["repeats"]
        return found
