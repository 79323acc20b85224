"""Writing and opening of the archive's Parquet files."""

from __future__ import annotations

import base64
import errno
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metaq.archive.decoding import DECODED
from metaq.durable import sync_file
from metaq.errors import StoreCorrupt

ROW_GROUP_ROWS = 200_000
ROW_GROUP_BYTES = 16 << 20
"""Bytes of a row group, gathered in memory. Large, because a reader pays per column of a row group, whatever its size."""
_PAGE_ROWS = 64
"""Rows between two checks whether a page is full: readers have a whole page of bodies in memory, so it must not grow far."""
_FEW = ("broker", "tag", "properties.key_value.key", "sys_flag", "born_host", "store_host", "properties_raw")
"""Columns with few distinct values: dictionary-encoded."""
_UNORDERED = ("body", "properties.key_value.key", "properties.key_value.value")
"""Columns without statistics: nobody searches by their minimum and maximum."""
_ARROW_SCHEMA = "ARROW:schema"
"""Metadata key under which Arrow stores its own schema."""
SPARK_CHECKS = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of Spark's reader of Parquet: it writes checksums of pages by default, and verifies them only then."""
_NEAR = ("queue_offset", "born_time", "store_time", "log_offset", "prepared_offset")
"""Columns of slowly changing numbers: delta-encoded."""


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a writer with settings for messages: bodies, ids and keys hardly repeat, so a dictionary of them would only cost.

    Args: schema: of the batches. Columns of views (`with_views`) are plain binary columns in the file.
    """
    leaves = [leaf for field in schema for leaf in _leaves(field.type, field.name)]
    there = {*schema.names, "properties.key_value.key"}
    decoded = _leaves(schema.field(DECODED).type, DECODED) if DECODED in schema.names else []
    shown = _without_views(schema)
    writer = pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, write_batch_size=_PAGE_ROWS,
        write_statistics=[leaf for leaf in leaves if leaf not in _UNORDERED],
        use_dictionary=[*(name for name in _FEW if name in there), *decoded],
        column_encoding=dict.fromkeys((name for name in _NEAR if name in there), "DELTA_BINARY_PACKED"),
        store_schema=shown is schema, write_page_checksum=True,
    )  # fmt: skip
    # Arrow would store a schema with views, and readers would then return views, which older ones cannot.
    if shown is not schema:
        writer.add_key_value_metadata({_ARROW_SCHEMA: base64.b64encode(shown.serialize())})
    return writer


def with_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with bodies as views, which saves a copy; unchanged if this pyarrow cannot write views."""
    place = schema.get_field_index("body")
    return schema.set(place, schema.field(place).with_type(pa.binary_view())) if _writes_views() else schema


def _without_views(schema: pa.Schema) -> pa.Schema:
    for place, field in enumerate(schema):
        if field.type == pa.binary_view():
            schema = schema.set(place, field.with_type(pa.binary()))
    return schema


@functools.cache
def _writes_views() -> bool:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([("body", pa.binary_view())])).close()
    except pa.ArrowException:
        return False
    return True


def _leaves(kind: pa.DataType, path: str) -> list[str]:
    """Return the paths of the Parquet columns that an Arrow column is stored in."""
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(field.type, f"{path}.{field.name}")]
    if pa.types.is_list(kind):
        return _leaves(kind.value_type, f"{path}.list.element")
    if pa.types.is_map(kind):
        return [f"{path}.key_value.key", *_leaves(kind.item_type, f"{path}.key_value.value")]
    return [path]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex: archived files have it in their manifests. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_offsets(path: Path, drop: Any) -> int:
    """Rewrite a staged file without the messages at the queue offsets `drop`. Returns the number of rows left."""
    making, rows = path.with_suffix(".tmp"), 0
    with pq.ParquetFile(path, page_checksum_verification=True) as old, parquet_writer(making, old.schema_arrow) as new:
        for group in range(old.num_row_groups):
            table = old.read_row_group(group)
            table = table.filter(pc.invert(pc.is_in(table["queue_offset"], pa.array(drop, pa.int64()))))
            new.write_table(table)
            rows += len(table)
    # Synced before it is renamed: a power cut may otherwise leave the new name without the bytes.
    sync_file(making)
    making.rename(path)
    return rows


def opened(path: Path, buffer_bytes: int) -> pq.ParquetFile:
    """Open a file for reading in pieces, not a column chunk at once.

    Args: buffer_bytes: per column. Raises: FileNotFoundError. StoreCorrupt: not a Parquet file.
    """
    try:
        # `pre_buffer` would load the chunks of all columns of a row group at once.
        return pq.ParquetFile(path, buffer_size=buffer_bytes, pre_buffer=False, page_checksum_verification=True)
    except FileNotFoundError as fault:  # Arrow's exception does not have the file name in a field.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from fault
    except (pa.ArrowException, OSError) as fault:
        raise StoreCorrupt(f"{path} is no Parquet file that can be read: {fault}") from fault


def checked_format() -> Any:
    """Return the format of a `pyarrow.dataset` whose pages are verified against their checksums."""
    import pyarrow.dataset as ds  # Lazily: the archive's own readers do not need it.

    return ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )


def batch_rows(about: Any, rows_max: int, bytes_max: int) -> int:
    """Return the number of rows to read at once, by a file's footer: `rows_max`, or fewer of about `bytes_max` bytes."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(rows_max, bytes_max // max(1, row_bytes)))
