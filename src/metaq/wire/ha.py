"""The replication stream of RocketMQ 4.9, both ways, without a socket or a file.

A slave connects to its master's replication port and reports how far its log goes, a LogOffset of 8 bytes; again after each
chunk that it got, and when it was silent for 5 s. The master answers with chunks: the LogOffset of the first byte (8 bytes), the
number of bytes (4), and so many bytes of its log. A chunk without bytes is a heartbeat. Chunks do not cross log files, and end
anywhere within records.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from metaq.errors import RemoteProtocolError

REPORT: Final = struct.Struct(">q")
HEAD: Final = struct.Struct(">qi")
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024 - HEAD.size
"""Bytes of a chunk that a slave takes: RocketMQ's has a buffer of 4 MiB for chunk and head, and waits for ever for more."""


class Chunk(NamedTuple):
    """Bytes of a master's log, valid as long as the bytes that they were read from."""

    log_offset: int
    data: memoryview


def encode_report(log_end: int) -> bytes:
    """Return the report of a slave whose log ends there."""
    return REPORT.pack(log_end)


def decode_reports(data: memoryview) -> tuple[int | None, int]:
    """Return the newest of the reports that came, None if none is whole, and the bytes that they take."""
    whole = len(data) - len(data) % REPORT.size
    if not whole:
        return None, 0
    return REPORT.unpack_from(data, whole - REPORT.size)[0], whole


def encode_head(log_offset: int, size: int) -> bytes:
    """Return what precedes the bytes of a chunk; with a size of 0, a heartbeat."""
    return HEAD.pack(log_offset, size)


def decode_chunks(data: memoryview) -> tuple[list[Chunk], int, int]:
    """Return the whole chunks that came, the bytes that they take, and the size of the next one with its head; 0: unknown.

    Raises RemoteProtocolError: no master sends such a head.
    """
    chunks: list[Chunk] = []
    place = 0
    while len(data) - place >= HEAD.size:
        log_offset, size = HEAD.unpack_from(data, place)
        if log_offset < 0 or not 0 <= size <= CHUNK_BYTES_MAX:
            raise RemoteProtocolError(
                f"the head of a chunk says {size} bytes from log offset {log_offset} on; a chunk has up to {CHUNK_BYTES_MAX}"
            )
        start = place + HEAD.size
        if len(data) - start < size:
            return chunks, place, HEAD.size + size
        place = start + size
        chunks.append(Chunk(log_offset, data[start:place]))
    return chunks, place, 0
