"""A disk whose power can be cut, without root and without a device: what was not synced may be gone, there, or torn.

The disk keeps a second image of its folder, of what is durable: the pages and sizes of files that were synced, the
entries of folders that were synced. A cut makes a new folder out of the two: where they differ, chance decides, for each
page (a torn one for each sector), for each file's size and for each name. The rules are those of POSIX, not of a
particular file system, which often keeps more:

- a file's bytes and size are durable when the file was synced, its name when its folder was;
- a rename is whole: the old names or the new ones, whichever file was replaced by it;
- pages that were never written read as zeros;
- after a sync that failed, the kernel takes what it could not write for clean: a later sync does not write it, unless
  the page was written again, the folder changed again. For folders that ends with the process, as their entries are
  in the file system's journal.

Nothing is really synced, so tests are fast. Linux only, and meant for small files.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from metaq.clock import Chance, seeded
from metaq.store.disk import PAGE_BYTES, Mapped
from metaq.testing.faults import FaultyDisk

SECTOR_BYTES: Final = 512
"""What a device writes whole."""
_KEPT: Final = (0.0, 0.0, 0.1, 0.5, 0.5, 0.9, 1.0)
"""How likely a change that was not synced survives: drawn once for each file, because real losses come in bulk."""
_TORN: Final = 0.1


@dataclass(slots=True)
class _Node:
    """What is durable of one file or folder, whatever its names are."""

    handle: int
    """Holds the inode, so that its number is not given to another file; no lock of the process depends on it."""
    is_folder: bool
    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    """0 until the first sync: a cut may leave the name with a file of no bytes."""
    unwritten: dict[int, bytes] = field(default_factory=dict)
    """Page → what it held when its sync failed."""
    entries: dict[str, int] = field(default_factory=dict)
    unnamed: dict[str, int] | None = None
    """A folder's entries when its sync failed; not used any more once they have changed again."""

    @property
    def path(self) -> str:
        """Path that leads to the file also when it has no name any more."""
        return f"/proc/self/fd/{self.handle}"

    def content(self) -> bytes:
        """A file's bytes as every program sees them now."""
        with open(self.path, "rb") as file:  # noqa: PTH123  a path through /proc
            return file.read()


