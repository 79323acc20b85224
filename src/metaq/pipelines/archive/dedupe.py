"""Finds messages that were stored twice because an acknowledgement was lost and the producer sent again.

Both copies have the same unique id (and the same keys, if the application gave them any: an application that sends again
by itself gives the copy another id), lie in any two queues, and were stored within a short time of each other, so it is
enough to remember the ids of a window of store time. Ids are 16 bytes (the hex text of the usual 32 characters; any other
text, and all keys, are hashed to 16), kept as two 64-bit numbers per message, sorted by a mixed key. A Bloom filter rules
out most messages of a batch; the others are looked up by a binary search in numpy. Filter and key only find candidates; the
ids themselves are compared.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaq.errors import StoreCorrupt

OFF, UNIQUE_ID, KEY = DEDUPE = ("off", "unique_id", "key")
"""Identities for deduplication: none, the producer's unique id, or the application's keys."""

ID_BYTES = 16
ID_CHARS = 32
KEY_SEPARATOR = " "
"""Separator of a message's keys on the wire, so no key contains it."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SPREAD = np.uint64(0xD6E8FEB86659FD93)
"""Multiplier of a hash: ids of one producer count up, and the high bits of the products differ all the same."""
_SIEVE_BITS_PER_ID = 16
_SIEVE_LOG2_MIN = 16
KEPT_LEAST = 100_000
"""Id files of at least so many messages are kept as their task wrote them. Smaller ones are joined, so that a window has few
files."""
_BLOCK = 1 << 15
"""Rows per step: intermediate arrays of this size stay in the processor's cache."""

_SCHEMA = pa.schema(
    [pa.field("high", pa.uint64()), pa.field("low", pa.uint64()), pa.field("store_ms", pa.int64()),
     pa.field("queue_offset", pa.int64())]
)  # fmt: skip

Numbers = Any
"""A one-dimensional numpy array."""


class _Room:
    """A reusable array of 64-bit numbers: allocating a large one costs more than the work on it."""

    def __init__(self) -> None:
        self._array = np.empty(0, np.uint64)

    def of(self, count: int) -> Numbers:
        if count > len(self._array):
            self._array = np.empty(count, np.uint64)
        return self._array[:count]


class _Columns:
    """Reusable arrays for the columns of `Ids`: each use overwrites the one before."""

    def __init__(self) -> None:
        self.rooms = [_Room() for _ in range(4)]
        """An array per column of `Ids`."""

    def of(self, count: int) -> Ids:
        high, low, store_ms, queue_offset = (room.of(count) for room in self.rooms)
        return Ids(high, low, store_ms.view(np.int64), queue_offset.view(np.int64))


class Rooms:
    """Working memory of windows. Several windows may share it, one batch at a time.

    Shared, because touching memory for the first time costs several times the work done in it.
    """

    def __init__(self) -> None:
        self.keys, self.others, self.spare = _Room(), _Room(), _Room()
        self.joined = _Columns()


