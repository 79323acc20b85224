"""Consume queues as they lie in a folder, read without changing them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from metaq.errors import Refused
from metaq.model.topics.topic import check_partition_topic
from metaq.store.mapped_file import any_byte
from metaq.store.offline.log_pieces import is_log_name
from metaq.store.queues.consume_queue import UNIT, UNIT_BYTES, Unit

_BLOCK_UNITS: Final = 256
"""Units that are read at once: there may be ten thousand queues."""
_STEP: Final = 1024 * 1024


class UnitFiles:
    """The units of one queue."""

    __slots__ = ("_block", "_block_at", "files", "folder", "topic", "queue_id")  # noqa: RUF023  as they are made

    def __init__(self, folder: Path, topic: str, queue_id: int) -> None:
        self.folder, self.topic, self.queue_id = folder, topic, queue_id
        self.files: list[tuple[int, Path, int]] = []
        """(number of its first unit, path, units) of each file, ascending."""
        for path in sorted(folder.iterdir()):
            if is_log_name(path.name) and path.is_file():
                self.files.append((int(path.name) // UNIT_BYTES, path, path.stat().st_size // UNIT_BYTES))
        self._block, self._block_at = b"", -1

    @property
    def first(self) -> int:
        """Number of the first unit for which there is a file."""
        return self.files[0][0] if self.files else 0

    @property
    def stop(self) -> int:
        """One past the last unit for which there is a file."""
        return self.files[-1][0] + self.files[-1][2] if self.files else 0

    def unit(self, offset: int) -> Unit | None:
        """Return a unit; None: there is no file for it, or the file cannot be read."""
        at = (offset - self._block_at) * UNIT_BYTES
        if not 0 <= at < len(self._block) - UNIT_BYTES + 1:
            found = self.place(offset)
            if found is None:
                return None
            path, place = found
            try:
                with path.open("rb") as file:
                    self._block = os.pread(file.fileno(), _BLOCK_UNITS * UNIT_BYTES, place)
            except OSError:
                return None
            self._block_at, at = offset, 0
            if len(self._block) < UNIT_BYTES:
                return None
        return Unit._make(UNIT.unpack_from(self._block, at))

    def place(self, offset: int) -> tuple[Path, int] | None:
        """Return file and byte of a unit; None: there is no file for it."""
        for first, path, units in reversed(self.files):
            if first <= offset < first + units:
                return path, (offset - first) * UNIT_BYTES
        return None

    def data_behind(self, offset: int) -> Iterator[int]:
        """Yield the numbers of units from `offset` on that hold anything but zeros."""
        for first, path, units in self.files:
            if first + units <= offset:
                continue
            place, size = max(0, offset - first) * UNIT_BYTES, units * UNIT_BYTES
            with path.open("rb") as file:
                while place < size:
                    try:  # only what was ever written: a queue's file is sized whole
                        begin = os.lseek(file.fileno(), place, os.SEEK_DATA)
                    except OSError:
                        break
                    place = max(place, begin - begin % UNIT_BYTES)
                    data = os.pread(file.fileno(), min(_STEP // UNIT_BYTES * UNIT_BYTES, size - place), place)
                    if not data:
                        break
                    if any_byte(data):
                        for at in range(0, len(data), UNIT_BYTES):
                            if any_byte(data[at : at + UNIT_BYTES]):
                                yield first + (place + at) // UNIT_BYTES
                    place += len(data)


def find_unit_files(root: Path) -> Iterator[UnitFiles]:
    """The queues of a `consumequeue` folder. Names that no queue can have are passed over, as by a start."""
    for topic in sorted(root.iterdir()) if root.is_dir() else ():
        try:
            check_partition_topic(topic.name)
        except Refused:
            continue
        for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
            if (
                queue.is_dir()
                and queue.name.isascii()
                and queue.name.isdecimal()
                and str(int(queue.name)) == queue.name
            ):
                yield UnitFiles(queue, topic.name, int(queue.name))
