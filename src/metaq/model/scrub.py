"""The comparison of two replicas' logs: what is compared, and what is found to differ."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

RANGE_BYTES: Final = 1024 * 1024
"""Bytes of the log for which there is one checksum, at most; and bytes that are told in one answer."""
RANGES_MAX: Final = 16
"""Checksums in one answer."""
DAMAGE_BYTES_MAX: Final = 64 * RANGE_BYTES
"""Bytes that are repaired by one request: a record can be as long as that."""


class DamagedSide(enum.StrEnum):
    """Which of two logs is damaged at a place where they differ."""

    MASTER = "master"
    """Only the slave has a record with a right checksum."""
    SLAVE = "slave"
    """Only the master has a record with a right checksum."""
    BOTH = "both"
    """Neither has a record there with a right checksum."""
    UNKNOWN = "unknown"
    """Both have what looks right: the logs are not copies of each other there, or what no checksum covers is damaged."""


class LogChecksums(Struct, frozen=True, rename="camel"):
    """Checksums of a piece of a log (30015), and where this log lies."""

    log_min: int
    log_flushed: int
    """LogOffset below which this log is on the disk."""
    file_bytes: int
    folder: str
    """In which its files are."""
    checksums: tuple[int, ...] = ()
    """zlib's CRC-32 of each range of RANGE_BYTES from the asked LogOffset on; the last one may be shorter, where a file or what is
    durable ends. -1: the disk cannot read it."""

    def path(self, log_offset: int) -> str:
        """Return the file that holds a place of this log."""
        return f"{self.folder}/{log_offset - log_offset % self.file_bytes:020d}"


class LogDifference(Struct, frozen=True, rename="camel"):
    """A place at which the logs of a master and its slave differ: whole records, where at least one log has them."""

    log_offset: int
    """Where it begins in both logs."""
    size: int
    """How many bytes differ, to the end of the last record."""
    damaged: DamagedSide
    """Which side is damaged."""
    file: str = ""
    """Path of the file at the damaged side; at the slave, if it is not known which side that is, or both."""
    at: int = 0
    """Byte of that file at which it begins."""

    @property
    def log_end(self) -> int:
        """Return the LogOffset at which it ends."""
        return self.log_offset + self.size


class Mended(Struct, frozen=True, rename="camel"):
    """A place of a log that was repaired (30017)."""

    log_offset: int
    size: int
    kept_in: str
    """Folder that has the bytes that were there before."""


class ScrubState(Struct, frozen=True, rename="camel"):
    """What a slave knows of the comparison of its log with its master's."""

    began_ms: int = 0
    """When the last pass began that has ended; 0: none has."""
    ended_ms: int = 0
    compared: int = 0
    """Bytes that it has compared."""
    alone: bool = False
    """Whether it could only check its own records, since the master tells no checksums."""
    found: int = 0
    """Places that differ, found by that pass and by the one that is under way."""
    differences: tuple[LogDifference, ...] = ()
    """The first of them."""
