"""How the archive writes Parquet files, and makes them last. Loads no Spark."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metaq.errors import StoreError, StoreFailed, StoreFull

ROW_GROUP_ROWS = 200_000


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Settings that suit messages: bodies, ids and keys hardly repeat, so a dictionary of them only costs."""
    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1,
        use_dictionary=["broker", "tag", "properties.key_value.key"],
        column_encoding={
            "queue_offset": "DELTA_BINARY_PACKED", "born_time": "DELTA_BINARY_PACKED", "store_time": "DELTA_BINARY_PACKED"
        },
    )  # fmt: skip


def without_offsets(path: Path, drop: Any) -> int:
    """Rewrite a staged file without the messages at the queue offsets `drop`. Returns the rows that are left."""
    making, rows = path.with_suffix(".tmp"), 0
    with pq.ParquetFile(path) as old, parquet_writer(making, old.schema_arrow) as new:
        for group in range(old.num_row_groups):
            table = old.read_row_group(group)
            table = table.filter(pc.invert(pc.is_in(table["queue_offset"], pa.array(drop, pa.int64()))))
            new.write_table(table)
            rows += len(table)
    sync_file(making)
    making.rename(path)
    return rows


def disk_fault(fault: OSError, what: str) -> StoreError:
    """Our error for a fault of the file system: one sentence, and what to do."""
    why = fault.strerror or str(fault)
    where = f" ({fault.filename})" if fault.filename else ""
    if fault.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(f"{what}: {why}{where}. Make room and start again: it goes on from there")
    return StoreFailed(f"{what}: {why}{where}. Mend that and start again: it goes on from there")


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
