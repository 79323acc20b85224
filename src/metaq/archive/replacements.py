"""Replacements: an archive consists of the files that its batches published, less those that were replaced since.

    OUTPUT/_replacements/NUMBER.json        a record per replacement: old files, and the files that replace them
    .OUTPUT.kept/NUMBER/old/                beside the folder: links to the old files, as long as readers may need them
    .OUTPUT.kept/NUMBER/new/                the new files, until they are in place

A merge of small files is a replacement, and so is the expiry of a date, by no files. A record is written twice. While it is
announced, the old files are the archive, and readers by the manifests open the links in `old`. Once it is done, the new files
are. A record is rewritten atomically, so readers see all of a replacement or none.

A reader reads the records first, from the newest to the oldest, then the manifests. So it never sees a replacement without
the one that made its sources, or without the batches that published them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from metaq.archive.batches import Batches
from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import MANIFESTS, ArchivedFile, Manifest, decode, place_of
from metaq.durable import make_folder, sync_folder, write_whole
from metaq.errors import StoreCorrupt, StoreForeign
from metaq.model.offsets import Positions

REPLACEMENTS = "_replacements"
OLD, NEW = "old", "new"
_WAY = "restore it from a copy; docs/archive.md says what to do without one"
_TRIES = 10
"""Most attempts to read a view: if a record vanishes meanwhile, because it was pruned, reading starts again."""


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """Old files of one folder, and the files that replace them."""

    v: int = 1
    number: int
    """Ascending within an archive."""
    folder: str
    """Folder of all its files, relative to the archive."""
    replaced: list[str]
    """Paths of the old files, relative to the archive."""
    files: list[ArchivedFile]
    """Files that replace them; empty: they expired."""
    kept: str
    """This replacement's own folder, beside the archive; path relative to it."""
    announced_ms: int
    """Time from which readers open the links in `kept`, ms since 1970."""
    done_ms: int = 0
    """Time from which the new files are the archive's; 0: not yet."""
    swapped_ms: int = 0
    """Time at which the folder was exchanged, so that readers that list it see the new files; 0: not yet."""

    @property
    def name(self) -> str:
        return f"{self.number:010d}.json"

    def link(self, path: str) -> str:
        """Return the path of a replaced file's link, relative to the archive."""
        return f"{self.kept}/{OLD}/{path.rpartition('/')[2]}"


_Kind = TypeVar("_Kind", Manifest, Replacement)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Consistent view of an archive."""

    files: list[ArchivedFile]
    end: Positions
    """Queue → end of its archived messages."""
    links: dict[str, str]
    """Path of a file that is about to be replaced → path to read it at."""
    topics: frozenset[str]
    """Topics with any archived message, now or before."""
    expired: dict[str, str]
    """Topic → newest expired date. Some files of it and of earlier dates may still exist."""


def view(folder: Batches, broken: list[tuple[str, str]] | None = None) -> View:
    """Read the archive's current view.

    Args: broken: gets (path, reason) of manifests and records that cannot be read; None: they are an error.
    Raises: StoreCorrupt: a manifest or a record cannot be read.
    """
    for _ in range(_TRIES):
        faults: list[tuple[str, str]] = []
        # A record may be pruned after it was listed: the next attempt lists again.
        with contextlib.suppress(FileNotFoundError):
            known = _all(folder, REPLACEMENTS, Replacement, faults)
            manifests = _all(folder, MANIFESTS, Manifest, faults)
            if faults and broken is None:
                raise StoreCorrupt(f"{faults[0][0]} cannot be read ({faults[0][1]}): {_WAY}")
            if broken is not None:
                broken += faults
            return apply(manifests, known)
    raise StoreCorrupt(f"the records in {folder.at(REPLACEMENTS)} vanish while they are read, again and again")


def apply(manifests: Sequence[Manifest], known: Iterable[Replacement]) -> View:
    """Compute a view. Pure. Args: known: replacements in ascending order."""
    files = {file.path: file for manifest in manifests for file in manifest.files}
    links: dict[str, str] = {}
    expired: dict[str, str] = {}
    for one in known:
        # A replacement by no files is the expiry of a date.
        if not one.files and (ended := place_of(one.folder)) is not None:
            expired[ended[0]] = max(expired.get(ended[0], ""), ended[1])
        if not one.done_ms:
            links |= {path: one.link(path) for path in one.replaced}
            continue
        for path in one.replaced:
            files.pop(path, None)
        files |= {file.path: file for file in one.files}
    # Each manifest has the positions of the whole archive, so the newest is enough.
    end = manifests[-1].end if manifests else {}
    topics = frozenset(queue.topic for queue in end)
    return View(files=list(files.values()), end=end, links=links, topics=topics, expired=expired)


def place(folder: ArchiveFolder, seen: View, file: ArchivedFile) -> Path:
    """Return the path to open a file of the view at: it stays there for the archive's grace time."""
    link = seen.links.get(file.path)
    if link is not None and (folder.path / link).exists():
        return folder.path / link
    return folder.place(file)


def replacements(folder: Batches) -> list[Replacement]:
    """Return all records, in ascending order. For the run that has the lease. Raises StoreCorrupt: one cannot be read."""
    faults: list[tuple[str, str]] = []
    known = _all(folder, REPLACEMENTS, Replacement, faults)
    if faults:
        raise StoreCorrupt(f"the record {faults[0][0]} cannot be read ({faults[0][1]}): {_WAY}")
    return known


def _all(folder: Batches, home: str, kind: type[_Kind], faults: list[tuple[str, str]]) -> list[_Kind]:
    """Return all records in ascending order; read in descending order, see the module. Raises FileNotFoundError."""
    names = reversed(folder.names(home))
    return [one for name in names if (one := _read(folder, f"{home}/{name}", kind, faults)) is not None][::-1]


def _read(folder: Batches, path: str, kind: type[_Kind], faults: list[tuple[str, str]]) -> _Kind | None:
    """Read a record; None: unreadable, noted in `faults`. Raises FileNotFoundError: it was removed since it was listed."""
    try:
        return decode(folder.read(path), kind)
    except StoreForeign as fault:
        raise StoreForeign(f"{folder.at(path)} was {fault}") from None
    except FileNotFoundError:
        raise
    except (msgspec.DecodeError, OSError) as fault:
        faults.append((folder.at(path), str(fault)))
        return None


def save(folder: ArchiveFolder, record: Replacement) -> None:
    """Write a record, or its next state, which readers see at once."""
    home = folder.path / REPLACEMENTS
    make_folder(home)
    write_whole(home / record.name, msgspec.json.format(msgspec.json.encode(record), indent=1))


def forget(folder: ArchiveFolder, record: Replacement) -> None:
    """Withdraw an announced record: the old files remain the archive's."""
    home = folder.path / REPLACEMENTS
    (home / record.name).unlink(missing_ok=True)
    sync_folder(home)


def ever_replaced(folder: Batches) -> frozenset[str]:
    """Return the paths of all files that were ever replaced or expired. For the run that has the lease."""
    return frozenset(path for record in replacements(folder) for path in record.replaced)
