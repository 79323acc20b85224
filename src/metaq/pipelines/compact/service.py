"""Upkeep of an archive: merges small files, and removes expired dates.

A merge, in steps that may be interrupted anywhere:

    1  link the sources into KEPT/NUMBER/old, merge them into KEPT/NUMBER/new, sync both
    2  save the record as announced: readers by the manifests open the links from now on
    3  after the grace time, when no read planned before step 2 is left: exchange the date's folder for a folder of links to
       the unchanged and the merged files. Readers that list the folder see all old files, or all new ones
    4  save the record as done: readers by the manifests open the merged files
    5  after another grace time, remove KEPT/NUMBER, with the folder that step 3 took out: a reader may have been listing it

After a crash before step 2 the next run removes the unfinished files; after step 2 it continues. An expired date is done at
once for readers by the manifests (step 4), and its files leave the archive after the grace time, as in step 3.

The caller has the archive's lease, and publishes nothing meanwhile.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from metaq.amounts import count, size
from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import sha256_of
from metaq.archive.records import MANIFESTS, ArchivedFile
from metaq.archive.replacements import NEW, OLD, Replacement, ever_replaced, forget, replacements, save
from metaq.clock import SYSTEM, Clock
from metaq.durable import disk_fault, make_folder, sync_folder
from metaq.errors import StoreCorrupt, StoreError, StoreForeign
from metaq.pipelines.compact import merging
from metaq.pipelines.compact.exchange import exchange, try_an_exchange
from metaq.pipelines.compact.options import CompactOptions, UpkeepOptions
from metaq.pipelines.compact.pruning import PublishedBatch, batches_over, records_over
from metaq.pipelines.compact.retention import Dates
from metaq.pipelines.compact.tabling import tables_of
from metaq.pipelines.run import Outcome, Run

_LOG = logging.getLogger(__name__)

_LISTING = "folder"
"""Name, in a replacement's folder, of the folder that is exchanged with the archive's."""
_DAY_MS = 86_400_000
LOOK_SECONDS = 1.0
"""Interval at which a job that waits for the grace time checks for a request to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepStep:
    """A finished step, for progress reports."""

    what: str
    """`merged`: prepared and announced; `replaced`: visible to readers; `expired`: a date; `removed`: its files; `pruned`: its
    manifests."""
    folder: str
    files: int = 0
    """Files that were replaced or removed."""
    into: int = 0
    """Merged files."""
    rows: int = 0
    """Messages in `files`."""
    size: int = 0
    """Bytes of `files`."""

    def __str__(self) -> str:
        text = {
            "merged": f"{count(self.files, 'file')}, {count(self.rows, 'message')}, {size(self.size)} are merged into {self.into}",
            "replaced": f"{self.into} merged files are in the place of {self.files:,}",
            "expired": f"{self.files:,} files, {self.rows:,} messages are no longer part of the archive",
            "removed": f"{self.files:,} files are removed",
            "pruned": f"{self.files:,} manifests of what is no more are removed",
        }[self.what]
        return f"{self.folder}: {text}"


def small_files(files: Iterable[ArchivedFile], compact_files: int, compact_bytes: int) -> dict[str, list[ArchivedFile]]:
    """Return folder → its small files, for folders with more than `compact_files` of them; 0: none. Pure."""
    by_folder: dict[str, list[ArchivedFile]] = defaultdict(list)
    for file in files:
        # Merged files, but the last of a folder, are more than half full (`bins`): they are not merged again.
        if file.size < compact_bytes / 2:
            by_folder[file.path.rpartition("/")[0]].append(file)
    limit = max(1, compact_files)
    return {folder: found for folder, found in sorted(by_folder.items()) if compact_files and len(found) > limit}


def bins(files: Sequence[ArchivedFile], compact_bytes: int) -> list[list[ArchivedFile]]:
    """Group neighbours up to `compact_bytes`. All groups but the last are more than half full. Pure."""
    packed: list[list[ArchivedFile]] = []
    filled = 0
    for file in files:
        if not packed or filled + file.size > compact_bytes:
            packed.append([])
            filled = 0
        packed[-1].append(file)
        filled += file.size
    return packed


