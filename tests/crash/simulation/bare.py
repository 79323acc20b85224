"""Reading a store's files with nothing but the description of the format: what a test holds the store's own reading against.

See docs/formats/commitlog.md and docs/formats/consumequeue.md. Nothing of `metaq.store` is used here, on purpose.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct(">IIIiiqqiq")
"""Total size, magic, body CRC, queue id, flag, queue offset, log offset, system flag, born time."""
_MAGIC, _BLANK = 0xDAA320A7, 0xCBD43194
_UNIT = struct.Struct(">qiq")
_BORN_HOST_V6, _STORE_HOST_V6 = 0x10, 0x20


class BareRecord(NamedTuple):
    """One record of the log."""

    log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: bytes

    @property
    def log_end(self) -> int:
        return self.log_offset + self.size


class Unreadable(AssertionError):
    """The files hold something that the format does not know."""


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").glob("*") if path.name.isdigit())


def read_log(root: Path, start: int = 0, stop: int | None = None) -> list[BareRecord]:
    """The records of a store's log from `start` on, which must be where one begins, up to `stop` or the first zeros.

    Raises Unreadable: bytes that are no record, or a body that does not have its checksum.
    """
    found: list[BareRecord] = []
    for path in log_files(root):
        base = int(path.name)
        data = path.read_bytes()
        if base + len(data) <= start or (stop is not None and base >= stop):
            continue
        place = max(0, start - base)
        while place + 8 <= len(data) and (stop is None or base + place < stop):
            size, magic = struct.unpack_from(">II", data, place)
            if magic == _BLANK:
                break
            if size == 0 and magic == 0:
                if stop is not None:
                    raise Unreadable(f"{path} holds zeros at {place}, in front of the log's end {stop}")
                return found
            if magic != _MAGIC or place + size > len(data):
                raise Unreadable(f"{path} holds no record at {place}")
            found.append(_record(data[place : place + size], base + place))
            place += size
    return found


def _record(data: bytes, place: int) -> BareRecord:
    size, _, crc, queue_id, _, queue_offset, log_offset, sys_flag, _ = _HEAD.unpack_from(data)
    at = _HEAD.size + (20 if sys_flag & _BORN_HOST_V6 else 8) + 8 + (20 if sys_flag & _STORE_HOST_V6 else 8) + 4 + 8
    (body_bytes,) = struct.unpack_from(">i", data, at)
    body = data[at + 4 : at + 4 + body_bytes]
    at += 4 + body_bytes
    topic = data[at + 1 : at + 1 + data[at]].decode()
    at += 1 + data[at]
    (property_bytes,) = struct.unpack_from(">h", data, at)
    if at + 2 + property_bytes != size or log_offset != place:
        raise Unreadable(f"the record at log offset {place} has wrong sizes, or is of another place ({log_offset})")
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise Unreadable(f"the record at log offset {place} of topic {topic} does not have the checksum of its body")
    return BareRecord(place, size, topic, queue_id, queue_offset, body, data[at + 2 :])


def read_units(root: Path, topic: str, queue_id: int) -> dict[int, tuple[int, int]]:
    """Queue offset → (log offset, size) of all units in a queue's files that hold anything."""
    found: dict[int, tuple[int, int]] = {}
    for path in sorted((root / "consumequeue" / topic / str(queue_id)).glob("*")):
        if path.name.isdigit():
            first = int(path.name) // _UNIT.size
            data = path.read_bytes()
            for number, (log_offset, size, _) in enumerate(_UNIT.iter_unpack(data[: len(data) // 20 * 20])):
                if size:
                    found[first + number] = log_offset, size
    return found
