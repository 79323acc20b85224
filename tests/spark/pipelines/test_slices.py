"""How a worker writes the messages of a slice: what comes by pulls of a MiB lies in row groups of a reader's size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metaq.archive.parquet import ROW_GROUP_BYTES
from metaq.spark.pipelines import slices
from metaq.spark.pipelines.archived_rows import SCHEMA
from metaq.spark.pipelines.slices import _DayFile


def batch(first: int, rows: int, body: int) -> pa.RecordBatch:
    """Rows with the queue offsets from `first` on."""
    row = {field.name: None for field in SCHEMA} | {"body": b"x" * body}
    return pa.RecordBatch.from_pylist([row | {"queue_offset": first + number} for number in range(rows)], schema=SCHEMA)


def written(path, batches, most=ROW_GROUP_BYTES) -> pq.ParquetFile:
    with ThreadPoolExecutor(1) as helper:
        file = _DayFile(path, SCHEMA, helper)
        for one in batches:
            file.add(one, None, most)
        file.close()
        file.settle()
    found = pq.ParquetFile(path)
    assert file.rows == found.metadata.num_rows
    assert found.read()["queue_offset"].to_pylist() == list(range(file.rows))
    return found


def test_small_pulls_are_one_row_group(tmp_path):
    """A reader pays for each group, so pulls are gathered; also the last, which is not full."""
    assert written(tmp_path / "f", [batch(10 * number, 10, 100) for number in range(30)]).num_row_groups == 1


def test_what_waits_is_bounded_by_bytes(tmp_path):
    """Messages of 64 KiB: no more waits in memory than was allowed and one pull."""
    found = written(tmp_path / "f", [batch(16 * number, 16, 1 << 16) for number in range(8)], most=3 << 20)
    groups = [found.metadata.row_group(number) for number in range(found.num_row_groups)]
    assert [group.num_rows for group in groups] == [48, 48, 32]


def test_what_waits_is_bounded_by_rows(tmp_path, monkeypatch):
    """Tiny ones: a group has no more rows than any of the archive's."""
    monkeypatch.setattr(slices, "ROW_GROUP_ROWS", 25)
    found = written(tmp_path / "f", [batch(10 * number, 10, 1) for number in range(6)])
    assert max(found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)) <= 25


def test_a_file_is_closed_though_its_rest_cannot_be_written(tmp_path, monkeypatch):
    """The disk's fault is told, and nothing is left open."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with ThreadPoolExecutor(1) as helper:
        file = _DayFile(tmp_path / "f", SCHEMA, helper)
        file.add(batch(0, 3, 10), None, ROW_GROUP_BYTES)
        monkeypatch.setattr(file._writer, "write_table", full)
        with pytest.raises(OSError, match="No space left"):
            file.close()
    assert not file._writer.is_open