@contextlib.contextmanager
def _corrupt(path: object) -> Iterator[None]:
    """Raise StoreCorrupt for a fault of reading ids from `path`."""
    try:
        yield
    except (pa.ArrowException, OSError, IndexError) as fault:
        raise StoreCorrupt(
            f"the ids in {path} cannot be read ({fault}): restore the file from a copy, or remove it, and then repeats of that "
            "batch's messages are not known"
        ) from None


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
        return self.keys_in(np.empty(len(self), np.uint64))

    def keys_in(self, room: Numbers) -> Numbers:
        """Write the mixed keys into `room`, an array of this length. Returns it."""
        np.multiply(self.high, _MIX, out=room)
        return np.bitwise_xor(room, self.low, out=room)

    def take(self, rows: Numbers) -> Ids:
        return Ids(self.high[rows], self.low[rows], self.store_ms[rows], self.queue_offset[rows])

    def without(self, rows: Numbers) -> Ids:
        if not len(rows):
            return self
        keep = np.ones(len(self), bool)
        keep[rows] = False
        return self.take(np.flatnonzero(keep))

    def save(self, path: Path) -> None:
        with pa.OSFile(str(path), "wb") as file:
            self._write(file)

    @classmethod
    def load(cls, path: Path) -> Ids:
        """Map a file of ids. Raises StoreCorrupt.

        Backed by the file's pages: a window of many millions of ids costs the driver no memory of its own.
        """
        with _corrupt(path), pa.memory_map(str(path)) as file:
            return cls._read(file)

    def to_bytes(self) -> bytes:
        """Return the bytes of a file of these ids."""
        sink = pa.BufferOutputStream()
        self._write(sink)
        return bytes(sink.getvalue().to_pybytes())

    @classmethod
    def of_bytes(cls, data: bytes, path: object = "a task's answer") -> Ids:
        """Read ids from a file's bytes. Args: path: for errors. Raises StoreCorrupt."""
        with _corrupt(path):
            return cls._read(pa.BufferReader(data))

    def _write(self, sink: Any) -> None:
        batch = pa.record_batch([self.high, self.low, self.store_ms, self.queue_offset], schema=_SCHEMA)
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(batch)

    @classmethod
    def _read(cls, source: Any) -> Ids:
        batch = pa.ipc.open_file(source).get_batch(0)
        return cls(*(column.to_numpy() for column in batch.columns))

    @property
    def columns(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        return self.high, self.low, self.store_ms, self.queue_offset

    @classmethod
    def join(cls, parts: Sequence[Ids], columns: _Columns | None = None) -> Ids:
        """Join all parts, into `columns` if given."""
        joined = (columns or _Columns()).of(sum(map(len, parts)))
        for column, whole in enumerate(joined.columns):
            if parts:
                np.concatenate([part.columns[column] for part in parts], out=whole)
        return joined

    def sorted(self, keys: Numbers, rooms: Rooms) -> Ids:
        """Sort by the given keys. Overwrites, column by column, what was joined in the working memory."""
        order, found = np.argsort(keys, kind="stable"), []
        for place, column in enumerate(self.columns):
            whole = rooms.spare.of(len(self)).view(column.dtype)
            # mode="raise" would buffer the output, one more copy.
            np.take(column, order, out=whole, mode="clip")
            # The sorted column takes the spare array, and its old one is the next spare: no allocation per batch.
            rooms.spare, rooms.joined.rooms[place] = rooms.joined.rooms[place], rooms.spare
            found.append(whole)
        return Ids(*found)

    def in_order(self) -> Ids:
        """Sort by keys: joined parts that are sorted are nearly sorted themselves, which makes the later sort cheap."""
        return self.take(np.argsort(self.keys, kind="stable"))

    def copy(self) -> Ids:
        return Ids(*(column.copy() for column in self.columns))


def ids_of(message_ids: pa.Array, store_ms: Numbers, queue_offsets: Numbers) -> Ids:
    """Return the ids of a batch of messages, from their `message_id` column."""
    raw = _hex_to_bytes(message_ids)
    # Only a batch with an odd id pays for a Python call per message.
    if raw is None:
        raw = b"".join(_one_id(text) for text in message_ids.to_pylist())
    return _ids(raw, store_ms, queue_offsets)


def key_ids_of(keys: pa.Array, store_ms: Numbers, queue_offsets: Numbers) -> Ids:
    """Return ids from the `keys` column, all keys of a message together. Messages without a key are left out."""
    texts = pc.binary_join(keys, KEY_SEPARATOR)
    rows = np.flatnonzero(pc.greater(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))
    raw = b"".join(map(_hashed, texts.take(pa.array(rows)).to_pylist()))
    return _ids(raw, np.asarray(store_ms)[rows], np.asarray(queue_offsets)[rows])


def _ids(raw: bytes, store_ms: Numbers, queue_offsets: Numbers) -> Ids:
    pairs = np.frombuffer(raw, ">u8").reshape(-1, 2).astype(np.uint64)
    return Ids(pairs[:, 0], pairs[:, 1], np.asarray(store_ms, np.int64), np.asarray(queue_offsets, np.int64))


def _hex_to_bytes(message_ids: pa.Array) -> bytes | None:
    """Decode all ids at once if each is 32 hex characters, as producers make them; else return None."""
    # The buffers themselves: no Python text per id.
    offsets = np.frombuffer(message_ids.buffers()[1], np.int32)[message_ids.offset :][: len(message_ids) + 1]
    if not len(message_ids) or np.any(np.diff(offsets) != ID_CHARS):
        return None
    text = np.frombuffer(message_ids.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    try:
        return binascii.unhexlify(text.data)
    except binascii.Error:
        return None


def _one_id(text: str) -> bytes:
    if len(text) == ID_CHARS:
        try:
            return bytes.fromhex(text)
        # Any text may be a unique id, also one of 32 characters that is no hex.
        except ValueError:
            pass
    return _hashed(text)


def _hashed(text: str) -> bytes:
    # Fixed by docs/formats/archive.md: files of ids hold these hashes.
    return hashlib.blake2b(text.encode(), digest_size=ID_BYTES).digest()


class _Sieve:
    """Bloom filter with one hash: rules out most keys that were not added."""

    def __init__(self, ids: int) -> None:
        """Args: ids: capacity."""
        log2_bits = max(_SIEVE_LOG2_MIN, (ids * _SIEVE_BITS_PER_ID - 1).bit_length())
        self.room = (1 << log2_bits) // _SIEVE_BITS_PER_ID
        """Ids that it has room for."""
        self._shift = np.uint64(64 - log2_bits)
        self._map = np.zeros(1 << (log2_bits - 3), np.uint8)

    def add(self, keys: Numbers) -> None:
        for begin in range(0, len(keys), _BLOCK):
            byte, bit = self._places(keys[begin : begin + _BLOCK])
            # `.at`: ids of one block may share a byte, and `|=` would keep the bit of one of them.
            np.bitwise_or.at(self._map, byte, np.left_shift(np.uint8(1), bit))

    def left(self, keys: Numbers) -> Numbers:
        """Return the rows of keys that may have been added."""
        found = []
        for begin in range(0, len(keys), _BLOCK):
            byte, bit = self._places(keys[begin : begin + _BLOCK])
            found.append(np.flatnonzero(self._map[byte] >> bit & 1) + begin)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _places(self, keys: Numbers) -> tuple[Numbers, Numbers]:
        spread = (keys * _SPREAD) >> self._shift
        return (spread >> np.uint64(3)).view(np.int64), (spread & np.uint64(7)).astype(np.uint8)


class _Parts:
    """The ids of a batch, a part per task file; joined only on demand."""

    def __init__(self, parts: Sequence[Ids], rooms: Rooms) -> None:
        self._parts, self._rooms = parts, rooms

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def keys_in(self, room: Numbers) -> Numbers:
        begin = 0
        for part in self._parts:
            part.keys_in(room[begin : begin + len(part)])
            begin += len(part)
        return room

    @cached_property
    def joined(self) -> Ids:
        return self._parts[0] if len(self._parts) == 1 else Ids.join(self._parts, self._rooms.joined)


class _Remembered(NamedTuple):
    """A file of ids in the window."""

    name: str
    ids: Ids
    newest_ms: int | None
    """Newest store time in it; None: it is empty."""


class IdWindow:
    """The ids of a topic's batches whose store time lies within `seconds` of the newest one."""

    def __init__(self, seconds: float, rooms: Rooms | None = None) -> None:
        """
        Args:
            seconds: length of the window, in store time.
            rooms: working memory, shared with other windows.
        """
        self._ms, self._rooms = round(seconds * 1000), rooms or Rooms()
        self._batches: list[_Remembered] = []
        self._sieve, self._sieved = _Sieve(0), 0

    def join(self, parts: Sequence[Ids]) -> Ids:
        """Join a batch's ids, given in parts. The next batch in the same working memory overwrites them."""
        return Ids.join(parts, self._rooms.joined)

    def repeats(self, *parts: Ids) -> Numbers:
        """Return the rows of a batch that are repeats: their id is in the window, or in an earlier stored row of the batch.

        Rows are counted through the parts. Of several copies the archived one stays, else the one stored first (by time,
        then by row).
        """
        batch = _Parts(parts, self._rooms)
        drop = np.zeros(len(batch), bool)
        keys = batch.keys_in(self._rooms.keys.of(len(batch)))
        rows = self._sieve.left(keys)
        order = rows[np.argsort(keys[rows])]
        # No file of ids is looked at if the sieve has ruled out all of the batch.
        for known in (one.ids for one in self._batches if len(order)):
            for row, place in _candidates(keys, order, known.keys_in(self._rooms.others.of(len(known)))):
                near = abs(int(batch.joined.store_ms[row]) - int(known.store_ms[place])) <= self._ms
                drop[row] |= near and _same(batch.joined, row, known, place)
        ordered = self._rooms.others.of(len(batch))
        ordered[:] = keys
        # Tasks sort their ids, so this is a merge of a few sorted runs: the stable sort takes a fifth of any other's time.
        ordered.sort(kind="stable")
        # Positions are looked for only where keys repeat: an argsort takes longer than the sort above.
        if np.any(ordered[1:] == ordered[:-1]):
            self._mark_inside(batch.joined, keys, np.argsort(keys, kind="stable"), drop)
        return np.flatnonzero(drop)

    def ordered(self, batch: Ids) -> Ids:
        """Sort a published batch's ids by key, for saving and for `add`.

        Overwrites the result of `join`; the next batch in the same working memory overwrites the result.
        """
        keys = batch.keys_in(self._rooms.keys.of(len(batch)))
        self._sieve_in(keys)
        return batch.sorted(keys, self._rooms)

    def add(self, name: str, kept: Ids) -> None:
        """Add a published batch. Args: name: its file of ids. kept: a lasting copy of the result of `ordered`."""
        newest_ms = int(kept.store_ms.max()) if len(kept) else None
        self._batches.append(_Remembered(name, kept, newest_ms))

    def restore(self, name: str, saved: Ids) -> None:
        """Add a file of ids sorted by keys: an earlier run's, or a task's."""
        self._sieve_in(saved.keys_in(self._rooms.keys.of(len(saved))))
        self.add(name, saved)

    def expire(self, newest_ms: int) -> list[str]:
        """Remove batches whose newest store time is further back than the window. Returns their names."""
        old = [one.name for one in self._batches if one.newest_ms is None or one.newest_ms < newest_ms - self._ms]
        if old:
            self._batches = [one for one in self._batches if one.name not in old]
            # Bits cannot be removed; a few stale ones cost less than a new filter.
            if self._sieved > 2 * self._count:
                self._sieve_anew(self._count)
        return old

    @property
    def _count(self) -> int:
        return sum(len(one.ids) for one in self._batches)

    def _sieve_in(self, keys: Numbers) -> None:
        if self._sieved + len(keys) > self._sieve.room:
            # Twice the ids: the next rebuild comes when as many have been added.
            self._sieve_anew(2 * (self._count + len(keys)))
        self._sieve.add(keys)
        self._sieved += len(keys)

    def _sieve_anew(self, room: int) -> None:
        self._sieve, self._sieved = _Sieve(room), self._count
        for one in self._batches:
            self._sieve.add(one.ids.keys_in(self._rooms.others.of(len(one.ids))))

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
                # Further apart than the window: a message of its own, from which the next copies are counted.
                kept[name] = stored


def _candidates(keys: Numbers, order: Numbers, known: Numbers) -> Iterator[tuple[int, int]]:
    """Yield pairs (row, place) of equal keys. Args: order: sorts `keys`. known: sorted."""
    if not len(known):
        return
    wanted = keys[order]  # Sorted: else every search would miss the processor's cache.
    first: Numbers = np.searchsorted(known, wanted, "left")
    inside = np.minimum(first, len(known) - 1)
    for hit in np.flatnonzero(known[inside] == wanted).tolist():
        place = int(first[hit])
        while place < len(known) and known[place] == wanted[hit]:
            yield int(order[hit]), place
            place += 1


def _same(one: Ids, row: int, other: Ids, place: int) -> bool:
    return bool(one.high[row] == other.high[place] and one.low[row] == other.low[place])
