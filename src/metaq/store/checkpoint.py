"""How far the files are durable: RocketMQ's `checkpoint`, and our more precise `config/metaqTails.json`."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from metaq.store.config_file import ConfigFile
from metaq.store.disk import Disk

CHECKPOINT_BYTES: Final = 4096
_TIMES: Final = struct.Struct(">qqq")
_MARGIN_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class Checkpoint:
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
        """Read the file. One that is missing, short, or holds impossible times is all zero."""
        try:
            with path.open("rb") as file:
                data = file.read(_TIMES.size)
        except FileNotFoundError:
            return cls()
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


@dataclass(frozen=True, slots=True)
class Tails:
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
    index_files: tuple[str, ...] = ()
    boot_id: str = ""
    """Which start of the machine this is: until the next, what was written to a mapping is not lost."""

    @classmethod
    def load(cls, file: ConfigFile) -> Tails | None:
        """Read the file; None if there is none, or it is not whole."""
        try:
            return msgspec.json.decode(file.load(), type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def save(self, file: ConfigFile) -> None:
        """Raises OSError."""
        file.save(msgspec.json.encode(self).decode())
