"""Published batches of an archive, on any file system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator

import msgspec

from metaq.archive.records import MANIFESTS, Manifest, decode, manifest_name
from metaq.errors import ConfigError, StoreCorrupt, StoreForeign


class Batches(ABC):
    """The published batches of one archive. Paths are relative to it, with `/`."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the records (`*.json`) in a folder of the archive, in order; [] if there is no such folder."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Read a file. Raises FileNotFoundError, OSError."""

    @abstractmethod
    def at(self, path: str) -> str:
        """Return the full name of a path, for texts; "" is the archive itself."""

    def manifests(self) -> Iterator[Manifest]:
        """Yield all published batches, oldest first."""
        return self.newer(())

    def newer(self, known: Collection[str]) -> Iterator[Manifest]:
        """Yield published batches whose `name` is not in `known`, oldest first."""
        for name in self.names(MANIFESTS):
            if name not in known:
                yield self._manifest(name)

    def last(self) -> Manifest | None:
        """Return the newest published batch; None: there is none."""
        names = self.names(MANIFESTS)
        return self._manifest(names[-1]) if names else None

    def find(self, query: str, batch: int) -> Manifest | None:
        path = f"{MANIFESTS}/{manifest_name(query, batch)}"
        try:
            data = self.read(path)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise self._unreadable(path, fault) from fault
        return self._decoded(path, data)

    def guard(self, checkpoint: object, query: str | None, partition_by: str = "date") -> None:
        """Raise ConfigError for a checkpoint that did not write this archive, or another `partition_by` than it has.

        A new checkpoint would archive everything again: Spark gives it a new query id, and so the files get new names.
        """
        newest = self.last()
        if newest is None:
            return
        place = self.at("")
        if query != newest.query:
            which = f"belongs to another query ({query})" if query else "is new or empty"
            raise ConfigError(
                f"{place} was written by the query {newest.query}, and the checkpoint {checkpoint} {which}: going on "
                "would archive messages twice. Give the old checkpoint, or an empty output folder."
            )
        if partition_by != newest.partition_by:
            raise ConfigError(
                f"{place} is partitioned by {newest.partition_by}, and partitionBy={partition_by} was given: an archive keeps "
                "its folders for ever. Give the old value, or an empty output folder with a checkpoint of its own."
            )

    def _manifest(self, name: str) -> Manifest:
        path = f"{MANIFESTS}/{name}"
        try:
            data = self.read(path)
        except OSError as fault:
            raise self._unreadable(path, fault) from fault
        return self._decoded(path, data)

    def _decoded(self, path: str, data: bytes) -> Manifest:
        try:
            return decode(data, Manifest)
        except StoreForeign as fault:
            raise StoreForeign(f"the manifest {self.at(path)} was {fault}") from None
        except msgspec.DecodeError as fault:
            raise self._unreadable(path, fault) from fault

    def _unreadable(self, path: str, fault: Exception) -> StoreCorrupt:
        return StoreCorrupt(
            f"the manifest {self.at(path)} cannot be read ({fault}): restore it from a copy; docs/archive.md says what to do "
            "without one"
        )
