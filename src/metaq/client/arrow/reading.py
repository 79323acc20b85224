"""Messages that were pulled, as record batches of Arrow: what readers and consumers hand out by `arrow_batches`.

The columns are made from the records themselves where they are still at hand (`metaq.client.arrow.records`); else,
which is slower, from records made of the messages: for what was pulled before somebody asked for Arrow, and in
orderly consumption.

Needs pyarrow and numpy (`pip install 'pymetaq[arrow]'`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from metaq.client.arrow.records import LEAN, TYPES, decode, schema_of
from metaq.errors import ConfigError
from metaq.model import StoredMessage, SysFlag
from metaq.model.message import COMPRESSION_TYPE_MASK
from metaq.wire.record import encode_record

_COMPRESSION = int(SysFlag.COMPRESSED) | COMPRESSION_TYPE_MASK

RecordBatch = pa.RecordBatch

Part = tuple[Sequence[StoredMessage], Any]
"""Messages of one queue, by offset, with the records that hold them, and perhaps others; None: those are not kept."""


class BatchLayout(Struct, frozen=True):
    """Columns and size of the record batches that a caller asked for."""

    columns: tuple[str, ...]
    rows: int
    """Rows of one batch at most."""

    @classmethod
    def of(cls, columns: Sequence[str] | None, rows: int) -> BatchLayout:
        """Raises ConfigError, TypeError."""
        if isinstance(columns, str):
            raise TypeError(f"columns is {columns!r}: pass a list of names")
        if isinstance(rows, bool) or not isinstance(rows, int):
            raise TypeError(f"rows is {rows!r}: pass a whole number")
        if rows < 1:
            raise ConfigError(f"rows={rows}: need 1 or more")
        wanted = LEAN if columns is None else tuple(columns)
        schema_of(wanted)
        return cls(wanted, rows)

    def batch(self, parts: Sequence[Part]) -> pa.RecordBatch:
        """One row a message, in the order of the parts. Raises: RemoteProtocolError: a broken record."""
        made = [_batch(messages, records, self.columns) for messages, records in parts]
        return made[0] if len(made) == 1 else pa.concat_batches(made)


def _batch(messages: Sequence[StoredMessage], records: Any, columns: tuple[str, ...]) -> pa.RecordBatch:
    if records is None:
        return _remade(messages, columns)
    decoded = decode(records, messages[0].queue, messages[0].max_offset)
    batch = decoded.to_batch(columns)
    if len(messages) != len(decoded):  # Some of its rows were filtered, or belong to somebody else.
        offsets = np.fromiter((message.queue_offset for message in messages), np.int64, len(messages))
        # The offsets of a pull ascend, so a binary search finds the row of each message.
        batch = batch.take(pa.array(np.searchsorted(decoded.queue_offsets, offsets)))
    return _corrected(batch, messages, ("topic",))


def _remade(messages: Sequence[StoredMessage], columns: tuple[str, ...]) -> pa.RecordBatch:
    # These bodies are expanded already: with the compression bits set the decoder would expand them again. The column
    # sys_flag gets the original bits below.
    records = b"".join(
        encode_record(
            topic=one.topic.encode(), queue_id=one.queue_id, queue_offset=one.queue_offset, log_offset=one.log_offset,
            flag=one.flag, sys_flag=one.sys_flag & ~_COMPRESSION, born_ms=one.born_ms, born_host=one.born_host_raw,
            store_ms=one.store_ms, store_host=one.store_host_raw, reconsume_times=one.reconsume_times,
            prepared_offset=one.prepared_offset, body=one.body, properties=one.properties_raw,
        )
        for one in messages
    )  # fmt: skip
    batch = decode(records, messages[0].queue, messages[0].max_offset).to_batch(columns)
    return _corrected(batch, messages, ("topic", "sys_flag"))


def _corrected(batch: pa.RecordBatch, messages: Sequence[StoredMessage], names: Sequence[str]) -> pa.RecordBatch:
    """Replace columns that the messages know better than the records: the topic that a retried message was first sent
    to."""
    for name in names:
        if name not in batch.schema.names or (name == "topic" and not _renamed(messages)):
            continue
        values = pa.array([getattr(message, name) for message in messages], TYPES[name])
        batch = batch.set_column(batch.schema.names.index(name), batch.schema.field(name), values)
    return batch


def _renamed(messages: Sequence[StoredMessage]) -> bool:
    """Whether they are of several topics: those of a retry topic are shown under the one that they were sent to."""
    topic = messages[0].topic
    return any(message.topic != topic for message in messages)
