"""Size of a stored message as a frame of MetaQ 1.x. Byte positions are sums of these sizes, so the rule must never
change.

docs/formats/positions.md has the rule in full; `hot.frame_sizes` applies it to runs of records.
"""

from __future__ import annotations

import zlib
from typing import Final

from metaq.errors import BadRequest
from metaq.model.message import COMPRESSION_TYPE_MASK, COMPRESSION_ZLIB, SysFlag
from metaq.wire import hot
from metaq.wire.compression import decompress

FRAME_HEAD_BYTES: Final = 20
"""Size of length, checksum, id and flag, which precede a frame's body."""
FRAME_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest expanded body. A compressed body that would expand to more is handed out, and counted, as it is stored."""
_STEP_BYTES: Final = 1024 * 1024
_ZLIB: Final = (0, COMPRESSION_ZLIB)


def expanded_bytes(body: bytes, sys_flag: int) -> int:
    """Return the size of a compressed body once expanded; -1 if it is handed out as stored.

    Raises ConfigError: LZ4 or ZSTD without the extra that brings them; the size cannot be known then.
    """
    try:
        if sys_flag & SysFlag.COMPRESSED and sys_flag & COMPRESSION_TYPE_MASK in _ZLIB:
            return _inflated_bytes(body)
        return len(decompress(body, sys_flag, FRAME_BODY_BYTES_MAX))
    except BadRequest:
        return -1


def expanded_body(body: bytes, sys_flag: int) -> bytes:
    """Return a compressed body as it is handed out: expanded, or as stored. Raises ConfigError as `expanded_bytes`."""
    try:
        return decompress(body, sys_flag, FRAME_BODY_BYTES_MAX)
    except BadRequest:
        return body


def _inflated_bytes(body: bytes) -> int:
    """Return the expanded size of a zlib stream, in steps of `_STEP_BYTES`; -1 as `expanded_bytes`."""
    stream = zlib.decompressobj()
    count = 0
    try:
        while not stream.eof:
            # Piece by piece: only the size is wanted, and 64 MiB of it need not lie in memory.
            step = len(stream.decompress(body, _STEP_BYTES))
            body = stream.unconsumed_tail
            count += step
            # The second case is a stream that is cut short: it would go on for ever without progress.
            if count > FRAME_BODY_BYTES_MAX or not (step or body or stream.eof):
                return -1
    except zlib.error:
        return -1
    return count


def frame_bytes(record: bytes) -> int:
    """Return the size of the frame of one stored record.

    Raises: ValueError: the bytes are no record, or a damaged one. ConfigError: as `expanded_bytes`.
    """
    place, size = int.from_bytes(record[28:36], "big", signed=True), len(record)
    queue_id = int.from_bytes(record[12:16], "big", signed=True)
    offset = int.from_bytes(record[20:28], "big", signed=True)
    if place < 0 or offset < 0:
        raise ValueError(f"a record at log offset {place} with queue offset {offset} is none")
    heads, _, _ = hot.scan_records(record, 0, size, place, 1, check_crc=False)
    sizes = bytearray(4)
    unit = record[28:36] + size.to_bytes(4, "big") + bytes(8)
    if heads:
        done, _ = hot.frame_sizes(
            record, place, unit, 0, 1, heads[0].topic, queue_id, offset, sizes, expanded_bytes
        )  # fmt: skip
        if done:
            return memoryview(sizes).cast("i")[0]
    raise ValueError(f"{size} bytes are no whole record")
