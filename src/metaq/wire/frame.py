"""The outer layout of every remoting frame.

    offset  bytes
    0       4      L = number of bytes that follow = 4 + header + body
    4       1      serialize type of the header: 0 JSON, 1 binary
    5       3      h = bytes of the header
    8       h      header
    8 + h   L-4-h  body, may be empty

Frames follow each other without padding. All numbers are unsigned big-endian here: a "negative" length is a huge one.
Everything that the first eight bytes can tell is checked when they are in, before memory is taken for the rest.
"""

from __future__ import annotations

from typing import TypeAlias

from metaq.errors import RemoteProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""RocketMQ's `com.rocketmq.remoting.frameMaxLength`: the whole frame, its 4-byte length included, as Netty counts."""
LENGTH_BYTES = 4
HEAD_BYTES = 8
SERIALIZE_TYPES = 2

_TLS_CLIENT_HELLO = 0x16
_HTTP_STARTS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN")


def frame_bytes(data: Buffer, start: int, end: int, limit: int = FRAME_BYTES_MAX) -> int:
    """Bytes of the frame that begins at `start`, its 4-byte length included; 0 while that is not known.

    The frame is whole when `end - start` has reached the returned number.
    Raises RemoteProtocolError: this can never become a frame; the text says why.
    """
    have = end - start
    if have < LENGTH_BYTES:
        return 0
    length = int.from_bytes(data[start : start + LENGTH_BYTES], "big")
    if LENGTH_BYTES + length > limit:
        raise RemoteProtocolError(_not_a_length(bytes(data[start : start + LENGTH_BYTES]), length, limit))
    if length < LENGTH_BYTES:
        raise RemoteProtocolError(f"a frame of {length} bytes has no room for its header length")
    if have >= HEAD_BYTES:
        header = int.from_bytes(data[start + 5 : start + HEAD_BYTES], "big")
        if data[start + LENGTH_BYTES] >= SERIALIZE_TYPES:
            raise RemoteProtocolError(f"serialize type {data[start + LENGTH_BYTES]} is neither 0 (JSON) nor 1 (binary)")
        if header > length - LENGTH_BYTES:
            raise RemoteProtocolError(f"a header of {header} bytes does not fit a frame of {length}")
    return LENGTH_BYTES + length


def _not_a_length(start: bytes, length: int, limit: int) -> str:
    if start[0] == _TLS_CLIENT_HELLO:
        return "the peer opened with TLS, and this port speaks plain text only"
    if start in _HTTP_STARTS:
        return "the peer speaks HTTP, and this port speaks RocketMQ's remoting protocol"
    return f"a frame of {LENGTH_BYTES + length} bytes, the limit is {limit}"
