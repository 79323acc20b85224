"""A file system that is not there: what `HadoopFiles` does, in memory, with the faults that real ones have."""

from __future__ import annotations

import posixpath
import threading

from metaq.spark.engine.hadoop import Entry


class MemoryFiles:
    """As `metaq.spark.engine.hadoop.HadoopFiles`. Attributes make it a worse one."""

    def __init__(self, root: str = "memory://host/home/out", tree: MemoryFiles | None = None) -> None:
        self.root = root
        self.tree: dict[str, bytes | None] = tree.tree if tree is not None else {"/": None}
        """Path → bytes; None for a folder."""
        self.lock = tree.lock if tree is not None else threading.Lock()
        self.is_conditional = self.lists_late = False
        self.overwrites = False
        """`create` replaces what is there."""
        self.rename_overwrites = False
        self.forgets_names = False
        """A listing lacks what was made last."""
        self.can_sync = True
        self.fault: OSError | None = None
        """What every call fails with."""

    def _full(self, path: str) -> str:
        if self.fault is not None:
            raise self.fault
        return posixpath.normpath(posixpath.join("/home/out", path))

    def at(self, path: str) -> str:
        return f"memory://host{posixpath.normpath(posixpath.join('/home/out', path))}"

    def entries(self, folder: str) -> list[Entry]:
        home = self._full(folder)
        with self.lock:
            found = [path for path in self.tree if path != home and posixpath.dirname(path) == home]
            if self.forgets_names and found:
                found.remove(next(path for path in reversed(self.tree) if path in found))
            return sorted(
                (
                    Entry(posixpath.basename(path), self.tree[path] is None, len(self.tree[path] or b""))
                    for path in found
                ),
                key=lambda one: one.name,
            )

    def files_below(self, folder: str) -> list[tuple[str, int]]:
        home = self._full(folder)
        with self.lock:
            if home not in self.tree:
                raise FileNotFoundError(2, "no such folder", home)
            files = {path: data for path, data in self.tree.items() if data is not None and path.startswith(f"{home}/")}
            return sorted((path[len(home) + 1 :], len(data)) for path, data in files.items())

    def exists(self, path: str) -> bool:
        return self._full(path) in self.tree

    def read(self, path: str) -> bytes:
        with self.lock:
            data = self.tree.get(self._full(path))
        if data is None:
            raise FileNotFoundError(2, "no such file", path)
        return data

    def create(self, path: str, data: bytes) -> None:
        full = self._full(path)
        with self.lock:
            if full in self.tree and not self.overwrites:
                raise FileExistsError(17, "it is there", path)
            self._make(full, data)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        full = self._full(path)
        with self.lock:
            self._make(full, data)

    def rename(self, old: str, new: str) -> None:
        one, other = self._full(old), self._full(new)
        with self.lock:
            if one not in self.tree:
                raise FileNotFoundError(2, "rename source is not found", old)
            if other in self.tree and not self.rename_overwrites:
                raise FileExistsError(17, "rename destination exists", new)
            self._make(other, self.tree.pop(one) or b"")

    def make_folder(self, path: str) -> None:
        full = self._full(path)
        with self.lock:
            self._folders(full)

    def remove(self, path: str) -> None:
        full = self._full(path)
        with self.lock:
            for one in [one for one in self.tree if one == full or one.startswith(f"{full}/")]:
                del self.tree[one]

    def remove_empty(self, folder: str) -> None:
        if not self.entries(folder):
            self.remove(folder)

    def syncs(self, path: str) -> bool:
        return self.can_sync

    def _make(self, full: str, data: bytes) -> None:
        self._folders(posixpath.dirname(full))
        self.tree[full] = data

    def _folders(self, full: str) -> None:
        while full not in self.tree:
            self.tree[full] = None
            full = posixpath.dirname(full)
