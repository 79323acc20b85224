"""Output of the archive on a Hadoop file system: Spark's own Parquet writer makes the files, the driver publishes them."""

from __future__ import annotations

import contextlib
import functools
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import functions as sql

from metaq.archive.parquet import SPARK_CHECKS
from metaq.archive.records import IDS, Manifest
from metaq.clock import SYSTEM
from metaq.durable import disk_fault
from metaq.errors import StoreCorrupt
from metaq.pipelines.archive.dedupe import OFF, Ids
from metaq.pipelines.archive.hadoop.folder import HadoopFolder
from metaq.pipelines.archive.hadoop.lease import HadoopLease
from metaq.pipelines.archive.hadoop.rows import (
    DDL,
    PLACE,
    PLACE_END,
    READ,
    IdsOf,
    SliceRows,
    WithoutOffsets,
    staged_place,
)
from metaq.pipelines.archive.outputs import Staged, Wanted
from metaq.pipelines.archive.parting import PARTS_MAX
from metaq.spark import schema
from metaq.spark.engine.hadoop import fault_of

_WRITING: Final = {
    # With fewer writers Spark sorts a task's rows by partition first.
    "spark.sql.maxConcurrentOutputFileWriters": str(2 * PARTS_MAX),
    # As pyarrow writes them: an archive has the same files wherever it lies.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.fieldId.write.enabled": "false",
}
_ONE_PIECE: Final = {"spark.sql.files.minPartitionNum": "1", "spark.sql.files.maxPartitionBytes": str(1 << 62)}
"""Settings by which one task reads a whole file, so that it is written again as one file, in its order."""
_PARQUET: Final = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    # One file per slice and part: `_written` refuses a second one.
    "maxRecordsPerFile": "0",
    # Version 1 moves a task's files when the task has ended, and the job's when all tasks have: of several attempts of a task
    # the files of one are there in the end, and a crash leaves none in place.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    # Their values hardly ever repeat: a dictionary would only cost.
    "parquet.enable.dictionary#body": "false",
    "parquet.enable.dictionary#message_id": "false",
    "parquet.enable.dictionary#properties.key_value.value": "false",
    "parquet.enable.dictionary#keys.list.element": "false",
}


