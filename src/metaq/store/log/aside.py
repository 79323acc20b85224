"""Keeps what is cut off behind the log's end, or replaced within it: bytes that might be messages are never just overwritten.

    <storePathRootDir>/cut/<log offset>/<log offset of the first byte, 20 digits>

Each file holds the bytes of one log file from its name's log offset on, up to the last one that is not zero. `metaq store dump`
reads such a folder as it reads a log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from metaq.store.disk import Disk, reserving
from metaq.store.log.broken import whole_records
from metaq.store.log.ranges import read_what_can_be
from metaq.store.log.scan import LogScan, past_damage
from metaq.store.mapped_file import NAME_DIGITS, FileRun, MappedFile, any_byte
from metaq.store.queues.dispatch import is_queued

CUT: Final = "cut"
_STEP: Final = 1024 * 1024


class Aside(Struct, frozen=True):
    """What was cut off and kept."""

    folder: Path
    bytes: int
    messages: int
    """Whole records in it."""


def keep_aside(run: FileRun, end: int, root: Path, disk: Disk) -> Aside | None:
    """Copy what lies behind the log offset `end`, durably; None: nothing but zeros does.

    Raises StoreFull: no room; OSError. The log was not changed.
    """
    parts = [(file, max(end, file.start)) for file in run.files if file.end > end]
    found = [(file, start, stop) for file, start in parts if (stop := _last_byte(file, start)) > start]
    if not found:
        return None
    folder = _free(root / CUT / f"{end:0{NAME_DIGITS}d}")
    with reserving(folder):
        disk.make_folder(folder)
        for number, (file, start, stop) in enumerate(found, 1):
            # With the blank end of all files but the last: the next one begins where this one ends.
            size = (stop if number == len(found) else file.end) - start
            _copy(file, start, stop, folder / f"{start:0{NAME_DIGITS}d}", size, disk)
        disk.sync_folder(folder)
    messages = sum(whole_records(file, start, stop) for file, start, stop in found)
    return Aside(folder, sum(stop - start for _, start, stop in found), messages)


def keep_piece(file: MappedFile, start: int, stop: int, root: Path, disk: Disk) -> Path:
    """Copy [start, stop) of a log file, durably, with zeros for what the disk cannot read. Returns the folder.

    Raises StoreFull: no room; OSError. The log was not changed.
    """
    folder = _free(root / CUT / f"{start:0{NAME_DIGITS}d}")
    with reserving(folder):
        disk.make_folder(folder)
        _copy(file, start, stop, folder / f"{start:0{NAME_DIGITS}d}", stop - start, disk)
        disk.sync_folder(folder)
    return folder


class CutOff(NamedTuple):
    """End of a replica's log that is to be cut off."""

    kept: Aside | None
    """None: there was nothing but zeros."""
    records: int
    queues: dict[str, dict[int, int]]
    """Topic → queue id → messages in it."""


def messages_behind(run: FileRun, start: int, stop: int) -> tuple[int, dict[str, dict[int, int]]]:
    """Return how many whole records lie in [start, stop), and of which queues the messages among them are."""
    records, queues = 0, dict[str, dict[int, int]]()
    for heads in LogScan(run, start, stop, check_crc=False, past=past_damage(run, stop, [])):
        records += len(heads)
        for head in heads:
            if is_queued(head.sys_flag):
                counts = queues.setdefault(head.topic.decode("utf-8", "replace"), {})
                counts[head.queue_id] = counts.get(head.queue_id, 0) + 1
    return records, queues


def _free(folder: Path) -> Path:
    """Return a name that is not taken: a start that was killed may have left a copy already, perhaps not a whole one."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def _last_byte(file: MappedFile, start: int) -> int:
    """Return the LogOffset behind the last byte from `start` on that is not zero; `start` if there is none."""
    last = start
    for low, high in file.data_from(start):
        for place in range(low, high, _STEP):
            data = file.read(place, min(_STEP, high - place))
            if any_byte(data):
                last = place + len(data.rstrip(b"\0"))
    return last


def _copy(file: MappedFile, start: int, stop: int, to: Path, size: int, disk: Disk) -> None:
    """Copy [start, stop) of a file into one of so many bytes."""
    descriptor = disk.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.ftruncate(descriptor, size)
        for place in range(start, stop, _STEP):
            data = read_what_can_be(file, place, min(_STEP, stop - place))
            if any_byte(data):  # zeros stay a hole
                os.pwrite(descriptor, data, place - start)
        disk.sync_file(descriptor)
    finally:
        os.close(descriptor)
