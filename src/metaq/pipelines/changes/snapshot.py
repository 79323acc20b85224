"""The snapshot: the latest state of tables as Parquet files, and its atomic commit of a batch.

    FOLDER/_snapshot/0000000012.json                manifest of generation 12: tables and files. Writing it is the commit
    FOLDER/data/shop.orders/0000000012-003-57.parquet    rows of bucket 3, written in generation 12 by task attempt 57
    FOLDER/data/shop.orders/0000000012-003-57.gone       sequences of keys that were deleted there (Parquet, too)

A row is in the bucket of its key's hash. A batch rewrites the buckets that it changes, under new names, and then the manifest
of the next generation (a temporary file, fsync, rename, fsync of the folder), which names the new files and the unchanged ones.
A crash before the rename leaves files that no manifest names. The manifest has the batch id: a replayed batch finds itself
applied.

Readers read the newest manifest and the files that it names. Files of older generations stay for a while, for reads that have
begun. A glob over the folder would find several generations at once.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from metaq.archive.parquet import SPARK_CHECKS, checked_format
from metaq.durable import make_folder, make_or_refuse, sync_folder, write_whole
from metaq.errors import ConfigError, StoreCorrupt
from metaq.pipelines.changes import kinds
from metaq.pipelines.checkpoints import query_id

_LOG = logging.getLogger(__name__)

MANIFESTS, DATA = "_snapshot", "data"
KEY_COLUMN, SEQUENCE_COLUMN = "_metaq_key", "_metaq_sequence"
"""Additional columns: the key as JSON text, and the sequence of the change that made the row."""

_ARROW = {
    kinds.LONG: pa.int64(), kinds.DOUBLE: pa.float64(), kinds.BOOLEAN: pa.bool_(), kinds.STRING: pa.string(),
    kinds.BINARY: pa.binary(), kinds.DATE: pa.date32(), kinds.DATETIME: pa.timestamp("us"),
    kinds.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}  # fmt: skip


class BucketFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one bucket of a table. Paths are relative to the folder; empty: there is no such file."""

    path: str = ""
    """File of rows."""
    rows: int = 0
    gone: str = ""
    """File of deleted keys with their sequences: an older change must not bring a row back."""


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """One table of a generation."""

    key: list[str]
    """Columns of the key."""
    columns: dict[str, str] = {}
    """Name → kind, in the order of the files' columns."""
    buckets: dict[int, BucketFiles] = {}

    @property
    def rows(self) -> int:
        return sum(files.rows for files in self.buckets.values())


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation."""

    v: int = 1
    generation: int
    query: str
    """Id of the streaming query, from its checkpoint."""
    batch: int
    """Last batch that it contains."""
    buckets: int
    """Number of buckets of each table."""
    written_ms: int
    """When it was written, ms since 1970."""
    tables: dict[str, TableState] = {}
    last: dict[str, list[int]] = {}
    """Scope → sequence applied last, if they are checked by table and queue or by queue."""

    @property
    def paths(self) -> set[str]:
        """All files that it names."""
        files = [files for table in self.tables.values() for files in table.buckets.values()]
        return {path for one in files for path in (one.path, one.gone) if path}


def arrow_type(kind: str) -> pa.DataType:
    digits = kinds.digits_of(kind)
    return pa.decimal128(*digits) if digits is not None else _ARROW[kind]


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a table's files."""
    fields = [pa.field(KEY_COLUMN, pa.string()), pa.field(SEQUENCE_COLUMN, pa.list_(pa.int64()))]
    return pa.schema([*fields, *(pa.field(name, arrow_type(kind)) for name, kind in columns.items())])


def file_path(table: str, generation: int, bucket: int, attempt: int) -> str:
    """Return the path for a bucket, relative to the folder. By attempt: a retried or speculative task writes another file."""
    return f"{DATA}/{quote(table, safe='')}/{generation:010d}-{bucket:03d}-{attempt}.parquet"


