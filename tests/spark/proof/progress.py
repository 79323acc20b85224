"""How far the archive and the copying query are, from their files: Spark is not asked."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tests.spark.proof.plan import PLANNED, PUBLISHED, STAGED


class Progress:
    """Look as often as you like."""

    def __init__(self, folder: Path) -> None:
        self._archive, self._copy = folder / "archive", folder / "copy-checkpoint"
        self._staging = folder / ".archive.staging"
        self.archived = self.copied = 0
        """Messages of the source that are done with, repeats among them."""
        self._manifest, self._committed = "", -1

    def look(self) -> None:
        manifest = max((path.name for path in (self._archive / "_manifests").glob("*.json")), default="")
        if manifest != self._manifest:
            tree = json.loads((self._archive / "_manifests" / manifest).read_bytes())["positions"]
            self._manifest, self.archived = manifest, _sum(tree)
        committed = _last(self._copy / "commits")
        if committed != self._committed:
            with contextlib.suppress(
                OSError, ValueError, IndexError
            ):  # Spark is just writing it, or was when it was killed.
                tree = json.loads((self._copy / "offsets" / str(committed)).read_text().splitlines()[-1])
                self._committed, self.copied = committed, _sum(tree)

    def edge(self, name: str) -> object:
        """Something that changes when that edge of a batch comes."""
        if name == STAGED:
            return frozenset(path.name for path in self._staging.glob("*/*.parquet"))
        if name == PUBLISHED:
            return self._manifest
        if name == PLANNED:
            return _last(self._copy / "offsets")
        return name


def crossed(before: object, now: object) -> bool:
    """Whether an edge came between two looks. Files that are gone are no edge."""
    if isinstance(before, frozenset) and isinstance(now, frozenset):
        return bool(now - before)
    return now is not None and now != before


def _sum(tree: dict) -> int:
    return sum(offset for brokers in tree["q"].values() for queues in brokers.values() for offset in queues.values())


def _last(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()), default=-1)
