"""How a worker writes the messages of a slice: what comes by pulls of a MiB lies in row groups of a reader's size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metaq.archive import parquet
from metaq.archive.parquet import ROW_GROUP_BYTES
from metaq.pipelines.archive import slices
from metaq.pipelines.archive.archived_rows import SCHEMA, chosen
from metaq.pipelines.archive.dedupe import Ids, ids_of
from metaq.pipelines.archive.slices import _DayFile


def batch(first: int, rows: int, body: int) -> pa.RecordBatch:
    """Rows with the queue offsets from `first` on."""
    row = {field.name: None for field in SCHEMA} | {"body": b"x" * body}
    return pa.RecordBatch.from_pylist([row | {"queue_offset": first + number} for number in range(rows)], schema=SCHEMA)


def written(path, batches, most=ROW_GROUP_BYTES) -> pq.ParquetFile:
    with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor(1) as disk:
        file = _DayFile(path, SCHEMA, helper, disk)
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

    with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor(1) as disk:
        file = _DayFile(tmp_path / "f", SCHEMA, helper, disk)
        file.add(batch(0, 3, 10), None, ROW_GROUP_BYTES)
        monkeypatch.setattr(file._writer, "write_table", full)
        with pytest.raises(OSError, match="No space left"):
            file.close()
    assert not file._writer.is_open


def test_bodies_come_as_views_and_lie_in_the_file_as_bytes(tmp_path, monkeypatch):
    """Whoever reads it sees the same types and bytes, written by a pyarrow that takes views or by one that does not."""
    shown = []
    for writes in (True, False):
        monkeypatch.setattr(parquet, "_writes_views", lambda writes=writes: writes)
        schema = parquet.with_views(SCHEMA)
        assert (schema.field("body").type == pa.binary_view()) is writes
        with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor(1) as disk:
            file = _DayFile(tmp_path / f"{writes}", schema, helper, disk)
            file.add(batch(0, 50, 2000).cast(schema), None, ROW_GROUP_BYTES)
            file.add(batch(50, 50, 5).cast(schema), None, ROW_GROUP_BYTES)
            file.close()
            file.settle()
        shown.append(pq.ParquetFile(tmp_path / f"{writes}").read())
    assert shown[0].schema == shown[1].schema == SCHEMA
    assert shown[0] == shown[1]
    assert pq.read_schema(tmp_path / "True").equals(pq.read_schema(tmp_path / "False"), check_metadata=True)


def test_rows_that_are_chosen_keep_their_bodies_as_views():
    """Those of one date or part, of a batch that has several."""
    schema = parquet.with_views(SCHEMA)
    whole = batch(0, 6, 100).cast(schema)
    found = chosen(whole, pa.array([True, False] * 3))
    assert found.schema == schema
    assert found["queue_offset"].to_pylist() == [0, 2, 4]
    assert found["body"].to_pylist() == [b"x" * 100] * 3


def test_a_fault_of_the_disk_is_told_by_what_comes_next(tmp_path, monkeypatch):
    """The group that is under way fails in another thread, and the task does not go on."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor(1) as disk:
        file = _DayFile(tmp_path / "f", SCHEMA, helper, disk)
        monkeypatch.setattr(file._writer, "write_table", full)
        file.add(batch(0, 3, 10), None, 1)
        with pytest.raises(OSError, match="No space left"):
            file.add(batch(3, 3, 10), None, 1)
        file.close()


def test_the_disk_is_set_to_work_before_a_file_is_whole(tmp_path, monkeypatch):
    """Else a task would wait for all of its file at the end, and do nothing meanwhile."""
    sizes = []

    def sync(path):
        sizes.append(path.stat().st_size)

    monkeypatch.setattr(slices, "_FORCED_BYTES", 1)
    monkeypatch.setattr(slices, "sync_file", sync)
    written(tmp_path / "f", [batch(3 * number, 3, 10_000) for number in range(20)], most=1)
    assert len(sizes) > 1
    assert sizes[0] < sizes[-1] == (tmp_path / "f").stat().st_size


def test_what_the_disk_did_not_take_before_the_end_fails_the_file(tmp_path, monkeypatch):
    """A system tells of it once: the next sync succeeds, and what was to be written is lost."""
    faults = iter([OSError(5, "Input/output error")])

    def sync(_path):
        for fault in faults:
            raise fault

    monkeypatch.setattr(slices, "_FORCED_BYTES", 1)
    monkeypatch.setattr(slices, "sync_file", sync)
    with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor(1) as disk:
        file = _DayFile(tmp_path / "f", SCHEMA, helper, disk)
        with pytest.raises(OSError, match="Input/output error"):
            file.add(batch(0, 3, 10), None, 1)
            file.add(batch(3, 3, 10), None, 1)
            file.close()
            file.settle()


def test_ids_of_many_messages_are_safe_from_a_power_cut_and_those_of_few_are_the_driver_s_to_save(
    tmp_path, monkeypatch
):
    synced = []
    monkeypatch.setattr(slices, "sync_file", lambda path: synced.append(path.suffix))
    monkeypatch.setattr(slices, "KEPT_LEAST", 50)
    for rows in (49, 50):
        with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor(1) as disk:
            file = _DayFile(tmp_path / f"{rows}.parquet", SCHEMA, helper, disk)
            found = ids_of(pa.array([f"{number:032X}" for number in range(rows)]), [1] * rows, range(rows))
            file.add(batch(0, rows, 10), found, ROW_GROUP_BYTES)
            file.close()
            assert len(Ids.load(file.save_ids())) == rows
            file.settle()
    assert synced.count(".ids") == 1
