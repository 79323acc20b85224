"""Finds messages that were stored twice because an acknowledgement was lost and the producer sent again.

Both copies carry the same unique id (and the same keys, if the application gave them any: an application that sends again
by itself gives the copy another id), lie in any two queues, and were stored within a short time of each other, so it is
enough to remember the ids of a window of store time. Ids are 16 bytes (the hex text of the usual 32 characters; any other
text, and all keys, are hashed to 16), kept as two 64-bit numbers per message, sorted by a mixed key: looking a whole batch up in a remembered one is
a binary search in numpy. The key only finds candidates; what decides is the id itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

OFF, UNIQUE_ID, KEY = DEDUPE = ("off", "unique_id", "key")
"""What a message may be known again by: nothing, its producer's id, or the keys that the application gave it."""

ID_BYTES = 16
ID_CHARS = 32
KEY_SEPARATOR = " "
"""Between the keys of a message on the wire, so no key has it."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_NIBBLES = np.full(256, 0xFF, np.uint8)
for _value, _digit in enumerate("0123456789abcdef"):
    _NIBBLES[ord(_digit)] = _NIBBLES[ord(_digit.upper())] = _value

_SCHEMA = pa.schema(
    [pa.field("high", pa.uint64()), pa.field("low", pa.uint64()), pa.field("store_ms", pa.int64()),
     pa.field("queue_offset", pa.int64())]
)  # fmt: skip

Numbers = Any
"""A one-dimensional numpy array."""


@dataclass(frozen=True, slots=True)
class Ids:
    """The unique ids of some messages, as columns of equal length."""

    high: Numbers
    low: Numbers
    store_ms: Numbers
    queue_offset: Numbers

    def __len__(self) -> int:
        return len(self.high)

    @property
    def keys(self) -> Numbers:
        return self.low ^ (self.high * _MIX)

    def take(self, rows: Numbers) -> Ids:
        return Ids(self.high[rows], self.low[rows], self.store_ms[rows], self.queue_offset[rows])

    def without(self, rows: Numbers) -> Ids:
        keep = np.ones(len(self), bool)
        keep[rows] = False
        return self.take(np.flatnonzero(keep))

    def save(self, path: Path) -> None:
        with pa.OSFile(str(path), "wb") as file:
            self._write(file)

    @classmethod
    def load(cls, path: Path) -> Ids:
        """Backed by the file's pages: a window of many millions costs the driver no memory of its own."""
        with pa.memory_map(str(path)) as file:
            return cls._read(file)

    def to_bytes(self) -> bytes:
        """A file of them."""
        sink = pa.BufferOutputStream()
        self._write(sink)
        return bytes(sink.getvalue().to_pybytes())

    @classmethod
    def of_bytes(cls, data: bytes) -> Ids:
        return cls._read(pa.BufferReader(data))

    def _write(self, sink: Any) -> None:
        batch = pa.record_batch([self.high, self.low, self.store_ms, self.queue_offset], schema=_SCHEMA)
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(batch)

    @classmethod
    def _read(cls, source: Any) -> Ids:
        batch = pa.ipc.open_file(source).get_batch(0)
        return cls(*(column.to_numpy() for column in batch.columns))

    @classmethod
    def join(cls, parts: Iterable[Ids]) -> Ids:
        columns = [(part.high, part.low, part.store_ms, part.queue_offset) for part in parts]
        if not columns:
            return cls(*(np.empty(0, kind) for kind in (np.uint64, np.uint64, np.int64, np.int64)))
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def ids_of(message_ids: pa.Array, store_ms: Numbers, queue_offsets: Numbers) -> Ids:
    """The ids of a batch of messages, from their `message_id` column."""
    raw = _hex_to_bytes(message_ids)
    if raw is None:
        raw = b"".join(_one_id(text) for text in message_ids.to_pylist())
    return _ids(raw, store_ms, queue_offsets)


def key_ids_of(keys: pa.Array, store_ms: Numbers, queue_offsets: Numbers) -> Ids:
    """The same from their `keys` column: all keys of a message together. Messages without a key are left out."""
    texts = pc.binary_join(keys, KEY_SEPARATOR)
    rows = np.flatnonzero(pc.greater(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))
    raw = b"".join(map(_hashed, texts.take(pa.array(rows)).to_pylist()))
    return _ids(raw, np.asarray(store_ms)[rows], np.asarray(queue_offsets)[rows])


