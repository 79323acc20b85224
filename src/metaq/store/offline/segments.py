"""Data files of MetaQ 1.x, as its servers and our archives have them (docs/formats/metaq1-segments.md): read only.

    <data path>/<topic>-<partition>/<position of the first frame>.meta

or `.meta.arc`, `.arc` once archived, or `.meta.zip`, `.zip` with one such file in it.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple, cast

from msgspec import Struct

from metaq.errors import BadRequest, StoreForeign
from metaq.store.offline.damage import Damage
from metaq.wire import hot
from metaq.wire.metaq1.frame import HEAD, HEAD_BYTES, LIVE, Frame, checksum, split_attribute

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size of a frame's body, at most: a larger length is damage, and must not have memory allocated for it."""
_BLOCK_BYTES: Final = 1024 * 1024
_RUN_FRAMES: Final = 10_000
_RUN_BYTES: Final = 1024 * 1024
_ZIP_FAULTS: Final = frozenset(
    {"BadZipFile", "EOFError", "LZMAError", "NotImplementedError", "RuntimeError", "UnicodeDecodeError", "error"}
)
"""`error` is what zlib and struct raise."""
_NAME: Final = re.compile(r"(\d{1,40})(\.meta|\.meta\.arc|\.arc|\.meta\.zip|\.zip)\Z", re.ASCII)
# A topic may have hyphens of its own: the last one counts.
_FOLDER: Final = re.compile(r"(.+)-(\d{1,9})\Z", re.ASCII)
_POSITION_MAX: Final = (1 << 63) - 1


class Segment(Struct, frozen=True):
    """One file."""

    topic: str
    partition: int
    start: int
    """Position of its first frame."""
    path: Path

    @property
    def is_zip(self) -> bool:
        return self.path.suffix == ".zip"


class Found(NamedTuple):
    """A frame and where it begins in its partition."""

    position: int
    frame: Frame


def frame_parts(frame: Frame) -> tuple[bytes | None, bytes]:
    """Split a frame's body. Returns attribute (None: none) and payload, which is all of it if the promised attribute is
    broken."""
    try:
        return split_attribute(frame.flag, frame.body)
    except BadRequest:
        return None, frame.body


def segment_at(path: Path) -> Segment | None:
    """Return the segment of a file, by its name and its folder's; None: it is none."""
    name, folder = _NAME.match(path.name), _FOLDER.match(path.resolve().parent.name)
    if name is None or int(name[1]) > _POSITION_MAX:
        return None
    topic, partition = (folder[1], int(folder[2])) if folder else ("", 0)
    return Segment(topic, partition, int(name[1]), path)


def find_segments(given: Path) -> list[Segment]:
    """Return the segments of a data folder, of one of its partition folders, or the one file that is given.

    Sorted by topic, partition and position. Other files and folders are passed over.
    """
    paths = [given] if given.is_file() else [*_files(given)]
    for folder in sorted(given.iterdir()) if given.is_dir() else ():
        if folder.is_dir() and _FOLDER.match(folder.name):
            paths += _files(folder)
    found = [segment for path in paths if (segment := segment_at(path)) is not None]
    return sorted(found, key=lambda segment: (segment.topic, segment.partition, segment.start, segment.path.name))


def segments_in(given: Path) -> list[Segment]:
    """Return the same. Raises StoreForeign: there is none."""
    found = find_segments(given)
    if not found:
        raise StoreForeign(
            f"{given} holds no data files of MetaQ 1.x (TOPIC-PARTITION/POSITION{LIVE}, or archives of them)"
        )
    return found


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.iterdir()) if path.is_file())


