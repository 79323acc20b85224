"""The replication stream of RocketMQ 4.9, both ways, without a socket or a file.

A slave connects to its master's replication port and reports how far its log goes, a LogOffset of 8 bytes; again after each
chunk that it got, and when it was silent for 5 s. The master answers with chunks: the LogOffset of the first byte (8 bytes), the
number of bytes (4), and so many bytes of its log. A chunk without bytes is a heartbeat. Chunks do not cross log files, and end
anywhere within records.

Between two of ours whose group has failover, the slave's first 8 bytes are a ticket, as a negative number, and the master tells up to
where it has acknowledged: a head with that LogOffset as a negative number, and a size of 0 (docs/formats/extensions.md).
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


def encode_ticket(ticket: int) -> bytes:
    """Return what a follower sends first. `ticket`: from 1 on, as its leader has given it."""
    return REPORT.pack(-ticket)


def decode_ticket(data: memoryview) -> int:
    """Return the ticket with which a stream of reports begins; 0: it begins with a report, or is not there yet."""
    return max(0, -REPORT.unpack_from(data)[0]) if len(data) >= REPORT.size else 0


def encode_acknowledged(log_end: int) -> bytes:
    """Return what a leader tells its followers: up to where it has acknowledged."""
    return HEAD.pack(-log_end - 1, 0)


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


class Decoded(NamedTuple):
    """What came of a master's stream."""

    chunks: list[Chunk]
    taken: int
    """Bytes that are done with."""
    needed: int
    """Bytes of the next chunk with its head; 0: not known yet."""
    acknowledged: int
    """LogOffset up to which the leader has acknowledged, the newest that was told; -1: nothing was."""


def decode_chunks(data: memoryview, *, told: bool = False) -> Decoded:
    """Return the whole chunks that came. `told`: the master may tell up to where it has acknowledged.

    Raises RemoteProtocolError: no master sends such a head.
    """
    chunks: list[Chunk] = []
    place, acknowledged = 0, -1
    while len(data) - place >= HEAD.size:
        log_offset, size = HEAD.unpack_from(data, place)
        if told and log_offset < 0 and size == 0:
            acknowledged = -log_offset - 1
            place += HEAD.size
            continue
        if log_offset < 0 or not 0 <= size <= CHUNK_BYTES_MAX:
            raise RemoteProtocolError(
                f"the head of a chunk says {size} bytes from log offset {log_offset} on; a chunk has up to {CHUNK_BYTES_MAX}"
            )
        start = place + HEAD.size
        if len(data) - start < size:
            return Decoded(chunks, place, HEAD.size + size, acknowledged)
        place = start + size
        chunks.append(Chunk(log_offset, data[start:place]))
    return Decoded(chunks, place, 0, acknowledged)
