"""What a reader of files says about bytes that it cannot read."""

from __future__ import annotations

from msgspec import Struct


class Damage(Struct, frozen=True):
    """Bytes of a data file that cannot be read."""

    path: str
    place: int
    """Where they begin, in bytes from the file's begin; of a zip file, in what it holds."""
    size: int
    """How many; 0: nobody knows, or none are there."""
    why: str

    def __str__(self) -> str:
        left_out = f"; {self.size} bytes cannot be read" if self.size else ""
        return f"{self.path} is damaged at byte {self.place}: {self.why}{left_out}"
