"""Holds the index against the keys of the log's records: each key has its entry, in the log's order, and each slot its newest one."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from metaq.store.checkpoint import IndexMark
from metaq.store.log.log_bytes import LogBytes, LogFile
from metaq.store.queues.dispatch import index_keys
from metaq.store.queues.index_file import ENTRY, HEADER, IndexHeader, index_file_bytes
from metaq.store.upkeep.findings import Findings
from metaq.store.upkeep.log_records import LogRecords, Seen
from metaq.wire import hot

_NAME_DIGITS: Final = 17
_BLOCK_ENTRIES: Final = 4096
_SLOT_BYTES: Final = 4
_DEFAULT: Final = 5_000_000, 20_000_000
_LOG_AT, _SECONDS_AT, _OLDER_AT = 4, 12, 16


class IndexSizes(Struct, frozen=True):
    """`maxHashSlotNum` and `maxIndexNum`."""

    slots: int
    entries: int


class _Entry(Struct):
    hash: int
    log_offset: int
    seconds: int
    older: int
    path: str
    place: int
    """Byte of its file."""
    begin_ms: int
    ordinal: int


class IndexCheck:
    """Told of each record in the log's order; then `finish`."""

    def __init__(
        self, folder: Path, findings: Findings, records: LogRecords, mark: IndexMark | None, sizes: IndexSizes | None
    ) -> None:
        """
        Args:
            mark: how much of the index is durable, if the last run did not end in order; None: all of it is looked at.
            sizes: None: they are found by looking.
        """
        self._records, self._kind, self._findings, self._mark = (
            records,
            findings.kind("index", "entries"),
            findings,
            mark,
        )
        paths = [path for path in sorted(folder.glob("*")) if len(path.name) == _NAME_DIGITS and path.name.isdigit()]
        if mark is not None:
            for name in mark.files:
                if not (folder / name).exists():
                    self._kind.add(folder / name, 0, 0, "an index file that metaqTails.json names is missing")
            paths = [path for path in paths if path.name in mark.files]
        self._paths = paths
        self._sizes = sizes or sizes_of_index(paths)
        self._entries = self._walk()
        self._next: _Entry | None = None
        self._begun = self._over = False
        self._last = -1
        self._at = -1, 0
        """LogOffset and store time of the record whose keys are being matched."""

    def take(self, seen: Seen) -> None:
        """Hold the keys of a record against the entries that come next."""
        if self._over or not self._paths:
            return
        head = seen.head
        keys = index_keys(head)
        if not keys:
            return
        if not self._begun:
            self._begun, self._next = True, next(self._entries, None)
        while self._next is not None and self._next.log_offset < head.log_offset:
            # Of records that retention has taken, or of the last one before a crash once more.
            if self._last >= 0 and self._next.log_offset > self._last:
                self._stray(self._next)
            self._next = next(self._entries, None)
        if self._next is None:
            self._over = True
            self._missing(seen, keys)
            return
        if self._last < 0 and self._next.log_offset > head.log_offset:
            return  # the index begins behind it: it was switched on later
        self._match(seen, keys)
        self._last = head.log_offset

    def _match(self, seen: Seen, keys: list[bytes]) -> None:
        head = seen.head
        self._at = head.log_offset, head.store_ms
        for key in keys:
            entry = self._next
            if entry is None or entry.log_offset != head.log_offset:
                path, at = (entry.path, entry.place) if entry else (str(self._paths[-1]), 0)
                why = f"no entry for the record at byte {seen.place} of {seen.file.path} under {_shown(key)}"
                self._kind.add(
                    path, at, ENTRY.size, f"{why}; this one points at log offset {entry.log_offset if entry else -1}"
                )
                return
            wanted = hot.index_hash(key)
            if entry.hash != wanted:
                why = f"an entry with hash {entry.hash}; the key {_shown(key)} of the record at byte {seen.place} of {seen.file.path} has {wanted}"
                self._kind.add(entry.path, entry.place, 4, why)
            if entry.ordinal == 1 and entry.begin_ms != head.store_ms:
                why = f"a header that begins at store time {entry.begin_ms}, its first record's is {head.store_ms}"
                self._kind.add(entry.path, 0, 8, why)
            # RocketMQ keeps times before the first record's as 0, and cuts off what does not fit.
            seconds = min(max(0, (head.store_ms - entry.begin_ms) // 1000), 0x7FFFFFFF) if entry.begin_ms > 0 else 0
            if entry.seconds != seconds:
                why = f"an entry of second {entry.seconds}; the record at byte {seen.place} of {seen.file.path} is of second {seconds}"
                self._kind.add(entry.path, entry.place + _SECONDS_AT, 4, why)
            self._next = next(self._entries, None)

    def _missing(self, seen: Seen, keys: list[bytes]) -> None:
        if self._mark is None or seen.head.log_offset < self._mark.log:
            why = f"no entry for the record at byte {seen.place} of {seen.file.path} under {_shown(keys[0])}, nor for what follows"
            self._kind.add(self._paths[-1], 0, 0, why)

    def finish(self) -> None:
        """Look at the entries that no record has asked for. They may be of a record that a crash has had indexed twice."""
        if not self._paths:
            return
        entries = [self._next] if self._next else []
        for entry in [*entries, *self._entries] if not self._begun else self._rest(entries):
            if entry.log_offset > self._last >= 0 and (
                self._findings.in_order or entry.log_offset < self._findings.durable_end
            ):
                self._stray(entry)

    def _rest(self, entries: list[_Entry]) -> Iterator[_Entry]:
        yield from entries
        yield from self._entries

    def _stray(self, entry: _Entry) -> None:
        if self._records.is_lost(entry.log_offset):
            return
        why = f"an entry points at log offset {entry.log_offset}, where no record with such a key is"
        self._kind.add(entry.path, entry.place + _LOG_AT, 8, why)

    # ------------------------------------------------------------------ the files

    def _walk(self) -> Iterator[_Entry]:
        for path in self._paths:
            try:
                size = path.stat().st_size
            except FileNotFoundError:  # retention took it
                continue
            if self._sizes is None or size != index_file_bytes(self._sizes.slots, self._sizes.entries):
                self._kind.add(path, 0, 0, f"{size} bytes are no index file of this store: its slots are not known")
                continue
            yield from self._entries_of(path, self._sizes)

    def _entries_of(self, path: Path, sizes: IndexSizes) -> Iterator[_Entry]:
        is_last = path == self._paths[-1]
        with LogBytes(LogFile(0, str(path), path.stat().st_size)) as source:
            header = IndexHeader(*HEADER.unpack(source.read(0, HEADER.size)))
            if not 1 <= header.next_ordinal <= sizes.entries:
                self._kind.add(path, 36, 4, f"a header that counts {header.next_ordinal - 1} entries")
                return
            count = header.next_ordinal
            if self._mark is not None and is_last:
                count = min(count, max(1, self._mark.header[5]))
            slots = array("i", bytes(_SLOT_BYTES * sizes.slots))
            first = HEADER.size + _SLOT_BYTES * sizes.slots
            last, used = -1, 0
            for ordinal in range(1, count, _BLOCK_ENTRIES):
                stop = min(count, ordinal + _BLOCK_ENTRIES)
                data = bytes(source.read(first + ENTRY.size * ordinal, ENTRY.size * (stop - ordinal)))
                for number, values in enumerate(ENTRY.iter_unpack(data), ordinal):
                    key_hash, log_offset, seconds, older = values
                    place = first + ENTRY.size * number
                    entry = _Entry(key_hash, log_offset, seconds, older, str(path), place, header.begin_ms, number)
                    self._kind.checked += 1
                    used += self._chained(entry, number, slots)
                    if number == 1 and entry.log_offset != header.begin_log:
                        self._kind.add(
                            path,
                            16,
                            8,
                            f"a header that begins at log offset {header.begin_log}, not at {entry.log_offset}",
                        )
                    if entry.log_offset < last:
                        why = f"an entry of log offset {entry.log_offset} behind one of {last}"
                        self._kind.add(path, entry.place + _LOG_AT, 8, why)
                        continue
                    last = entry.log_offset
                    yield entry
            if self._mark is None or not is_last:
                self._check_header(path, header, last, used)
                self._check_slots(source, path, slots)

    def _chained(self, entry: _Entry, ordinal: int, slots: array[int]) -> int:
        """Hold an entry's chain against the slot that it was put under. Returns 1 if it has taken a new slot."""
        if entry.hash < 0:
            self._kind.add(entry.path, entry.place, 4, f"an entry with the impossible hash {entry.hash}")
            return 0
        slot = entry.hash % len(slots)
        before, slots[slot] = slots[slot], ordinal
        if entry.older != before:
            why = f"an entry whose chain goes on with entry {entry.older}, and not with {before}"
            self._kind.add(entry.path, entry.place + _OLDER_AT, 4, why)
        return int(before == 0)

    def _check_header(self, path: Path, header: IndexHeader, last: int, used: int) -> None:
        if header.next_ordinal <= 1:
            return
        if header.end_log != last:
            self._kind.add(path, 24, 8, f"a header that ends at log offset {header.end_log}, its last entry at {last}")
        log_offset, store_ms = self._at
        if header.end_ms != store_ms if log_offset == last else header.end_ms < header.begin_ms:
            self._kind.add(
                path, 8, 8, f"a header that ends at store time {header.end_ms}, its last record's is {store_ms}"
            )
        if header.slots_used != used:
            self._kind.add(path, 32, 4, f"a header that counts {header.slots_used} slots in use, there are {used}")

    def _check_slots(self, source: LogBytes, path: Path, slots: array[int]) -> None:
        step = _BLOCK_ENTRIES * 64
        for first in range(0, len(slots), step):
            part = slots[first : first + step]
            place = HEADER.size + _SLOT_BYTES * first
            found = array("i", bytes(source.read(place, _SLOT_BYTES * len(part))))
            if sys.byteorder == "little":
                found.byteswap()
            if found != part:
                at = next(number for number, pair in enumerate(zip(found, part, strict=True)) if pair[0] != pair[1])
                why = f"slot {first + at} leads to entry {found[at]}, and not to {part[at]}"
                self._kind.add(path, place + _SLOT_BYTES * at, 4, why)


def sizes_of_index(paths: list[Path]) -> IndexSizes | None:
    """Return the sizes of the index, by its files; None: no file tells them."""
    for path in paths:
        size = path.stat().st_size
        if size == index_file_bytes(*_DEFAULT):
            return IndexSizes(*_DEFAULT)
        if size <= HEADER.size or size > index_file_bytes(*_DEFAULT):
            continue
        data = path.read_bytes()
        header = IndexHeader(*HEADER.unpack_from(data))
        left = (size - HEADER.size) // _SLOT_BYTES
        for slots in range(left % 5, left, 5):
            first = HEADER.size + _SLOT_BYTES * slots
            last = first + ENTRY.size * (header.next_ordinal - 1)
            if slots and header.next_ordinal > 1 and last + ENTRY.size <= size:
                key_hash, log_offset, seconds, older = ENTRY.unpack_from(data, first + ENTRY.size)
                fits = (log_offset, seconds, older) == (header.begin_log, 0, 0) and key_hash > 0
                if fits and ENTRY.unpack_from(data, last)[1] == header.end_log:
                    return IndexSizes(slots, (size - first) // ENTRY.size)
    return None


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "replace")[:60])
