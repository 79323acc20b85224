"""The two hashes that the formats fix: Java's string hash (tags, index keys) and the 31-bit body checksum."""

from __future__ import annotations

from typing import Any

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # no wheel for this platform: the same checksum, a tenth of the speed
    from zlib import crc32 as _crc32

_MASK32 = 0xFFFFFFFF


def java_hash(text: bytes) -> int:
    """Java's `String.hashCode` of UTF-8 bytes: over UTF-16 units, a signed 32-bit number.

    Bytes that are not UTF-8 hash as U+FFFD, which is what a Java peer would have decoded.
    """
    units: bytes = text if text.isascii() else text.decode("utf-8", "replace").encode("utf-16-be")
    result = 0
    if units is text:
        for unit in units:
            result = (result * 31 + unit) & _MASK32
    else:
        for high, low in zip(units[::2], units[1::2], strict=True):
            result = (result * 31 + (high << 8 | low)) & _MASK32
    return result - (1 << 32) if result >> 31 else result


def index_hash(key: bytes) -> int:
    """The index file's hash of a key: abs(java_hash(key)); the smallest number, which has no abs, counts as 0."""
    value = abs(java_hash(key))
    return 0 if value >> 31 else value


def crc31(data: Any) -> int:
    """CRC-32 (IEEE) without its top bit, as a record's BODYCRC holds it. `data`: any contiguous buffer."""
    return int(_crc32(data)) & 0x7FFFFFFF
