"""The pure-Python fallback of the compiled extension: frames of MetaQ 1.x out of stored records. See __init__.pyi."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from metaq.errors import RemoteProtocolError
from metaq.wire.hot.fallback.tails import NUMBER
from metaq.wire.record import Broken, crc31, split

_HEADER: Final = struct.Struct(">iiqi")
_HAS_ATTRIBUTE: Final = 1
_COMPRESSED: Final = 1
_SIZE_MAX: Final = 0x7FFFFFFF
_NUMBER_MIN, _NUMBER_MAX = -(1 << 63), (1 << 63) - 1


def _parts(text: bytes) -> tuple[bytes | None, bool, int | None]:
    """Of a property text: what stands in front of the body, whether the body has it already, the message's id."""
    tags = attribute = told = b""
    in_body = False
    for piece in text.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if not value:
            continue
        if name == b"METAQ_ID":
            told = value
        elif name == b"METAQ_ATTRIBUTE":
            attribute = value
        elif name == b"METAQ_BLOCK":
            in_body = True
        elif name == b"TAGS":
            tags = value
    number = int(told) if NUMBER(told) else None
    # NUMBER takes nineteen digits, and not all of them fit the frame's 64 bits.
    if number is not None and not _NUMBER_MIN <= number <= _NUMBER_MAX:
        number = None
    return None if in_body else attribute or tags or None, in_body, number


def frames(
    records: Any, broker_id: int, skip: int, size: int, expand: Callable[[bytes, int], bytes]
) -> tuple[bytes, int, int]:
    view = memoryview(records).cast("B")
    if skip < 0 or not 0 <= size <= _SIZE_MAX:
        raise ValueError(f"{size} bytes behind {skip}")
    made, place, number, frame_bytes = bytearray(), 0, 0, 0
    while place < len(view) and len(made) < size:
        try:
            fields = split(view, place, len(view), check_crc=False)
        except Broken as error:
            raise RemoteProtocolError(f"record {number} at byte {place} is broken: {error}") from None
        body, crc = bytes(view[fields[13] : fields[14]]), fields[1] & _SIZE_MAX
        if fields[6] & _COMPRESSED:
            body = expand(body, fields[6])
            # The record's checksum is that of the compressed body, the frame's is to be that of what the consumer gets.
            crc = crc31(body)
        attribute, in_body, told = _parts(bytes(view[fields[17] : fields[18]]))
        flag = fields[3] & ~_HAS_ATTRIBUTE
        if attribute is not None:
            body = len(attribute).to_bytes(4, "big") + attribute + body
            crc = crc31(body)
        if attribute is not None or in_body:
            flag |= _HAS_ATTRIBUTE
        if told is None:
            # `model.partition.foreign_id`: 1.x consumers drop an id that they have seen, so it is the same at each
            # read.
            told = 1 << 62 | broker_id << 52 | fields[5]
        frame = _HEADER.pack(len(body), crc, told, flag) + body
        # Only frames that end within the answer are counted: the caller compares them with the positions.
        if len(frame) - skip <= size - len(made):
            number, frame_bytes = number + 1, frame_bytes + len(frame)
        made += frame[skip : skip + size - len(made)]
        skip, place = max(0, skip - len(frame)), fields[18]
    return bytes(made), number, frame_bytes
