"""The pure-Python fallback of the compiled extension: sizes of 1.x frames, and the end of a queue's file of byte
positions. See __init__.pyi."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

from metaq.wire.record import RECORD_BYTES_MIN, Broken, crc31, split

SIZES_END: Final = 0
SIZES_ELSEWHERE: Final = 1
SIZES_DAMAGED: Final = 2
SIZES_COMPRESSED: Final = 3

FRAME_HEAD_BYTES: Final = 20
POSITION_BYTES: Final = 8
_BITS: Final = 48
_KNOWN: Final = 1 << 63
_MASK: Final = (1 << _BITS) - 1
_MIX_OFFSET: Final = 0xC2B2AE3D27D4EB4F
_MIX: Final = 0x9E3779B97F4A7C15
_ALL: Final = (1 << 64) - 1
_UNIT = struct.Struct(">qi8x")
_POSITION = struct.Struct(">Q")
_COMPRESSED: Final = 1


def attribute_bytes(properties: bytes) -> int:
    """What stands between a frame's header and its body: 0, or 4 and the attribute's bytes."""
    tags = attribute = 0
    for piece in properties.split(b"\x02"):
        if piece.startswith(b"TAGS\x01") and len(piece) > 5:
            tags = len(piece) - 5
        elif piece.startswith(b"METAQ_ATTRIBUTE\x01") and len(piece) > 16:
            attribute = len(piece) - 16
        elif piece.startswith(b"METAQ_BLOCK\x01") and len(piece) > 12:
            return 0
    attribute = attribute or tags
    return attribute + 4 if attribute else 0


def frame_sizes(
    data: Any,
    base: int,
    units: Any,
    row: int,
    end: int,
    topic: bytes,
    queue_id: int,
    first_offset: int,
    sizes: Any,
    expanded: Callable[[bytes, int], int] | None = None,
) -> tuple[int, int]:
    view, held = memoryview(data).cast("B"), memoryview(units).cast("B")
    out = memoryview(sizes).cast("B").cast("i")
    if not 0 <= row <= end <= len(held) // 20 or end > len(out):
        raise ValueError(f"rows [{row}, {end}) of {len(held) // 20} units and {len(out)} sizes")
    while row < end:
        log_offset, size = _UNIT.unpack_from(held, row * 20)
        place = log_offset - base
        if not 0 <= place < len(view):
            return row, SIZES_ELSEWHERE
        if not RECORD_BYTES_MIN <= size <= len(view) - place:
            return row, SIZES_DAMAGED
        try:
            fields = split(view, place, place + size, check_crc=False)
        except Broken:
            return row, SIZES_DAMAGED
        if (fields[0], fields[2], fields[4], fields[5], fields[16]) != (
            size, queue_id, first_offset + row, log_offset, topic,
        ):  # fmt: skip
            return row, SIZES_DAMAGED
        body = view[fields[13] : fields[14]]
        body_bytes = len(body)
        if fields[6] & _COMPRESSED:
            if expanded is None:
                return row, SIZES_COMPRESSED
            body_bytes = expanded(bytes(body), fields[6])
            if body_bytes < 0:  # it cannot be expanded
                if crc31(body) != fields[1] & 0x7FFFFFFF:
                    return row, SIZES_DAMAGED
                body_bytes = len(body)
        out[row] = FRAME_HEAD_BYTES + attribute_bytes(bytes(view[fields[17] : fields[18]])) + body_bytes
        row += 1
    return row, SIZES_END


def _position_unit(offset: int, position: int) -> int:
    value = position & _MASK
    # The queue offset is mixed in, so that a unit in a wrong place is told from a right one
    # (docs/formats/positions.md).
    check = ((value ^ (offset * _MIX_OFFSET & _ALL)) * _MIX & _ALL) >> 49
    # The first bit makes a unit differ from a hole in the file: zeros say nothing.
    return _KNOWN | check << _BITS | value


def position_units(sizes: Any, offset: int, position: int) -> tuple[bytes, int]:
    places = list(accumulate(memoryview(sizes).cast("B").cast("i"), initial=position))
    units = [_position_unit(offset + row, place) for row, place in enumerate(places)]
    return struct.pack(f">{len(units)}Q", *units), places[-1]


def position_of(unit: Any, offset: int) -> int:
    data = bytes(unit)
    value = int.from_bytes(data, "big")
    if len(data) != POSITION_BYTES or value != _position_unit(offset, value & _MASK):
        return -1
    return value & _MASK


def find_position(units: Any, offset: int, position: int) -> tuple[int, int]:
    view = memoryview(units).cast("B")
    low, high, best = 0, len(view) // POSITION_BYTES, -1
    while low < high:
        middle = (low + high) >> 1
        found = position_of(view[middle * POSITION_BYTES : (middle + 1) * POSITION_BYTES], offset + middle)
        if found < 0:
            # Which half to go on in is not known then: the caller has this unit made anew.
            return -1, offset + middle
        if found <= position:
            low, best = middle + 1, found
        else:
            high = middle
    return low - 1, best


class PositionTail:
    __slots__ = ("first", "limit", "next_offset", "next_position", "view")

    def __init__(self) -> None:
        self.next_offset = self.next_position = self.first = self.limit = 0
        self.view = memoryview(b"")

    def attach(self, buffer: Any, first_unit: int, units: int) -> None:
        view = memoryview(buffer).cast("B")
        if not 0 <= units * POSITION_BYTES <= len(view) or not 0 <= first_unit < 1 << 60:
            raise ValueError(f"{units} units from {first_unit} in a buffer of {len(view)} bytes")
        # A mapping cannot be closed as long as there is a view of it.
        self.view.release()
        self.view, self.first, self.limit = view, first_unit, first_unit + units

    def detach(self) -> None:
        self.view.release()
        self.view, self.first, self.limit = memoryview(b""), 0, 0

    def start_at(self, next_offset: int, next_position: int) -> None:
        self.next_offset, self.next_position = next_offset, next_position

    def room(self) -> int:
        # The unit to write is that of the message to come, which lies one behind.
        return self.limit - self.next_offset - 1 if self.first <= self.next_offset + 1 <= self.limit else 0

    def put(self, frame_bytes: int) -> bool:
        if self.room() < 1:
            return False
        self.next_position += frame_bytes
        self.next_offset += 1
        place = (self.next_offset - self.first) * POSITION_BYTES
        _POSITION.pack_into(self.view, place, _position_unit(self.next_offset, self.next_position))
        return True
