"""Copies a store's folder, also of a running broker: the copy is what a kill at the end of the copying would have left.

Everything in a folder follows its log: tables, hints and derived files may be older than the log, and never newer. So closed
log files are copied first, which takes longest and changes nothing; then the small files, `metaqTails.json` before all, so that what
it promises is in the files copied after it; then consume queues, index and positions; then the rest of the log up to where it ends by then.
Tables of topics come last: a message must not be of a topic that the copy does not know.

All is copied to `TARGET.copying`, which gets its name when it is whole and durable.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from metaq.errors import ConfigError, MetaqError, StoreCorrupt, StoreError, StoreForeign, StoreFull
from metaq.options import StoreOptions
from metaq.store.disk import NO_ROOM, Disk
from metaq.store.folder import HALF_COPY, StoreFolder
from metaq.store.log.log_bytes import LogFile
from metaq.store.log.sums import SUMS, SumsFolder
from metaq.store.mapped_file import TEMPORARY, any_byte
from metaq.store.offline.log_pieces import Borders, find_end, find_log_files
from metaq.store.upkeep.check_tables import Unsynced, read_table
from metaq.store.upkeep.findings import Progress, silent
from metaq.wire.files import DELETED_TOPICS, GENERATIONS, GROUPS, LEADERSHIP, MEMBERSHIP_NAME, TOPICS, NamedConfigs

log = logging.getLogger(__name__)
COPYING: Final = ".copying"
"""What the name of a copy ends with that is not whole."""
_STEP: Final = 1024 * 1024
_LAST: Final = (TOPICS.name, GROUPS.name, DELETED_TOPICS.name, GENERATIONS.name)
_TRIES: Final = 20
_FIRST: Final = ("metaqStore.json", "metaqTails.json", "metaqTails.json.bak")
_SKIPPED: Final = frozenset(
    {"lock", "abort", "checkpoint", "commitlog", "consumequeue", "index", "positions", "config", SUMS, "namesrv"}
)


class FolderCopy(Struct):
    """What a copy holds."""

    target: str
    log_begin: int
    log_end: int
    """LogOffset: everything below is in the copy."""
    bytes: int
    """Read and written, without holes."""
    left_out: list[str]
    """Names in the store's folder that are no part of the store, or only kept aside."""


class _Mark(Struct):
    """Content of `copying.json`: what a further run may rely on."""

    source: str
    changed: int
    """`SumsFolder.changed` of the source when the copy was begun."""
    cuts: str
    """What the source's `metaqLeadership.json` says; a cut of the log changes it."""
    whole: list[int] = field(default_factory=list)
    """Closed log files that are copied and durable."""
    v: int = 1


def copy(root: Path | str, target: Path | str, *, progress: Progress = silent, disk: Disk | None = None) -> FolderCopy:
    """Copy a store's folder. Goes on with a copy that was interrupted.

    Args: progress: told of bytes.

    Raises:
        StoreForeign: there is no commit log, or the target is something else; nothing was written.
        StoreFull: no room; StoreError: another error of a disk. What was copied stays in `TARGET.copying`.
        StoreCorrupt: the log was cut or repaired meanwhile, or a table does not fit its journals: copy again.
    """
    one = _Copy(Path(root).expanduser(), Path(target).expanduser(), progress, disk or Disk())
    try:
        return one.run()
    except OSError as error:
        raise one.failure(error) from error


