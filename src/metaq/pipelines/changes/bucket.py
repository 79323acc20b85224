"""Rewriting of one bucket of a snapshot with a batch's changes, in a task. The driver commits.

The whole bucket is in memory meanwhile: `buckets` should be large enough that each has a few hundred megabytes at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metaq.durable import sync_file
from metaq.errors import StoreCorrupt
from metaq.pipelines.changes import kinds
from metaq.pipelines.changes.change import Change, Place, Problem, Sequence_
from metaq.pipelines.changes.folding import Final, Folded, Put, fold
from metaq.pipelines.changes.snapshot import (
    KEY_COLUMN,
    SEQUENCE_COLUMN,
    BucketFiles,
    arrow_schema,
    file_path,
    make_table_folder,
)

GONE_SCHEMA = pa.schema(
    [
        pa.field(KEY_COLUMN, pa.string()),
        pa.field(SEQUENCE_COLUMN, pa.list_(pa.int64())),
        pa.field("at_ms", pa.int64()),
    ]
)
"""Schema of deleted keys. `at_ms`: when the deletion was applied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewriting:
    """Parameters common to all buckets of a batch. Plain values: it is pickled for the workers."""

    folder: str
    generation: int
    columns: Mapping[str, Mapping[str, str]]
    """Table → column → kind, with this batch's."""
    buckets: Mapping[str, Mapping[int, tuple[str, str]]]
    """Table → bucket → paths of its rows and of its deleted keys, before this batch."""
    by_key: bool
    """Whether sequences are checked per key."""
    dense: bool
    """Whether each sequence must be one more than the last."""
    now_ms: int
    forget_ms: int
    """Time before which deletions are forgotten."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Result of rewriting a bucket."""

    files: BucketFiles
    applied: int
    """Changes."""
    puts: int
    """Rows written."""
    deletes: int
    """Keys deleted."""
    repeats: int
    """Changes that had been applied before."""
    problems: list[Problem]


def rewrite(
    batch: Rewriting, table: str, bucket: int, changes: Iterable[tuple[Place, Change]], attempt: int
) -> Rewritten:
    """Apply changes, in order, and write the bucket's new files, synced; the old ones stay.

    Args: attempt: Spark's task attempt id, part of the files' names, so that a retried task writes other files.

    Raises: StoreCorrupt: an old file is missing or damaged. OSError.
    """
    columns = batch.columns[table]
    schema = arrow_schema(columns)
    path, gone_path = batch.buckets.get(table, {}).get(bucket, ("", ""))
    rows = as_kinds(_read(batch.folder, path), schema) if path else schema.empty_table()
    gone = _read(batch.folder, gone_path) if gone_path else GONE_SCHEMA.empty_table()
    changes = list(changes)
    touched = pa.array(sorted({change.key_text for _, change in changes}), pa.string())
    # Only rows of changed keys become Python values: the rest of the bucket stays in Arrow.
    old = rows.filter(pc.is_in(rows[KEY_COLUMN], touched)).to_pylist()
    known = _sequences(old) | _sequences(gone.filter(pc.is_in(gone[KEY_COLUMN], touched)).to_pylist())
    folded = fold(changes, known if batch.by_key else {}, by_key=batch.by_key, dense=batch.dense)
    fresh = _fresh(folded, {row[KEY_COLUMN]: row for row in old}, columns)
    changed = pa.array(list(folded.finals), pa.string())
    rows = pa.concat_tables(
        [rows.filter(pc.invert(pc.is_in(rows[KEY_COLUMN], changed))), pa.Table.from_pylist(fresh, schema)]
    )
    gone = pa.concat_tables([_remembered(gone, changed, batch), _gone(folded, batch)])
    name = file_path(table, batch.generation, bucket, attempt)
    files = BucketFiles(
        path=_write(batch.folder, name, rows),
        rows=len(rows),
        gone=_write(batch.folder, name.removesuffix("parquet") + "gone", gone),
    )
    return Rewritten(
        files, folded.applied, len(fresh), len(folded.finals) - len(fresh), folded.repeats, folded.problems
    )


def as_kinds(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows to a newer schema: more columns, wider kinds."""
    columns = []
    for field in schema:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(len(rows), field.type))
            continue
        column = rows[field.name]
        if pa.types.is_binary(column.type) and pa.types.is_string(field.type):
            import base64

            # Base64, as bytes are written in the JSON of changes.
            texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
            column = pa.array(texts, pa.string())
        elif column.type != field.type:
            # A long above 2**53 is rounded in a double: a safe cast would refuse it.
            column = column.cast(field.type, safe=not pa.types.is_floating(field.type))
        columns.append(column)
    return pa.table(columns, schema=schema)


def _read(folder: str, path: str) -> pa.Table:
    try:
        # Without partitioning: pyarrow would take a folder with `=` in its name for a column.
        return pq.read_table(Path(folder) / path, partitioning=None, page_checksum_verification=True)
    except FileNotFoundError:
        raise StoreCorrupt(
            f"{path} is missing in {folder}: the snapshot's manifest names it, and somebody took it away"
        ) from None
    except (pa.ArrowInvalid, OSError) as fault:
        raise StoreCorrupt(f"{path} in {folder} cannot be read: {fault}") from None


def _write(folder: str, path: str, rows: pa.Table) -> str:
    # No rows are no file: the manifest has an empty path then.
    if not len(rows):
        return ""
    place = Path(folder) / path
    make_table_folder(place)
    pq.write_table(rows, place, compression="zstd", compression_level=1, write_page_checksum=True)
    sync_file(place)
    return path


def _sequences(rows: list[dict[str, Any]]) -> dict[str, Sequence_]:
    return {row[KEY_COLUMN]: tuple(row[SEQUENCE_COLUMN]) for row in rows if row[SEQUENCE_COLUMN] is not None}


def _fresh(folded: Folded, old: Mapping[str, dict[str, Any]], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = []
    for name, final in folded.finals.items():
        if final.put is Put.NOTHING:
            continue
        row = dict(old.get(name, {})) if final.put is Put.COLUMNS else {}
        row |= _values(final, columns)
        row[KEY_COLUMN] = name
        row[SEQUENCE_COLUMN] = None if final.sequence is None else list(final.sequence)
        rows.append(row)
    return rows


def _values(final: Final, columns: Mapping[str, str]) -> dict[str, Any]:
    # A column has no kind while all its values were null.
    return {name: kinds.python_value(value, columns[name]) for name, value in final.row.items() if name in columns}


def _gone(folded: Folded, batch: Rewriting) -> pa.Table:
    if not batch.by_key:
        return GONE_SCHEMA.empty_table()
    rows = [
        {KEY_COLUMN: name, SEQUENCE_COLUMN: list(final.sequence), "at_ms": batch.now_ms}
        for name, final in folded.finals.items()
        if final.put is Put.NOTHING and final.sequence is not None
    ]
    return pa.Table.from_pylist(rows, GONE_SCHEMA)


def _remembered(gone: pa.Table, changed: pa.Array, batch: Rewriting) -> pa.Table:
    stay = pc.and_(pc.invert(pc.is_in(gone[KEY_COLUMN], changed)), pc.greater_equal(gone["at_ms"], batch.forget_ms))
    return gone.filter(stay)
