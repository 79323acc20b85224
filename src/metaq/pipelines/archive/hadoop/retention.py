"""Retention of an archive on a Hadoop file system: removes expired dates.

A record declares a date's files expired; it is created only if there is none, like a manifest, and never changed. Any run that
looks after the grace time removes the files: that may be repeated, and done by two runs at a time.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from metaq.archive.records import ArchivedFile
from metaq.archive.replacements import REPLACEMENTS, Replacement, replacements
from metaq.clock import SYSTEM, Clock
from metaq.durable import disk_fault
from metaq.pipelines.archive.hadoop.folder import HadoopFolder
from metaq.pipelines.compact.options import UpkeepOptions
from metaq.pipelines.compact.retention import Dates
from metaq.pipelines.compact.service import UpkeepStep

_LOG = logging.getLogger(__name__)


class HadoopRetention:
    """Retention of one archive. Every method is for the thread that publishes."""

    def __init__(self, folder: HadoopFolder, options: UpkeepOptions, clock: Clock = SYSTEM) -> None:
        self._folder, self._clock = folder, clock
        self._keep_days, self._grace_ms = options.keep_days, round(options.grace_seconds * 1000)
        self._trust_clock = options.trust_clock
        self.held = ""
        """Dates that are kept although they are due by the clock, and why; empty: none."""
        self._dates = Dates()
        self._since: dict[int, int] = {}
        """Record → start of its grace time, ms."""
        self._batches: set[str] = set()
        self._files: dict[str, ArchivedFile] = {}
        self._records: dict[int, Replacement] = {}
        self._removed: set[int] = set()
        """Records whose files are removed."""

    def prepare(self) -> None:
        """Read the records of earlier runs. Raises StoreCorrupt."""
        self._batches, self._files, self._removed, self._dates = set(), {}, set(), Dates()
        self._records = {record.number: record for record in replacements(self._folder)}

    def look(self) -> Iterator[UpkeepStep]:
        """Expire and remove what is due. A fault of the file system is logged, and retried next time. Raises StoreCorrupt."""
        try:
            yield from self._expire()
            yield from self._remove()
        except OSError as fault:
            _LOG.warning("archive: %s", disk_fault(fault, "old dates stay for now"))

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _expire(self) -> Iterator[UpkeepStep]:
        if self._keep_days is None:
            return
        for manifest in self._folder.newer(self._batches):
            self._batches.add(manifest.name)
            self._dates.take(manifest)
            self._files |= {file.path: file for file in manifest.files}
        for record in self._records.values():
            for path in record.replaced:
                self._files.pop(path, None)
        bound = self._dates.bound(self._clock.now_ms(), self._keep_days, trust_clock=self._trust_clock)
        if (held := bound.held(self._files.values())) != self.held:
            self.held = held
            if held:
                _LOG.warning("archive: %s", held)
        old: dict[str, list[ArchivedFile]] = defaultdict(list)
        for file in bound.over(self._files.values()):
            old[file.path.rpartition("/")[0]].append(file)
        for folder, files in sorted(old.items()):
            self._record(folder, [file.path for file in files])
            yield UpkeepStep(
                what="expired", folder=folder, files=len(files), rows=sum(file.rows for file in files),
                size=sum(file.size for file in files),
            )  # fmt: skip

    def _record(self, folder: str, paths: list[str]) -> None:
        now = self._clock.now_ms()
        self._folder.files.make_folder(REPLACEMENTS)
        while True:
            record = Replacement(
                number=1 + max(self._records, default=0), folder=folder, replaced=paths, files=[], kept="", announced_ms=now,
                done_ms=now,
            )  # fmt: skip
            try:
                self._folder.files.create(f"{REPLACEMENTS}/{record.name}", msgspec.json.encode(record))
            except FileExistsError:  # A record of a run that was taken for dead: take the next number.
                self._records |= {one.number: one for one in replacements(self._folder)}
                continue
            self._records[record.number] = record
            return

    def _remove(self) -> Iterator[UpkeepStep]:
        now = self._clock.now_ms()
        for record in list(self._records.values()):
            # If the clock was ahead when the record was made and is right now, the grace time begins now.
            self._since[record.number] = min(self._since.get(record.number, record.done_ms), now)
            if record.number in self._removed or now < self._since[record.number] + self._grace_ms:
                continue
            there = {f"{record.folder}/{entry.name}" for entry in self._folder.files.entries(record.folder)}
            left = there.intersection(record.replaced)
            for path in sorted(left):
                self._folder.files.remove(path)
            if left:
                self._folder.remove_empty(record.folder)
            self._removed.add(record.number)
            if left:
                yield UpkeepStep(what="removed", folder=record.folder, files=len(left))
