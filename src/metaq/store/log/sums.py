"""Checksums of closed log files, a file each: they tell flips that no record's checksum covers (docs/formats/checksums.md).

    <storePathRootDir>/sums/<name of the log file>

Whatever changes a closed file drops its checksums first (`forget`), and again afterwards: so the ones that are there are of what is there.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path
from typing import Final

from msgspec import Struct

from metaq.errors import StoreCorrupt, StoreForeign
from metaq.store.disk import Disk
from metaq.store.mapped_file import NAME_DIGITS, TEMPORARY

SUMS: Final = "sums"
RANGE_BYTES: Final = 1024 * 1024
VERSION: Final = 1
_MAGIC: Final = b"MQCS"
_HEAD: Final = struct.Struct(">4sHHqqII")
_SUM: Final = struct.Struct(">I")
_CHANGED: Final = "changed"


class Sums(Struct, frozen=True):
    """The checksums of one log file."""

    start: int
    """LogOffset of its first byte."""
    size: int
    range_bytes: int
    sums: tuple[int, ...]
    """CRC-32 of each range; the last range may be shorter."""

    @property
    def end(self) -> int:
        return self.start + self.size


def encode(sums: Sums) -> bytes:
    """Return the content of a file of checksums."""
    head = _HEAD.pack(_MAGIC, VERSION, 0, sums.start, sums.size, sums.range_bytes, len(sums.sums))
    data = head + struct.pack(f">{len(sums.sums)}I", *sums.sums)
    return data + _SUM.pack(zlib.crc32(data))


def decode(data: bytes, name: object) -> Sums:
    """Decode a file of checksums. Raises StoreCorrupt: it is damaged. StoreForeign: a later version of ours wrote it."""
    if len(data) < _HEAD.size + _SUM.size or data[:4] != _MAGIC:
        raise StoreCorrupt(f"{name} is no file of checksums")
    if zlib.crc32(data[: -_SUM.size]) != _SUM.unpack(data[-_SUM.size :])[0]:
        raise StoreCorrupt(f"{name} does not fit its own checksum")
    _, version, _, start, size, range_bytes, count = _HEAD.unpack_from(data)
    if version > VERSION:
        raise StoreForeign(
            f"{name} is of version {version}, and this release reads version {VERSION}: use the newer release"
        )
    if range_bytes <= 0 or count != -(-size // range_bytes) or len(data) != _HEAD.size + _SUM.size * (count + 1):
        raise StoreCorrupt(f"{name} has {count} checksums for {size} bytes")
    return Sums(start, size, range_bytes, struct.unpack_from(f">{count}I", data, _HEAD.size))


class SumsFolder:
    """The checksums of a store's closed log files."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.folder = root / SUMS
        self._disk = disk

    def path(self, start: int) -> Path:
        """Where the checksums are of the log file that begins at a LogOffset."""
        return self.folder / f"{start:0{NAME_DIGITS}d}"

    def starts(self) -> list[int]:
        """LogOffsets of the log files that have checksums, ascending."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if len(name) == NAME_DIGITS and name.isdecimal())

    def load(self, start: int) -> Sums | None:
        """Return the checksums of a log file; None: there are none. Raises StoreCorrupt, StoreForeign, OSError."""
        path = self.path(start)
        try:
            return decode(path.read_bytes(), path)
        except FileNotFoundError:
            return None

    def save(self, sums: Sums) -> None:
        """Write a file of checksums, durably. Raises OSError."""
        self._disk.make_folder(self.folder)
        path = self.path(sums.start)
        making = path.with_name(path.name + TEMPORARY)
        descriptor = self._disk.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode(sums))
            file.flush()
            self._disk.sync_file(file.fileno())
        making.replace(path)
        self._disk.sync_folder(self.folder)

    def drop(self, low: int, stop: int) -> None:
        """Delete, durably, the checksums of log files that begin in [low, stop). Raises OSError."""
        gone = [start for start in self.starts() if low <= start < stop]
        for start in gone:
            self.path(start).unlink(missing_ok=True)
        if gone:
            self._disk.sync_folder(self.folder)

    def forget(self, start: int) -> None:
        """Drop those of a log file that is being changed, also if another process is about to save some. Raises OSError."""
        if self.folder.is_dir():
            (self.folder / _CHANGED).touch()
            self.drop(start, start + 1)

    def changed(self) -> int:
        """Return a number that is another one once a closed log file was changed."""
        with contextlib.suppress(OSError):
            return (self.folder / _CHANGED).stat().st_mtime_ns
        return 0
