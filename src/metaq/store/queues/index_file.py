"""The index: from a message key to the log offsets of the messages that carry it (docs/formats/index.md)."""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from metaq.store.checkpoint import IndexMark
from metaq.store.disk import Disk, SyncNotBegun
from metaq.store.mapped_file import TEMPORARY, MappedFile
from metaq.wire import hot

HEADER: Final = struct.Struct(">qqqqii")
ENTRY: Final = struct.Struct(">iqii")
_SLOT: Final = struct.Struct(">i")
RESERVE_BYTES: Final = 1024 * 1024
"""Step in which blocks for entries are reserved. Slots are written all over, so they are reserved when the file is made."""
_NAME_DIGITS: Final = 17


def index_file_bytes(slots: int, entries_max: int) -> int:
    """Size of a file of so many slots and entries."""
    return HEADER.size + _SLOT.size * slots + ENTRY.size * entries_max


ON_THE_WAY: Final = -1
"""In place of a LogOffset: the search goes on."""
ENTRIES_OF_A_PIECE: Final = 256
"""Entries of a chain that are looked at in one go: some 0.1 ms."""


class IndexHeader(NamedTuple):
    """Store times (ms) and LogOffsets of the first and last record indexed, slots in use, ordinal of the next entry.

    Ordinals begin at 1, as in RocketMQ: 0 in a slot means that it is empty.
    """

    begin_ms: int
    end_ms: int
    begin_log: int
    end_log: int
    slots_used: int
    next_ordinal: int


