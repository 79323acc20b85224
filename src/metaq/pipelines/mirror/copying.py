"""Worker side of the mirror: reads a slice of a source queue, and stages (or sends) its messages for their target queue.

Bodies and properties stay Arrow columns from the pull to the batch that is sent; only messages that were mirrored before are
looked at one by one in Python.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaq.client.arrow import records
from metaq.client.arrow.rows import spans
from metaq.errors import InvalidMessage
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.model.offsets import Slice
from metaq.model.transactions.staging import ManifestPart
from metaq.pipelines.mirror import marks
from metaq.pipelines.mirror.table import OffsetRun, Table
from metaq.spark.cluster.client import MessageLimits, client_of
from metaq.spark.cluster.courier import courier_of
from metaq.spark.schema import RANGE, slice_of_row
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.sink.sink import attempt
from metaq.spark.sink.task import SentRows, StagedRows
from metaq.spark.source.fetch import FetchSettings, read_slice
from metaq.wire import hot

_LOG = logging.getLogger(__name__)

COLUMNS: Final = ("body", "flag", "born_time", "born_host", "offset_id")
ENTRY_BYTES_MAX: Final = 64
"""Bytes of a message in a batch and its request, beside body and properties."""
BROKER_TEXT_BYTES: Final = 512
"""Bytes of a message's properties that are reserved for the target's broker, which adds its cluster's name."""

COPIED = pa.schema(
    [
        *RANGE,
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("came_around", pa.int64()),
        pa.field("unfit", pa.int64()),
        pa.field("runs", pa.string()),
        pa.field("parts", pa.string()),
    ]
)
"""Schema of the summary, a row per slice. `bytes`: of bodies. `came_around`, `unfit`: numbers of messages left out. `runs`:
[[source offset, number among the copied ones, count], ...], JSON. `parts`: the staged parts, JSON."""

