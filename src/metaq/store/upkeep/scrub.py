"""Looks for flipped bits in closed log files, by checksums that are kept beside them: also where no record's checksum looks."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from metaq.errors import StoreCorrupt, StoreForeign
from metaq.options import StoreOptions
from metaq.store.checkpoint import Tails
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder, is_open
from metaq.store.log.log_bytes import LogBytes, LogFile
from metaq.store.log.sums import RANGE_BYTES, Sums, SumsFolder
from metaq.store.offline.damage import Damage
from metaq.store.offline.log_pieces import Borders, LogPiece, find_end, find_log_files, read_piece
from metaq.store.upkeep.findings import Findings, Kind, Progress, silent

_UNREADABLE: Final = -1


def scrub(root: Path | str, *, progress: Progress = silent, disk: Disk | None = None) -> Findings:
    """Compare closed log files with their checksums; make those that are missing, of files whose records are whole.

    Also while a broker runs on the folder. It writes into the folder `sums` alone.

    Raises: StoreForeign: there is no commit log, or a later release has written the checksums. OSError: some could not be written.
    """
    folder = StoreFolder(StoreOptions(store_path_root_dir=str(root)))
    if not folder.commit_log.is_dir():
        raise StoreForeign(f"{folder.root} holds no commit log: name a store's folder")
    folder.refuse_later()
    running = is_open(folder.root)
    findings = Findings(str(folder.root), running, in_order=not running and folder.was_clean)
    tails, files = Tails.load(folder.tails), find_log_files(folder.commit_log)
    end = find_end(files, Borders(folder.consume_queues)).place
    if tails is not None and running:
        end = min(end, tails.log_end)
    closed = [file for file in files if file.end <= end]
    findings.log_begin, findings.log_end = (
        (files[0].start, closed[-1].end if closed else files[0].start) if files else (0, 0)
    )
    findings.durable_end = findings.log_end
    Scrub(SumsFolder(folder.root, disk or Disk()), findings, progress).run(closed)
    return findings


class Scrub:
    """One look at the closed files of a log."""

    def __init__(self, folder: SumsFolder, findings: Findings, progress: Progress) -> None:
        self._folder, self._findings, self._progress = folder, findings, progress
        self._ranges = findings.kind("ranges of 1 MiB", "ranges")
        self._records = findings.kind("records of files without checksums", "records")
        self._files = findings.kind("checksums", "files")
        self._done = self._of = 0

    def run(self, closed: list[LogFile]) -> None:
        """Look at these files. Raises StoreForeign, OSError."""
        self._of = sum(file.size for file in closed)
        made = 0
        for file in closed:
            sums = self._load(file)
            try:
                if sums is not None:
                    self._compare(file, sums)
                else:
                    made += self._make(file)
            except FileNotFoundError:
                self._findings.notes.append(f"{file.path} was deleted meanwhile")
            self._done += file.size
            self._progress(self._done, self._of)
        if made:
            self._findings.notes.append(f"checksums made of {made} {'file' if made == 1 else 'files'} that had none")

    def _load(self, file: LogFile) -> Sums | None:
        path = self._folder.path(file.start)
        try:
            sums = self._folder.load(file.start)
        except StoreCorrupt as error:
            self._files.add(path, 0, 0, f"{error}: made anew if the records of its log file are whole")
            return None
        if sums is None:
            return None
        self._files.checked += 1
        if (sums.start, sums.size) != (file.start, file.size):
            self._files.add(
                path, 8, 16, f"it is of {sums.size} bytes from log offset {sums.start} on, not of {file.path}"
            )
            return None
        return sums

    def _compare(self, file: LogFile, sums: Sums) -> None:
        for number, found in enumerate(self._sums_of(file, sums.range_bytes)):
            self._ranges.checked += 1
            place = number * sums.range_bytes
            if found != sums.sums[number] and self._differs_still(file, place):
                size = min(sums.range_bytes, file.size - place)
                self._ranges.add(file.path, place, size, self._why(file, place, size, found))

    def _differs_still(self, file: LogFile, place: int) -> bool:
        """Whether a range differs from the checksums that there are now: a broker may have repaired it meanwhile."""
        try:
            sums = self._folder.load(file.start)
        except (StoreCorrupt, StoreForeign):
            return True
        return sums is not None and self._sum(file, place, sums.range_bytes) != sums.sums[place // sums.range_bytes]

    def _why(self, file: LogFile, place: int, size: int, found: int) -> str:
        """Say where in a range the damage is, as far as the records tell."""
        if found == _UNREADABLE:
            return "the disk cannot read it"
        start = file.start + place
        border = self._border(file, start)
        for one in read_piece(LogPiece(file, border, start + size, border)):
            if isinstance(one, Damage):
                return f"it does not fit its checksum: {one.why} at byte {one.place}"
        return "it does not fit its checksum, and its records' bodies fit theirs: properties or fields are damaged"

    def _border(self, file: LogFile, start: int) -> int:
        """Return where the last record begins that begins at or before a LogOffset; the file's begin if damage hides it."""
        border = file.start
        with LogBytes(file) as source:
            while border < start:
                _, rows, size, _ = source.run(border - file.start, file.size, start - file.start, check_crc=False)
                if not rows:
                    break
                if border + size > start:
                    return border
                border += size
        return border

    def _sums_of(self, file: LogFile, range_bytes: int) -> Iterator[int]:
        for place in range(0, file.size, range_bytes):
            yield self._sum(file, place, range_bytes)
            self._progress(self._done + min(file.size, place + range_bytes), self._of)

    def _sum(self, file: LogFile, place: int, range_bytes: int) -> int:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return zlib.crc32(os.pread(descriptor, min(range_bytes, file.size - place), place))
        except OSError:
            return _UNREADABLE
        finally:
            os.close(descriptor)

    def _make(self, file: LogFile) -> int:
        """Make the checksums of a file whose records are whole. Returns how many files of them were made."""
        changed = self._folder.changed()
        sums = tuple(self._sums_of(file, RANGE_BYTES))
        if _is_damaged(file, self._records):
            return 0
        if _UNREADABLE in sums:
            self._records.add(file.path, sums.index(_UNREADABLE) * RANGE_BYTES, RANGE_BYTES, "the disk cannot read it")
            return 0
        self._folder.save(Sums(file.start, file.size, RANGE_BYTES, sums))
        if self._folder.changed() != changed:  # a broker has repaired something: these may be of what was there before
            self._folder.drop(file.start, file.start + 1)
            return 0
        return 1


def _is_damaged(file: LogFile, kind: Kind) -> bool:
    """Hold a file's records against their own checksums: what is damaged already must not count as right."""
    before = kind.damaged
    for found in read_piece(LogPiece(file, file.start, file.end, file.start)):
        if isinstance(found, Damage):
            kind.add(found.path, found.place, found.size, found.why)
        else:
            kind.checked += found.rows
    return kind.damaged > before
