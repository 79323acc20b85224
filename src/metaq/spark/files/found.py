"""Search for readable files below a path: brokers' commit logs, data files of MetaQ 1.x, archives of the pipeline."""

from __future__ import annotations

import logging
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import MANIFESTS, ArchivedFile
from metaq.archive.replacements import place, view
from metaq.errors import ConfigError, StoreForeign
from metaq.store.offline.damage import Damage
from metaq.store.offline.log_pieces import (
    Borders,
    LogFile,
    find_end,
    find_log_files,
    hidden_below,
    is_log_name,
    may_begin,
)
from metaq.store.offline.segments import Segment, find_segments, is_zip_fault
from metaq.wire.metaq1.frame import LIVE

_LOG = logging.getLogger(__name__)

_DEPTH_MAX: Final = 6
_NOT_LOOKED_INTO: Final = frozenset(
    {
        "commitlog", "consumequeue", "consumequeue_ext", "index", "config", "positions", "transactions",
        "timerlog", "compactionLog", "compactionCq",
    }
)  # fmt: skip
"""Folders of a store that are skipped: they have no commit log or data files. The last three are RocketMQ 5's."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]+):", re.IGNORECASE)
_PREFERRED: Final = (".meta", ".meta.arc", ".arc", ".meta.zip", ".zip")
"""Endings of MetaQ 1.x data files; of several copies of a segment the one with the first ending is read."""


class FoundLog(Struct, frozen=True):
    """A commit log."""

    folder: Path
    files: list[LogFile]
    """Files to read, in order."""
    end: int
    """Log offset after its last whole record."""
    borders: Borders
    """Record boundaries, from the consume queues."""
    hidden: dict[str, int]
    """Topic → log offset below which its records are deleted."""


class FoundSegment(Struct, frozen=True):
    """One data file of MetaQ 1.x."""

    segment: Segment
    stop: int
    """Position up to which it is read, bytes in the partition."""
    last: bool
    """Whether a running server may be writing it."""

    @property
    def bytes(self) -> int:
        return max(0, self.stop - self.segment.start)


class FoundArchived(Struct, frozen=True):
    """A Parquet file that the archive has published."""

    path: Path
    file: ArchivedFile


FoundFile = FoundLog | FoundSegment | FoundArchived | Damage


def find(paths: Sequence[str]) -> list[FoundFile]:
    """Find the files below the paths, each once.

    Raises: ConfigError: a path that is not there, or is not of this machine. StoreForeign: nothing that can be read is below
        one.
    """
    seen: set[Path] = set()
    found: list[FoundFile] = []
    for text in paths:
        for path in _expanded(text):
            below = list(_look(path, _DEPTH_MAX, seen, {path.resolve()}))
            real = path.resolve()
            # A path below one that was named before holds nothing more, which is no fault.
            if not below and not _is_empty_store(path) and not any(one.is_relative_to(real) for one in seen):
                raise StoreForeign(
                    f"{path} holds nothing that can be read: no commit log (files with names of 20 digits), no data of MetaQ "
                    "1.x (TOPIC-PARTITION/POSITION.meta, .arc or .zip) and no archive (_manifests)"
                )
            found += below
    return found


def _expanded(text: str) -> list[Path]:
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() != "file":
        raise ConfigError(
            f"path {text!r}: files are read from a folder that every machine of the cluster sees under the same name, not by "
            f"{scheme[1]}: (of an archive that lies there, metaq.spark.table(topic, archive=URI) is the way)"
        )
    plain = text[5:] if scheme else text
    if scheme and plain.startswith("//"):
        plain = plain[2:] if plain.startswith("///") else plain
    path = Path(plain).expanduser().absolute()
    if path.exists():
        return [path]
    matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not matches:
        raise ConfigError(f"path {text!r}: there is no such folder or file on the driver's machine")
    return matches


def _is_empty_store(path: Path) -> bool:
    """Return whether the path is a store or archive without messages yet."""
    return path.name == "commitlog" or any((path / name).is_dir() for name in ("commitlog", MANIFESTS))


def _look(path: Path, depth: int, seen: set[Path], entered: set[Path]) -> Iterator[FoundFile]:
    if path.is_file():
        yield from _file(path, seen)
        return
    if (path / MANIFESTS).is_dir():
        yield from _archive(path, seen)
        return
    inner = path / "commitlog"
    if inner.is_dir():
        yield from _log(inner, seen)
    # Names that begin with `_` are no data by Hive's rule: checkpoints, ids, leases.
    names = sorted(entry for entry in path.iterdir() if not entry.name.startswith((".", "_")))
    if any(is_log_name(entry.name) and entry.is_file() for entry in names):
        yield from _log(path, seen)
    yield from _segments([segment for segment in find_segments(path) if segment.path.parent == path], seen)
    for entry in names if depth else ():
        # Symbolic links too: data often lies on another disk. `entered` ends circles of them.
        if entry.is_dir() and entry.name not in _NOT_LOOKED_INTO and _is_new(entry, entered):
            yield from _look(entry, depth - 1, seen, entered)


def _file(path: Path, seen: set[Path]) -> Iterator[FoundFile]:
    if is_log_name(path.name):
        if _is_new(path, seen):
            # All files of its folder: only they show where the log ends.
            whole = find_log_files(path.parent)
            mine = [file for file in whole if file.path == str(path)]
            borders = Borders(path.parent.parent / "consumequeue")
            root = path.parent.parent
            end = find_end(whole, borders).place
            yield FoundLog(path.parent, mine, end, borders, hidden_below(root, end))
        return
    yield from _segments(find_segments(path), seen)


def _is_new(path: Path, seen: set[Path]) -> bool:
    real = path.resolve()
    if real in seen:
        return False
    seen.add(real)
    return True


def _log(folder: Path, seen: set[Path]) -> Iterator[FoundFile]:
    # A consume queue's files have names of 20 digits, too.
    if folder.parent.parent.name in {"consumequeue", "consumequeue_ext"}:
        raise StoreForeign(f"{folder} is a consume queue, which holds no messages: name the folder of its store")
    files = [file for file in find_log_files(folder) if _is_new(Path(file.path), seen)]
    if not files or not _is_new(folder, seen):
        return
    borders = Borders(folder.parent / "consumequeue")
    # Old records that RocketMQ leaves behind an end that it has cut off stay dead: no consume queue points at them.
    end = find_end(files, borders)
    # DLedger's log and RocketMQ 5's timer log have such names: they would give no rows, and no word.
    if end.place == files[0].start and not may_begin(files[0]):
        text = "neither a record nor untouched bytes begin here, and no record follows: damaged, or not a commit log"
        yield Damage(files[0].path, 0, files[0].size, text)
        return
    if end.why:
        _LOG.warning("the log in %s ends at log offset %d; behind it lie %s", folder, end.place, end.why)
    yield FoundLog(folder, files, end.place, borders, hidden_below(folder.parent, end.place))


def _segments(segments: Sequence[Segment], seen: set[Path]) -> Iterator[FoundFile]:
    by_place: dict[tuple[Path, int], Segment] = {}
    for segment in segments:
        place = (segment.path.parent, segment.start)
        other = by_place.get(place)
        if other is None or _rank(segment) < _rank(other):
            by_place[place] = segment
    chosen = sorted(by_place.values(), key=lambda one: (str(one.path.parent), one.start))
    for number, segment in enumerate(chosen):
        following = chosen[number + 1] if number + 1 < len(chosen) else None
        if following is not None and following.path.parent != segment.path.parent:
            following = None
        if not _is_new(segment.path, seen):
            continue
        try:
            end = segment.start + _size_of(segment)
        except FileNotFoundError:
            continue  # Deleted by a running server's retention.
        # zipfile raises many kinds: zlib's, bz2's and lzma's own, and one for a version that Python does not know.
        except Exception as fault:
            if not isinstance(fault, OSError) and not is_zip_fault(fault):
                raise
            yield Damage(str(segment.path), 0, 0, f"a zip file that cannot be read ({fault})")
            continue
        live = segment.path.name.endswith(LIVE)
        # Overlapping positions are read from the later file.
        stop = end if following is None else min(end, following.start)
        yield FoundSegment(segment, stop, live and following is None)
        if following is not None and following.start > end:
            text = (
                f"the positions from {end} to {following.start} of {segment.topic}-{segment.partition} are in no file"
            )
            if live and following.path.name.endswith(LIVE):
                yield Damage(str(segment.path), end - segment.start, following.start - end, text)
            else:
                _LOG.warning("%s: %s", segment.path.parent, text)


def _rank(segment: Segment) -> int:
    name = segment.path.name
    return min((number for number, ending in enumerate(_PREFERRED) if name.endswith(ending)), default=len(_PREFERRED))


def _size_of(segment: Segment) -> int:
    if not segment.is_zip:
        return segment.path.stat().st_size
    with zipfile.ZipFile(segment.path) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def _archive(path: Path, seen: set[Path]) -> Iterator[FoundFile]:
    folder, broken = ArchiveFolder(path), list[tuple[str, str]]()
    known = view(folder, broken)
    for at, why in broken:
        yield Damage(at, 0, 0, f"it cannot be read ({why}), and which files it tells of is not known")
    for file in known.files:
        where = place(folder, known, file)
        if _is_new(where, seen):
            yield FoundArchived(where, file)
