"""The pure-Python fallback of the compiled extension: frames of MetaQ 1.x, as its data files have them, to columns. See
__init__.pyi."""

from __future__ import annotations

from array import array
from typing import Any

from metaq.errors import BadRequest, RemoteProtocolError
from metaq.wire.hot.fallback.read import END_BAD, END_CLEAN, END_SHORT, END_ZERO, binary_view
from metaq.wire.metaq1.frame import HEAD, HEAD_BYTES, checksum, split_attribute


def frame_run(
    data: Any, start: int, end: int, size_max: int, limit: int, until: int, check_crc: bool
) -> tuple[int, int, int]:
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"run of frames in [{start}, {end}) of a buffer of {len(view)} bytes")
    rows = 0
    while start < end and start < until and rows < limit:
        if end - start < HEAD_BYTES:
            return rows, start, END_SHORT
        size, crc, message_id, flag = HEAD.unpack_from(view, start)
        # The whole head is looked at: a frame with an empty body begins with zeros, too.
        if not size | crc | message_id | flag:
            return rows, start, END_ZERO
        if not 0 <= size <= size_max:
            return rows, start, END_BAD
        stop = start + HEAD_BYTES + size
        if stop > end:
            return rows, start, END_SHORT
        if check_crc and checksum(view[start + HEAD_BYTES : stop]) != crc:
            return rows, start, END_BAD
        rows, start = rows + 1, stop
    return rows, start, END_CLEAN


def frame_columns(data: Any, start: int, end: int) -> dict[str, Any]:
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"frames in [{start}, {end}) of a buffer of {len(view)} bytes")
    places, ids, flags = array("q"), array("q"), array("i")
    bodies, attributes, valid = bytearray(), bytearray(), bytearray()
    place = start
    while place < end:
        row = len(ids)
        valid += bytes(row % 8 == 0)
        size = int.from_bytes(view[place : place + 4], "big", signed=True) if end - place >= HEAD_BYTES else -1
        stop = place + HEAD_BYTES + size
        if size < 0 or stop > end:
            raise RemoteProtocolError(f"frame {row} at byte {place} is broken: its length does not fit")
        _, _, message_id, flag = HEAD.unpack_from(view, place)
        places.append(place - start)
        ids.append(message_id)
        flags.append(flag)
        body = bytes(view[place + HEAD_BYTES : stop])
        try:
            attribute, payload = split_attribute(flag, body)
        # A flag that promises an attribute which is not there: the frame is shown as it is.
        except BadRequest:
            attribute, payload = None, body
        if attribute is not None:
            valid[row >> 3] |= 1 << (row & 7)
        bodies += binary_view(view, stop - len(payload), stop)
        begin = place + HEAD_BYTES + 4
        attributes += binary_view(view, begin, begin + len(attribute)) if attribute is not None else bytes(16)
        place = stop
    return {
        "rows": len(ids), "place": places.tobytes(), "id": ids.tobytes(), "flag": flags.tobytes(), "body": bytes(bodies),
        "attribute": bytes(attributes), "attribute_valid": bytes(valid),
    }  # fmt: skip
