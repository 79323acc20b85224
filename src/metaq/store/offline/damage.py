"""Bytes that an offline reader cannot read."""

from __future__ import annotations

from msgspec import Struct


class Damage(Struct, frozen=True):
    """Bytes of a data file that cannot be read."""

    path: str
    place: int
    """Byte of the file at which they begin; of a zip file, of its uncompressed content."""
    size: int
    """Number of bytes; 0: unknown, or a missing file."""
    why: str

    def __str__(self) -> str:
        left_out = f"; {self.size} bytes cannot be read" if self.size else ""
        return f"{self.path} is damaged at byte {self.place}: {self.why}{left_out}"
