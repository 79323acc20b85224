"""How far the files are durable: RocketMQ's `checkpoint`, and our more precise `config/metaqTails.json`."""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from metaq.errors import ConfigError, StoreForeign
from metaq.store.config_file import ConfigFile
from metaq.store.disk import Disk

log = logging.getLogger(__name__)
CHECKPOINT_BYTES: Final = 4096
_TIMES: Final = struct.Struct(">qqq")
_MARGIN_MS: Final = 3000


class Checkpoint(Struct, frozen=True):
    """Store time (ms) of the newest record known to be durable in the log, the consume queues and the index.

    Zero: not known. See docs/formats/checkpoint.md.
    """

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0

    @property
    def safe_ms(self) -> int:
        """Records up to this time are whole in log and queues; the margin is RocketMQ's."""
        return max(0, min(self.log_ms, self.queues_ms) - _MARGIN_MS)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read the file. One that is missing, short, or holds impossible times is all zero.

        Raises StoreForeign: it is there, and no file that can be read.
        """
        try:
            with path.open("rb") as file:
                data = file.read(_TIMES.size)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise StoreForeign(
                f"{path} cannot be read ({error.strerror}): nothing was touched; move it away, it is made anew"
            ) from None
        if len(data) < _TIMES.size:
            return cls()
        times = _TIMES.unpack(data)
        return cls(*times) if min(times) >= 0 else cls()

    def encode(self) -> bytes:
        return _TIMES.pack(self.log_ms, self.queues_ms, self.index_ms).ljust(CHECKPOINT_BYTES, b"\0")

    def save(self, path: Path, disk: Disk) -> None:
        """Write in place, all in one sector, and make it durable. Raises OSError."""
        made = not path.exists()
        descriptor = disk.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(descriptor, self.encode(), 0)
            disk.sync_file(descriptor)
        finally:
            os.close(descriptor)
        if made:
            disk.sync_folder(path.parent)


class IndexMark(Struct, frozen=True):
    """A moment of the index all of which is durable."""

    files: tuple[str, ...]
    """The names, oldest first. All but the last are full. None of them: no record has a key."""
    header: tuple[int, int, int, int, int, int]
    """That of the last file. Entries from its last number on are of later, and durable or not."""
    log: int
    """LogOffset below which every record is indexed."""


class Tails(Struct, frozen=True):
    """Where everything stood when all of it was durable: what a start can rely on without reading the log.

    RocketMQ neither writes nor reads this file; without it we go by the checkpoint.
    """

    log_end: int
    """All records that end at or below are durable, and so are their units and index entries."""
    last_record: int
    """Where the newest of them that is in a queue begins. A start reads on from here."""
    last_store_ms: int
    """Its store time: by it a start sees that the log is still the same."""
    queues: dict[str, dict[int, int]] = field(default_factory=dict)
    """Topic → queue id → max offset. A queue that is missing or shorter was damaged, and is rebuilt."""
    index: IndexMark | None = None
    """How far the index is durable; None if nothing of it is known to be."""

    @classmethod
    def load(cls, file: ConfigFile) -> Tails | None:
        """Read the file; None if there is none, or it is not whole: it only saves time, so it is no reason not to start."""
        try:
            text = file.load()
        except ConfigError as error:
            log.warning("%s; it is only a hint, so it is ignored", error)
            return None
        if not text:
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            log.warning("%s is ignored, since it is only a hint: it is not what we write (%s)", file.path, error)
            return None

    def save(self, file: ConfigFile) -> None:
        """Raises OSError."""
        file.save(msgspec.json.encode(self).decode())
