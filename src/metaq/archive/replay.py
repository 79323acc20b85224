"""Reader of an archived topic, queue by queue and in order, also while the archive is written, merged, and expires.

It reads by one view of the archive as long as the view's files are there: replaced ones stay for the archive's grace time. If a
file has vanished, or at the end, it reads a new view. All calls block; any number of threads may use one `ArchivedTopic`, one
at a time each `Cursor`.

Needs pyarrow.
"""

from __future__ import annotations

import datetime as dt
import heapq
import logging
import re
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct

from metaq.archive.decoding import newest_decoding
from metaq.archive.folder import ArchiveFolder
from metaq.archive.index import BUFFER_BYTES, Entry, Footers, Group, entries, mine, parquet_faults
from metaq.archive.parquet import batch_rows, opened
from metaq.archive.records import COLUMNS, MANIFESTS
from metaq.archive.replacements import place, view
from metaq.errors import ConfigError, OffsetOutOfRange, StoreCorrupt
from metaq.model.queue import MessageQueue

_LOG = logging.getLogger(__name__)

BATCH_ROWS = 1000
BATCH_BYTES = 1024 * 1024
"""Approximate bytes that are read of a file at a time."""
_TRIES = 10
"""Most views without progress: a file that vanishes is a reason for another."""
_URI = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_MS_MAX = 253_402_300_799_999
_TIME_ROWS = 20_000
_KEY_AND_TIME = ["broker", "queue_id", "queue_offset", "store_time"]


Result = TypeVar("Result")


class Seen(Struct, frozen=True):
    """View of the topic at one moment."""

    places: dict[str, Path]
    """Path of a file → path to open it at."""
    entries: dict[MessageQueue, list[Entry]]
    end: dict[MessageQueue, int]
    """Queue → end of its archived messages."""
    expired: bool
    """Whether dates of the topic have expired, so that queues may begin in the middle."""


