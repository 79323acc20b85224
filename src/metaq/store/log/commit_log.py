"""The log: all records of all topics, one after the other (docs/formats/commitlog.md)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from metaq.errors import StoreError, StoreFailed
from metaq.store.disk import Disk, SyncNotBegun, store_error
from metaq.store.mapped_file import FileRun, MappedFile
from metaq.wire import hot
from metaq.wire.record import BLANK_MAGIC, MAGIC, RECORD_BYTES_MIN

log = logging.getLogger(__name__)

BLANK_BYTES: Final = 8
"""Kept free behind the last record of a file, for the blank record that says "go on with the next file"."""
_NEXT_FILE_AT = 0.8
"""Part of the current file after which the populator makes the next one, so that no append waits for it."""


class CommitLog:
    """The run of log files and its writable end. Offsets are LogOffsets throughout.

    Native code appends through `tail`, within the current file. Going on in the next file is done here.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        disk: Disk,
        tail: hot.LogTail,
        on_failure: Callable[[str], None] = lambda _why: None,
        *,
        by_writes: bool = False,
    ) -> None:
        """
        Args:
            on_failure: told when a file's name cannot be made durable; nothing may be acknowledged after that.
            by_writes: plain records are written through a descriptor (see `hot.LogTail.attach`), as is best where each
                is synced.
        """
        self.run = FileRun(folder, file_bytes, disk)
        self._by_writes, self._descriptor = by_writes, -1
        self.tail, self.on_failure = tail, on_failure
        self._end = 0
        self.settled_min = 0
        """LogOffset below which deleted files stay deleted. The file deleted last may come back in a power cut until `settle`."""
        self._attached: MappedFile | None = None
        # Between the populator, which makes the next file ahead, and a writer that needs it at the same moment.
        self._making = threading.Lock()

    @property
    def min(self) -> int:
        """LogOffset at which the oldest file begins; the end for a log without files."""
        files = self.run.files
        return files[0].start if files else self.end

    @property
    def end(self) -> int:
        """One past the newest record."""
        return self.tail.end if self._attached else self._end

    @property
    def oldest_ms(self) -> int:
        """Store time of the oldest record, milliseconds; -1 of an empty log."""
        return self.store_time(self.min) if self.end > self.min else -1

    @property
    def newest_ms(self) -> int:
        """Store time of the newest record, milliseconds."""
        return self.tail.store_ms

    @property
    def file_bytes(self) -> int:
        return self.run.file_bytes

    def start_at(self, end: int) -> None:
        """Go on at `end`. The file there is attached if it exists; else `roll` makes it."""
        self._end = end
        # An earlier process may have deleted the file before, and been killed before that was settled.
        self.settled_min = max(0, self.min - self.run.file_bytes)
        # Where the end is a file's border, the file behind it may not be made yet.
        if file := self.run.find(end):
            self._attach(file, end)
        else:  # the hot path asks the tail, not the log, where the end is
            self.tail.end = end
            self.tail.detach()

    def settle(self) -> None:
        """Make deletions durable. Raises OSError: a power cut may bring files back; the next deletion tries again."""
        low = self.min  # before the sync: a file that goes meanwhile is not covered by it
        self.run.settle()
        self.settled_min = low

    @property
    def is_attached(self) -> bool:
        """Whether there is a file to write to; else `roll` makes it."""
        return self._attached is not None

    def roll(self) -> None:
        """Close the current file with a blank record and go on in the next; in an empty log, make the first.

        Raises StoreFull: nothing has changed, and the same call may work later.
        """
        following = self._file_from(self._attached.end if self._attached else self._end)
        if self._attached:  # only now: had the disk no room for the next file, the current one must stay open
            # RocketMQ's blank record: readers that walk the log see by it that the next record is in the next file.
            self.tail.pad()
            self.detach()
        self._attach(following, following.start)

    def _attach(self, file: MappedFile, end: int) -> None:
        self.let_go()
        # With SYNC_FLUSH each append is synced, and a page changed through the mapping costs the sync more than a written one.
        if self._by_writes:
            try:
                self._descriptor = self.run.disk.open(file.path, os.O_RDWR)
            except OSError as error:
                log.warning("%s is written in place, which costs its syncs more: %s", file.path, error)
        self.tail.attach(file.buffer, file.start, file.size, end, self._descriptor)
        self._attached = file

    def detach(self) -> None:
        """Let go of the current file; `roll` or `start_at` goes on."""
        if self._attached:
            self._end = self.tail.end
            self.tail.detach()
            self._attached = None
            self.let_go()

    def let_go(self) -> None:
        """Close the current file's descriptor, and leave the file as it is."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write(self, records: memoryview, store_ms: int) -> None:
        """Copy whole records behind the newest one; they fit into the current file. `store_ms`: of the latest of them."""
        file, end = self._attached, self.tail.end
        assert file is not None
        place = end - file.start
        # The size of the first one last: a kill in the middle leaves zeros there, and zeros end the log.
        file.buffer[place + 4 : place + len(records)] = records[4:]
        file.buffer[place : place + 4] = records[:4]
        self.tail.attach(file.buffer, file.start, file.size, end + len(records), self._descriptor)
        self.tail.store_ms = max(self.tail.store_ms, store_ms)

    def end_file(self, blank: memoryview) -> None:
        """Write a given blank record, which fills the rest of the file, and go on in the next file. Raises StoreFull."""
        file = self._attached
        assert file is not None
        following = self._file_from(file.end)
        place = self.tail.end - file.start
        # The rest of a blank record may be anything; a replica's log is to be the same bytes as its master's.
        file.buffer[place + 4 :] = blank[4:]
        file.buffer[place : place + 4] = blank[:4]
        self.detach()
        self._attach(following, following.start)

    def next_file_due(self) -> bool:
        """Whether the current file is full enough for the next one to be made."""
        file = self._attached
        return bool(file and self.tail.end > file.start + file.size * _NEXT_FILE_AT and file is self.run.files[-1])

    def make_next_file(self) -> None:
        """Make the file behind the current one, ahead of need (another thread's work). Raises StoreFull."""
        if file := self._attached:
            self._file_from(file.end, behind=file)

    def _file_from(self, start: int, *, behind: MappedFile | None = None) -> MappedFile:
        """The file that holds `start`, made if there is none; the last one if `behind` is not the current file any more."""
        with self._making:
            file = self.run.find(start)
            if file is None and behind is not None and behind is not self._attached:
                return self.run.files[-1]  # the log was cut meanwhile
            if file is None:
                first = start - start % self.file_bytes
                # Size and name are durable before the first record: syncing the log later would not bring back a file whose
                # name a power cut has taken, with acknowledged messages in it.
                file = self.run.add(first, reserved=self.file_bytes, durable=True)
            if self.run.unsynced:
                try:
                    self.run.sync_folder()
                except SyncNotBegun as error:  # the next one who needs the file tries again
                    raise store_error(error, file.path) from error
                except OSError as error:  # final: after it, nobody knows whether the name is on the disk
                    why = f"the name of {file.path} could not be made durable: {os.strerror(error.errno or 0)}"
                    self.on_failure(why)
                    raise StoreFailed(why) from error
            return file

    def release_before(self, offset: int) -> None:
        """Unmap files that end before `offset`: from now on they are read by pread."""
        # Mappings are only dropped, not closed: an answer that waits in a socket's queue may be a view of one.
        for file in self.run.files:
            if file.end < offset and file is not self._attached:
                file.release()

    def read(self, offset: int, size: int) -> bytes:
        """The bytes [offset, offset + size), cut at the end of the log and of their file; b"" where there are none."""
        file = self.run.find(offset)
        if file is None:
            return b""
        try:  # not beyond the end: behind it lie zeros, or a record that is being written
            return file.read(offset, max(0, min(size, self.end - offset)))
        except FileNotFoundError:  # retention took the file between the two lines
            return b""

    def recent(self, offset: int) -> memoryview | None:
        """The record at `offset`, unchecked, if it lies in the file that is written to: a view of the mapping; else None."""
        file, end = self._attached, self.tail.end
        if file is None or not file.start <= offset <= end - RECORD_BYTES_MIN:
            return None
        place, buffer = offset - file.start, file.buffer
        size = int.from_bytes(buffer[place : place + 4], "big")
        return memoryview(buffer)[place : place + size] if RECORD_BYTES_MIN <= size <= end - offset else None

    def record(self, offset: int) -> bytes | None:
        """The record that begins at `offset`, or None if none does, or its checksum is wrong."""
        # The head is read first: only it says how long the record is, and most wrong offsets are refused by it.
        head = self.read(offset, RECORD_BYTES_MIN)
        size = int.from_bytes(head[:4], "big")
        # Offsets come from clients too (message ids, ends of transactions): any bytes may lie there.
        if (
            len(head) < RECORD_BYTES_MIN
            or size < RECORD_BYTES_MIN
            or head[4:8] != _MAGIC
            or head[28:36] != _i64(offset)
        ):
            return None
        data = head if size <= len(head) else head + self.read(offset + len(head), size - len(head))
        if len(data) != size:
            return None
        # The checksum is verified: a record that was damaged on the disk is not handed out.
        heads, _, _ = hot.scan_records(data, 0, size, offset, 1, True)
        return data if heads else None

    def store_time(self, offset: int, *, written: bool = False) -> int:
        """Store time of the record at `offset`, milliseconds; -1 if none begins there.

        `written`: look at the files as they are, whatever the log's end says (before it is known).
        """
        if written:
            return found[1] if (found := self.head(offset)) else -1
        head = self.read(offset, RECORD_BYTES_MIN)
        if len(head) < RECORD_BYTES_MIN or head[4:8] != _MAGIC or head[28:36] != _i64(offset):
            return -1
        return store_time_of(head)

    def head(self, offset: int) -> tuple[int, int] | None:
        """Size and store time of the record that the files hold at `offset`, whatever the log's end says; None: none."""
        file = self.run.find(offset) if offset >= 0 else None
        head = file.read(offset, RECORD_BYTES_MIN) if file else b""
        if len(head) < RECORD_BYTES_MIN or head[4:8] != _MAGIC or head[28:36] != _i64(offset):
            return None
        return int.from_bytes(head[:4], "big"), store_time_of(head)

    def sync(self, start: int, stop: int) -> None:
        """Make [start, stop) durable. Raises OSError."""
        for file in self.run.files:
            if file.end > start and file.start < stop:
                file.sync(max(start, file.start), min(stop, file.end))

    def secure(self, start: int, *, again: bool) -> None:
        """Make all that was found from `start` on durable, file sizes and names included. Raises OSError.

        `again`: also pages that the kernel takes for written.
        """
        # What a killed process has written is in the page cache at best; nobody has synced it. And a sync of that process may
        # have failed, after which the kernel calls the pages clean.
        for file in self.run.files:
            if file.end > start:
                if again:
                    file.rewrite(max(start, file.start), min(self._end, file.end))
                file.sync_whole()
        if again:
            self.run.disk.resync_folder(self.run.folder)
        self.run.sync_folder()

    def is_border(self, place: int) -> bool:
        """Whether a record, a blank record or a file begins at `place`, or the log ends there."""
        if place == self.end or any(file.start == place for file in self.run.files):
            return True
        file, head = self.run.find(place), self.read(place, BLANK_BYTES)
        is_blank = file is not None and head == (file.end - place).to_bytes(4, "big") + _BLANK_MAGIC
        return is_blank or (place < self.end and self.head(place) is not None)

    def cut(self, end: int) -> None:
        """Make the log end at `end`, durably, and go on there. Raises OSError: how much of it was done is unknown."""
        with self._making:  # the populator must not make the next file of a log that is just being cut
            # A tail may not be attached to a file that is cut.
            self.detach()
            self.truncate(end, zero=True)
            self.run.sync_folder()
            self.start_at(end)

    def truncate(self, end: int, *, zero: bool, again: bool = False) -> None:
        """Cut the log at `end`: delete later files, and with `zero` the bytes behind it in its file. `again`: as in `secure`.

        Raises OSError.
        """
        if self._attached:
            raise StoreError("the log is being written")
        self.run.drop_from(end)
        # RocketMQ leaves the bytes there. They look like records, checksum and all: once newer records have grown up to such
        # a place exactly, a later start would take the old ones behind it for the log's newest.
        if zero and (file := self.run.find(end)):
            file.zero(end, again=again)
        self._end = end


_MAGIC = MAGIC.to_bytes(4, "big")
_BLANK_MAGIC = BLANK_MAGIC.to_bytes(4, "big")
_BORN_HOST_V6 = 0x10


def _i64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def store_time_of(head: bytes) -> int:
    """STORETIMESTAMP of a record of which the first 91 bytes are given."""
    # Byte 39 is the lowest of SYSFLAG; an IPv6 host is 12 bytes longer, and moves all that follows it.
    place = 68 if head[39] & _BORN_HOST_V6 else 56
    return int.from_bytes(head[place : place + 8], "big")
