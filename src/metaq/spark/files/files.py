"""`format("metaq")` with the option `path`: files of brokers and archives as DataFrames, without a broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from metaq.client.arrow import records
from metaq.errors import ConfigError, StoreCorrupt
from metaq.spark import schema
from metaq.spark.files.found import find
from metaq.spark.files.named import check_topics
from metaq.spark.files.plan import Part, partitions
from metaq.spark.files.read import read_parts
from metaq.spark.files.settings import FilesOptions
from metaq.store.offline.damage import Damage

_LOG = logging.getLogger(__name__)

DAMAGE_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("place", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("why", pa.string()),
    ]
)
"""Schema of `rows=damage`: places that cannot be read."""
_WARNINGS_MAX = 20
"""Most warnings per partition; a last one has the number of all."""


class FilesPartition(InputPartition):  # type: ignore[misc]
    """One Spark partition: parts of files, to be read one after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Args: parts: plain values: Spark pickles them for the task."""
        super().__init__(f"{len(parts)} parts of files")
        self.parts = list(parts)


def files_ddl(options: FilesOptions) -> str:
    """Return the columns of a row as Spark's DDL."""
    if options.rows == "damage":
        return schema.ddl(DAMAGE_SCHEMA)
    return schema.ddl(records.schema_of(schema.columns_of(options.columns)))


def refuse_stream() -> None:
    """Raise ConfigError: files cannot be read as a stream."""
    raise ConfigError(
        "files are read by spark.read, not as a stream: to follow messages as they come, read the topics from their brokers "
        "(nameServers and subscribe); to follow an archive, spark.readStream.schema(...).parquet(FOLDER)"
    )


class FilesReader(DataSourceReader):  # type: ignore[misc]
    """A batch read of the files as they are when the query is planned."""

    def __init__(self, options: FilesOptions, struct: Any) -> None:
        """
        Args:
            options: the query's.
            struct: Spark's StructType; it chooses the columns.
        """
        self.options = options
        known = DAMAGE_SCHEMA if options.rows == "damage" else records.schema_of(tuple(records.TYPES))
        self.columns = schema.columns_of_struct(struct, known)

    def partitions(self) -> list[InputPartition]:
        """Plan the read. Raises ConfigError, StoreForeign: as `find`, `check_topics` and `plan.partitions`."""
        found = find(self.options.all_paths)
        check_topics(self.options, found)
        planned = partitions(found, self.options)
        # For an empty list Spark would run one task with read(None).
        return [FilesPartition(parts) for parts in planned] or [FilesPartition([])]

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows. Runs in an executor's Python worker, on a pickled copy of the reader.

        Raises: StoreCorrupt: a place cannot be read, and `failOnCorrupt` is set.
        """
        if self.options.rows == "damage":
            yield from self._damage(partition)
            return
        count = size = 0
        for found in read_parts(partition.parts, self.options, self.columns):
            if not isinstance(found, Damage):
                yield found
                continue
            if self.options.fail_on_corrupt:
                raise StoreCorrupt(
                    f"{found}. Set failOnCorrupt=false to go on behind it; .option('rows', 'damage') lists all such places"
                )
            count, size = count + 1, size + found.size
            if count <= _WARNINGS_MAX:
                _LOG.warning("%s", found)
        if count:
            _LOG.warning("%d places in these files could not be read, %d bytes in all", count, size)

    def _damage(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        found = [
            {"path": one.path, "place": one.place, "size": one.size, "why": one.why}
            # With the body: only where bodies are asked for are they expanded, and damaged ones found.
            for one in read_parts(partition.parts, self.options, ("queue_id", "body"))
            if isinstance(one, Damage)
        ]
        yield pa.RecordBatch.from_pylist(found, schema=pa.schema([DAMAGE_SCHEMA.field(name) for name in self.columns]))
