"""Which of two replicas' logs is damaged where their bytes differ. Pure: no socket, no file.

A record is right if its size is the sum of its parts, it names its own place, and its body's checksum fits. Nothing covers the
rest of a record (store time, properties and the like): where two right records differ, it is unknown which one is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from metaq.model.scrub import DAMAGE_BYTES_MAX, DamagedSide
from metaq.wire import hot
from metaq.wire.record import BLANK_BYTES_MIN, BLANK_MAGIC, MAGIC, RECORD_BYTES_MIN

MORE: Final = -1
"""Instead of a size: a record may begin there that goes on behind the bytes that are known."""
_SIZE_AND_MAGIC: Final = struct.Struct(">II")
_LOG_OFFSET: Final = struct.Struct(">q")
_LOG_OFFSET_AT: Final = 28
_MAGIC_AT: Final = 4
_MAGICS: Final = (MAGIC.to_bytes(4, "big"), BLANK_MAGIC.to_bytes(4, "big"))
_BLOCK: Final = 4096


class Bytes(Struct, frozen=True):
    """The same piece of two logs, of one log file."""

    start: int
    """LogOffset of the first byte."""
    file_end: int
    """LogOffset at which the log file ends."""
    master: bytes
    slave: bytes
    """As long as `master`."""

    @property
    def end(self) -> int:
        return self.start + len(self.master)


class Place(NamedTuple):
    """Records that differ."""

    log_offset: int
    size: int
    damaged: DamagedSide


class JudgedPiece(NamedTuple):
    """What is known of a piece of two logs."""

    places: list[Place]
    end: int
    """LogOffset up to which they are judged; before the end of the piece, more bytes are needed."""


def first_difference(one: bytes, other: bytes, start: int = 0) -> int:
    """Return the index at or behind `start` of the first byte that differs; the length of the shorter one if none does."""
    stop = min(len(one), len(other))
    for place in range(start, stop, _BLOCK):
        end = min(stop, place + _BLOCK)
        if one[place:end] != other[place:end]:
            return next(at for at in range(place, end) if one[at] != other[at])
    return stop


def border_before(piece: Bytes, log_offset: int) -> int | None:
    """Return where the last record (a file's blank one, too) at or before a LogOffset begins, by what one of the logs says; None:
    no record begins in the piece before it."""
    limit = log_offset - piece.start + _MAGIC_AT + len(_MAGICS[0])
    found = max(_last_head(data, piece, magic, limit) for data in (piece.master, piece.slave) for magic in _MAGICS)
    return piece.start + found if found >= 0 else None


def _last_head(data: bytes, piece: Bytes, magic: bytes, limit: int) -> int:
    """The index of the last head of a record that ends before `limit` behind its magic number; -1: there is none."""
    at = data.rfind(magic, 0, limit)
    while at >= _MAGIC_AT:
        if _is_head(data, at - _MAGIC_AT, piece):
            return at - _MAGIC_AT
        at = data.rfind(magic, 0, at + len(magic) - 1)
    return -1


def _is_head(data: bytes, at: int, piece: Bytes) -> bool:
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    left = piece.file_end - piece.start - at
    if magic == BLANK_MAGIC:
        return bool(size == left)
    if magic != MAGIC or len(data) < at + _LOG_OFFSET_AT + _LOG_OFFSET.size:
        return False
    (log_offset,) = _LOG_OFFSET.unpack_from(data, at + _LOG_OFFSET_AT)
    return bool(log_offset == piece.start + at)


def _whole(data: bytes, at: int, piece: Bytes) -> int:
    """The size of the right record, or blank record, at an index; 0: there is none; MORE."""
    left = piece.file_end - piece.start - at
    if left < BLANK_BYTES_MIN:
        return 0
    if len(data) - at < min(left, RECORD_BYTES_MIN):
        return MORE
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if not _is_head(data, at, piece) or not BLANK_BYTES_MIN <= size <= min(left, DAMAGE_BYTES_MAX):
        return 0
    if at + size > len(data):
        return MORE
    if magic == BLANK_MAGIC:
        return int(size)
    rows, _, _ = hot.record_run(data, at, at + size, piece.start, 1, at + size, True)
    return int(size) if rows else 0


def judge(piece: Bytes, border: int, *, final: bool) -> JudgedPiece:
    """Judge a piece of two logs from `border` on, where a record begins.

    Args: final: no more bytes can be had behind it.
    """
    places: list[Place] = []
    master, slave, stop = piece.master, piece.slave, len(piece.master)
    at = border - piece.start
    different = first_difference(master, slave, at)
    while different < stop:
        sizes = _whole(master, at, piece), _whole(slave, at, piece)
        if MORE in sizes:
            ours, theirs = sizes
            if not final and not (max(sizes) > 0 and _size_alone(piece, at, max(sizes))):
                break
            sizes = max(0, ours), max(0, theirs)  # what goes on behind the end of both logs is none
        size = max(sizes)
        if not size:
            following = _resync(piece, at)
            if following is None and not final:
                break
            following = stop if following is None else following
            if different < following:
                places.append(Place(piece.start + at, following - at, DamagedSide.BOTH))
            at = following
        elif master[at : at + size] == slave[at : at + size]:
            at += size
        else:
            places.append(Place(piece.start + at, size, _damaged(piece, at, sizes)))
            if sizes[0] == sizes[1] or 0 in sizes:
                at += size
            else:  # other records: they may never meet again
                at = _resync(piece, at + size) or stop
        if at > different:
            different = first_difference(master, slave, at)
    else:
        at = stop
    return JudgedPiece(places, piece.start + at)


def _size_alone(piece: Bytes, at: int, size: int) -> bool:
    """Whether two records differ only in the size that they say they have, so that the longer one says it wrongly."""
    return piece.master[at + _MAGIC_AT : at + size] == piece.slave[at + _MAGIC_AT : at + size]


def _damaged(piece: Bytes, at: int, sizes: tuple[int, int]) -> DamagedSide:
    master, slave = sizes
    if not slave:
        return DamagedSide.SLAVE
    if not master:
        return DamagedSide.MASTER
    if master == slave and piece.master[at + _MAGIC_AT : at + 8] == _MAGICS[1]:
        # Nothing reads the rest of a blank record. Ours is zeros; what a RocketMQ has left there is copied as it is.
        rest = slice(at + BLANK_BYTES_MIN, at + master)
        zeros = bytes(master - BLANK_BYTES_MIN)
        if piece.master[rest] == zeros:
            return DamagedSide.SLAVE
        if piece.slave[rest] == zeros:
            return DamagedSide.MASTER
    return DamagedSide.UNKNOWN


def _resync(piece: Bytes, at: int) -> int | None:
    """The index of the next right record of one of the logs behind what is none in both; None: there is none in the piece."""
    # By what its head says first, since a body may hold bytes that look like a record.
    for data in (piece.master, piece.slave):
        if len(data) - at >= _SIZE_AND_MAGIC.size:
            size, _ = _SIZE_AND_MAGIC.unpack_from(data, at)
            if size >= BLANK_BYTES_MIN and at + size < len(data) and _right(piece, at + size):
                return int(at + size)
    heads = [_next_head(data, piece, magic, at + 1) for data in (piece.master, piece.slave) for magic in _MAGICS]
    return min((found for every in heads if (found := next(every, None)) is not None), default=None)


def _right(piece: Bytes, at: int) -> bool:
    return _whole(piece.master, at, piece) > 0 or _whole(piece.slave, at, piece) > 0


def _next_head(data: bytes, piece: Bytes, magic: bytes, start: int) -> Iterator[int]:
    """Yield the indexes of right records at or behind `start`."""
    at = data.find(magic, start + _MAGIC_AT)
    while at >= 0:
        if _is_head(data, at - _MAGIC_AT, piece) and _whole(data, at - _MAGIC_AT, piece) > 0:
            yield at - _MAGIC_AT
        at = data.find(magic, at + 1)
