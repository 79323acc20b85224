"""Writes right records over damaged ones, in place."""

from __future__ import annotations

import os

from metaq.errors import StoreError
from metaq.store.disk import Disk
from metaq.store.log.raw import runs_of
from metaq.store.mapped_file import MappedFile
from metaq.wire import hot


def heads_of(good: bytes, log_offset: int, file: MappedFile) -> list[hot.RecordHead]:
    """Return the heads of records that are to be written at a LogOffset. Raises StoreError: they are not all whole and right."""
    if log_offset + len(good) > file.end:
        raise StoreError(f"records from log offset {log_offset} to {log_offset + len(good)} are not of one log file")
    runs = runs_of(memoryview(good), log_offset, file.size, partial=False)
    return [head for run in runs for head in run.heads]


def overwrite(file: MappedFile, log_offset: int, good: bytes, disk: Disk) -> None:
    """Write bytes durably over those that are there. Raises OSError: what is on the disk is unknown."""
    descriptor = disk.open(file.path, os.O_RDWR)
    try:
        done = 0
        while done < len(good):
            done += os.pwrite(descriptor, memoryview(good)[done:], log_offset - file.start + done)
        disk.sync_file(descriptor)
    finally:
        os.close(descriptor)
