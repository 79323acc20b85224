"""Data files of MetaQ 1.x, as its servers and our archives have them (docs/formats/metaq1-segments.md): read only.

    <data path>/<topic>-<partition>/<position of the first frame>.meta

or `.meta.arc`, `.arc` once archived, or `.meta.zip`, `.zip` with one such file in it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple, cast

from msgspec import Struct

from metaq.errors import BadRequest, StoreForeign
from metaq.store.damage import Damage
from metaq.wire.metaq1_frame import HEAD, HEAD_BYTES, Frame, checksum, split_attribute

NAME_DIGITS: Final = 20
LIVE, ARCHIVED, ZIPPED = ".meta", ".meta.arc", ".meta.zip"
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A frame that claims to be longer is damage: nothing is read for it."""
_BLOCK_BYTES: Final = 1024 * 1024
_RUN_FRAMES: Final = 10_000
_RUN_BYTES: Final = 4 * 1024 * 1024
_NAME: Final = re.compile(r"(\d{1,40})(\.meta|\.meta\.arc|\.arc|\.meta\.zip|\.zip)\Z", re.ASCII)
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
    """Attribute (None: it has none) and payload; a body without the attribute that its flag promises is all payload."""
    try:
        return split_attribute(frame.flag, frame.body)
    except BadRequest:
        return None, frame.body


def segment_at(path: Path) -> Segment | None:
    """The segment that a file is, by its name and its folder's; None: it is none."""
    name, folder = _NAME.match(path.name), _FOLDER.match(path.resolve().parent.name)
    if name is None or int(name[1]) > _POSITION_MAX:
        return None
    topic, partition = (folder[1], int(folder[2])) if folder else ("", 0)
    return Segment(topic, partition, int(name[1]), path)


def find_segments(given: Path) -> list[Segment]:
    """The segments of a data folder, of one of its partition folders, or the one file that is given.

    By topic, partition and position. Other files and folders are passed over.
    """
    paths = [given] if given.is_file() else [*_files(given)]
    for folder in sorted(given.iterdir()) if given.is_dir() else ():
        if folder.is_dir() and _FOLDER.match(folder.name):
            paths += _files(folder)
    found = [segment for path in paths if (segment := segment_at(path)) is not None]
    return sorted(found, key=lambda segment: (segment.topic, segment.partition, segment.start, segment.path.name))


