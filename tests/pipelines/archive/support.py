"""Archives made without Spark and brokers, and readers of them that know nothing of ours."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import parquet_writer
from metaq.archive.records import ArchivedFile, Manifest, final_path
from metaq.archive.replacements import place, view
from metaq.client.arrow import records
from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.archived_rows import SCHEMA

QUERY = "6f1c9a2e-1111-2222-3333-444455556666"
COLUMNS = (*records.LEAN[1:], "properties", "flag", "reconsume_times")
DATE = "2026-03-01"

Row = tuple[str, str, int, int]
"""Topic, broker, queue, offset."""


def rows_of(
    queue: MessageQueue, numbers: Iterable[int], date: str = DATE, body: bytes = b"body", *, new: bool = False
) -> pa.RecordBatch:
    """Messages of a queue as the archive writes them; `new`: in version 2, which has more columns than version 1."""
    numbers = list(numbers)
    day = dt.datetime.fromisoformat(f"{date}T00:00:00+00:00")
    times = pa.array([day + dt.timedelta(milliseconds=number) for number in numbers], records.TYPES["store_time"])
    values = {
        "broker": [queue.broker] * len(numbers), "queue_id": [queue.queue_id] * len(numbers), "queue_offset": numbers,
        "message_id": [f"{number:032X}" for number in numbers], "tag": ["t"] * len(numbers),
        "keys": [["k"]] * len(numbers), "body": [body] * len(numbers), "born_time": times, "store_time": times,
        "properties": [[("a", "b")]] * len(numbers), "flag": [0] * len(numbers), "reconsume_times": [0] * len(numbers),
    }  # fmt: skip
    arrays = [
        value if isinstance(value, pa.Array) else pa.array(value, records.TYPES[name]) for name, value in values.items()
    ]
    if new:
        values = {
            "sys_flag": 0, "born_host": "10.0.0.1:4000", "store_host": "10.0.0.2:10911", "log_offset": 7, "prepared_offset": 0,
            "properties_raw": None, "born_ms": None, "store_ms": None,
        }  # fmt: skip
        arrays += [pa.array([values[field.name]] * len(numbers), field.type) for field in list(SCHEMA)[len(COLUMNS) :]]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA if new else records.schema_of(COLUMNS))


def publish(
    folder: ArchiveFolder, batch: int, ranges: dict[MessageQueue, Sequence[int]], date: str = DATE, **more
) -> Manifest:
    """A batch of one file per queue, published. Of a range that is no `range` some offsets were dropped as repeats."""
    folder.make()
    last = folder.last()
    end = {} if last is None else last.end
    files = []
    for queue, numbers in ranges.items():
        start, stop = numbers[0], numbers[-1] + 1
        path = folder.staging / f"{batch}-run" / f"{len(files)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = rows_of(queue, numbers, date, **more)
        with parquet_writer(path, rows.schema) as writer:
            writer.write_batch(rows)
        final = final_path(QUERY, batch, Slice(queue, start, stop), date)
        files.append(
            ArchivedFile(
                path=final, staged=folder.relative(path), topic=queue.topic, date=date, rows=len(numbers),
                size=path.stat().st_size,
            )
        )  # fmt: skip
        end[queue] = max(end.get(queue, 0), stop)
    manifest = Manifest(
        query=QUERY, batch=batch, files=files, rows=sum(file.rows for file in files), repeats=0,
        positions=offsets.to_json(end),
    )  # fmt: skip
    folder.commit(manifest)
    folder.finish(manifest)
    folder.clean_staging()
    folder.close()
    return manifest


def seen_in(paths: Iterable[Path]) -> Counter[Row]:
    """Every row of some files, with how often it is there. Raises FileNotFoundError."""
    found: Counter[Row] = Counter()
    for path in paths:
        with path.open("rb") as opened:
            table = pq.read_table(opened, columns=["broker", "queue_id", "queue_offset"])
        topic = next(part.removeprefix("topic=") for part in path.parts[::-1] if part.startswith("topic="))
        found.update(zip([topic] * len(table), *(column.to_pylist() for column in table.columns), strict=True))
    return found


def seen_plainly(root: Path) -> Counter[Row]:
    """What a reader sees who takes every Parquet file below the folder, whatever its name."""
    return seen_in(sorted(root.rglob("*.parquet")))


def planned(root: Path) -> list[tuple[str, Path]]:
    """Topic and place of the files that a reader by the manifests is to open."""
    folder = ArchiveFolder(root)
    known = view(folder)
    return [(file.topic, place(folder, known, file)) for file in known.files]


def seen_by_plan(plan: list[tuple[str, Path]]) -> Counter[Row]:
    """The rows of planned files. Raises FileNotFoundError."""
    found: Counter[Row] = Counter()
    for topic, path in plan:
        with path.open("rb") as opened:
            table = pq.read_table(opened, columns=["broker", "queue_id", "queue_offset"])
        found.update(zip([topic] * len(table), *(column.to_pylist() for column in table.columns), strict=True))
    return found