class Compactor:
    """One archive's upkeep. Every method is for the thread that publishes."""

    def __init__(
        self, folder: ArchiveFolder, options: UpkeepOptions, compact_files: int, clock: Clock = SYSTEM
    ) -> None:
        """
        Args:
            compact_files: merge folders with more small files than this; 0: none.
            clock: times of grace and retention.
        """
        self._folder, self._options, self._clock = folder, options, clock
        self._compact_files = compact_files
        self._grace_ms = round(options.grace_seconds * 1000)
        self.faults: list[str] = []
        """Failures of the last `look`, a sentence each."""
        self.held = ""
        """Dates that are kept although they are due by the clock, and why; empty: none."""
        self._dates = Dates()
        self._batches: dict[str, PublishedBatch] = {}
        self._files: dict[str, ArchivedFile] = {}
        """Path → file of the archive now: published ones, with finished replacements applied."""
        self._records: dict[int, Replacement] = {}

    def prepare(self) -> None:
        """Check that the file system can exchange folders, and remove unfinished files. Raises ConfigError, StoreCorrupt."""
        make_folder(self._folder.kept)
        self._records = {record.number: record for record in replacements(self._folder)}
        # Of merges that a crash kept from being announced.
        for left in self._folder.kept.iterdir():
            if not left.name.isdigit() or int(left.name) not in self._records:
                _remove(left)
        try_an_exchange(self._folder.kept)
        self._batches, self._files, self._dates = {}, {}, Dates()
        self._catch_up()
        for record in self._records.values():
            self._take(record)

    def _catch_up(self) -> None:
        """Read the manifests published since the last look: to read all each time would be slow in an old archive."""
        for manifest in self._folder.newer(self._batches):
            self._batches[manifest.name] = PublishedBatch.of(manifest)
            self._dates.take(manifest)
            self._files |= {file.path: file for file in manifest.files}

    def _take(self, record: Replacement) -> None:
        self._records[record.number] = record
        if record.done_ms:
            for path in record.replaced:
                self._files.pop(path, None)
            self._files |= {file.path: file for file in record.files}

    def _save(self, record: Replacement) -> None:
        save(self._folder, record)
        self._take(record)

    def look(self) -> Iterator[UpkeepStep]:
        """Do whatever is due, and yield after each step. A caller that stops early leaves the rest for the next call.

        A failure in one folder is logged, noted in `faults`, and delays no other folder. Raises StoreCorrupt: a manifest or
        a record cannot be read.
        """
        self.faults = []
        self._catch_up()
        yield from self._go_on()
        if self._options.keep_days is not None:
            yield from self._expire(self._options.keep_days)
        for folder, files in self._small().items():
            yield from self._guarded(folder, self._merged(folder, files))
        # Without a grace time the remaining steps, 3 to 5, are due at once.
        if not self._grace_ms:
            yield from self._go_on()
            yield from self._go_on()
        yield from self._pruned()

    def close(self) -> None:
        """Remove the folder of kept files if it is empty."""
        with contextlib.suppress(OSError):
            self._folder.kept.rmdir()

    @property
    def due_ms(self) -> int | None:
        """Time, ms since 1970, at which the next announced replacement is due; None: none is waiting."""
        waiting = [self._due(one) for one in self._records.values() if not one.done_ms]
        return min(waiting, default=None)

    # -------------------------------------------------------------- unfinished replacements
    def _go_on(self) -> Iterator[UpkeepStep]:
        now = self._clock.now_ms()
        for record in list(self._records.values()):
            if (right := _set_back(record, now)) is not record:
                yield from self._guarded(record.folder, self._saved_again(right))
        for record in list(self._records.values()):
            home = self._folder.path / record.kept
            if now >= self._due(record) and (not record.swapped_ms or home.exists()):
                yield from self._guarded(record.folder, self._next_of(record, home))

    def _saved_again(self, record: Replacement) -> Iterator[UpkeepStep]:
        self._save(record)
        _LOG.warning(
            "compact: this machine's clock was ahead when it wrote %s: the grace of %s is counted from now", record.name, record.folder
        )  # fmt: skip
        yield from ()

    def _due(self, record: Replacement) -> int:
        return (record.swapped_ms or record.done_ms or record.announced_ms) + self._grace_ms

    def _next_of(self, record: Replacement, home: Path) -> Iterator[UpkeepStep]:
        """Do the next step of a replacement whose grace time is over."""
        if record.swapped_ms:
            _remove(home)
            sync_folder(home.parent)
            return
        if lost := self._lost(record, home):
            forget(self._folder, record)
            del self._records[record.number]
            _LOG.warning("compact: %s is missing: the files in %s stay, and are merged anew", lost, record.folder)
            return
        self._swap(record, home)
        now = self._clock.now_ms()
        # Behind the exchange: after a crash in between the next run finds no old file, and only saves the record.
        self._save(structs.replace(record, done_ms=record.done_ms or now, swapped_ms=now))
        what = "replaced" if record.files else "removed"
        yield UpkeepStep(what=what, folder=record.folder, files=len(record.replaced), into=len(record.files))

    def _lost(self, record: Replacement, home: Path) -> Path | None:
        """Return a merged file that is neither ready nor in place, because somebody removed it; None: all are there."""
        for file in record.files:
            ready = home / NEW / file.path.rpartition("/")[2]
            if not ready.exists() and not (self._folder.path / file.path).exists():
                return ready
        return None

    def _swap(self, record: Replacement, home: Path) -> None:
        """Exchange the archive's folder for one with the new files.

        After a crash between the exchange and its record, no old file is there any more, and there is nothing to exchange.
        """
        place, listing = self._folder.path / record.folder, home / _LISTING
        names = {path.rpartition("/")[2] for path in record.replaced}
        there = _names(place)
        if there & names:
            self._exchange(record, place, listing, there, names)
        # Also where a run was killed between the exchange and its syncs.
        sync_folder(place.parent if place.parent.is_dir() else self._folder.path)
        _rescue(listing, place, names)
        if place.is_dir() and not _names(place):
            # Another process may have put a file there meanwhile.
            with contextlib.suppress(OSError):
                place.rmdir()
                place.parent.rmdir()

    def _exchange(self, record: Replacement, place: Path, listing: Path, there: set[str], names: set[str]) -> None:
        if foreign := [name for name in there if not _is_file(place / name)]:
            raise StoreForeign(f"{place} has {foreign[0]} in it, which is no file: it is left as it is")
        _remove(listing)
        listing.mkdir(parents=True)
        for name in there - names:
            os.link(place / name, listing / name, follow_symlinks=False)
        for file in record.files:
            name = file.path.rpartition("/")[2]
            if name not in there:
                os.link(listing.parent / NEW / name, listing / name)
        # It takes the place of the archive's folder, and with that its rights.
        shutil.copymode(place, listing)
        # Its links are durable before the exchange: a power cut must not leave an empty folder in the archive.
        sync_folder(listing)
        sync_folder(listing.parent)
        exchange(place, listing)
        sync_folder(place.parent)
        sync_folder(listing.parent)

    # -------------------------------------------------------------- expired dates
    def _pruned(self) -> Iterator[UpkeepStep]:
        """Remove manifests and records without files. Their links are removed, so the grace time has passed twice."""
        kept = self._folder.path
        finished = [
            record for record in self._records.values() if record.swapped_ms and not (kept / record.kept).exists()
        ]
        names = batches_over(self._batches, finished, lambda path: (kept / path).exists())
        for name in names:
            (kept / MANIFESTS / name).unlink(missing_ok=True)
            del self._batches[name]
        if names:
            # Else one could be back after a power cut, with its record removed below.
            sync_folder(kept / MANIFESTS)
            yield UpkeepStep(what="pruned", folder=MANIFESTS, files=len(names))
        for record in records_over(self._records.values(), finished, self._batches.values()):
            forget(self._folder, record)
            del self._records[record.number]

    def _expire(self, keep_days: int) -> Iterator[UpkeepStep]:
        bound = self._dates.bound(self._clock.now_ms(), keep_days, trust_clock=self._options.trust_clock)
        if (held := bound.held(self._files.values())) != self.held:
            self.held = held
            if held:
                _LOG.warning("compact: %s", held)
        waiting = {record.folder for record in self._records.values() if not record.done_ms}
        by_folder: dict[str, list[ArchivedFile]] = defaultdict(list)
        for file in bound.over(self._files.values()):
            by_folder[file.path.rpartition("/")[0]].append(file)
        for folder, files in sorted(by_folder.items()):
            if folder in waiting:
                continue  # It is being merged, and expires when that is done.
            number = self._number()
            make_folder(self._folder.kept / f"{number:010d}")
            now = self._clock.now_ms()
            self._save(
                Replacement(
                    number=number, folder=folder, replaced=[file.path for file in files], files=[],
                    kept=self._kept(number), announced_ms=now, done_ms=now,
                )
            )  # fmt: skip
            yield UpkeepStep(
                what="expired", folder=folder, files=len(files), rows=sum(file.rows for file in files),
                size=sum(file.size for file in files),
            )  # fmt: skip

    # -------------------------------------------------------------- merging
    def _small(self) -> dict[str, list[ArchivedFile]]:
        if not self._compact_files:
            return {}
        # A folder with an announced merge is left alone until that is done.
        waiting = {record.folder for record in self._records.values() if not record.done_ms}
        files = [file for file in self._files.values() if file.path.rpartition("/")[0] not in waiting]
        return small_files(files, self._compact_files, self._options.compact_bytes)

    def _merged(self, folder: str, files: list[ArchivedFile]) -> Iterator[UpkeepStep]:
        """Merge a folder's small files, those of one schema with each other, and announce the replacement."""
        keys = {file.path: merging.first_key(self._folder.path / file.path) for file in files}
        # By their first rows: merged files then hold adjoining offsets.
        ordered = sorted(files, key=lambda file: keys[file.path] or ("", 0, 0))
        by_schema: list[tuple[Any, list[ArchivedFile]]] = []
        for file in ordered:
            schema = merging.schema_of(self._folder.path / file.path)
            mine = next((found for known, found in by_schema if known.equals(schema)), None)
            if mine is None:
                by_schema.append((schema, [file]))
            else:
                mine.append(file)
        # A file that is alone in its group stays as it is.
        groups = [group for _, mine in by_schema for group in bins(mine, self._options.compact_bytes) if len(group) > 1]
        if not groups:
            return
        number = self._number()
        home = self._folder.kept / f"{number:010d}"
        make_folder(home / OLD)
        make_folder(home / NEW)
        made: list[ArchivedFile] = []
        try:
            for file in (one for group in groups for one in group):
                # Links hold the bytes for readers of before, whatever becomes of their names in the archive.
                os.link(self._folder.path / file.path, home / OLD / file.path.rpartition("/")[2])
            for group in groups:
                made.append(self._merge(group, f"{folder}/merged-{number:010d}-{len(made):04d}.parquet", home))
            for place in (home / OLD, home / NEW, home):
                sync_folder(place)
        except BaseException:
            _remove(home)
            raise
        replaced = [file for group in groups for file in group]
        self._save(
            Replacement(
                number=number, folder=folder, replaced=[file.path for file in replaced], files=made,
                kept=self._kept(number), announced_ms=self._clock.now_ms(),
            )
        )  # fmt: skip
        yield UpkeepStep(
            what="merged", folder=folder, files=len(replaced), into=len(made), rows=sum(file.rows for file in made),
            size=sum(file.size for file in replaced),
        )  # fmt: skip

    def _merge(self, group: list[ArchivedFile], path: str, home: Path) -> ArchivedFile:
        target = home / NEW / path.rpartition("/")[2]
        rows = merging.merge([self._folder.path / file.path for file in group], target)
        expected = sum(file.rows for file in group)
        # Before it is announced: a merge that lost rows never takes the place of its sources.
        if rows != expected:
            raise StoreCorrupt(
                f"{len(group)} files in {path.rpartition('/')[0]} hold {rows} messages, and their manifests say {expected}: "
                "they stay as they are"
            )
        return structs.replace(
            group[0], path=path, staged=self._folder.relative(target), rows=rows, size=target.stat().st_size,
            sha256=sha256_of(target),
        )  # fmt: skip

    def _number(self) -> int:
        return 1 + max(self._records, default=0)

    def _kept(self, number: int) -> str:
        return self._folder.relative(self._folder.kept / f"{number:010d}")

    def _guarded(self, folder: str, steps: Iterator[UpkeepStep]) -> Iterator[UpkeepStep]:
        try:
            yield from steps
        except (StoreError, OSError) as fault:
            ours = (
                fault if isinstance(fault, StoreError) else disk_fault(fault, f"the files in {folder} stay as they are")
            )
            _LOG.warning("compact: %s", ours)
            self.faults.append(str(ours))