class HadoopOutput:
    """Output at a URI. Only the run that has its lease writes to it."""

    def __init__(self, spark: Any, folder: HadoopFolder, lease: HadoopLease) -> None:
        """
        Args:
            spark: the session.
            folder: of the archive.
            lease: taken.
        """
        self.records = self._folder = folder
        self._spark, self._lease = spark, lease
        self.finish, self.close, self.clean = folder.finish, folder.close, folder.clean

    def write(self, frame: Any, batch: int, wanted: Wanted) -> list[Staged]:
        # The clone of the session that foreachBatch gets: its settings are changed for each job.
        self._spark = frame.sparkSession
        rows = SliceRows(name_servers=wanted.name_servers, settings=wanted.settings, parting=wanted.parting)
        # A new folder for each try: a run that was taken for dead may still write into its own.
        home = self._folder.begin_batch(batch, f"{frame.sparkSession.sparkContext.applicationId}-{SYSTEM.token()[:8]}")
        files = self._written(frame.mapInArrow(rows, DDL), home)
        with self._job(f"what was written to {self._folder.at(home)} cannot be read again"):
            self._count(files, home)
            if wanted.dedupe != OFF and files:
                self._read_ids(files, home, IdsOf(dedupe=wanted.dedupe))
        if not files:
            self._folder.files.remove(home)
        return list(files.values())

    def drop(self, found: Sequence[tuple[Staged, Any]]) -> None:
        """Rewrite the files, once per batch, into another folder."""
        if not found:
            return
        home = posixpath.join(*found[0][0].path.split("/")[: -len(PLACE) - 1])
        parts = []
        with self._settings(_ONE_PIECE):
            for file, offsets in found:
                read = self._read(home, file.path.rpartition("/")[0]).coalesce(1)
                parts.append(read.mapInArrow(WithoutOffsets(drop=offsets), DDL))
            files = self._written(functools.reduce(lambda one, other: one.union(other), parts), f"{home}-whole")
        for file, offsets in found:
            key = _key_of(file.path)
            file.rows -= len(offsets)
            # A file of which nothing is left was not written anew, and the manifest leaves it out.
            if file.rows:
                file.path, file.size = files[key].path, files[key].size

    def seal(self, files: Sequence[Staged]) -> None:
        """Do nothing: a closed file is as durable as its file system makes it."""

    def ids_name(self, query: str, batch: int, number: int) -> str:
        # With a random part: a run that was taken for dead may save ids of the same batch.
        return f"{IDS}/{query[:8]}-{batch:010d}-{number}-{SYSTEM.token()[:8]}.arrow"

    def keep_ids(self, path: str, file: Staged) -> bool:  # noqa: ARG002  it wrote none: they are read from its file
        return False

    def save_ids(self, path: str, ids: Ids) -> Ids:
        data = ids.to_bytes()
        self._folder.files.write(path, data)
        return Ids.of_bytes(data)

    def list_ids(self) -> frozenset[str]:
        return frozenset(f"{IDS}/{entry.name}" for entry in self._folder.files.entries(IDS))

    def load_ids(self, path: str) -> Ids:
        return Ids.of_bytes(self._folder.read(path), self._folder.at(path))

    def remove_ids(self, path: str) -> None:
        self._folder.files.remove(path)

    def commit(self, manifest: Manifest) -> None:
        # Only for the better error, and to save work: the manifest itself refuses the second run.
        self._lease.check()
        self._folder.commit(manifest)

    def recover(self, last: int, known: Collection[str]) -> None:
        self._folder.clean(last)
        self._folder.clean_ids(known, last)

    # ---- Spark's part
    def _written(self, rows: Any, home: str) -> dict[tuple[str, ...], Staged]:
        uri = self._folder.at(home)
        with self._settings(_WRITING), self._job(f"the messages could not be written to {uri}"):
            rows.write.mode("errorifexists").options(**_PARQUET).partitionBy(*PLACE).parquet(uri)
        found: dict[tuple[str, ...], Staged] = {}
        for path, size in self._folder.files.files_below(home):
            if not path.endswith(".parquet"):
                continue
            key = _key_of(path)
            if key in found:
                raise StoreCorrupt(f"{uri}/{path} is one of two files of one slice: Spark was to write one")
            wanted, date, part = staged_place(key)
            found[key] = Staged(wanted=wanted, date=date, part=part, path=f"{home}/{path}", rows=0, size=size)
        return found

    def _read(self, home: str, folder: str = "") -> Any:
        reader = self._spark.read.schema(DDL).option("basePath", self._folder.at(home))
        return reader.options(**SPARK_CHECKS).parquet(self._folder.at(folder or home))

    def _count(self, files: Mapping[tuple[str, ...], Staged], home: str) -> None:
        """Set the rows of staged files, from the Parquet footers: a task's own count may be of an attempt that lost."""
        if files:
            for *key, rows in self._read(home).groupBy(*PLACE).count().collect():
                files[tuple(key)].rows = rows

    def _read_ids(self, files: Mapping[tuple[str, ...], Staged], home: str, ids_of: IdsOf) -> None:
        place = sql.concat_ws(PLACE_END, *PLACE).alias("place")
        packed = self._read(home).select(place, *ids_of.columns).mapInArrow(ids_of, schema.ddl(READ)).toArrow()
        parts: dict[tuple[str, ...], list[Ids]] = {key: [] for key in files}
        for row in packed.to_pylist():
            parts[tuple(row["place"].split(PLACE_END))].append(Ids.of_bytes(row["ids"]))
        for key, mine in parts.items():
            files[key].ids = Ids.join(mine)

    @contextlib.contextmanager
    def _settings(self, wanted: Mapping[str, str]) -> Iterator[None]:
        """Set settings of the session in this context. Safe: Spark gives foreachBatch a clone of the user's session."""
        conf = self._spark.conf
        before = {name: conf.get(name, None) for name in wanted}
        for name, value in wanted.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                conf.unset(name) if value is None else conf.set(name, value)

    @contextlib.contextmanager
    def _job(self, what: str) -> Iterator[None]:
        """Raise our error for a file-system fault that a Spark job fails with."""
        try:
            yield
        except Exception as fault:
            found = fault_of(fault)
            if found is None or "metaq.errors." in str(fault):
                raise
            raise disk_fault(found, what) from fault


def _key_of(path: str) -> tuple[str, ...]:
    """Return a file's values of PLACE, from the names of its folders."""
    return tuple(unquote(folder.partition("=")[2]) for folder in path.split("/")[-len(PLACE) - 1 : -1])