_DROPPED: Final = (
    rf"(^|{props.PAIR_END})({'|'.join((*marks.DROPPED, *marks.REPLACED))}){props.NAME_END}[^{props.PAIR_END}]*"
)
_ENDS: Final = rf"^{props.PAIR_END}+|{props.PAIR_END}+$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Copying:
    """Parameters of copying. Plain values: it is pickled for the workers."""

    source: str
    """The source's name in marks."""
    target: str
    leave_out: bool
    """Whether messages that the target does not accept are left out; otherwise the first one is an error."""
    limits: MessageLimits
    """Limits of the target."""

    def batch_of(self, queue: MessageQueue, decoded: records.Decoded) -> CopyBatch:
        """Return the messages for the target. Raises InvalidMessage: the target does not accept one, or its body cannot be read."""
        batch = decoded.to_batch(COLUMNS)
        texts = records.views(decoded.data, decoded.parts["properties"], len(decoded))
        offsets = decoded.queue_offsets
        # One pass for the whole pull: in most topics no message was mirrored before.
        mirrored = pc.match_substring(texts, f"{marks.SOURCE}{props.NAME_END}")
        more = self._marks(queue, batch, offsets)
        around = np.zeros(len(batch), bool)
        if pc.any(mirrored).as_py():
            more, around = self._mirrored(texts, mirrored, more)
        ids = records.views(decoded.data, decoded.parts["unique_id"], len(decoded), decoded.parts["unique_id_valid"])
        # Without a unique id: the id by which the source's consumers know the message.
        if ids.null_count:
            named = pc.binary_join_element_wise(
                f"{props.PAIR_END}{props.UNIQUE_ID}{props.NAME_END}", batch["offset_id"], ""
            )
            more = pc.binary_join_element_wise(more, pc.if_else(ids.is_null(), named, ""), "")
        # A text may begin or end with a separator, as some producers write it: the joint below is ours.
        kept = pc.replace_substring_regex(pc.replace_substring_regex(texts, _DROPPED, ""), _ENDS, "")
        joint = pc.if_else(pc.equal(pc.binary_length(kept), 0), b"", props.PAIR_END.encode())
        texts = pc.binary_join_element_wise(kept, joint, more.cast(pa.binary()), b"")
        # Compressed or not, a body is sent as it was before compression: one that is as stored would be another message.
        unread = np.isin(np.arange(len(batch)), decoded.marked) & ~around
        for row in np.flatnonzero(unread).tolist():
            self._leave_out(f"the body of the message at offset {int(offsets[row])} of {queue} cannot be decompressed")
        unfit = unread | self._unfit(queue, batch["body"], texts, offsets, around | unread)
        return CopyBatch(batch["body"], texts, batch["flag"], offsets, around, unfit)

    def _marks(self, queue: MessageQueue, batch: pa.RecordBatch, offsets: Any) -> pa.Array:
        """Return the marks of every message, as property texts."""
        topic, broker, queue_id = queue
        head = f"{marks.SOURCE}{props.NAME_END}{self.source}/{topic}/{broker}/{queue_id}/"
        source = pc.binary_join_element_wise(head, pa.array(offsets).cast(pa.string()), "")
        born = pc.divide(batch["born_time"].cast(pa.int64()), 1000).cast(pa.string())
        return pc.binary_join_element_wise(
            source, props.PAIR_END, marks.BORN, props.NAME_END, born, " ", batch["born_host"], ""
        )

    def _mirrored(self, texts: pa.Array, mirrored: pa.Array, more: pa.Array) -> tuple[pa.Array, Any]:
        """Return the properties of messages that were mirrored before, and a mask of those that came around."""
        written, around = more.to_pylist(), np.zeros(len(texts), bool)
        for row in pc.indices_nonzero(mirrored).to_pylist():
            found = props.parse(texts[row].as_py().decode("utf-8", "replace"))
            if marks.origin_of(found.get(marks.SOURCE)) is None:
                continue
            path = marks.path_of(found)
            around[row] = marks.came_around(path, self.source, self.target)
            own = props.parse(written[row])
            # Of the first send: a mirror before this one has noted it.
            born = found.get(marks.BORN, own[marks.BORN])
            written[row] = props.join({**own, marks.PATH: ",".join(path), marks.BORN: born})
        return pa.array(written, pa.string()), around

    def _unfit(self, queue: MessageQueue, bodies: pa.Array, texts: pa.Array, offsets: Any, around: Any) -> Any:
        """Return a mask of the messages that the target does not accept."""
        body_bytes = pc.binary_length(bodies).to_numpy().astype(np.int64)
        text_bytes = pc.binary_length(texts).to_numpy().astype(np.int64)
        text_max, limits = props.PROPERTIES_BYTES_MAX - BROKER_TEXT_BYTES, self.limits
        unfit = (body_bytes > limits.body_bytes) | (text_bytes > text_max)
        if limits.whole_bytes is not None:
            unfit |= body_bytes + text_bytes + ENTRY_BYTES_MAX > limits.whole_bytes
        if not limits.empty:
            unfit |= body_bytes == 0
        # What is left out in any case is no fault.
        unfit &= ~around
        for row in np.flatnonzero(unfit).tolist():
            what = (
                f"the message at offset {int(offsets[row])} of {queue} has {int(body_bytes[row])} bytes and {int(text_bytes[row])} "
                f"of properties; the target takes {limits.words}, and {text_max} of properties"
            )
            self._leave_out(what)
        return unfit

    def _leave_out(self, what: str) -> None:
        if not self.leave_out:
            raise InvalidMessage(f"{what}. To go on without such messages: unfit = 'leave-out'")
        _LOG.warning("%s: it is left out", what)


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Messages for the target, with masks of those that are left out."""

    bodies: pa.Array
    texts: pa.Array
    flags: pa.Array
    offsets: Any
    """Offsets in the source queue."""
    around: Any
    unfit: Any

    def kept(self) -> tuple[hot.RowColumns, Any, int]:
        """Return the columns of the messages to copy, their source offsets, and the bytes of their bodies."""
        stays = ~(self.around | self.unfit)
        bodies, texts, flags = self.bodies, self.texts, self.flags
        if not stays.all():
            mask = pa.array(stays)
            bodies, texts, flags = bodies.filter(mask), texts.filter(mask), flags.filter(mask)
        size = pc.sum(pc.binary_length(bodies)).as_py() or 0
        columns = hot.RowColumns(len(bodies), spans(bodies), spans(texts), flags.to_numpy())
        return columns, self.offsets[stays], size


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceCopier:
    """Function for `mapInArrow`: slices in, a row of their summary out."""

    name_servers: str
    settings: FetchSettings
    sink: SinkOptions
    transaction: str
    """Id of the batch's transaction; empty: messages are sent at once."""
    copying: Copying
    queues: tuple[tuple[MessageQueue, MessageQueue], ...]
    """Source queue → target queue, of all slices."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        queues = dict(self.queues)
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, row in enumerate(rows):
            wanted = slice_of_row(row)
            copied = self.copy(wanted, queues[wanted.queue], number)
            yield pa.RecordBatch.from_pylist([row | copied], schema=COPIED)

    def copy(self, wanted: Slice, target: MessageQueue, number: int) -> dict[str, Any]:
        """Copy one slice. Args: number: of the slice in its task, part of the parts' ids.

        Raises: as `read_slice`; InvalidMessage; BrokerError: the target refuses; the last fault.
        """
        client = client_of(
            self.name_servers, self.settings.retry_seconds, self.settings.read_from, self.settings.access
        )
        courier = courier_of(self.sink.name_servers, self.sink.retry_seconds, self.sink.access)
        # No new unique ids: each message has one already, by which consumers know it on both sides.
        name = f"{attempt()}{number}."
        staged = StagedRows(courier, self.sink, self.transaction, name, _no_prefix) if self.transaction else None
        out = staged if staged is not None else SentRows(courier, self.sink, _no_prefix)
        size = came_around = unfit = 0
        # Target offsets count from the part's first message: where that lies is known only after the commit.
        table = Table((0, 0))
        for decoded in itertools.chain.from_iterable(
            one.pieces(COLUMNS) for one in read_slice(client, wanted, self.settings)
        ):
            batch = self.copying.batch_of(wanted.queue, decoded)
            columns, offsets, more = batch.kept()
            for first, count in _together(offsets):
                table.add(OffsetRun(int(offsets[first]), out.rows + first, count))
            if columns.count:
                out.put(target, columns)
            size += more
            came_around += int(batch.around.sum())
            unfit += int(batch.unfit.sum())
        if staged is not None:
            parts: tuple[ManifestPart, ...] = staged.finish()
        else:
            out.finish()
            parts = ()
        return {
            "rows": out.rows, "bytes": size, "came_around": came_around, "unfit": unfit, "runs": json.dumps(table.runs),
            "parts": msgspec.json.encode(parts).decode(),
        }  # fmt: skip


def parts_of(row: dict[str, Any]) -> tuple[ManifestPart, ...]:
    """Return the staged parts of a slice, from its summary."""
    return msgspec.json.decode(row["parts"], type=tuple[ManifestPart, ...])


def _together(offsets: Any) -> Iterator[tuple[int, int]]:
    """Yield (index of the first, count) of each run of consecutive offsets."""
    if len(offsets):
        starts = np.concatenate(([0], np.flatnonzero(np.diff(offsets) != 1) + 1))
        ends = np.concatenate((starts[1:], [len(offsets)]))
        yield from zip(starts.tolist(), (ends - starts).tolist(), strict=True)


def _no_prefix() -> bytes:
    return b""