def _ids(raw: bytes, store_ms: Numbers, queue_offsets: Numbers) -> Ids:
    pairs = np.frombuffer(raw, ">u8").reshape(-1, 2).astype(np.uint64)
    return Ids(pairs[:, 0], pairs[:, 1], np.asarray(store_ms, np.int64), np.asarray(queue_offsets, np.int64))


def _hex_to_bytes(message_ids: pa.Array) -> bytes | None:
    """All ids at once, if each is 32 hex characters."""
    offsets = np.frombuffer(message_ids.buffers()[1], np.int32)[message_ids.offset :][: len(message_ids) + 1]
    if not len(message_ids) or np.any(np.diff(offsets) != ID_CHARS):
        return None
    text = np.frombuffer(message_ids.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    nibbles = _NIBBLES[text]
    if np.any(nibbles == 0xFF):
        return None
    pairs = nibbles.reshape(-1, 2)
    return bytes((pairs[:, 0] << 4 | pairs[:, 1]).tobytes())


def _one_id(text: str) -> bytes:
    if len(text) == ID_CHARS:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    return _hashed(text)


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=ID_BYTES).digest()


class IdWindow:
    """The ids of the batches whose store time lies within `seconds` of the newest one."""

    def __init__(self, seconds: float) -> None:
        self._ms = round(seconds * 1000)
        self._batches: list[tuple[str, Ids]] = []

    def repeats(self, batch: Ids) -> Numbers:
        """Row numbers of `batch` whose id is in the window, or in a row of the batch that was stored earlier.

        Of several copies the one that is archived already stays, else the one stored first (by time, then by row).
        """
        drop = np.zeros(len(batch), bool)
        keys = batch.keys
        order = np.argsort(keys)
        for _, known in self._batches:
            for row, place in _candidates(keys, order, known.keys):
                near = abs(int(batch.store_ms[row]) - int(known.store_ms[place])) <= self._ms
                drop[row] |= near and _same(batch, row, known, place)
        self._mark_inside(batch, keys, order, drop)
        return np.flatnonzero(drop)

    def add(self, name: str, batch: Ids) -> Ids:
        """Remember a published batch. Returns its ids in the order in which they are kept: save those under `name`."""
        ordered = batch.take(np.argsort(batch.keys, kind="stable"))
        self._batches.append((name, ordered))
        return ordered

    def restore(self, name: str, saved: Ids) -> None:
        """Take up what an earlier run saved."""
        self._batches.append((name, saved))

    def expire(self, newest_ms: int) -> list[str]:
        """Forget batches that ended more than the window ago. Returns their names."""
        old = [name for name, ids in self._batches if not len(ids) or int(ids.store_ms.max()) < newest_ms - self._ms]
        self._batches = [(name, ids) for name, ids in self._batches if name not in old]
        return old

    def _mark_inside(self, batch: Ids, keys: Numbers, order: Numbers, drop: Numbers) -> None:
        equal = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
        if not len(equal):
            return
        repeated = np.unique(np.concatenate((order[equal], order[equal + 1])))
        kept: dict[tuple[int, int], int] = {}
        for row in sorted(repeated.tolist(), key=lambda row: (int(batch.store_ms[row]), row)):
            if drop[row]:
                continue
            name, stored = (int(batch.high[row]), int(batch.low[row])), int(batch.store_ms[row])
            if name in kept and stored - kept[name] <= self._ms:
                drop[row] = True
            else:
                kept[name] = stored


def _candidates(keys: Numbers, order: Numbers, known: Numbers) -> Iterator[tuple[int, int]]:
    """Pairs (row, place) of equal keys; `order` sorts `keys`, and `known` is sorted."""
    if not len(known):
        return
    wanted = keys[order]  # In order, or every search would miss the processor's cache.
    first: Numbers = np.searchsorted(known, wanted, "left")
    inside = np.minimum(first, len(known) - 1)
    for hit in np.flatnonzero(known[inside] == wanted).tolist():
        place = int(first[hit])
        while place < len(known) and known[place] == wanted[hit]:
            yield int(order[hit]), place
            place += 1


def _same(one: Ids, row: int, other: Ids, place: int) -> bool:
    return bool(one.high[row] == other.high[place] and one.low[row] == other.low[place])
