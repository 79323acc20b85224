"""Which files an archive consists of: what its batches published, less what has been replaced since.

    OUTPUT/_replacements/NUMBER.json        one per replacement: files that go, and files that stand in for them
    .OUTPUT.kept/NUMBER/old/                beside the folder: links to the files that go, as long as readers may need them
    .OUTPUT.kept/NUMBER/new/                the files that stand in for them, until they are in their place

A merge of small files is a replacement, and so is the end of a date's time: then nothing stands in. Its record is written
twice. Announced, the old files still are the archive, and who reads by the manifests opens the links in `old`. Done, the
new files are. Each record is replaced as a whole, so whoever goes by the records sees all of a replacement or none.

A reader reads the records first, from the newest to the oldest, then the manifests. So it never knows a replacement
without the one that made its sources, or without the batches that published them.
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
"""Most attempts of reading: a record that vanishes meanwhile was cleaned up, so reading begins anew."""


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one folder, and what is there instead of them."""

    v: int = 1
    number: int
    """Ascending within an archive."""
    folder: str
    """Folder of all its files, relative to the archive."""
    replaced: list[str]
    """Paths of the files that go, relative to the archive."""
    files: list[ArchivedFile]
    """Files that replace them; empty: they expired."""
    kept: str
    """This replacement's own folder, beside the archive, relative to it."""
    announced_ms: int
    """Time from which on readers open the links in `kept`."""
    done_ms: int = 0
    """Time from which on the new files are the archive's. 0: not yet."""
    swapped_ms: int = 0
    """Time of the change of the archive's folder: plain readers see the new files, too. 0: not yet."""

    @property
    def name(self) -> str:
        return f"{self.number:010d}.json"

    def link(self, path: str) -> str:
        """Where a replaced file lives on, relative to the archive."""
        return f"{self.kept}/{OLD}/{path.rpartition('/')[2]}"


_Kind = TypeVar("_Kind", Manifest, Replacement)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Consistent view of an archive."""

    files: list[ArchivedFile]
    end: Positions
    """End of what is archived of every queue."""
    links: dict[str, str]
    """Path of a file that is about to be replaced → path to read it at."""
    topics: frozenset[str]
    """Topics of which anything was ever archived."""
    expired: dict[str, str]
    """Topic → newest expired date. Some files of it and of earlier dates may still exist."""


def view(folder: Batches, broken: list[tuple[str, str]] | None = None) -> View:
    """Read the view of the archive as it is now.

    Args: broken: takes the manifests and records that cannot be read, and why; without it they are an error.
    Raises: StoreCorrupt: a manifest or a record cannot be read.
    """
    for _ in range(_TRIES):
        faults: list[tuple[str, str]] = []
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
    """Pure part of `view`. Args: known: in ascending order."""
    files = {file.path: file for manifest in manifests for file in manifest.files}
    links: dict[str, str] = {}
    expired: dict[str, str] = {}
    for one in known:
        if not one.files and (ended := place_of(one.folder)) is not None:
            expired[ended[0]] = max(expired.get(ended[0], ""), ended[1])
        if not one.done_ms:
            links |= {path: one.link(path) for path in one.replaced}
            continue
        for path in one.replaced:
            files.pop(path, None)
        files |= {file.path: file for file in one.files}
    end = manifests[-1].end if manifests else {}
    topics = frozenset(queue.topic for queue in end)
    return View(files=list(files.values()), end=end, links=links, topics=topics, expired=expired)


def place(folder: ArchiveFolder, seen: View, file: ArchivedFile) -> Path:
    """Where a file of the view is to be opened: there it stays for the archive's grace."""
    link = seen.links.get(file.path)
    if link is not None and (folder.path / link).exists():
        return folder.path / link
    return folder.place(file)


def replacements(folder: Batches) -> list[Replacement]:
    """All of them, in ascending order. For whoever has the lease. Raises StoreCorrupt: one cannot be read."""
    faults: list[tuple[str, str]] = []
    known = _all(folder, REPLACEMENTS, Replacement, faults)
    if faults:
        raise StoreCorrupt(f"the record {faults[0][0]} cannot be read ({faults[0][1]}): {_WAY}")
    return known


def _all(folder: Batches, home: str, kind: type[_Kind], faults: list[tuple[str, str]]) -> list[_Kind]:
    """In ascending order; read in descending, see above. Raises FileNotFoundError."""
    names = reversed(folder.names(home))
    return [one for name in names if (one := _read(folder, f"{home}/{name}", kind, faults)) is not None][::-1]


def _read(folder: Batches, path: str, kind: type[_Kind], faults: list[tuple[str, str]]) -> _Kind | None:
    """Raises FileNotFoundError: it was tidied away since it was listed."""
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
    """Write a record, or its next state: from now on that is what readers see."""
    home = folder.path / REPLACEMENTS
    make_folder(home)
    write_whole(home / record.name, msgspec.json.format(msgspec.json.encode(record), indent=1))


def forget(folder: ArchiveFolder, record: Replacement) -> None:
    """Withdraw an announced record: the old files remain the archive's."""
    home = folder.path / REPLACEMENTS
    (home / record.name).unlink(missing_ok=True)
    sync_folder(home)


def ever_replaced(folder: Batches) -> frozenset[str]:
    """Paths of files that other files, or nothing, stand in for. For whoever has the lease."""
    return frozenset(path for record in replacements(folder) for path in record.replaced)
