"""Numbers of things and of bytes, as people read them."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """Return `1 message`, `2,000 messages`. Args: plural: of a noun that takes more than an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


def size(number: int) -> str:
    """Return a number of bytes for people: `640 B`, `3.2 KiB`, `12.0 MiB`, `1.5 GiB`."""
    if number < 1024:
        return f"{number} B"
    for power, unit in ((1, "KiB"), (2, "MiB")):
        if number < 1024 ** (power + 1):
            return f"{number / 1024**power:.1f} {unit}"
    return f"{number / 1024**3:.1f} GiB"