class SegmentReader:
    """The frames of one segment, up to its end or to the first that is damaged.

    After a walk, `end` is the position where it stopped, and `why` what is there; empty: the file ends there.
    """

    def __init__(self, segment: Segment, start: int | None = None, *, block_bytes: int = _BLOCK_BYTES) -> None:
        """`start`: position of a frame to begin with, in the segment. `block_bytes`: read at once."""
        self.segment, self._block_bytes = segment, block_bytes
        self.end = segment.start if start is None else start
        self.why = ""

    def __iter__(self) -> Iterator[Found]:
        with contextlib.ExitStack() as stack:
            file = self.open(stack)
            if file is None:
                return
            buffer, place = b"", 0
            while True:
                if len(buffer) - place < HEAD_BYTES:
                    buffer, place = buffer[place:] + self.more(file, self._block_bytes), 0
                    if len(buffer) < HEAD_BYTES:
                        self._stop_at(len(buffer), "%d bytes that are no whole frame")
                        return
                size, crc, message_id, flag = HEAD.unpack_from(buffer, place)
                # A power cut leaves zeros, and each 20 of them would be an empty message; a real one has an id.
                if not size | crc | message_id | flag:
                    self.why = "untouched bytes"
                    return
                if not 0 <= size <= FRAME_BYTES_MAX:
                    self.why = f"a frame that says that its body has {size} bytes"
                    return
                stop = place + HEAD_BYTES + size
                if len(buffer) < stop:
                    wanted = max(stop - len(buffer), self._block_bytes)
                    buffer, place, stop = buffer[place:] + self.more(file, wanted), 0, stop - place
                    if len(buffer) < stop:
                        self._stop_at(len(buffer), "%d bytes of a longer frame")
                        return
                body = buffer[place + HEAD_BYTES : stop]
                if checksum(body) != crc:
                    self.why = f"a frame of {stop - place} bytes whose checksum is {checksum(body)} instead of {crc}"
                    return
                found = Found(self.end, Frame(message_id, flag, body))
                self.end += stop - place
                yield found
                place = stop

    def open(self, stack: contextlib.ExitStack) -> IO[bytes] | None:
        """Open the file, or the entry of a zip file, at the first frame to read; None: a zip file that cannot be read."""
        path, skip = self.segment.path, self.end - self.segment.start
        if not self.segment.is_zip:
            file = cast("IO[bytes]", stack.enter_context(path.open("rb")))
            file.seek(skip)
            return file
        import zipfile  # here and not above: it brings every kind of compression along

        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            names = archive.namelist()
            if len(names) != 1:
                self.why = f"a zip file with {len(names)} entries instead of one"
                return None
            entry = stack.enter_context(archive.open(names[0]))
            while skip > 0 and (passed := len(entry.read(min(skip, _BLOCK_BYTES)))):
                skip -= passed
        except Exception as error:
            if not is_zip_fault(error):
                raise
            self.why = f"a zip file that cannot be read ({error})"
            return None
        return entry

    def more(self, file: IO[bytes], size: int) -> bytes:
        """Read up to `size` bytes; a damaged zip file ends where it is damaged."""
        parts = []
        try:
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
        except Exception as error:
            if not self.segment.is_zip or not is_zip_fault(error):
                raise
            self.why = f"a zip file that cannot be read ({error})"
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _stop_at(self, left: int, what: str) -> None:
        if left and not self.why:
            self.why = what % left


def is_zip_fault(error: Exception) -> bool:
    """Whether the error means a damaged or unsupported zip file, not a failing disk."""
    if isinstance(error, OSError):  # EINVAL: a seek to a place that cannot be; without a number: what bz2 raises
        return error.errno in {None, errno.EINVAL}
    # By name: the modules of zip, zlib, and lzma are not loaded for other files.
    return type(error).__name__ in _ZIP_FAULTS


class SegmentPiece(Struct, frozen=True):
    """The frames of a segment that begin in [start, stop), positions of its partition."""

    segment: Segment
    start: int
    stop: int
    last: bool = False
    """A 1.x server may be writing the segment, or was killed while it did: a frame cut off at its end is no damage."""


