"""What is in the store and in the archive, read without Spark and without the code that wrote it: `metaq store dump`, and pyarrow.

A table has a row per message: queue_id, queue_offset, message_id, keys, tag, body, born_time, store_time, and `origin` of the copies.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.spark.proof.driver import COPIED_FROM
from tests.spark.proof.ledger import BODY_BYTES
from tests.support import environment, metaq_command

TIME = pa.timestamp("ms", "UTC")


class _Line(msgspec.Struct):
    """What `metaq store dump` says of a message."""

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


def dumped(store: Path, topic: str) -> pa.Table:
    """The messages of a topic, in the order of the log. Raises DumpFailed."""
    lines = msgspec.json.Decoder(_Line)
    columns: dict[str, list] = {name: [] for name in (*_Line.__struct_fields__[:7], "body", "origin")}
    with subprocess.Popen(
        metaq_command("store", "dump", str(store), "--topic", topic),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    ) as dump:  # fmt: skip
        for text in dump.stdout:
            line = lines.decode(text)
            for name in _Line.__struct_fields__[:7]:
                columns[name].append(getattr(line, name))
            columns["body"].append(line.body.encode() or line.body_base64.encode())
            columns["origin"].append(line.properties.get(COPIED_FROM))
        fault = dump.stderr.read().decode()
    if dump.returncode:
        raise DumpFailed(f"metaq store dump {store} --topic {topic}: exit status {dump.returncode}: {fault}")
    times = {name: pa.array(columns[name], pa.string()).cast(TIME) for name in ("born_time", "store_time")}
    kinds = {"queue_id": pa.int32(), "queue_offset": pa.int64(), "keys": pa.list_(pa.string()), "body": pa.binary()}
    made = {name: times.get(name, pa.array(column, kinds.get(name, pa.string()))) for name, column in columns.items()}
    return pa.table({**made, "keys": _joined(made["keys"])})


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