class ArchivedTopic:
    """A topic in an archive."""

    def __init__(self, folder: str | Path, topic: str) -> None:
        """Open a topic. Raises: ConfigError: no archive, one without bodies, or a URI. StoreCorrupt, StoreForeign: a record
        that shows this cannot be read.
        """
        if (scheme := _URI.match(str(folder))) is not None:
            raise ConfigError(
                f"archive={folder}: it is replayed from a local folder, not by {scheme[1]}: which only Hadoop can read. Copy the archive "
                "to this machine, or read it in Spark: metaq.spark.table(topic, archive=URI)"
            )
        self.folder, self.topic = ArchiveFolder(folder), topic
        if not (self.folder.path / MANIFESTS).is_dir():
            raise ConfigError(f"archive={folder}: there is no archive (no {MANIFESTS} in it)")
        decoding = newest_decoding(self.folder)
        if decoding is not None and not decoding.keep_body:
            raise ConfigError(
                f"archive={folder} has no bodies (keepBody=false), so messages cannot be made of it again: read its columns, "
                "with metaq.spark.table or any reader of Parquet"
            )
        self._footers = Footers()
        self._lock = threading.Lock()
        self._seen: Seen | None = None

    def look(self, but: Seen | None = None) -> Seen:
        """Read and return a new view; if another thread has read one since `but`, return that.

        Raises: ConfigError: nothing of the topic was ever archived. StoreCorrupt: a manifest, a record of replaced files or a
            file's footer cannot be read. StoreForeign: a later release has written to it.
        """
        with self._lock:
            # Another thread had the same file vanish and has read a view meanwhile: one reading is enough for all.
            if self._seen is not None and self._seen is not but:
                return self._seen
            for _ in range(_TRIES):
                missing: Path | None = None
                try:
                    self._seen = self._look()
                except FileNotFoundError as fault:
                    missing = Path(str(fault.filename or fault))
                    continue
                return self._seen
            raise _missing(missing)

    def renew(self) -> Seen:
        """Read and return the archive's current view. Raises: as `look`."""
        return self.look(self._seen)

    def _look(self) -> Seen:
        known = view(self.folder)
        end = {queue: offset for queue, offset in known.end.items() if queue.topic == self.topic}
        if not end:
            others = sorted({queue.topic for queue in known.end})
            what = f"it has {', '.join(others[:10])}{' ...' if len(others) > 10 else ''}" if others else "it is empty"
            raise ConfigError(f"the archive {self.folder.path} has nothing of topic {self.topic}: {what}")
        gone = known.expired.get(self.topic, "")
        # Files of expired dates may still exist for a while; by the date alone they are gone at once, for all readers.
        files = [file for file in known.files if file.topic == self.topic and file.date > gone]
        places = {file.path: place(self.folder, known, file) for file in files}
        self._footers.forget_but(frozenset(places))
        found = entries(self.topic, [(file, places[file.path]) for file in files], self._footers)
        return Seen(places=places, entries=found, end=end, expired=bool(gone))

    def end_now(self, queue: MessageQueue) -> int:
        """Return the end of a queue's archived messages, by the newest manifest alone. Raises StoreCorrupt, StoreForeign."""
        newest = self.folder.last()
        return 0 if newest is None else newest.end.get(queue, 0)

    def begin(self, queue: MessageQueue) -> int | None:
        """Return the first archived offset of a queue; None: nothing of it is archived now. Raises: as `look`."""
        return self._steadily(lambda seen: self.begin_in(seen, queue))

    def at_time(self, queue: MessageQueue, ms: int) -> int | None:
        """Return the offset of the first archived message stored at `ms` or later; None: there is none. Raises: as `look`."""
        return self._steadily(lambda seen: self._at_time(seen, queue, ms))

    def _steadily(self, ask: Callable[[Seen], Result]) -> Result:
        """Call `ask` with a view; if files have vanished, again with a new view."""
        missing: Path | None = None
        seen = self.look()
        for _ in range(_TRIES):
            try:
                return ask(seen)
            except FileNotFoundError as fault:
                missing, seen = Path(str(fault.filename)), self.look(seen)
        raise _missing(missing)

    def begin_in(self, seen: Seen, queue: MessageQueue) -> int | None:
        """Return `begin` by one view. Raises FileNotFoundError, StoreCorrupt."""
        found = seen.entries.get(queue, [])
        if not found or not seen.expired:  # Without expired dates the first file's name has the first offset.
            return found[0].first if found else None
        best: int | None = None
        for entry in found:
            if best is not None and entry.first >= best:
                break
            first = min((group.first for group in self.groups(seen, entry, queue)), default=best)
            best = first if best is None or first is None else min(best, first)
        return best

    def _at_time(self, seen: Seen, queue: MessageQueue, ms: int) -> int | None:
        # Times beyond the year 9999 have no date: the last one stands for them.
        first_date = str(dt.datetime.fromtimestamp(min(max(0, ms), _MS_MAX) / 1000, dt.UTC).date())
        best: int | None = None
        for entry in seen.entries.get(queue, []):
            # Entries are sorted by their first offset: no later one has a smaller offset than `best`.
            if best is not None and entry.first >= best:
                break
            if entry.file.date < first_date:  # All of the file was stored on an earlier day.
                continue
            for group in self.groups(seen, entry, queue):
                if group.newest_ms is not None and group.newest_ms < ms:
                    continue
                # The groups of a file are in order: the first one with a late message has the file's first.
                if (found := self._first_since(seen, entry, group, queue, ms)) is not None:
                    best = found if best is None else min(best, found)
                    break
        return best

    def _first_since(self, seen: Seen, entry: Entry, group: Group, queue: MessageQueue, ms: int) -> int | None:
        at = seen.places[entry.file.path]
        with opened(at, BUFFER_BYTES) as file, parquet_faults(at):
            for batch in file.iter_batches(_TIME_ROWS, row_groups=[group.number], columns=_KEY_AND_TIME):
                rows = mine(batch, queue, 0)
                late = np.flatnonzero(rows.column("store_time").cast(pa.int64()).to_numpy() >= ms * 1000)
                if len(late):
                    return int(rows.column("queue_offset")[int(late[0])].as_py())
        return None

    def groups(self, seen: Seen, entry: Entry, queue: MessageQueue) -> list[Group]:
        """Return the row groups of a file with messages of a queue. Raises FileNotFoundError, StoreCorrupt."""
        return self._footers.groups(entry.file, seen.places[entry.file.path]).get((queue.broker, queue.queue_id), [])

    def cursor(self, queue: MessageQueue, offset: int) -> Cursor:
        """Return a cursor over the queue's messages from an offset on."""
        return Cursor(self, queue, offset)