class SegmentRun(Struct, frozen=True):
    """Whole frames that follow each other, checksums verified."""

    segment: Segment
    position: int
    """Of the first."""
    data: memoryview
    rows: int


def read_segment(piece: SegmentPiece, *, block_bytes: int = _RUN_BYTES) -> Iterator[SegmentRun | Damage]:
    """Yield the frames of a piece, and its damaged places. Raises FileNotFoundError, OSError.

    A frame with a wrong checksum is left out alone; behind an impossible length the rest of the file is lost.
    """
    # Frames have no magic number: the walk to a piece begins at the segment's begin, and cannot resume behind a broken length.
    with contextlib.ExitStack() as stack:
        source = _Source(piece.segment, stack)
        at, is_first = piece.segment.start, True
        buffer, place = memoryview(b""), 0
        while at < piece.stop:
            reads = at >= piece.start
            until = place + (piece.stop if reads else piece.start) - at
            rows, end, outcome = hot.frame_run(buffer, place, len(buffer), FRAME_BYTES_MAX, _RUN_FRAMES, until, reads)
            if rows and reads:
                yield SegmentRun(piece.segment, at, buffer[place:end], rows)
            at, place = at + end - place, end
            if outcome == hot.END_SHORT or (outcome == hot.END_CLEAN and place == len(buffer) and at < piece.stop):
                more = source.read(max(_missing(buffer[place:]), block_bytes))
                if more:
                    buffer, place = memoryview(bytes(buffer[place:]) + more), 0
                elif reads and (place < len(buffer) or source.why or (is_first and not rows and piece.segment.is_zip)):
                    rest = len(buffer) - place
                    if not piece.last:
                        yield _damage(piece, at, rest, source.why or "a frame that is cut off")
                    return
                else:
                    return
            elif outcome != hot.END_CLEAN:
                size = _size_of_frame(buffer[place:])
                if size is None:
                    rest = len(buffer) - place + source.pass_rest()
                    if reads and not (piece.last and outcome == hot.END_ZERO):
                        yield _damage(
                            piece, at, rest, "untouched bytes" if outcome == hot.END_ZERO else "a length that cannot be"
                        )
                    return
                is_end = place + size == len(buffer) and not (more := source.read(block_bytes))
                if place + size == len(buffer) and not is_end:
                    buffer = memoryview(bytes(buffer) + more)
                if not (is_end and piece.last):
                    yield _damage(piece, at, size, "a frame's body does not fit its checksum")
                at, place = at + size, place + size
            is_first = False


def _damage(piece: SegmentPiece, position: int, size: int, why: str) -> Damage:
    return Damage(str(piece.segment.path), position - piece.segment.start, size, why)


def _missing(rest: memoryview) -> int:
    """Return how many bytes are missing of the frame at the end of a buffer."""
    if len(rest) < HEAD_BYTES:
        return HEAD_BYTES
    return HEAD_BYTES + int.from_bytes(rest[:4], "big") - len(rest)


def _size_of_frame(rest: memoryview) -> int | None:
    """Return the size of a frame with a wrong checksum; None: its length is impossible."""
    size = int.from_bytes(rest[:4], "big", signed=True)
    return HEAD_BYTES + size if 0 <= size <= FRAME_BYTES_MAX and any(rest[:HEAD_BYTES]) else None


class _Source:
    """The bytes of a segment, from its begin on; of a zip file, uncompressed."""

    def __init__(self, segment: Segment, stack: contextlib.ExitStack) -> None:
        self._reader = SegmentReader(segment)
        self._file = self._reader.open(stack)

    @property
    def why(self) -> str:
        """Why a damaged zip file ended."""
        return self._reader.why

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        return b"" if self._file is None else self._reader.more(self._file, size)

    def pass_rest(self) -> int:
        """Read the rest. Returns its size."""
        passed = 0
        while more := len(self.read(_BLOCK_BYTES)):
            passed += more
        return passed
