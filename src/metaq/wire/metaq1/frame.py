"""Frames of MetaQ 1.x, in its data files and in the body of a `value`.

    offset  bytes
    0       4      L = bytes of the body
    4       4      CRC-32 of the body without its highest bit
    8       8      id of the message
    16      4      flag; its lowest bit says that the body begins with an attribute
    20      L      body

    attribute: 4 bytes length, so many bytes of UTF-8; the payload follows

All numbers are signed and big-endian. Frames follow each other without a gap.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from metaq.errors import BadRequest

HEAD: Final = struct.Struct(">iiqi")
HEAD_BYTES: Final = HEAD.size
HAS_ATTRIBUTE: Final = 1
NAME_DIGITS: Final = 20
LIVE, ARCHIVED, ZIPPED = ".meta", ".meta.arc", ".meta.zip"
"""Suffixes of data files; the name before is the position of the first frame in `NAME_DIGITS` digits."""
_ATTRIBUTE: Final = struct.Struct(">i")
_CHECKSUM_MASK: Final = 0x7FFF_FFFF


class Frame(NamedTuple):
    """One message."""

    message_id: int
    flag: int
    body: bytes

    @property
    def size(self) -> int:
        return HEAD_BYTES + len(self.body)


def checksum(body: bytes | memoryview) -> int:
    """Return the checksum of a body, attribute and payload together."""
    return zlib.crc32(body) & _CHECKSUM_MASK


def frame(message_id: int, flag: int, body: bytes) -> bytes:
    """Encode a frame."""
    return HEAD.pack(len(body), checksum(body), message_id, flag) + body


def frames(data: bytes, start: int = 0) -> Iterator[Frame]:
    """Yield the whole frames of `data[start:]`; one that is cut off at the end is left out.

    Raises BadRequest: a frame's length or checksum is wrong.
    """
    end = len(data)
    while end - start >= HEAD_BYTES:
        size, crc, message_id, flag = HEAD.unpack_from(data, start)
        # The client has lost its place; it asks for an `offset`.
        if size < 0:
            raise BadRequest(f"the frame at byte {start} says that its body has {size} bytes")
        # The original's get returns a range of bytes, so the last frame is mostly cut off: the next get begins with it.
        body = data[start + HEAD_BYTES : start + HEAD_BYTES + size]
        if len(body) < size:
            return
        if checksum(body) != crc:
            raise BadRequest(
                f"the frame at byte {start}, of {HEAD_BYTES + size} bytes, has checksum {crc} instead of {checksum(body)}"
            )
        yield Frame(message_id, flag, body)
        start += HEAD_BYTES + size


def with_attribute(attribute: str, payload: bytes) -> bytes:
    """Return the body of a message with an attribute, perhaps an empty one. Its flag must have `HAS_ATTRIBUTE`."""
    text = attribute.encode()
    return _ATTRIBUTE.pack(len(text)) + text + payload


def split_attribute(flag: int, body: bytes) -> tuple[bytes | None, bytes]:
    """Return attribute (UTF-8 as it came; None if there is none) and payload of a body.

    Raises BadRequest: the flag promises an attribute that the body does not hold.
    """
    if not flag & HAS_ATTRIBUTE:
        return None, body
    size = _ATTRIBUTE.unpack_from(body)[0] if len(body) >= _ATTRIBUTE.size else -1
    end = _ATTRIBUTE.size + size
    if not 0 <= size <= len(body) - _ATTRIBUTE.size:
        raise BadRequest(f"a body of {len(body)} bytes does not hold the attribute that its flag {flag} promises")
    return body[_ATTRIBUTE.size : end], body[end:]