class Cursor:
    """Reads one queue of an archive."""

    def __init__(self, archived: ArchivedTopic, queue: MessageQueue, offset: int) -> None:
        self._archived, self._queue = archived, queue
        self.offset = offset
        """Offset after the returned messages, and after gaps before the next one."""
        self._seen: Seen | None = None
        self._rows: Generator[pa.RecordBatch] | None = None
        self.absent = 0
        """Messages that were skipped because their dates have expired."""

    def next(self) -> pa.RecordBatch | None:
        """Return the next messages, at least one, ascending; None: the archive ends at `offset`.

        Raises: OffsetOutOfRange: the next messages have expired. StoreCorrupt: a file or a record cannot be read. As
            `ArchivedTopic.look`.
        """
        missing: Path | None = None
        seen = self._seen or self._archived.look()
        for _ in range(_TRIES):
            try:
                if self._rows is None:
                    self._check(seen)
                    self._seen, self._rows = seen, _merged(self._archived, seen, self._queue, self.offset)
                if (batch := next(self._rows, None)) is not None:
                    if seen.expired:
                        self._count_absent(batch.column("queue_offset").to_numpy())
                    self.offset = batch.column("queue_offset")[len(batch) - 1].as_py() + 1
                    return batch
            except FileNotFoundError as fault:
                missing = Path(str(fault.filename))
                self.close()
                seen = self._archived.look(seen)
                continue
            self.close()
            if seen.expired:
                self._count_absent(np.array([seen.end.get(self._queue, 0)]))
            self.offset = max(self.offset, seen.end.get(self._queue, 0))
            # The view has ended. Only if the newest manifest reaches further is a new view, which reads all records, worth it.
            if self._archived.end_now(self._queue) <= self.offset:
                return None
            seen = self._archived.look(seen)
        raise _missing(missing)

    def _count_absent(self, offsets: np.ndarray[Any, Any]) -> None:
        """Count and log messages that are skipped before these offsets. A broker's wrong clock may be why their date expired."""
        gaps = np.diff(offsets, prepend=self.offset - 1) - 1
        found = np.flatnonzero(gaps > 0)
        if not len(found):
            return
        if not self.absent:
            stop = int(offsets[found[0]])
            _LOG.warning(
                "%s: offsets [%d, %d) are not in the archive %s, and may not be the only ones: repeats that it left out, or messages "
                "whose date is over although older ones are there, as after a broker's clock was set back",
                self._queue, stop - int(gaps[found[0]]), stop, self._archived.folder.path,
            )  # fmt: skip
        self.absent += int(gaps[found].sum())

    def close(self) -> None:
        rows, self._rows, self._seen = self._rows, None, None
        if rows is not None:
            rows.close()

    def _check(self, seen: Seen) -> None:
        begin, end = self._archived.begin_in(seen, self._queue), seen.end.get(self._queue, 0)
        if seen.expired and self.offset < (end if begin is None else begin):
            kept = range(end if begin is None else begin, end)
            raise OffsetOutOfRange(self._queue, self.offset, kept, "Older dates of the archive are gone.")


