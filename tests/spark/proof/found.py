"""What is in the store and in the archive, read without Spark and without the code that wrote it: `metaq store dump`, and pyarrow.

A table has a row per message: queue_id, queue_offset, message_id, keys, tag, body, born_time, store_time, and `origin` of the copies.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.spark.proof.driver import COPIED_FROM
from tests.spark.proof.ledger import BODY_BYTES
from tests.support import environment, metaq_command

TIME = pa.timestamp("ms", "UTC")


class _Line(msgspec.Struct, gc=False):
    """What `metaq store dump` says of a message."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    tag: str | None
    keys: list[str]
    born_time: str
    store_time: str
    properties: dict[str, str]
    body: str = ""
    body_base64: str = ""


class DumpFailed(Exception):
    """`metaq store dump` failed."""


_PLAIN = ("queue_id", "queue_offset", "message_id", "tag", "born_time", "store_time")
_KINDS = {"queue_id": pa.int32(), "queue_offset": pa.int64(), "body": pa.binary()}
_SOME: Final = 50_000
"""Messages that lie in lists until they become a part of a table: the fewer, the less Python looks for garbage in."""


class _Found:
    """The messages of a topic so far."""

    def __init__(self) -> None:
        self._some: list[_Line] = []
        self._parts: list[pa.RecordBatch] = []

    def add(self, line: _Line) -> None:
        self._some.append(line)
        if len(self._some) == _SOME:
            self._put()

    def table(self) -> pa.Table:
        self._put()
        return pa.Table.from_batches(self._parts).combine_chunks()

    def _put(self) -> None:
        some, self._some = self._some, []
        columns: dict[str, list] = {name: [getattr(line, name) for line in some] for name in _PLAIN}
        columns["keys"] = [" ".join(line.keys) for line in some]
        columns["body"] = [line.body.encode() or line.body_base64.encode() for line in some]
        columns["origin"] = [line.properties.get(COPIED_FROM) for line in some]
        made = {name: pa.array(column, _KINDS.get(name, pa.string())) for name, column in columns.items()}
        times = {name: made[name].cast(TIME) for name in ("born_time", "store_time")}
        self._parts.append(pa.record_batch({**made, **times}))


def dumped(store: Path, *topics: str) -> list[pa.Table]:
    """The messages of each topic, in the order of the log. Raises DumpFailed."""
    lines, found = msgspec.json.Decoder(_Line), {topic: _Found() for topic in topics}
    words = ["store", "dump", str(store), *(word for topic in topics for word in ("--topic", topic))]
    with subprocess.Popen(
        metaq_command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as dump:
        for text in dump.stdout:
            line = lines.decode(text)
            found[line.topic].add(line)
        fault = dump.stderr.read().decode()
    if dump.returncode:
        raise DumpFailed(f"metaq {' '.join(words)}: exit status {dump.returncode}: {fault}")
    return [one.table() for one in found.values()]


def manifests(archive: Path) -> list[dict]:
    """The published batches, oldest first."""
    return [json.loads(path.read_bytes()) for path in sorted((archive / "_manifests").glob("*.json"))]


def archived(paths: list[Path]) -> pa.Table:
    """The messages of some Parquet files."""
    names = ["queue_id", "queue_offset", "message_id", "keys", "tag", "body", "born_time", "store_time"]
    parts = []
    for path in paths:
        with path.open("rb") as file:
            parts.append(pq.read_table(file, columns=names))
    table = pa.concat_tables(parts).combine_chunks()
    columns = {name: table[name].combine_chunks() for name in names}
    for name in ("born_time", "store_time"):
        columns[name] = columns[name].cast(TIME)
    return pa.table({**columns, "keys": _joined(columns["keys"])})


def bodies(table: pa.Table) -> np.ndarray:
    """The bodies as rows of bytes; one of another length is all zeros."""
    column = table["body"].combine_chunks()
    column = column if isinstance(column, pa.Array) else column.chunk(0)
    right = pc.equal(pc.binary_length(column), BODY_BYTES)
    column = pc.if_else(right, column, pa.scalar(bytes(BODY_BYTES), pa.binary()))
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    begin = column.offset * BODY_BYTES
    return data[begin : begin + len(column) * BODY_BYTES].reshape(len(column), BODY_BYTES)


def _joined(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pc.binary_join(keys, " ")