class PowerLossDisk(FaultyDisk):
    """A disk for one folder, with the switches of `FaultyDisk`. What the folder holds at first counts as durable.

    `cut(elsewhere)` makes the folder that is found when the power comes back; the store goes on in the old one, and
    what it acknowledges after the cut does not count. The same seed and the same calls leave the same folder. `root` is the folder.

    Its methods are those of `FaultyDisk`; beside that it remembers what of the folder is durable, and each calls `on_call` first.
    Raises NotImplementedError: the system is no Linux.
    """

    def __init__(self, root: Path, seed: int | str = 0) -> None:
        super().__init__()
        if not sys.platform.startswith("linux"):
            raise NotImplementedError("PowerLossDisk needs /proc/self/fd, that is, Linux")
        self.root = Path(root)
        self.calls = 0
        """Number of operations so far."""
        self.on_call: Callable[[str], None] | None = None
        """Called with the name of each operation before it is done. It may cut, and raise what is to happen instead."""
        self._chance = seeded(seed)
        self._boot = f"simulated {seeded(f'boot {seed}').getrandbits(64):016x}"
        self._lock = threading.RLock()
        self._nodes: dict[int, _Node] = {}
        self.root.mkdir(parents=True, exist_ok=True)
        self._root = self._node_at(str(self.root))
        self._take_all()

    # ------------------------------------------------------------------ what a program asks

    def open(self, path: Path, flags: int) -> int:
        """Return a descriptor of a file. As `FaultyDisk.open`; a file that is truncated loses the faults of its pages."""
        self._enter("open")
        descriptor = super().open(path, flags)
        if flags & os.O_TRUNC:
            with self._lock:
                # A truncated file's pages were written anew: none of them counts as failed any more.
                if node := self._nodes.get(os.fstat(descriptor).st_ino):
                    node.unwritten.clear()
        return descriptor

    def map(self, path: Path, size: int) -> Mapped:
        """Map the first `size` bytes of a file for reading and writing, and watch it from now on. Raises OSError."""
        with self._lock:
            mapped = super().map(path, size)
            self._node_at(str(path))
            return mapped

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        """Give bytes [start, start + size) of a file their blocks. As `FaultyDisk.reserve`."""
        self._enter("reserve")
        super().reserve(descriptor, start, size)

    def sync_range(self, mapped: Mapped, start: int, size: int) -> None:
        """Make bytes [start, start + size) of a mapped file survive a cut. As `FaultyDisk.sync_range`."""
        with self._lock:
            # The kernel writes whole pages, also when a part of one is synced.
            first, stop = start - start % PAGE_BYTES, -(-(start + size) // PAGE_BYTES) * PAGE_BYTES
            self._sync("sync_range", self._nodes[mapped.inode], lambda: mapped.buffer[first:stop], first)
            self.synced.append((mapped.inode, start, size))

    def rewrite(self, mapped: Mapped, start: int, size: int) -> None:
        """Have the next sync write bytes [start, start + size) again, also those whose sync has failed."""
        with self._lock:
            super().rewrite(mapped, start, size)
            unwritten = self._nodes[mapped.inode].unwritten
            for place in [place for place in unwritten if start - PAGE_BYTES < place < start + size]:
                del unwritten[place]

    def sync_file(self, descriptor: int) -> None:
        """Make a file's data and size survive a cut. As `FaultyDisk.sync_file`."""
        with self._lock:
            node = self._nodes[self._node_at(f"/proc/self/fd/{descriptor}")]
            if node.is_folder:
                self._sync_entries(node)
            else:
                self._sync("sync_file", node, node.content, 0)

    def sync_folder(self, path: Path) -> None:
        """Make a folder's entries survive a cut. As `FaultyDisk.sync_folder`."""
        with self._lock:
            self._sync_entries(self._nodes[self._node_at(str(path))])

    def sync_all(self, descriptor: int) -> None:  # noqa: ARG002  there is one folder only
        """Make everything in the folder survive a cut. As `FaultyDisk.sync_all`."""
        with self._lock:
            self._enter("sync_all")
            self._may_sync()
            self._take_all()

    def boot(self) -> str:
        """Return the id of the simulated machine's present run: after `cut` another one."""
        return self._boot

    def _enter(self, name: str) -> None:
        with self._lock:
            self.calls += 1
            if self.on_call:
                self.on_call(name)

    # ------------------------------------------------------------------ the durable image

    def _node_at(self, path: str) -> int:
        """The inode under a path, known from now on."""
        inode = os.stat(path).st_ino  # noqa: PTH116  `path` may lead through /proc
        if inode not in self._nodes:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            facts = os.fstat(handle)
            # The inode is taken from the handle, which cannot lead to another file: the path may have changed since.
            inode = facts.st_ino
            self._nodes[inode] = _Node(handle, stat.S_ISDIR(facts.st_mode))
        return inode

    def _sync(self, name: str, node: _Node, read: Callable[[], bytes], start: int) -> None:
        """Take the bytes that `read` gives for durable; they begin at `start`, a page's border."""
        try:
            self._enter(name)
            self._may_sync()
        except OSError:
            # These pages are clean for the kernel, so a later sync does not write them: that is what a failed fsync
            # does.
            node.unwritten |= {place: now for place, now in _pages(read(), start) if now != _page(node.data, place)}
            raise
        self._take(node, read(), start)

    def _take(self, node: _Node, data: bytes, start: int = 0) -> None:
        node.size = os.stat(node.path).st_size  # noqa: PTH116  as above
        if len(node.data) < start + len(data):
            node.data.extend(bytes(start + len(data) - len(node.data)))
        kept = {place: _page(node.data, place) for place, now in _pages(data, start) if _is_unwritten(node, place, now)}
        node.data[start : start + len(data)] = data
        for place, page in kept.items():
            node.data[place : place + PAGE_BYTES] = page
        del node.data[node.size :]  # what lies behind a shortened file's end does not come back when it grows

    def _sync_entries(self, node: _Node) -> None:
        try:
            self._enter("sync_folder")
            self._may_sync()
        except OSError:
            node.unnamed = self._present(node)
            raise
        self._take_entries(node)

    def _take_entries(self, node: _Node) -> None:
        present = self._present(node)
        # The change that could not be synced is given up by the kernel; only a further change is written.
        if node.unnamed != present:
            node.entries, node.unnamed = present, None
        self._forget_gone()

    def _present(self, node: _Node) -> dict[str, int]:
        """The names in a folder as every program sees them now; none if it was removed."""
        try:
            with os.scandir(node.path) as found:
                names = sorted(entry.name for entry in found if entry.is_file() or entry.is_dir())
            return {name: self._node_at(f"{node.path}/{name}") for name in names}
        except FileNotFoundError:
            return {}

    def _take_all(self) -> None:
        for inode in list(self._walk()):
            node = self._nodes[inode]
            if node.is_folder:
                self._take_entries(node)
            else:
                self._take(node, node.content())

    def _walk(self) -> Iterator[int]:
        """All inodes that have a name now, each once, in the order of their names."""
        seen, waiting = {self._root}, [self._root]
        while waiting:
            inode = waiting.pop()
            yield inode
            if self._nodes[inode].is_folder:
                for found in self._present(self._nodes[inode]).values():
                    if found not in seen:
                        seen.add(found)
                        waiting.append(found)

    def _forget_gone(self) -> None:
        """Let go of files that have no name, neither now nor on the disk."""
        named = {inode for node in self._nodes.values() for inode in node.entries.values()} | {self._root}
        for inode in [inode for inode in self._nodes if inode not in named]:
            # Without a name, now and on the disk, no cut can bring it back, whoever still writes to it.
            if os.stat(self._nodes[inode].path).st_nlink == 0:  # noqa: PTH116  as above
                os.close(self._nodes.pop(inode).handle)

    # ------------------------------------------------------------------ ends

    def cut(self, to: Path) -> PowerLossDisk:
        """Make the folder `to` as it is found after a power cut now. Returns its disk."""
        with self._lock:
            present = self._all_present()
            after = _after_cut(self._nodes, present, self._chance)
            _write(self._nodes, self._root, to, after, lambda node: _survivors(node, self._chance))
            # Its chance comes from this one's, so one seed decides a whole series of cuts.
            return PowerLossDisk(to, self._chance.getrandbits(64))

    def kill(self, to: Path) -> PowerLossDisk:
        """Make the folder `to` as it is found when the process is killed now: all that was written is there.

        Returns its disk, which goes on knowing what of it is durable.
        """
        with self._lock:
            made = _write(self._nodes, self._root, to, self._all_present(), _Node.content)
            disk = PowerLossDisk(to, self._chance.getrandbits(64))
            disk._boot = self._boot  # the machine goes on
            disk._adopt(self._nodes, made)
            return disk

    def restart(self) -> None:
        """Another process goes on with the folder, after an end in order. `kill` is for the others."""
        with self._lock:
            for node in self._nodes.values():
                node.unnamed = None

    def _adopt(self, nodes: Mapping[int, _Node], made: Mapping[int, int]) -> None:
        """Know of this folder, a copy, what is known of the original. `made`: inode there → here."""
        for inode, node in nodes.items():
            if inode in made:
                found = self._nodes[made[inode]]
            else:  # it has no name any more, but the disk does not know that yet
                found = self._nodes[inode] = _Node(os.dup(node.handle), node.is_folder)
            found.data, found.size, found.unwritten = bytearray(node.data), node.size, dict(node.unwritten)
            found.entries = {name: made.get(other, other) for name, other in node.entries.items()}

    def _all_present(self) -> dict[int, dict[str, int]]:
        """Folder → name → inode, of all folders that have a name, now or on the disk."""
        for _ in self._walk():
            pass  # makes them known
        return {inode: self._present(node) for inode, node in list(self._nodes.items()) if node.is_folder}

    def close(self) -> None:
        """Let go of the files. The folder stays."""
        with self._lock:
            for node in self._nodes.values():
                os.close(node.handle)
            self._nodes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------- what is found afterwards

_Place = tuple[int, str]
"""A folder's inode, and a name in it."""


def _after_cut(
    nodes: Mapping[int, _Node], present: Mapping[int, dict[str, int]], chance: Chance
) -> dict[int, dict[str, int]]:
    """Folder → name → inode: of each change since a folder was synced, the names before it or after it."""
    changes: dict[_Place, tuple[int, int]] = {}
    for inode, now in present.items():
        before = nodes[inode].entries
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                changes[inode, name] = before.get(name, 0), now.get(name, 0)
    # Nothing but what was synced is sure; each change is then added whole or not at all.
    found = {inode: dict(nodes[inode].entries) for inode in present}
    kept = chance.choice(_KEPT)
    for group in _groups(changes):
        if chance.random() < kept:
            for inode, name in group:
                found[inode].pop(name, None)
                if after := changes[inode, name][1]:
                    found[inode][name] = after
    return found


def _groups(changes: Mapping[_Place, tuple[int, int]]) -> list[list[_Place]]:
    """Changes that come together because they concern the same file: that is how a rename is whole."""
    owner: dict[int, int] = {}
    groups: dict[int, list[_Place]] = {}
    for number, (place, inodes) in enumerate(changes.items()):
        touched = {owner[inode] for inode in inodes if inode in owner}
        groups[number] = [found for other in sorted(touched) for found in groups.pop(other)] + [place]
        owner |= {inode: number for inode, other in owner.items() if other in touched}
        owner |= {inode: number for inode in inodes if inode}
    return list(groups.values())


def _write(
    nodes: Mapping[int, _Node],
    root: int,
    to: Path,
    entries: Mapping[int, Mapping[str, int]],
    content: Callable[[_Node], bytes],
) -> dict[int, int]:
    """Make the folder `to`. Returns inode → inode of its copy."""
    made = {root: to}
    waiting = [root]
    to.mkdir(parents=True)
    while waiting:
        folder = waiting.pop()
        for name, inode in sorted(entries[folder].items()):
            path = made[folder] / name
            if nodes[inode].is_folder:
                path.mkdir()
                waiting.append(inode)
            # A file with two names stays one file: a link, not a second copy.
            elif inode in made:
                path.hardlink_to(made[inode])
            else:
                path.write_bytes(content(nodes[inode]))
            made[inode] = path
    return {inode: path.stat().st_ino for inode, path in made.items()}


def _survivors(node: _Node, chance: Chance) -> bytes:
    """The bytes of a file after a cut."""
    present, kept = node.content(), chance.choice(_KEPT)
    size = len(present) if chance.random() < kept else node.size
    found = bytearray(size)
    for place in range(0, size, PAGE_BYTES):
        before, now = _page(node.data, place), _page(present, place)
        page = before if before == now else _survivor(before, now, kept, chance)
        stop = min(size, place + PAGE_BYTES)
        found[place:stop] = page[: stop - place]
    return bytes(found)


def _survivor(before: bytes, now: bytes, kept: float, chance: Chance) -> bytes:
    """One page after a cut."""
    if chance.random() < _TORN:
        # Also where little survives, a torn page has sectors of both, or it would not be torn.
        return b"".join(
            (now if chance.random() < max(kept, 0.3) else before)[place : place + SECTOR_BYTES]
            for place in range(0, PAGE_BYTES, SECTOR_BYTES)
        )
    return now if chance.random() < kept else before


def _is_unwritten(node: _Node, place: int, now: bytes) -> bool:
    """Whether the kernel takes a page for clean that it has never written."""
    if node.unwritten.get(place) == now:
        return True
    node.unwritten.pop(place, None)
    return False


def _pages(data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    return ((start + place, _page(data, place)) for place in range(0, len(data), PAGE_BYTES))


def _page(data: bytes | bytearray, place: int) -> bytes:
    return bytes(data[place : place + PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")
