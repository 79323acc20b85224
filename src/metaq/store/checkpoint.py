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
    """Store time, ms, of the newest record known to be durable in the log, in the consume queues and in the index; 0: not known.

    RocketMQ's file, byte for byte (docs/formats/checkpoint.md).
    """

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0

    @property
    def safe_ms(self) -> int:
        """Store time, ms, up to which records are whole in log and queues."""
        # RocketMQ starts 3 s before the older of the two, too, and leaves out the index unless `messageIndexSafe` is set.
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
        except IsADirectoryError:  # it only saves reading: no reason not to start
            log.warning("%s is a folder: it is only a hint, so it is made anew", path)
            return cls()
        except OSError as error:
            raise StoreForeign(
                f"{path} cannot be read ({error.strerror}): nothing was touched; move it away, it is made anew"
            ) from None
        # RocketMQ leaves zeros in a young store, and a crash may leave a short file: both only mean that a start reads more.
        if len(data) < _TIMES.size:
            return cls()
        times = _TIMES.unpack(data)
        return cls(*times) if min(times) >= 0 else cls()

    def encode(self) -> bytes:
        return _TIMES.pack(self.log_ms, self.queues_ms, self.index_ms).ljust(CHECKPOINT_BYTES, b"\0")

    def save(self, path: Path, disk: Disk) -> None:
        """Write in place and make it durable. Raises OSError."""
        # In place, as RocketMQ does: the three times lie in one sector, which a power cut does not split.
        made = not path.exists()
        # The file is not truncated: a crash before the write would leave it empty, and the next start would read the
        # whole log.
        descriptor = disk.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(descriptor, self.encode(), 0)
            disk.sync_file(descriptor)
        finally:
            os.close(descriptor)
        if made:
            disk.sync_folder(path.parent)


class IndexMark(Struct, frozen=True):
    """How far the index is durable."""

    files: tuple[str, ...]
    """Names of the index files, oldest first. All but the last are full. Empty: no record has a key."""
    header: tuple[int, int, int, int, int, int]
    """Header of the last file. Entries from its `next_ordinal` on came later, and may not be durable."""
    log: int
    """LogOffset below which every record is indexed."""


class Tails(Struct, frozen=True):
    """The ends of log, queues and index at a moment when all of them were durable: a start reads the log from there.

    `config/metaqTails.json`. RocketMQ neither writes nor reads it; without it the checkpoint counts.
    """

    log_end: int
    """LogOffset. Records that end at or below it are durable, and so are their units and index entries."""
    last_record: int
    """LogOffset of the newest of them that is in a queue; -1: there is none. After a crash a start reads on from here."""
    last_store_ms: int
    """Store time of that record. Another one there: a different broker has cut the log since, and the tails are void."""
    queues: dict[str, dict[int, int]] = field(default_factory=dict)
    """Topic → queue id → max offset. A queue that is missing or shorter is rebuilt from the log."""
    index: IndexMark | None = None
    """None: nothing of the index is known to be durable."""
    boot: str = ""
    """`Disk.boot` when it was written. If it is the same now, all that was written since is in the page cache."""

    @classmethod
    def load(cls, file: ConfigFile) -> Tails | None:
        """Read the file; None if it is missing or damaged, which only makes the start read more of the log."""
        try:
            text = file.load()
        except ConfigError as error:  # it only saves reading: no reason not to start
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
        """Write the file, durably. Raises OSError."""
        file.save(msgspec.json.encode(self).decode())
