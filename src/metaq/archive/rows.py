"""Messages from rows of the archive's Parquet files (docs/formats/archive.md).

Needs pyarrow.
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaq.errors import StoreCorrupt
from metaq.model import StoredMessage
from metaq.model.message import host_bytes
from metaq.model.properties import NAME_END, PAIR_END, UNIQUE_ID

M = TypeVar("M", bound=StoredMessage)

_ENDED = PAIR_END.encode()
_OFFSET_ID_CHARS = (32, 56)
"""Lengths of a message id that is the offset id, with an IPv4 and an IPv6 store host."""
_NO_HOST = bytes(8)
_PAIRS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]))


def messages_of(batch: pa.RecordBatch, kind: type[M], topic: str, min_offset: int = 0, max_offset: int = 0) -> list[M]:
    """Return a message per row, equal to the pulled one except for the queue's bounds, which are the given ones.

    Rows of version 1 lack hosts, log offset and SYSFLAG, which become zero; a message without a unique id has log offset and
    store host in its offset id.

    Raises: StoreCorrupt: a malformed host.
    """
    there = set(batch.schema.names)
    count = batch.num_rows

    def numbers(name: str) -> list[int]:
        values: list[int] = batch.column(name).to_numpy().tolist() if name in there else [0] * count
        return values

    if "store_host" in there:
        stored = zip(_hosts(batch.column("store_host")), numbers("log_offset"), strict=True)
    else:
        stored = zip(*_places_by_id(batch), strict=True)
    rows = zip(
        batch.column("broker").to_pylist(), numbers("queue_id"), numbers("queue_offset"), batch.column("body").to_pylist(),
        _times(batch, "born_time", "born_ms"), _times(batch, "store_time", "store_ms"), _property_texts(batch), numbers("flag"),
        numbers("reconsume_times"), numbers("sys_flag"), numbers("prepared_offset"),
        _hosts(batch.column("born_host")) if "born_host" in there else [_NO_HOST] * count, stored,
        strict=True,
    )  # fmt: skip
    return [
        kind(
            topic=topic, broker=broker, queue_id=queue_id, queue_offset=queue_offset, body=body, born_ms=born_ms,
            store_ms=store_ms, flag=flag, reconsume_times=reconsume_times, sys_flag=sys_flag, prepared_offset=prepared_offset,
            properties_raw=properties, min_offset=min_offset, max_offset=max_offset, born_host_raw=born_host,
            store_host_raw=store_host, log_offset=log_offset,
        )
        for (
            broker, queue_id, queue_offset, body, born_ms, store_ms, properties, flag, reconsume_times, sys_flag,
            prepared_offset, born_host, (store_host, log_offset),
        ) in rows
    ]  # fmt: skip


def offset_ids(store_hosts: pa.Array, log_offsets: pa.Array) -> pa.Array:
    """Return the offset id of each row: store host and log offset. Raises: StoreCorrupt: a malformed host."""
    rows = zip(_hosts(store_hosts), log_offsets.to_pylist(), strict=True)
    return pa.array([f"{host.hex()}{place:016x}".upper() for host, place in rows], pa.string())


def _times(batch: pa.RecordBatch, shown: str, beyond: str) -> list[int]:
    """Return ms since 1970: of the timestamp `shown`, or of `beyond` where that is set because no timestamp could hold them."""
    ms: list[int] = (batch.column(shown).cast(pa.int64()).to_numpy() // 1000).tolist()
    if beyond not in batch.schema.names or batch.column(beyond).null_count == len(ms):
        return ms
    others = batch.column(beyond).to_pylist()
    return [one if other is None else other for one, other in zip(ms, others, strict=True)]


def _property_texts(batch: pa.RecordBatch) -> list[bytes]:
    lists = batch.column("properties").cast(_PAIRS)  # Unlike a map's own children, `flatten` of a list respects slices.
    names, values = lists.flatten().flatten()
    sizes = pc.list_value_length(lists).to_numpy()
    # The lists may be a slice of a larger batch, so their offsets are counted anew from 0.
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int32)))
    pairs = pc.binary_join_element_wise(names, values, NAME_END)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs), PAIR_END)
    texts: list[bytes] = joined.cast(pa.binary()).to_pylist()
    if "properties_raw" not in batch.schema.names or batch.column("properties_raw").null_count == len(texts):
        return texts
    return [
        # A text that ends with a separator has only that in `properties_raw`; any other text that pairs cannot give
        # is there whole.
        text if raw is None else text + raw if raw == _ENDED else raw
        for text, raw in zip(texts, batch.column("properties_raw").to_pylist(), strict=True)
    ]


def _hosts(column: pa.Array) -> list[bytes]:
    """Parse host texts. By distinct value: a queue has few."""
    distinct = column.dictionary_encode()
    hosts = [_host(text) for text in distinct.dictionary.to_pylist()]
    return [hosts[number] for number in distinct.indices.to_numpy().tolist()]


def _host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    try:
        return host_bytes(address, int(port))
    except (ValueError, OverflowError):
        raise StoreCorrupt(f"{text!r} in an archived row is no host and port") from None


def _places_by_id(batch: pa.RecordBatch) -> tuple[list[bytes], list[int]]:
    """Return store hosts and log offsets from message ids that are offset ids; zeros for unique ids."""
    hosts, offsets = [_NO_HOST] * batch.num_rows, [0] * batch.num_rows
    rows = zip(batch.column("message_id").to_pylist(), batch.column("properties").to_pylist(), strict=True)
    for number, (message_id, pairs) in enumerate(rows):
        # A unique id may have the length of an offset id, but it has no host in it.
        if len(message_id) not in _OFFSET_ID_CHARS or any(name == UNIQUE_ID for name, _ in pairs):
            continue
        with contextlib.suppress(ValueError):
            raw = bytes.fromhex(message_id)
            hosts[number], offsets[number] = raw[:-8], int.from_bytes(raw[-8:], "big", signed=True)
    return hosts, offsets
