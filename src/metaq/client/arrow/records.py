"""Stored records → Arrow record batches, for the Spark source and whoever else wants columns.

The hot decoder finds where each field lies; a variable-size column is a *view* array (16 bytes a row: length, prefix,
buffer, offset) over the pull's own bytes, and casting it to `binary` or `string` is one gather in C++. Nothing is done per
row in Python, except for what is rare: text that is not UTF-8, messages without a unique id. Compressed bodies are expanded by
`hot.expand_bodies`, which only leaves zlib (or LZ4, ZSTD) to Python's modules.

Needs pyarrow and numpy (`pip install 'pymetaq[arrow]'`).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from metaq.client.arrow.compute import compute as pc
from metaq.errors import BadRequest, ConfigError
from metaq.model import properties as props
from metaq.model.message import BODY_AS_STORED, host_of
from metaq.model.properties import NAME_END
from metaq.model.queue import MessageQueue
from metaq.wire import hot
from metaq.wire.compression import decompress

_LOG = logging.getLogger(__name__)

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""A compressed body may not grow beyond this: a few KB of zeros would else fill a worker's memory."""
EXPANDED_BYTES = 64 * 1024 * 1024
"""Expanded bytes of bodies above which a batch is cut."""
EXPANDED_BYTES_MAX = 1024 * 1024 * 1024
"""Expanded bytes of a batch that cannot be cut. Arrow's offsets end at 2 GiB."""
NOT_TEXT = 4
"""Flag in the result of `hot.property_pairs`: the text is not UTF-8."""
INLINE_BYTES_MAX = 12
"""Arrow keeps values up to this size inside the view itself."""

_LONG_MAX, _LONG_CHARS_MAX = (1 << 63) - 1, 20

