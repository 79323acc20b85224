"""Pieces of the log as they are on the disk: their bytes and checksums, whatever records they hold.

Read by `pread`: bytes that a disk cannot give are an OSError there, and a SIGBUS through a mapping.
"""

from __future__ import annotations

import zlib
from typing import Final

from metaq.store.log.commit_log import CommitLog
from metaq.store.mapped_file import MappedFile

UNREADABLE: Final = -1
"""Stands for the checksum of bytes that the disk cannot read."""
_PAGE: Final = 4096


def checksums(log: CommitLog, start: int, stop: int, range_bytes: int) -> list[int]:
    """Return zlib's CRC-32 of each range of [start, stop), up to the end of its log file; UNREADABLE for what the disk cannot read.

    Fewer where retention has taken the file. Raises OSError: the file cannot be opened.
    """
    found = []
    file = log.run.find(start)
    for place in range(start, min(stop, file.end), range_bytes) if file is not None else ():
        assert file is not None
        size = min(range_bytes, stop - place, file.end - place)
        try:
            data = file.peek(place, size)
        except FileNotFoundError:
            break
        except OSError:
            found.append(UNREADABLE)
        else:
            found.append(zlib.crc32(data))
    return found


def piece(log: CommitLog, start: int, stop: int) -> bytes:
    """Return the bytes [start, stop), up to the end of their log file, with zeros for what the disk cannot read.

    None where retention has taken the file, or nothing is asked for. Raises OSError: the file cannot be opened.
    """
    file = log.run.find(start)
    if file is None or stop <= start:
        return b""
    try:
        return read_what_can_be(file, start, min(stop, file.end) - start)
    except FileNotFoundError:
        return b""


def read_what_can_be(file: MappedFile, start: int, size: int) -> bytes:
    """Return `size` bytes of a file from LogOffset `start` on, with zeros for pages that the disk cannot read."""
    try:
        return file.peek(start, size)
    except FileNotFoundError:
        raise
    except OSError:
        return b"".join(
            _page(file, place, min(_PAGE, start + size - place)) for place in range(start, start + size, _PAGE)
        )


def _page(file: MappedFile, start: int, size: int) -> bytes:
    try:
        return file.peek(start, size)
    except FileNotFoundError:
        raise
    except OSError:
        return bytes(size)