def _set_back(record: Replacement, now_ms: int) -> Replacement:
    """Return the record with no time in the future: a grace time that a clock ahead began would end in years. Pure."""
    if max(record.announced_ms, record.done_ms, record.swapped_ms) <= now_ms:
        return record
    return structs.replace(
        record, announced_ms=min(record.announced_ms, now_ms), done_ms=min(record.done_ms, now_ms),
        swapped_ms=min(record.swapped_ms, now_ms),
    )  # fmt: skip


def start(_spark: Any, options: CompactOptions, run: Run) -> Outcome:
    """Run the pipeline `compact`, which needs no Spark. Raises ConfigError, StoreCorrupt."""
    return compact(options, run, SYSTEM)


def compact(options: CompactOptions, run: Run, clock: Clock) -> Outcome:
    """Run the pipeline with a clock. Raises ConfigError, StoreCorrupt."""
    folder = ArchiveFolder(options.place, options.staging)
    newest = folder.last()
    if newest is not None:
        # Of a batch whose files a killed run of `archive` had not renamed yet.
        folder.finish(newest, lambda: ever_replaced(folder))
    compactor = Compactor(folder, options, options.compact_files, clock)
    compactor.prepare()
    tables = tables_of(folder, None, options.grace_seconds, clock)
    if tables is not None:
        run.at_end(tables.close)
        tables.align()
    figures = dict.fromkeys(("merged", "replaced", "expired", "removed", "pruned"), 0)
    faults: list[str] = []
    while True:
        for step in compactor.look():
            if tables is not None:
                tables.align(changed_only=True)
            figures[step.what] += step.files
            run.tell(str(step), what=step.what, folder=step.folder, files=step.files, rows=step.rows, size=step.size)
            if run.stopping:
                break
        faults = compactor.faults
        due = compactor.due_ms
        if due is None or not options.wait or run.stopping or faults:
            break
        while not run.stopping and (left := due - clock.now_ms()) > 0:
            run.wait(min(LOOK_SECONDS, left / 1000))
    compactor.close()
    lines = [] if any(figures.values()) else ["nothing to do"]
    if due is not None:
        when = dt.datetime.fromtimestamp(due / 1000, dt.UTC).isoformat(sep=" ", timespec="seconds")
        lines.append(f"merged files wait for readers of before: a run after {when} puts them in their place")
    lines += [compactor.held] if compactor.held else []
    lines += [f"not done: {fault}" for fault in faults]
    return Outcome(
        figures | {"waiting_until_ms": due, "faults": faults, "held": compactor.held},
        "\n".join(lines),
        1 if faults else 0,
    )


def _rescue(listing: Path, place: Path, replaced: set[str]) -> None:
    """Move files back that another process put into the old folder while its links were made."""
    if place.is_dir():
        for late in _names(listing) - replaced - _names(place):
            (listing / late).rename(place / late)


def _names(place: Path) -> set[str]:
    return {entry.name for entry in place.iterdir()} if place.is_dir() else set()


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