class IndexFile:
    """One file: header, slots (newest entry of a hash), entries (each names the next older one of its slot)."""

    __slots__ = ("file", "slots")

    def __init__(self, file: MappedFile, slots: int) -> None:
        self.file, self.slots = file, slots

    @property
    def header(self) -> IndexHeader:
        return IndexHeader(*HEADER.unpack_from(self.file.buffer))

    @property
    def name(self) -> str:
        return self.file.path.name

    def entries_at(self, ordinal: int) -> int:
        return HEADER.size + _SLOT.size * self.slots + ENTRY.size * ordinal

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield LogOffsets under a hash, newest first, of records stored in [begin_ms, end_ms] (to the second).

        And `ON_THE_WAY` each `ENTRIES_OF_A_PIECE` entries: a slot's chain may be as long as the file, whosever its keys are.
        """
        buffer, header, walked = self.file.buffer, self.header, 0
        # Read without a lock: an entry is whole before a slot points at it.
        (ordinal,) = _SLOT.unpack_from(buffer, HEADER.size + _SLOT.size * (key_hash % self.slots))
        while 0 < ordinal < header.next_ordinal:
            walked += 1
            if walked % ENTRIES_OF_A_PIECE == 0:
                yield ON_THE_WAY
            found_hash, log_offset, seconds, previous = ENTRY.unpack_from(buffer, self.entries_at(ordinal))
            if seconds < 0:  # damaged, for RocketMQ too
                return
            if found_hash == key_hash and begin_ms <= header.begin_ms + seconds * 1000 <= end_ms:
                yield log_offset
            if previous >= ordinal:  # a damaged chain could be a circle
                return
            ordinal = previous

    def undo_cut_entry(self) -> None:
        """Undo an entry that a kill cut short: its slot is written, and the header does not count it yet."""
        # The slot would point behind the last entry, and the chain that it led to would be lost.
        ordinal = max(1, self.header.next_ordinal)
        if self.entries_at(ordinal) + ENTRY.size <= self.file.size:
            # The entry is written before its slot, and the header last: so the entry behind the last one tells what the
            # slot was.
            key_hash, _, _, previous = ENTRY.unpack_from(self.file.buffer, self.entries_at(ordinal))
            slot_at = HEADER.size + _SLOT.size * (key_hash % self.slots)
            if _SLOT.unpack_from(self.file.buffer, slot_at)[0] == ordinal and 0 <= previous < ordinal:
                _SLOT.pack_into(self.file.buffer, slot_at, previous)

    def header_below(self, log_offset: int) -> IndexHeader:
        """What the header was before the first record at or behind `log_offset` was indexed; the slots are not counted."""
        header, buffer = self.header, self.file.buffer

        def entry(ordinal: int) -> tuple[int, int, int, int]:
            found: tuple[int, int, int, int] = ENTRY.unpack_from(buffer, self.entries_at(ordinal))
            return found

        count = bisect_left(range(header.next_ordinal), log_offset, lo=1, key=lambda ordinal: entry(ordinal)[1])
        _, end_log, seconds, _ = entry(count - 1)
        end_ms = min(header.end_ms, header.begin_ms + (max(0, seconds) + 1) * 1000 - 1)  # entries know the second
        return header._replace(end_ms=end_ms, end_log=end_log, slots_used=0, next_ordinal=count)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        header = self.header
        return header.next_ordinal > 1 and header.begin_ms <= end_ms and header.end_ms >= begin_ms


class Index:
    """The index files, oldest first, and the writable end of the last."""

    def __init__(self, folder: Path, slots: int, entries_max: int, disk: Disk) -> None:
        self.folder, self.slots, self.entries_max, self._disk = folder, slots, entries_max, disk
        self.files: tuple[IndexFile, ...] = ()
        self.tail = hot.IndexTail()
        self._attached = False
        self._whole: set[str] = set()
        """Full files that are durable."""
        self._unsynced = True
        """A file's name may not be durable yet."""
        self.durable: IndexMark | None = None
        """The newest moment of the index that is on the disk."""

    @property
    def file_bytes(self) -> int:
        return index_file_bytes(self.slots, self.entries_max)

    def load(self) -> list[Path]:
        """Find the files; changes nothing. Returns those whose size does not fit the options: they are rebuilt."""
        unfit: list[Path] = []
        fit: list[IndexFile] = []
        for path in sorted(self.folder.glob("*")) if self.folder.is_dir() else ():
            if len(path.name) != _NAME_DIGITS or not path.name.isdigit():
                continue
            # The sizes are options: RocketMQ with others may have written here.
            if path.stat().st_size != self.file_bytes:
                unfit.append(path)
            else:
                fit.append(IndexFile(MappedFile(path, 0, self.file_bytes, self._disk), self.slots))
        self.files = tuple(fit)
        return unfit

    def forget(self, files: set[str]) -> None:
        """Delete the files of these names."""
        self.detach()
        for path in self.folder.glob("*"):
            if path.name in files or path.name.endswith(TEMPORARY):
                path.unlink(missing_ok=True)
        self.files = tuple(file for file in self.files if file.name not in files)
        self._unsynced = True

    def rewind(self, mark: IndexMark) -> None:
        """Go back to what was durable: drop what was written to the mark's last file since. Later files are deleted already."""
        # Slots are made anew from the entries, which never change: a slot that was written since may or may not be on the
        # disk, and what it said before is lost.
        (file,) = (file for file in self.files if file.name == mark.files[-1])
        slots_used = hot.rewind_index(file.file.buffer, self.slots, max(1, mark.header[5]))
        header = IndexHeader(*mark.header)._replace(slots_used=slots_used)
        file.file.buffer[: HEADER.size] = HEADER.pack(*header)
        file.file.rewrite(0, file.entries_at(0))

    def truncate(self, log_offset: int) -> None:
        """Forget all entries of records at or behind `log_offset`. Until the next `sync` nothing counts as durable."""
        self.detach()
        self.durable = None
        kept = [file for file in self.files if file.header.next_ordinal > 1 and file.header.begin_log < log_offset]
        self.forget({file.name for file in self.files if file not in kept})
        if kept and kept[-1].header.end_log >= log_offset:
            self._whole.discard(kept[-1].name)
            header = kept[-1].header_below(log_offset)
            self.rewind(IndexMark(tuple(file.name for file in kept), header, log_offset))
        self.start()

    def start(self) -> None:
        """Go on writing in the last file, if there is one. Its blocks are reserved when the first entry comes."""
        if self.files:
            self.files[-1].undo_cut_entry()
            self._attach(self.files[-1])

    def _attach(self, file: IndexFile) -> None:
        self.tail.attach(file.file.buffer, self.slots, self.entries_max)
        self.tail.reserve(0)
        self._attached = True

    def detach(self) -> None:
        if self._attached:
            self.tail.detach()
            self._attached = False

    def grow(self, needed: int, now_ms: int) -> bool:
        """Reserve room for `needed` entries, in a new file if this one has not so many left.

        Returns False if not even a new file has: put them one by one. Raises StoreFull; nothing has changed then.
        """
        if not self._attached or self.tail.count + needed > self.entries_max:
            if self._attached and self.tail.count == 1:  # an empty file: a whole one has fewer entries than are needed
                return self._reserve(self.entries_max - 1)
            self._new_file(now_ms)
        return self._reserve(needed)

    def _reserve(self, needed: int) -> bool:
        file, count = self.files[-1], self.tail.count
        first, end = file.entries_at(count), file.entries_at(min(self.entries_max, count + needed))
        end = min(file.file.size, end - end % RESERVE_BYTES + RESERVE_BYTES)
        file.file.reserve(first, end - first)
        self.tail.reserve(min(self.entries_max, (end - file.entries_at(0)) // ENTRY.size))
        return self.tail.room() >= needed

    def _new_file(self, now_ms: int) -> None:
        reserved = min(self.file_bytes, HEADER.size + _SLOT.size * self.slots + RESERVE_BYTES)
        path = self._free_name(now_ms)
        file = IndexFile(MappedFile.create(path, 0, self.file_bytes, reserved, self._disk), self.slots)
        # indexCount begins at 1, as in RocketMQ: ordinal 0 means an empty slot.
        file.file.buffer[: HEADER.size] = HEADER.pack(0, 0, 0, 0, 0, 1)
        self.detach()
        self._unsynced = True
        self.files = (*self.files, file)
        self._attach(file)

    def _free_name(self, now_ms: int) -> Path:
        """Return a name that sorts behind all others, made of the local time as RocketMQ does."""
        last = self.files[-1].name if self.files else ""
        while True:
            local = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006  names are local time in this format
            # Two files in one millisecond would have the same name: hence the loop.
            name = f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
            if name > last and not (self.folder / name).exists():
                return self.folder / name
            now_ms += 1
            if name < last:  # the clock was set back: count on from the last name
                stamp = datetime.strptime(last[:14], "%Y%m%d%H%M%S")  # noqa: DTZ007  as above
                now_ms = max(now_ms, int(stamp.timestamp()) * 1000 + int(last[14:]) + 1)

    def put(self, key: bytes, log_offset: int, store_ms: int, now_ms: int) -> None:
        """Index one `topic#key`. Raises StoreFull."""
        while not self.tail.put(key, log_offset, store_ms):
            self.grow(1, now_ms)

    def find(self, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield LogOffsets of records that may carry `topic#key` (the same hash), stored in [begin_ms, end_ms], newest first.

        The caller compares the keys. After a crash the last record may come twice. See `IndexFile.find` for `ON_THE_WAY`.
        """
        key_hash = hot.index_hash(key)
        # Newest first, and no further than the time asked for: old files stay out of the page cache.
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                try:
                    yield from file.find(key_hash, begin_ms, end_ms)
                except ValueError:  # retention has closed it while the caller was elsewhere: its records go as well
                    continue
            if file.header.next_ordinal > 1 and file.header.begin_ms < begin_ms:
                break  # the files before it are older still

    @property
    def end_log(self) -> int:
        """Log offset of the newest record indexed; -1 for an empty index."""
        for file in reversed(self.files):
            if (header := file.header).next_ordinal > 1:
                return header.end_log
        return -1

    def mark(self, log_end: int) -> IndexMark:
        """The index as it is now, between two appends: all records below `log_end` are in it."""
        if not self.files:
            return IndexMark((), (0, 0, 0, 0, 0, 0), log_end)
        return IndexMark(tuple(file.name for file in self.files), self.files[-1].header, log_end)

    def sync(self, mark: IndexMark, *, last: bool) -> None:
        """Make the full files of `mark` durable, with `last` also the one being written. Raises OSError."""
        # The last one not each time: its slots are written all over, so that a sync writes up to 20 MB.
        if self.durable and (mark.files, mark.header) == (self.durable.files, self.durable.header):
            self.durable = mark  # nothing was written: what came since has no keys
            return
        files = {file.name: file for file in self.files}
        for name in mark.files if last else mark.files[:-1]:
            if name in files and name not in self._whole:
                file = files[name]
                next_ordinal = mark.header[5] if name == mark.files[-1] else file.header.next_ordinal
                file.file.sync(0, file.entries_at(next_ordinal))
                if name != mark.files[-1]:  # a full file never changes again: once synced, it is left alone
                    self._whole.add(name)
        if last:
            if self._unsynced and mark.files:
                self._unsynced = False
                try:
                    self._disk.sync_folder(self.folder)
                    self._disk.sync_folder(self.folder.parent)
                except SyncNotBegun:
                    self._unsynced = True
                    raise
            self.durable = mark

    def drop_below(self, log_min: int) -> list[Path]:
        """Forget files that point wholly below the log's begin, except the last. Returns their paths.

        To be deleted once no durable mark names them: a mark that names a missing file has the whole index made anew.
        """
        gone = [file for file in self.files[:-1] if file.header.end_log < log_min]
        self.files = tuple(file for file in self.files if file not in gone)
        if self.durable:
            kept = {file.name for file in self.files}
            left = tuple(name for name in self.durable.files if name in kept)
            whole = left and left[-1] == self.durable.files[-1]
            # The mark's header is the last file's: without that file it says nothing.
            self.durable = structs.replace(self.durable, files=left) if whole else None
        return [file.file.path for file in gone]

    def close(self) -> None:
        self.detach()
        for file in self.files:
            with contextlib.suppress(OSError):
                file.file.close()