def _merged(archived: ArchivedTopic, seen: Seen, queue: MessageQueue, offset: int) -> Generator[pa.RecordBatch]:
    """Yield the rows of all files of a queue from an offset on, in order. A file is open from its first row to its last."""
    waiting = _from(seen.entries.get(queue, []), offset)[::-1]
    streams: list[tuple[int, int, _ArchivedRows]] = []
    number = 0
    try:
        while waiting or streams:
            # Open a file only when its first row may be the next: an archive may have thousands of files of a queue.
            while waiting and (not streams or waiting[-1].first <= streams[0][0]):
                stream = _ArchivedRows(archived, seen, waiting.pop(), queue, offset)
                if (head := stream.head()) is not None:
                    heapq.heappush(streams, (head, number := number + 1, stream))
            if not streams:
                break
            _, mark, stream = heapq.heappop(streams)
            # Rows below the first row of any other file, open or not, can be returned without a comparison of each.
            limit = min([*(head for head, _, _ in streams[:1]), *(entry.first for entry in waiting[-1:])], default=None)
            if (batch := stream.below(limit, offset)) is not None:
                offset = batch.column("queue_offset")[len(batch) - 1].as_py() + 1
                yield batch
            if (head := stream.head()) is not None:
                heapq.heappush(streams, (head, mark, stream))
    finally:
        for _, _, stream in streams:
            stream.close()


def _from(found: list[Entry], offset: int) -> list[Entry]:
    """Return the files that may have messages from an offset on. Files of batches overlap only within one slice (its parts)."""
    begins = [entry.first for entry in found if entry.named and entry.first <= offset]
    newest = max(begins, default=0)
    return [entry for entry in found if not entry.named or entry.first >= newest]


class _ArchivedRows:
    """The rows of one queue in one file, from an offset on."""

    def __init__(self, archived: ArchivedTopic, seen: Seen, entry: Entry, queue: MessageQueue, offset: int) -> None:
        self._at = seen.places[entry.file.path]
        groups = [group.number for group in archived.groups(seen, entry, queue) if group.last >= offset]
        self._batches = self._read(groups, queue, offset)
        self._left: pa.RecordBatch | None = None

    def _read(self, groups: list[int], queue: MessageQueue, offset: int) -> Generator[pa.RecordBatch]:
        if not groups:
            return
        with opened(self._at, BUFFER_BYTES) as file, parquet_faults(self._at):
            names = [name for name in COLUMNS if name in file.schema_arrow.names]
            rows = batch_rows(file.metadata, BATCH_ROWS, BATCH_BYTES)
            for batch in file.iter_batches(rows, row_groups=groups, columns=names):
                if len(found := mine(batch, queue, offset)):
                    yield found

    def head(self) -> int | None:
        """Return the next offset; None: there is none."""
        if self._left is None:
            self._left = next(self._batches, None)
        return None if self._left is None else int(self._left.column("queue_offset")[0].as_py())

    def below(self, limit: int | None, start: int) -> pa.RecordBatch | None:
        """Return loaded rows from `start` on and below `limit`.

        `start` skips a message that is in two files, which none should.
        """
        assert self._left is not None
        batch, self._left = self._left, None
        offsets = batch.column("queue_offset").to_numpy()
        # At least one row, also if another file has the same offset; otherwise the merge would not get on.
        stop = len(batch) if limit is None else max(1, int(np.searchsorted(offsets, limit)))
        if stop < len(batch):
            self._left = batch.slice(stop)
        begin = int(np.searchsorted(offsets, start))
        return batch.slice(begin, stop - begin) if begin < stop else None

    def close(self) -> None:
        self._batches.close()


def _missing(path: Path | None) -> StoreCorrupt:
    return StoreCorrupt(f"{path} is missing: its batch was published, and somebody took it away since")