class _Copy:
    def __init__(self, root: Path, target: Path, progress: Progress, disk: Disk) -> None:
        self._source = StoreFolder(StoreOptions(store_path_root_dir=str(root)), disk)
        self._root, self._target, self._disk, self._progress = root, target, disk, progress
        self._making = target.with_name(target.name + COPYING)
        self._done = self._of = 0
        self._mark = _Mark("", 0, "")

    def failure(self, error: OSError) -> StoreError:
        """Say what an error of the disk means for the copy."""
        where = f"{error.filename or self._making}: {os.strerror(error.errno or 0)}"
        left = f"what was copied stays in {self._making}; run the command again to go on with it, or delete it"
        if error.errno in NO_ROOM:
            return StoreFull(
                f"the copy has no room ({where}) after {self._done} of {self._of} bytes: {self._target} is not there; {left}"
            )
        return StoreError(f"the copy failed ({where}): {self._target} is not there; {left}")

    def run(self) -> FolderCopy:
        """Copy."""
        files = self._refused()
        self._begin()
        changed, cuts = self._state()
        if (self._mark.changed, self._mark.cuts) != (changed, cuts):
            raise StoreCorrupt(
                f"the log of {self._root} was cut or repaired since {self._making} was begun: delete that, and copy again"
            )
        end = find_end(files, Borders(self._source.consume_queues)).place
        for file in files:
            if file.end <= end:
                self._copy_closed(file)
        self._copy_config(_FIRST)
        # In a group with failover the copy is another broker than the one that was in sync: it may be behind that one.
        names = [path.name for path in self._entries("config") if path.name not in _FIRST]
        names = [name for name in names if not name.startswith(MEMBERSHIP_NAME)]
        self._copy_config([name for name in names if not name.startswith(_LAST)])
        self._copy_whole(self._source.checkpoint)
        for part in ("consumequeue", "index", "positions", "namesrv"):
            self._copy_folder(self._root / part)
        begin, end = self._copy_rest()
        self._copy_folder(self._root / SUMS, log_below=end)
        self._copy_tables()
        if self._state() != (changed, cuts):
            raise StoreCorrupt(
                f"the log of {self._root} was cut or repaired while it was copied: delete {self._making}, and copy again"
            )
        self._finish()
        left_out = sorted(path.name for path in self._root.iterdir() if path.name not in _SKIPPED)
        return FolderCopy(str(self._target), begin, end, self._done, left_out)

    # ------------------------------------------------------------------ begin and end

    def _refused(self) -> list[LogFile]:
        """Refuse what cannot be copied, before anything is written. Returns the log's files."""
        if not self._source.commit_log.is_dir():
            raise StoreForeign(f"{self._root} holds no commit log: name a store's folder")
        self._source.refuse_later()
        target = self._target
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise StoreForeign(f"{target} is there already, and not an empty folder: name another target")
        if target.resolve().is_relative_to(self._root.resolve()):
            raise StoreForeign(f"{target} is inside of {self._root}: name a target outside")
        return find_log_files(self._source.commit_log)

    def _begin(self) -> None:
        self._of = sum(_used(path) for path in self._all_files())
        mark = self._making / HALF_COPY
        source = str(self._root.resolve())
        if mark.exists():
            try:
                self._mark = msgspec.json.decode(mark.read_bytes(), type=_Mark)
            except (msgspec.DecodeError, UnicodeError) as error:
                raise StoreForeign(f"{mark} cannot be read ({error}): delete {self._making}") from None
            if self._mark.source != source:
                raise StoreForeign(
                    f"{self._making} is a half copy of {self._mark.source}: delete it, or name another target"
                )
            self._done = sum(_used(self._making / "commitlog" / f"{start:020d}") for start in self._mark.whole)
        elif self._making.exists():
            raise StoreForeign(f"{self._making} is no copy of ours: delete it, or name another target")
        else:
            self._disk.make_folder(self._making)
            changed, cuts = self._state()
            self._mark = _Mark(source, changed, cuts)
            self._save_mark()
        facts = os.statvfs(self._making)
        if (free := facts.f_bavail * facts.f_frsize) < self._of - self._done:
            raise StoreFull(
                f"the copy needs {self._of - self._done} bytes, and {free} are free at {self._target}: nothing was copied; free some space"
            )

    def _state(self) -> tuple[int, str]:
        """Return what changes when the log is cut or repaired."""
        try:
            text = (self._source.config / LEADERSHIP.name).read_text(encoding="utf-8")
            cuts = str(LEADERSHIP.parse(text).cuts)
        except (OSError, UnicodeDecodeError, MetaqError):
            cuts = ""
        return SumsFolder(self._root, self._disk).changed(), cuts

    def _save_mark(self) -> None:
        path = self._making / HALF_COPY
        making = path.with_name(HALF_COPY + TEMPORARY)
        self._write(making, msgspec.json.encode(self._mark))
        making.replace(path)
        self._disk.sync_folder(self._making)

    def _finish(self) -> None:
        """Make the copy durable, and give it its name."""
        self._write(self._making / "abort", b"")  # the broker that opens it looks at it as at one that was killed
        (self._making / HALF_COPY).unlink()
        for folder in [*(path for path in self._making.rglob("*") if path.is_dir()), self._making]:
            self._disk.sync_folder(folder)
        self._making.replace(self._target)
        self._disk.sync_folder(self._target.absolute().parent)

    # ------------------------------------------------------------------ the log

    def _copy_closed(self, file: LogFile) -> None:
        """Copy a log file that is full. It is not copied again by a further run."""
        if file.start in self._mark.whole:
            return
        try:
            self._copy_file(Path(file.path))
        except FileNotFoundError:  # retention took it
            return
        self._disk.sync_folder(self._making / "commitlog")
        self._mark.whole.append(file.start)
        self._save_mark()

    def _copy_rest(self) -> tuple[int, int]:
        """Copy the log from where it was closed to where it ends now. Returns the LogOffsets where the copy's begins and ends."""
        files = find_log_files(self._source.commit_log)
        end = find_end(files, Borders(self._source.consume_queues)).place
        for file in files:
            if file.start in self._mark.whole:
                continue
            if file.start < end or file is files[0]:
                self._copy_file(Path(file.path), stop=max(0, min(file.size, end - file.start)), reserve=file.end > end)
        begin = files[0].start if files else 0
        folder = self._making / "commitlog"
        for start in sorted(self._mark.whole):
            if start < begin:  # retention has taken it meanwhile, and the units of its messages with it
                (folder / f"{start:020d}").unlink(missing_ok=True)
        found = find_log_files(folder) if folder.is_dir() else []
        for before, behind in itertools.pairwise(found):
            if before.end != behind.start:
                raise StoreCorrupt(
                    f"{behind.path} does not follow {before.path}: the log has gone on too fast; copy again"
                )
        return begin, end

    # ------------------------------------------------------------------ small files

    def _copy_config(self, names: Iterator[str] | tuple[str, ...] | list[str]) -> None:
        for name in names:
            if not name.endswith(TEMPORARY):
                self._copy_whole(self._source.config / name)

    def _copy_tables(self) -> None:
        """Copy the tables of topics and groups with their journals, as they are at one moment."""
        form_files: list[tuple[NamedConfigs[Any], Path]] = [
            (form, self._making / "config" / form.name) for form in (TOPICS, GROUPS)
        ]
        for _ in range(_TRIES):
            for path in (self._making / "config").glob("*.journal.*"):
                path.unlink()
            # The journals last: a fold in between writes the file first, and deletes them then.
            paths = sorted(self._entries("config"), key=lambda path: ".journal." in path.name)
            self._copy_config([path.name for path in paths if path.name.startswith(_LAST)])
            try:
                for form, path in form_files:
                    read_table(Unsynced(path), form)
            except ConfigError as error:
                fault = error
                continue
            return
        raise StoreCorrupt(f"the tables of {self._root} do not fit their journals: {fault}")

    def _entries(self, part: str) -> list[Path]:
        folder = self._root / part
        return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []

    def _copy_whole(self, path: Path) -> None:
        """Copy a small file, read in one go."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        to = self._making / path.relative_to(self._root)
        self._disk.make_folder(to.parent)
        self._write(to, data)
        self._done += len(data)

    def _copy_folder(self, folder: Path, log_below: int | None = None) -> None:
        """Copy a folder of derived files. What retention and deletions take meanwhile is left out."""
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            aside = ".deleted-" in str(path.relative_to(folder))
            if aside or path.name.endswith(TEMPORARY) or not path.is_file():
                continue
            if log_below is not None and not (path.name.isdecimal() and int(path.name) in self._mark.whole):
                continue
            try:
                self._copy_file(path, reserve=folder.name == "index")
            except FileNotFoundError:
                (self._making / path.relative_to(self._root)).unlink(missing_ok=True)

    # ------------------------------------------------------------------ bytes

    def _write(self, path: Path, data: bytes) -> None:
        descriptor = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write_all(descriptor, data, 0)
            self._disk.sync_file(descriptor)
        finally:
            os.close(descriptor)

    def _copy_file(self, path: Path, stop: int | None = None, *, reserve: bool = False) -> None:
        """Copy what was written of a file, up to byte `stop`; the rest of its size is a hole.

        Args: reserve: as many blocks from its begin on as the file has, which a broker relies on when it writes to the mapped file.
        """
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            facts = os.fstat(source)
            to = self._making / path.relative_to(self._root)
            self._disk.make_folder(to.parent)
            target = self._disk.open(to, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                if reserve and facts.st_blocks:
                    self._disk.reserve(target, 0, min(facts.st_size, facts.st_blocks * 512))
                os.ftruncate(target, facts.st_size)
                self._copy_bytes(source, target, facts.st_size if stop is None else stop)
                self._disk.sync_file(target)
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _copy_bytes(self, source: int, target: int, stop: int) -> None:
        for start, end in _data(source, stop):
            for place in range(start, end, _STEP):
                data = os.pread(source, min(_STEP, end - place), place)
                if any_byte(data):
                    _write_all(target, data, place)
                self._done += len(data)
                self._progress(min(self._done, self._of), self._of)

    def _all_files(self) -> Iterator[Path]:
        for part in ("commitlog", "consumequeue", "index", "positions", "config", SUMS, "namesrv"):
            folder = self._root / part
            yield from (path for path in folder.rglob("*") if folder.is_dir() and path.is_file())


def _used(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _write_all(descriptor: int, data: bytes, place: int) -> None:
    done = 0
    while done < len(data):
        written = os.pwrite(descriptor, memoryview(data)[done:], place + done)
        if written <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += written


def _data(descriptor: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file before `stop` that were ever written, as far as the file system knows."""
    place = 0
    while place < stop:
        try:
            start = os.lseek(descriptor, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            yield place, stop
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        if start < stop:
            yield start, min(end, stop)
        place = end
