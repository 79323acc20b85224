"""Reads a record without its body, for a start that needs to know what the log holds and not the messages themselves."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.model.message import SysFlag
from metaq.store.log.commit_log import CommitLog, store_time_of
from metaq.wire.record import HEAD, HOST_V4, HOST_V6, MAGIC, RECORD_BYTES_MIN, TOPIC_BYTES_MAX

_READ_BYTES: Final = 2048
"""Records up to this size are read in one piece."""


class Outline(Struct, frozen=True):
    """A record's fields without its body; its checksum was not verified."""

    log_offset: int
    size: int
    crc: int
    """BODYCRC & 0x7fffffff."""
    queue_offset: int
    store_ms: int
    prepared_offset: int
    body_bytes: int
    topic: str
    properties: bytes
    queue_id: int


def outline(log: CommitLog, log_offset: int) -> Outline | None:
    """Read the record at a LogOffset from its head and its end; None if none begins there."""
    head = log.read(log_offset, _READ_BYTES)
    if len(head) < RECORD_BYTES_MIN:
        return None
    size, magic, crc, queue_id, _, queue_offset, place, sys_flag, _ = HEAD.unpack_from(head)
    if magic != MAGIC or place != log_offset or size < RECORD_BYTES_MIN:
        return None
    store = 48 + (HOST_V6 if sys_flag & SysFlag.BORN_HOST_V6 else HOST_V4) + 8
    store += HOST_V6 if sys_flag & SysFlag.STORE_HOST_V6 else HOST_V4
    if len(head) < store + 16:
        return None
    prepared_offset = int.from_bytes(head[store + 4 : store + 12], "big", signed=True)
    body_bytes = int.from_bytes(head[store + 12 : store + 16], "big", signed=True)
    start = store + 16 + body_bytes
    if body_bytes < 0 or start + 3 > size:
        return None
    rest = head[start:size] if size <= len(head) else log.read(log_offset + start, size - start)
    if len(rest) != size - start or rest[0] > TOPIC_BYTES_MAX:
        return None
    topic_end = 1 + rest[0]
    if int.from_bytes(rest[topic_end : topic_end + 2], "big") != len(rest) - topic_end - 2:
        return None
    return Outline(
        log_offset,
        size,
        crc & 0x7FFFFFFF,
        queue_offset,
        store_time_of(head),
        prepared_offset,
        body_bytes,
        rest[1:topic_end].decode("utf-8", "replace"),
        rest[topic_end + 2 :],
        queue_id,
    )