_TIME = pa.timestamp("us", tz="UTC")
MS_MIN, MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""Spark's timestamps end with the years 1 and 9999; a producer's clock is not to be trusted with that."""

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "message_id": pa.string(),
    "tag": pa.string(),
    "keys": pa.list_(pa.string()),
    "body": pa.binary(),
    "born_time": _TIME,
    "store_time": _TIME,
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "reconsume_times": pa.int32(),
    "born_host": pa.string(),
    "store_host": pa.string(),
    "offset_id": pa.string(),
    "log_offset": pa.int64(),
    "max_offset": pa.int64(),
    "attribute": pa.string(),
    "metaq1_id": pa.int64(),
    "position": pa.int64(),
}
"""Every column there is. `max_offset` is the queue's when the message was read: minus `queue_offset` it is the lag. The last
three are of messages that a client of MetaQ 1.x has put; `position` is known where its data files are read."""

LEAN = tuple(TYPES)[:10]
"""The columns that a reader gets unless it asks for others; each costs its way through a pipe."""


def schema_of(columns: Sequence[str] = LEAN) -> pa.Schema:
    """Raises: ConfigError: a column that does not exist or is named twice."""
    for name in columns:
        if name not in TYPES:
            raise ConfigError(f"there is no column {name!r}; the columns are {', '.join(TYPES)}")
    if len(set(columns)) != len(columns):
        raise ConfigError(f"a column is named twice in {', '.join(columns)}")
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


class Decoded(Struct, frozen=True):
    """The records of a pull's body, or of a piece of a log, found but not yet made into columns."""

    queue: MessageQueue | None
    """The queue of all records; None: they are of many queues, as in a log."""
    data: Any
    parts: dict[str, Any]
    max_offset: int
    wanted: Any = None
    """A mask over the records: which of them become rows. None: all."""
    expanded: bytes | None = None
    """The bodies that were compressed, one behind the other: buffer 1 of the column's views. None: they still are."""

    def __len__(self) -> int:
        return int(self.parts["rows"])

    @property
    def queue_offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.frombuffer(self.parts["queue_offset"], np.int64, len(self))

    @property
    def log_offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.frombuffer(self.parts["log_offset"], np.int64, len(self))

    def to_batch(self, columns: Sequence[str] = LEAN) -> pa.RecordBatch:
        """Make a record batch, with a row for each record.

        A body that says it is compressed and does not inflate within INFLATED_BYTES_MAX is as it is stored, see `marked`.

        Raises: BadRequest: all bodies together do not inflate within EXPANDED_BYTES_MAX.
        """
        # Before the columns are made: `sys_flag` has the marks of bodies.
        expanded = _expanded(self) if "body" in columns else self
        makers = _MAKERS if self.queue is not None else _LOG_MAKERS
        arrays = [makers[name](expanded) for name in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
        return batch if self.wanted is None else batch.filter(self.wanted)

    def to_batches(self, columns: Sequence[str] = LEAN) -> Iterator[pa.RecordBatch]:
        """One row a record, in batches that are cut where expanded bodies exceed EXPANDED_BYTES: a few MB of compressed ones
        may be gigabytes.

        Raises: BadRequest: as `to_batch`.
        """
        return (piece.to_batch(columns) for piece in self.pieces(columns))

    def pieces(self, columns: Sequence[str]) -> Iterator[Decoded]:
        """The records in pieces, each small enough for one batch. Raises: BadRequest: as `to_batch`."""
        left: Decoded | None = self
        while left is not None:
            piece, left = left.cut(columns)
            yield piece

    def cut(self, columns: Sequence[str]) -> tuple[Decoded, Decoded | None]:
        """The first of `pieces`, and the records behind it; None: there are none. Raises: BadRequest: as `to_batch`."""
        # Bodies are expanded for the column body only: a query of the other columns does not pay for them.
        done, whole = self.expand(EXPANDED_BYTES) if "body" in columns else (self, True)
        return done, None if whole else self.only(np.arange(len(self)) >= len(done))

    def expand(self, limit: int) -> tuple[Decoded, bool]:
        """The first records, with bodies as they were before compression, and whether they are all.

        So many that their bodies are at most `limit` bytes together, but one of them at least. Raises: BadRequest: as `to_batch`.
        """
        rows: tuple[int, ...] = self.parts["compressed"]
        # Nothing is compressed, or all is expanded already.
        if not rows or self.expanded is not None:
            return self, True
        try:
            views, expanded, done = hot.expand_bodies(
                self.data, self.parts["body"], self.parts["sys_flag"], rows, limit, _expand_body
            )
        except BadRequest:  # The error does not say which; there is time to look.
            return self._with_marks().expand(limit)
        here = structs.replace(self, parts={**self.parts, "body": views}, expanded=expanded)
        return (here, True) if done == len(rows) else (here.only(np.arange(len(self)) < rows[done]), False)

    def _with_marks(self) -> Decoded:
        """The records, with those marked whose bodies cannot be decompressed: they stay compressed. Each is logged."""
        flags = np.frombuffer(self.parts["sys_flag"], np.int32, len(self)).copy()
        marked = {}
        for row in self.parts["compressed"]:
            try:
                self.expanded_body(row)
            except BadRequest as fault:
                _LOG.warning("%s: it is handed out as it is stored", fault)
                marked[row] = str(fault)
                flags[row] |= BODY_AS_STORED
        left = tuple(row for row in self.parts["compressed"] if row not in marked)
        return structs.replace(
            self, parts={**self.parts, "sys_flag": flags.tobytes(), "compressed": left, "marked": tuple(marked)}
        )

    @property
    def marked(self) -> tuple[int, ...]:
        """Rows whose bodies cannot be decompressed: `body` is as stored, and `sys_flag` has BODY_AS_STORED. After `expand`."""
        marked: tuple[int, ...] = self.parts.get("marked", ())
        return marked

    def without_marked(self) -> Decoded:
        """The records whose bodies can be read."""
        return self.only(~np.isin(np.arange(len(self)), self.marked)) if self.marked else self

    def only(self, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Decoded:
        """The records for which `chosen` is true."""
        if chosen.all():
            return self
        parts: dict[str, Any] = {"rows": int(chosen.sum())}
        for name, part in self.parts.items():
            if name in {"compressed", "marked"}:
                # Numbers of rows: renumbered.
                places = np.cumsum(chosen) - 1
                parts[name] = tuple(int(places[row]) for row in part if chosen[row])
            elif name.endswith("_valid"):
                # A validity bitmap: one bit a row.
                bits = np.unpackbits(np.frombuffer(part, np.uint8), count=len(self), bitorder="little")
                parts[name] = np.packbits(bits[chosen], bitorder="little").tobytes()
            elif name != "rows":
                # All other parts have the same number of bytes for every row.
                values = np.frombuffer(part, np.uint8).reshape(len(self), -1)
                parts[name] = values[chosen].tobytes()
        wanted = None if self.wanted is None else self.wanted.filter(pa.array(chosen))
        return structs.replace(self, parts=parts, wanted=wanted)

    def place(self, row: int) -> str:
        """Where a record is stored, for errors."""
        if self.queue is not None:
            return f"{self.queue} offset {int(self.queue_offsets[row])}"
        return f"the record at log offset {int(self.log_offsets[row])}"

    def expanded_body(self, row: int) -> bytes:
        """The body of a record that is compressed. Raises: BadRequest: it does not inflate; the text names the place."""
        sys_flag = int(np.frombuffer(self.parts["sys_flag"], np.int32, len(self))[row])
        try:
            return _expand_body(_stored_body(self, row), sys_flag)
        except BadRequest as fault:
            raise BadRequest(f"the compressed body of {self.place(row)} cannot be read: {fault}") from None

    def sifted(self, stop: int, tags: Collection[str] = ()) -> Decoded:
        """Only records below the offset `stop`, and with one of the tags: brokers compare their hashes."""
        wanted = pa.array(self.queue_offsets < stop)
        if tags:
            wanted = pc.and_(wanted, pc.is_in(_text(self, "tag", "tag_valid"), pa.array(sorted(tags))))
        return structs.replace(self, wanted=wanted)


def decode(data: Any, queue: MessageQueue, max_offset: int = 0, *, start: int = 0, end: int | None = None) -> Decoded:
    """Find the records of data[start:end], back to back as a pull answers them. Checksums are verified.

    Raises: RemoteProtocolError: a broken record.
    """
    return Decoded(queue, data, hot.decode_columns(data, start, len(data) if end is None else end), max_offset)


def decode_log(data: Any) -> Decoded:
    """The records of a piece of a log, back to back, whose checksums were verified already.

    Raises: RemoteProtocolError: a broken record.
    """
    return Decoded(None, data, hot.decode_columns(data, 0, len(data), False), 0)


def topics_of(decoded: Decoded) -> pa.DictionaryArray:
    """The topic of each record, as bytes."""
    return _bytes(decoded, "topic").dictionary_encode()


# ------------------------------------------------------------------ makers: one array a column
def _fixed(name: str) -> Callable[[Decoded], pa.Array]:
    def make(decoded: Decoded) -> pa.Array:
        return pa.Array.from_buffers(TYPES[name], len(decoded), [None, pa.py_buffer(decoded.parts[name])])

    return make


def _time(name: str) -> Callable[[Decoded], pa.Array]:
    def make(decoded: Decoded) -> pa.Array:
        ms = np.frombuffer(decoded.parts[name], np.int64, len(decoded))
        if len(ms) and not MS_MIN <= ms.min() <= ms.max() <= MS_MAX:
            # A producer may have sent any 64-bit number; as microseconds it must not overflow.
            ms = ms.clip(MS_MIN, MS_MAX)
        return pa.Array.from_buffers(_TIME, len(ms), [None, pa.py_buffer(ms * 1000)])

    return make


def _constant(value_of: Callable[[Decoded], Any], kind: pa.DataType) -> Callable[[Decoded], pa.Array]:
    return lambda decoded: pa.repeat(pa.scalar(value_of(decoded), kind), len(decoded))


def _queue(decoded: Decoded) -> MessageQueue:
    assert decoded.queue is not None
    return decoded.queue


def views(data: Any, places: bytes, rows: int, valid: bytes | None = None) -> pa.Array:
    """The bytes of `data` at which the hot decoder's views point, as values of their own."""
    bitmap = pa.py_buffer(valid) if valid is not None else None
    buffers = [bitmap, pa.py_buffer(places), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), rows, buffers).cast(pa.binary())


def as_text(raw: pa.Array) -> pa.Array:
    """Bytes as strings; what is not UTF-8 gets replacement characters."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:  # A foreign producer's bytes must not stop the query.
        texts = [None if value is None else value.decode("utf-8", "replace") for value in raw.to_pylist()]
        return pa.array(texts, pa.string())


def _bytes(decoded: Decoded, name: str, valid: str | None = None) -> pa.Array:
    return views(decoded.data, decoded.parts[name], len(decoded), decoded.parts[valid] if valid else None)


def _text(decoded: Decoded, name: str, valid: str | None = None) -> pa.Array:
    return as_text(_bytes(decoded, name, valid))


def _message_id(decoded: Decoded) -> pa.Array:
    # Without UNIQ_KEY the offset id is the message id, as in RocketMQ's clients.
    ids = _text(decoded, "unique_id", "unique_id_valid")
    return pc.coalesce(ids, _offset_id(decoded)) if ids.null_count else ids


def _offset_id(decoded: Decoded) -> pa.Array:
    hosts = _bytes(decoded, "store_host").to_pylist()
    places = np.frombuffer(decoded.parts["log_offset"], np.int64, len(decoded)).tolist()
    return pa.array([f"{host.hex()}{at:016x}".upper() for host, at in zip(hosts, places, strict=True)], pa.string())


def _host(name: str) -> Callable[[Decoded], pa.Array]:
    def make(decoded: Decoded) -> pa.Array:
        places = np.frombuffer(decoded.parts[name], np.uint64).reshape(-1, 2)
        if len(places) and (places == places[0]).all():  # One producer's: seen at a tenth of the cost of what follows.
            only = views(decoded.data, decoded.parts[name], 1)[0].as_py()
            return pa.repeat(pa.scalar("{}:{}".format(*host_of(only)), pa.string()), len(places))
        distinct = _bytes(decoded, name).dictionary_encode()  # A pull's messages have few different hosts.
        texts = ["{}:{}".format(*host_of(raw)) for raw in distinct.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(distinct.indices)

    return make


def _without_nulls(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """A list array whose null lists are empty ones."""
    # A null list spans no values, so that without the validity bitmap it reads as an empty one.
    return pa.Array.from_buffers(kind, len(lists), [None, lists.buffers()[1]], children=[lists.values])


def _keys(decoded: Decoded) -> pa.Array:
    text = _text(decoded, "keys", "keys_valid")
    # No keys at all: an empty list a row, without the steps below.
    if text.null_count == len(text):
        return pa.Array.from_buffers(
            TYPES["keys"],
            len(text),
            [None, pa.py_buffer(bytes(4 * len(text) + 4))],
            children=[pa.array([], pa.string())],
        )
    # Keys are separated by spaces, of which a foreign producer may have left several, or some at the ends.
    text = pc.ascii_trim(text, " ")
    text = pc.if_else(pc.equal(text, ""), None, text)
    return _without_nulls(pc.split_pattern_regex(text, " +"), TYPES["keys"])


def pairs_of(decoded: Decoded) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.uint8]]]:
    """The column `properties`, and what `hot.property_pairs` says of each text beside its pairs."""
    offsets, name_ends, names, value_ends, values, kinds = hot.property_pairs(decoded.data, decoded.parts["properties"])
    states = np.frombuffer(kinds, np.uint8)
    readable = not len(states) or int(states.max()) < NOT_TEXT
    columns = []
    for ends, texts in ((name_ends, names), (value_ends, values)):
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(texts)]
        count = len(ends) // 4 - 1
        columns.append(
            pa.Array.from_buffers(pa.string(), count, buffers)
            if readable
            else as_text(pa.Array.from_buffers(pa.binary(), count, buffers))
        )
    starts = pa.Array.from_buffers(pa.int32(), len(decoded) + 1, [None, pa.py_buffer(offsets)])
    return pa.MapArray.from_arrays(starts, *columns), states


def _properties(decoded: Decoded) -> pa.Array:
    return pairs_of(decoded)[0]


def _stored_body(decoded: Decoded, row: int) -> bytes:
    views = decoded.parts["body"]
    size, _, _, at = struct.unpack_from("<iIii", views, 16 * row)
    # Arrow's layout of views: short values are in the view itself.
    if size <= INLINE_BYTES_MAX:
        return bytes(views[16 * row + 4 : 16 * row + 4 + size])
    return bytes(memoryview(decoded.data)[at : at + size])


def _expand_body(body: bytes, sys_flag: int) -> bytes:
    return decompress(body, sys_flag, INFLATED_BYTES_MAX)


def _expanded(decoded: Decoded) -> Decoded:
    count = len(decoded)
    decoded, whole = decoded.expand(EXPANDED_BYTES_MAX)
    if not whole:
        raise BadRequest(
            f"the bodies of {count} messages are more than {EXPANDED_BYTES_MAX} bytes once they are expanded: "
            "ask for fewer messages at once"
        )
    return decoded


def body_views(decoded: Decoded) -> pa.Array:
    """The column `body` as views of the bytes that came, none of them copied. Raises: as `Decoded.to_batch`."""
    decoded = _expanded(decoded)
    # The views name their buffer: 0 is the pull's bytes, 1 the bodies that were expanded.
    held = (decoded.data,) if decoded.expanded is None else (decoded.data, decoded.expanded)
    buffers = [None, *map(pa.py_buffer, (decoded.parts["body"], *held))]
    return pa.Array.from_buffers(pa.binary_view(), len(decoded), buffers)


def _body(decoded: Decoded) -> pa.Array:
    return body_views(decoded).cast(pa.binary())


def _metaq1_texts(decoded: Decoded) -> list[dict[str, str] | None]:
    """The properties of the messages that a 1.x client has put; None for the others."""
    texts = _text(decoded, "properties")
    # Most batches have no message of a 1.x client: seen without parsing.
    put = pc.match_substring(texts, f"{props.METAQ_ID}{NAME_END}")
    if not pc.any(put).as_py():
        return [None] * len(decoded)
    pairs = [props.parse(text) if mine else None for text, mine in zip(texts.to_pylist(), put.to_pylist(), strict=True)]
    # The substring may have been part of another name or of a value.
    return [found if found is not None and props.METAQ_ID in found else None for found in pairs]


def _attribute(decoded: Decoded) -> pa.Array:
    found = [
        None if pairs is None else pairs.get(props.METAQ_ATTRIBUTE, pairs.get(props.TAGS))
        for pairs in _metaq1_texts(decoded)
    ]
    return pa.array(found, TYPES["attribute"])


def _metaq1_id(decoded: Decoded) -> pa.Array:
    found = [None if pairs is None else _id_of(pairs[props.METAQ_ID]) for pairs in _metaq1_texts(decoded)]
    return pa.array(found, TYPES["metaq1_id"])


def _id_of(text: str) -> int | None:
    """The id in a text, which senders by RocketMQ's protocol may fill with anything."""
    try:
        # Longer texts are out of range anyway, and `int` takes quadratic time for thousands of digits.
        value = int(text) if len(text) <= _LONG_CHARS_MAX else _LONG_MAX + 1
    except ValueError:
        return None
    return value if -_LONG_MAX - 1 <= value <= _LONG_MAX else None


def _none(name: str) -> Callable[[Decoded], pa.Array]:
    return lambda decoded: pa.nulls(len(decoded), TYPES[name])


_MAKERS: dict[str, Callable[[Decoded], pa.Array]] = {
    "topic": _constant(lambda decoded: _queue(decoded).topic, pa.string()),
    "broker": _constant(lambda decoded: _queue(decoded).broker, pa.string()),
    "queue_id": _constant(lambda decoded: _queue(decoded).queue_id, pa.int32()),
    "queue_offset": _fixed("queue_offset"),
    "message_id": _message_id,
    "tag": lambda decoded: _text(decoded, "tag", "tag_valid"),
    "keys": _keys,
    "body": _body,
    "born_time": _time("born_ms"),
    "store_time": _time("store_ms"),
    "properties": _properties,
    "flag": _fixed("flag"),
    "sys_flag": _fixed("sys_flag"),
    "reconsume_times": _fixed("reconsume_times"),
    "born_host": _host("born_host"),
    "store_host": _host("store_host"),
    "offset_id": _offset_id,
    "log_offset": _fixed("log_offset"),
    "max_offset": _constant(lambda decoded: decoded.max_offset, pa.int64()),
    "attribute": _attribute,
    "metaq1_id": _metaq1_id,
    "position": _none("position"),
}
_LOG_MAKERS = _MAKERS | {
    "topic": lambda decoded: _text(decoded, "topic"),
    "broker": _none("broker"),
    "queue_id": _fixed("queue_id"),
    "max_offset": _none("max_offset"),
}
"""Column makers for records of many queues: what a pull knows of its queue, each record says itself; who stored it is
not in the log."""
