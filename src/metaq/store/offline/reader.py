"""Reads a store folder offline: no lock, no changes; also while a broker writes it, or after one was killed."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError, StoreCorrupt, StoreForeign
from metaq.model import StoredMessage, SysFlag
from metaq.store.log.broken import told_end
from metaq.store.log.log_bytes import LogBytes
from metaq.store.log.scan import WHY, Judge
from metaq.store.mapped_file import NAME_DIGITS
from metaq.store.offline.damage import Damage
from metaq.store.offline.log_pieces import Borders, LogFile, find_end, find_log_files
from metaq.store.queues.consume_queue import UNIT, UNIT_BYTES
from metaq.store.queues.dispatch import topic_of
from metaq.wire import hot
from metaq.wire.compression import decompress

_COMPRESSED: Final = int(
    SysFlag.COMPRESSED
)  # an enum's operators cost a microsecond, and there are millions of records
_HEADS: Final = 512
_BLOCK_BYTES: Final = 4 * 1024 * 1024
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size to which a compressed body may expand, at most; one that would become larger is left compressed."""


class StoreReader:
    """The records of a commit log, from the oldest to its end. Bytes in between that cannot be read are stepped over.

    Log files of RocketMQ 4.9 and of ours. After a walk, `end` is the LogOffset where it stopped, and `why` what is there:
    with a running broker, or a killed one, untouched bytes; `damage` are the places that were stepped over.
    """

    def __init__(self, folder: Path | str) -> None:
        """`folder`: a store's root, or its `commitlog`. Raises StoreForeign: there are no log files in it."""
        given = Path(folder).expanduser()
        self._commit_log = given / "commitlog" if (given / "commitlog").is_dir() else given
        self._queues = self._commit_log.parent / "consumequeue"
        self.end = 0
        self.why = ""
        self.damage: list[Damage] = []
        if not self.files():
            raise StoreForeign(f"{given} holds no commit log: name a store's folder, or the commitlog folder in it")

    def files(self) -> list[tuple[int, Path]]:
        """(LogOffset of its first byte, path) of each log file, oldest first."""
        if not self._commit_log.is_dir():
            return []
        return sorted(
            (int(path.name), path)
            for path in self._commit_log.iterdir()
            if len(path.name) == NAME_DIGITS and path.name.isdigit()
        )

    def records(self, start: int | None = None, *, topics: Collection[str] = ()) -> Iterator[StoredMessage]:
        """Yield each message, in log order, its body decompressed.

        Args:
            start: LogOffset at which a record begins; None for the oldest.
            topics: of these only; of all if there is none.

        Raises: StoreCorrupt: a log file is missing between two others.
        """
        for _, block in self.blocks(start):
            for message in hot.decode_records(block, 0, len(block), StoredMessage, "", 0, 0):
                if not topics or message.topic in topics:
                    if message.sys_flag & _COMPRESSED:
                        _expand(message)
                    yield message

    def blocks(self, start: int | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yield runs of whole records back to back, up to about 4 MiB each: (LogOffset of the first, bytes).

        For `hot.decode_records` and `hot.decode_columns`.
        """
        files = self.files()
        self.end = files[0][0] if start is None else start
        self.why = "the end of the files"
        self.damage = []
        judge = Judge({}, 0, self._has_unit, whole_log=True, promised=lambda place: place < self._log_end())
        self._known_end = -1
        for ordinal, (first, path) in enumerate(files):
            data = _map(path)
            if first + len(data) <= self.end:  # it lies before `start`
                continue
            if self.end < first:
                raise StoreCorrupt(f"{path} begins at {first}, and the log file before it ends at {self.end}")
            if not (yield from self._blocks_of(data, first, judge)):
                return
            if ordinal + 1 < len(files):
                self.end = first + len(data)

    def _blocks_of(self, data: memoryview, first: int, judge: Judge) -> Generator[tuple[int, memoryview], None, bool]:
        """Yield the blocks of one file. Returns whether the log goes on in the next."""
        while True:
            begin = self.end - first
            heads, _, outcome = hot.scan_records(data, begin, len(data), first, _HEADS, check_crc=True)
            refusal, stop = "", begin
            for head in heads:
                refusal = "a topic that is none" if topic_of(head) is None else judge.refusal(head)
                if refusal:
                    break
                if stop + head.size - begin > _BLOCK_BYTES and stop > begin:
                    yield first + begin, data[begin:stop]
                    begin = stop
                stop += head.size
            if stop > begin:
                yield first + begin, data[begin:stop]
            self.end = first + stop
            if outcome == hot.END_BLANK and not refusal:
                return True
            if refusal or outcome != hot.END_CLEAN:
                self.why = refusal or WHY[outcome]
                if self.end >= self._log_end():
                    return False
                # The log's own records lie behind it.
                judge.lost(len(data))
                self._step_over(first, len(data))
                continue
            if stop == len(data):
                return True

    def _log_end(self) -> int:
        """Return where the log ends, as far as can be told from its last files."""
        if self._known_end < 0:
            self._known_end = find_end(find_log_files(self._commit_log), Borders(self._queues)).place
        return self._known_end

    def _step_over(self, first: int, size: int) -> None:
        """Go on with the next whole record behind `end`, in the file of so many bytes that begins at `first`."""
        path = self._commit_log / f"{first:0{NAME_DIGITS}d}"
        place = self.end - first
        with LogBytes(LogFile(first, str(path), size)) as source:
            following = told_end(source, self.end) or first + source.next_record(place + 1, size)
        self.damage.append(Damage(str(path), place, following - self.end, self.why))
        self.end = following

    def _has_unit(self, head: hot.RecordHead) -> bool:
        """Whether a consume queue points at the record: then it is no leftover behind a tail that was cut off."""
        # A damaged or half-written queue is no reason to end: then the record is judged by its store time alone.
        folder = self._queues / head.topic.decode() / str(head.queue_id)
        try:
            file_bytes = next(folder.iterdir()).stat().st_size
            place = head.queue_offset * UNIT_BYTES
            path = folder / f"{place - place % file_bytes:0{NAME_DIGITS}d}"
            with path.open("rb") as file:
                file.seek(place % file_bytes)
                return UNIT.unpack(file.read(UNIT_BYTES))[:2] == (head.log_offset, head.size)
        except (OSError, StopIteration, ZeroDivisionError, ValueError):
            return False


def holds_log(folder: Path) -> bool:
    """Whether the folder is a store's root, or a folder with log files."""
    given = folder / "commitlog" if (folder / "commitlog").is_dir() else folder
    return given != folder or (
        given.is_dir() and any(len(path.name) == NAME_DIGITS and path.name.isdigit() for path in given.iterdir())
    )


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # an empty file cannot be mapped
            return memoryview(b"")


def _expand(message: StoredMessage) -> None:
    with contextlib.suppress(MetaqError):  # one broken body must not end the reading of a whole folder
        message.body = decompress(message.body, message.sys_flag, BODY_BYTES_MAX)
