"""Offsets in a local file, in the format of Java's client: one JSON object, group → list of partitions.

    {"G":[{"topic":"test","partition":{"brokerId":0,"partition":1},"offset":123,"messageId":77,"modified":false}]}

A Java process must not have it open at the same time: it writes what it has read at its start.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from msgspec import DecodeError, Struct, ValidationError, field, json

from metaq.durable import make_folder, write_whole
from metaq.errors import ConfigError
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.storages.storage import StoredOffset

FILE_BYTES_MAX: Final = 64 << 20
"""Largest file that is read."""


class _Place(Struct, frozen=True):
    broker_id: int = field(name="brokerId")
    partition: int


class _Entry(Struct, frozen=True):
    topic: str
    partition: _Place
    offset: int
    message_id: int = field(name="messageId", default=-1)
    modified: bool = False


class LocalFileOffsetStorage:
    """An `OffsetStorage` in a file that several consumers and processes of this machine may share. For any thread.

    Each commit replaces the file, durably; a lock file beside it (`.lock`) keeps writers apart.

    Args: path: of the file; `~` is the home folder. It and its folder are made by the first commit.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._lock = threading.Lock()

    def commit_offset(self, group: str, offsets: Collection[StoredOffset]) -> None:
        """As `OffsetStorage.commit_offset`. Raises ValueError: an offset is below 0; OSError; ConfigError: the file holds something else."""
        if not offsets:
            return
        with self._lock, self._exclusive():
            groups = self._read()
            before = {(entry.topic, entry.partition): entry for entry in groups.get(group, ())}
            entries = dict(before)
            for one in offsets:
                if one.offset < 0:
                    raise ValueError(f"offset {one.offset} of {one.topic} {one.partition}: need 0 or more")
                place = _Place(*one.partition)
                entries[one.topic, place] = _Entry(one.topic, place, one.offset, one.message_id)
            if entries != before:
                write_whole(self.path, json.encode({**groups, group: list(entries.values())}))

    def load(self, topic: str, group: str, partition: Partition) -> StoredOffset | None:
        """Return what is saved; None: nothing. As `OffsetStorage.load`. Raises OSError; ConfigError: the file holds something else."""
        return self.load_many(group, [(topic, partition)]).get((topic, partition))

    def load_many(
        self, group: str, partitions: Collection[tuple[str, Partition]]
    ) -> dict[tuple[str, Partition], StoredOffset]:
        """Return (topic, partition) → what is saved, of those of which something is. Raises as `load`."""
        wanted = set(partitions)
        found = {}
        for entry in self._read().get(group, ()):
            partition = Partition(entry.partition.broker_id, entry.partition.partition)
            if (entry.topic, partition) in wanted:
                found[entry.topic, partition] = StoredOffset(entry.topic, partition, entry.offset, entry.message_id)
        return found

    def init_offset(self, topic: str, group: str, partition: Partition, offset: int) -> None:
        """Write nothing: the first commit does."""

    def close(self) -> None:
        """Nothing is held open."""

    def _read(self) -> dict[str, list[_Entry]]:
        try:
            with self.path.open("rb") as file:
                text = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return {}
        if not text.strip():  # as Java's client makes it
            return {}
        try:
            if len(text) > FILE_BYTES_MAX:
                raise ValidationError(f"it has more than {FILE_BYTES_MAX} bytes")
            return json.decode(text, type=dict[str, list[_Entry]])
        except DecodeError as error:
            raise ConfigError(
                f"the file of offsets {self.path} cannot be read: {error}. Mend it, or move it away to begin anew"
            ) from None

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        import fcntl  # no system but Unix has it, and `metaq.metaq1` is loaded on others, too

        make_folder(self.path.parent)
        with self.path.with_name(f"{self.path.name}.lock").open("ab") as lock:
            # Ends with the file, and with the process.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