def segments_in(given: Path) -> list[Segment]:
    """The same. Raises StoreForeign: there is none."""
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
            file = self._open(stack)
            if file is None:
                return
            buffer, place = b"", 0
            while True:
                if len(buffer) - place < HEAD_BYTES:
                    buffer, place = buffer[place:] + self._more(file, self._block_bytes), 0
                    if len(buffer) < HEAD_BYTES:
                        self._stop_at(len(buffer), "%d bytes that are no whole frame")
                        return
                size, crc, message_id, flag = HEAD.unpack_from(buffer, place)
                if not 0 <= size <= FRAME_BYTES_MAX:
                    self.why = f"a frame that says that its body has {size} bytes"
                    return
                stop = place + HEAD_BYTES + size
                if len(buffer) < stop:
                    wanted = max(stop - len(buffer), self._block_bytes)
                    buffer, place, stop = buffer[place:] + self._more(file, wanted), 0, stop - place
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

    def steps(self, start: int, stop: int) -> Iterator[tuple[int, Frame | _Broken]]:
        """The frames that begin at the positions [start, stop), and what is broken there; those before are passed by."""
        with contextlib.ExitStack() as stack:
            self.end = self.segment.start
            file = self._open(stack)
            if file is None:
                if start == self.segment.start:
                    yield start, _Broken(0, self.why, False)
                return
            buffer, place, at = b"", 0, self.segment.start
            while at < stop:
                if len(buffer) - place < HEAD_BYTES:
                    buffer, place = buffer[place:] + self._more(file, self._block_bytes), 0
                    if len(buffer) < HEAD_BYTES:
                        if (buffer or self.why) and at >= start:
                            yield at, _Broken(len(buffer), self.why or "no whole frame", True)
                        return
                size, crc, message_id, flag = HEAD.unpack_from(buffer, place)
                if not 0 <= size <= FRAME_BYTES_MAX or not size | crc | message_id | flag:
                    if at >= start:
                        rest = len(buffer) - place + self._pass_rest(file)
                        why = f"a frame that says that its body has {size} bytes" if size else "untouched bytes"
                        yield at, _Broken(rest, why, not size)
                    return
                end = place + HEAD_BYTES + size
                if len(buffer) < end:
                    wanted = max(end - len(buffer), self._block_bytes)
                    buffer, place, end = buffer[place:] + self._more(file, wanted), 0, end - place
                    if len(buffer) < end:
                        if at >= start:
                            yield at, _Broken(len(buffer), self.why or "a frame that is cut off", True)
                        return
                if at >= start:
                    body = buffer[place + HEAD_BYTES : end]
                    if checksum(body) == crc:
                        yield at, Frame(message_id, flag, body)
                    else:
                        is_end = end == len(buffer) and not (more := self._more(file, self._block_bytes))
                        if end == len(buffer) and not is_end:
                            buffer += more
                        yield at, _Broken(end - place, "a frame's body does not fit its checksum", is_end)
                at += end - place
                place = end

    def _pass_rest(self, file: IO[bytes]) -> int:
        """How many bytes are left."""
        passed = 0
        while more := len(self._more(file, _BLOCK_BYTES)):
            passed += more
        return passed

    def _open(self, stack: contextlib.ExitStack) -> IO[bytes] | None:
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
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            self.why = f"a zip file that cannot be read ({error})"
            return None
        return entry

    def _more(self, file: IO[bytes], size: int) -> bytes:
        """So many bytes more, or as many as there are; a damaged zip file ends where it is damaged."""
        import zlib

        try:
            parts = []
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
        except (EOFError, zlib.error) as error:
            self.why = f"a zip file that cannot be read ({error})"
        except Exception as error:
            if type(error).__name__ != "BadZipFile":  # its module is not loaded for other files
                raise
            self.why = f"a zip file that cannot be read ({error})"
        return b"".join(parts)

    def _stop_at(self, left: int, what: str) -> None:
        if left and not self.why:
            self.why = what % left


class SegmentPiece(Struct, frozen=True):
    """The frames of a segment that begin in [start, stop), positions of its partition."""

    segment: Segment
    start: int
    stop: int
    last: bool = False
    """A server of 1.x may be writing the segment, or was killed while it did: a frame that is cut off at its end is none."""


class FrameRun(Struct, frozen=True):
    """Whole frames that follow each other, checksums verified."""

    segment: Segment
    positions: list[int]
    frames: list[Frame]


def read_segment(piece: SegmentPiece) -> Iterator[FrameRun | Damage]:
    """What is in a piece: its frames, and where some cannot be read.

    A frame has nothing by which its begin could be told, so it is walked to from the segment's begin, and where a length
    cannot be, the rest of the file is lost. A frame with a wrong checksum is left out alone.
    Raises FileNotFoundError, OSError.
    """
    segment = piece.segment
    path = str(segment.path)
    reader = SegmentReader(segment)
    positions: list[int] = []
    found: list[Frame] = []
    size = 0
    for at, step in reader.steps(piece.start, piece.stop):
        if isinstance(step, Frame):
            positions.append(at)
            found.append(step)
            size += step.size
            if len(found) < _RUN_FRAMES and size < _RUN_BYTES:
                continue
        if found:
            yield FrameRun(segment, positions, found)
            positions, found, size = [], [], 0
        if isinstance(step, _Broken) and not (piece.last and step.is_end):
            yield Damage(path, at - segment.start, step.size, step.why)
    if found:
        yield FrameRun(segment, positions, found)


class _Broken(NamedTuple):
    size: int
    """Bytes up to where it goes on, or to the end of the file; 0: nobody knows."""
    why: str
    is_end: bool
    """No frame is behind it."""
