"""Batches of changes without Spark: what its workers and the driver do, called one after the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

from metaq.errors import ChangesBroken
from metaq.model.queue import MessageQueue
from metaq.pipelines.changes.decoding import Decoder
from metaq.pipelines.changes.reading import CHANGE, ORDER, PROBLEM, ChangeReader, Notes, problem_in, touch_row
from metaq.pipelines.changes.to_snapshot import BUCKET, BucketWriter
from metaq.spark.source.fetch import FetchSettings

QUEUE = MessageQueue("t", "b", 0)


def body(op, key, seq, row=None, table="shop.t", **more) -> bytes:
    """A plain change of the row with this id."""
    change = {"op": op, "table": table, "key": {"id": key}, "seq": seq, **more}
    return json.dumps(change if op == "delete" else {**change, "row": row or {}}).encode()


def reader(options, last=(), **more) -> ChangeReader:
    return ChangeReader(
        name_servers="", settings=FetchSettings(), decoder=Decoder(sequenced=options.sequence_scope != "none"),
        tables=frozenset(), scope=options.sequence_scope, dense=options.dense, last=dict(last), buckets=options.buckets,
        **more,
    )  # fmt: skip


def rows_of(options, messages: Iterable[bytes], first: int = 0, last=()) -> list[dict]:
    """What the workers make of the messages of one queue."""
    numbered = ((first + number, [], one) for number, one in enumerate(messages))
    return list(reader(options, last).rows(numbered, QUEUE))


def apply(target, options, query: str, batch: int, messages: list[bytes], first: int = 0):
    """One micro-batch into a snapshot. Returns figures and problems; None if it was applied before."""
    if target.has(query, batch):
        return None
    rows = rows_of(options, messages, first, target.last)
    notes = Notes.of([row for row in rows if row["note"] != CHANGE])
    work, touched = target.plan(notes)
    changes = [row for row in rows if row["note"] == CHANGE] + [touch_row(*one) for one in touched]
    changes.sort(key=lambda row: tuple((row[name] is not None, row[name]) for name in ORDER))
    results = []
    for (table, bucket), group in itertools.groupby(changes, lambda row: (row["source"], row["bucket"])):
        results += BucketWriter(batch=work).write(table, bucket, group, attempt=batch).to_pylist()
    problems = notes.problems + [problem_in(row) for row in results if row["note"] == PROBLEM]
    fatal = [one for one in problems if options.policies[one.what] == "stop"]
    if fatal:
        raise ChangesBroken(str(fatal[0]))
    return target.commit(query, batch, work, notes, [row for row in results if row["note"] == BUCKET]), problems
