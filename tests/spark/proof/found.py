"""What is in the store and in the archive, read without Spark and without the code that wrote it: `metaq store dump`, and pyarrow.

A table has a row per message: queue_id, queue_offset, message_id, keys, tag, body, born_time, store_time, and `origin` of the copies.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from tests.spark.proof.driver import COPIED_FROM
from tests.spark.proof.ledger import BODY_BYTES
from tests.support import environment, metaq_command

TIME = pa.timestamp("ms", "UTC")

_LINE = pa.schema({
    "topic": pa.string(), "queue_id": pa.int32(), "queue_offset": pa.int64(), "message_id": pa.string(), "tag": pa.string(),
    "keys": pa.list_(pa.string()), "born_time": pa.string(), "store_time": pa.string(), "body": pa.string(),
    "properties": pa.struct({COPIED_FROM: pa.string()}),
})  # fmt: skip
"""What is wanted of a line of `metaq store dump`. Bodies of the proof are text."""
_BLOCK_BYTES: Final = 4 << 20


class DumpFailed(Exception):
    """`metaq store dump` failed."""


def dumped(store: Path, *topics: str) -> list[pa.Table]:
    """The messages of each topic, in the order of the log. Raises DumpFailed."""
    words = ["store", "dump", str(store), *(word for topic in topics for word in ("--topic", topic))]
    with subprocess.Popen(
        metaq_command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as dump:
        table, problem = None, ""
        try:
            table = pj.read_json(
                dump.stdout, pj.ReadOptions(block_size=_BLOCK_BYTES),
                pj.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="ignore"),
            )  # fmt: skip
        except pa.ArrowInvalid as error:  # also of nothing at all
            problem = str(error)
        fault = dump.stderr.read().decode()
    if dump.returncode or table is None:
        raise DumpFailed(f"metaq {' '.join(words)}: exit status {dump.returncode}: {fault or problem}")
    made = {name: table[name] for name in ("queue_id", "queue_offset", "message_id", "tag")}
    made |= {name: table[name].cast(TIME) for name in ("born_time", "store_time")}
    made |= {"keys": _joined(table["keys"]), "body": table["body"].cast(pa.binary())}
    made["origin"] = pc.struct_field(table["properties"], COPIED_FROM)
    whole = pa.table(made)
    return [whole.filter(pc.equal(table["topic"], topic)).combine_chunks() for topic in topics]


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