class SnapshotFolder:
    """One snapshot. Only the run that has the folder's lease writes; anybody may read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    def prepare(self) -> None:
        """Create its folders. Raises ConfigError: they cannot be created."""
        for part in (MANIFESTS, DATA):
            make_or_refuse("snapshot's folder", self.path / part)

    def last(self) -> Manifest | None:
        """Return the newest generation; None: there is none yet. Raises StoreCorrupt."""
        while True:
            generations = self._generations()
            if not generations:
                return None
            # Newer generations replaced it since the listing.
            with contextlib.suppress(FileNotFoundError):
                return self._read(generations[-1])

    def guard(self, checkpoint: Path) -> None:
        """Raise ConfigError for a checkpoint of another query than wrote this snapshot: old changes would replace new ones."""
        newest = self.last()
        query = query_id(checkpoint)
        if newest is not None and query != newest.query:
            which = f"belongs to another query ({query})" if query else "is new or empty"
            raise ConfigError(
                f"{self.path} was written by the query {newest.query}, and the checkpoint {checkpoint} {which}: old changes "
                "would be applied over new ones. Give the old checkpoint, or an empty folder."
            )

    def commit(self, manifest: Manifest, written: set[str]) -> None:
        """Make it the newest generation, which readers see. Args: written: paths of its new files, which are synced."""
        # The files' names are durable before the manifest that names them.
        for folder in {(self.path / path).parent for path in written}:
            sync_folder(folder)
        sync_folder(self.path / DATA)
        write_whole(self._place(manifest.generation), msgspec.json.format(msgspec.json.encode(manifest), indent=1))

    def clean(self, *, generations: int, since_ms: int, now_ms: int) -> None:
        """Remove generations that no reader needs, and files that no generation names.

        For the run that writes, while no task runs: a running task's new files are named by no generation yet.

        Args:
            generations: number of newest generations to keep.
            since_ms: older generations written at this time or later stay, too.
            now_ms: time, ms since 1970.
        """
        try:
            known = [self._read(number) for number in self._generations()]
        except StoreCorrupt as fault:  # No run needs an old manifest, but without it the unnamed files are not known.
            _LOG.warning("changes: older generations stay for now: %s", fault)
            return
        # A generation cannot be younger than those after it: this corrects times written while the clock was ahead.
        written = list(itertools.accumulate((one.written_ms for one in reversed(known)), min, initial=now_ms))[:0:-1]
        recent = [one for one, at in zip(known, written, strict=True) if at >= since_ms]
        kept = [one for one in known[:-generations] if one in recent] + known[-generations:]
        # Manifests before files: none may name a file that is gone.
        for one in known:
            if one not in kept:
                self._place(one.generation).unlink()
        named = {path for one in kept for path in one.paths}
        for folder in (self.path / DATA).glob("*"):
            for path in folder.iterdir():
                if str(path.relative_to(self.path)) not in named:
                    path.unlink(missing_ok=True)
        # Of a run that was killed while it wrote a manifest.
        for left in (self.path / MANIFESTS).glob("*.tmp"):
            left.unlink()

    def _generations(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.path / MANIFESTS).glob("*.json"))

    def _place(self, generation: int) -> Path:
        return self.path / MANIFESTS / f"{generation:010d}.json"

    def _read(self, generation: int) -> Manifest:
        path = self._place(generation)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise
        except (msgspec.DecodeError, OSError) as fault:
            raise StoreCorrupt(
                f"the manifest {path} cannot be read ({fault}): restore it from a copy, or begin in an empty folder"
            ) from fault


def make_table_folder(path: Path) -> None:
    """Create the folder of a file that is to be written."""
    make_folder(path.parent)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One generation of a snapshot, for readers. Made by `metaq.spark.snapshot`."""

    folder: Path
    """That of the pipeline, absolute."""
    _manifest: Manifest

    @property
    def tables(self) -> list[str]:
        """Names of its tables, sorted."""
        return sorted(self._manifest.tables)

    def files(self, table: str | None = None) -> list[Path]:
        """Return the Parquet files of a table; None: of the only one. Raises ConfigError: there is no such table."""
        return [self.folder / files.path for files in self._table(table).buckets.values() if files.path]

    def schema(self, table: str | None = None) -> pa.Schema:
        """Return the schema with all columns: files written before a column was added lack it. Raises ConfigError."""
        return arrow_schema(self._table(table).columns)

    def dataset(self, table: str | None = None) -> Any:
        """Return a `pyarrow.dataset.Dataset` of a table's rows. Raises ConfigError."""
        return ds.dataset([str(path) for path in self.files(table)], schema=self.schema(table), format=checked_format())

    def _table(self, table: str | None) -> TableState:
        tables = self._manifest.tables
        if table is None and len(tables) == 1:
            return next(iter(tables.values()))
        if table not in tables:
            which = f"no table {table}" if table is not None else "several tables, or none: name one"
            raise ConfigError(
                f"the snapshot in {self.folder} has {which}; it has {', '.join(sorted(tables)) or 'none yet'}"
            )
        return tables[table]


def snapshot(folder: str | Path) -> Snapshot:
    """Return the newest generation of a snapshot. Its files stay for the pipeline's `keepSeconds` after a newer one is there.

    It has `tables`, their names, and for a name (None: the only one) `files(name)`, paths of Parquet files, `schema(name)`, a
    pyarrow.Schema, and `dataset(name)`, a pyarrow.dataset.Dataset of the rows. Needs no Spark.

    Args: folder: that of the pipeline `changes`.

    Raises: ConfigError: the folder has none. StoreCorrupt: its manifest cannot be read.
    """
    place = SnapshotFolder(folder)
    manifest = place.last()
    if manifest is None:
        raise ConfigError(f"{place.path} holds no snapshot yet")
    return Snapshot(place.path, manifest)


def table_of(found: Snapshot, table: str | None, spark: Any) -> Any:
    """Return a table of a snapshot as a Spark DataFrame, without our additional columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # A `datetime` has no zone: as a TIMESTAMP it would move with the session's.
    schema = from_arrow_schema(found.schema(table), prefer_timestamp_ntz=True)
    files = [f"file:{path}" for path in found.files(table)]
    frame = (
        spark.read.schema(schema).options(**SPARK_CHECKS).parquet(*files)
        if files
        else spark.createDataFrame([], schema)
    )
    return frame.drop(KEY_COLUMN, SEQUENCE_COLUMN)


def read_snapshot(folder: str | Path, table: str | None = None, *, spark: Any = None) -> Any:
    """Return a DataFrame of the latest state of a table, as the pipeline `changes` committed it last.

    Args:
        folder: the pipeline's folder.
        table: the source's name of it, `shop.orders`; None: the only one.
        spark: the session; None: `metaq.spark.session()`.

    Raises: ConfigError: there is no snapshot, or no such table.
    """
    if spark is None:
        from metaq.spark.engine.session import session

        spark = session()
    return table_of(snapshot(folder), table, spark)
