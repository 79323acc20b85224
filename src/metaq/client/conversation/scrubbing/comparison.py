"""The walk along the logs of a master and its slave: checksums first, and where they differ, the bytes.

Sans-I/O: each step is a request that both get, and both outcomes come back. Whoever drives it decides how fast.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

from metaq.client.conversation.call import Call
from metaq.client.conversation.scrubbing.calls import GetLogBytes, GetLogChecksums
from metaq.client.conversation.scrubbing.judging import Bytes, Place, border_before, first_difference, judge
from metaq.errors import MetaqError
from metaq.model.scrub import DAMAGE_BYTES_MAX, RANGE_BYTES, RANGES_MAX, DamagedSide, LogChecksums, LogDifference

DIFFERENCES_MAX: Final = 1000
"""Differences that are remembered; all are counted."""
_JOINED_BYTES_MAX: Final = RANGE_BYTES
"""Damaged records behind each other are told as one place up to here."""

T = TypeVar("T")
Steps: TypeAlias = Generator[Call[Any], tuple[Any, Any], T]
"""Requests that master and slave both get, and their outcomes, the master's first."""


class NotComparable(MetaqError):
    """Two logs cannot be compared: one of them tells no checksums, they have files of different sizes, or they have changed."""


class Comparison:
    """Compares two logs as far as both have them, durably. `steps` may be begun again where it was left.

    Args:
        limit: LogOffset at which the two have parted, if they have; None: they have not.
        ranges: checksums that are asked for at once.
        start: LogOffset from which they are compared. A record begins there, in both.
    """

    def __init__(self, limit: int | None = None, ranges: int = RANGES_MAX, start: int = 0) -> None:
        self._limit, self._step = limit, ranges * RANGE_BYTES
        self.start = self.place = start
        """LogOffset at which the comparison began, and up to which it is done."""
        self.stop: int | None = None
        """LogOffset at which it will end; None: not known yet."""
        self.compared = 0
        """Bytes of the log that were compared, and read beside that where they differ."""
        self.found = 0
        self.differences: list[LogDifference] = []
        """The first ones, in order of their places."""
        self.unread = 0
        """Ranges that a disk could not read, though nothing differs in what could be read."""

    def steps(self) -> Steps[None]:
        """Compare. Raises NotComparable."""
        while True:
            ahead = self.place if self.stop is None else self._ahead(self.place)
            told = yield GetLogChecksums(self.place, ahead)
            master, slave = _both(told)
            low = max(master.log_min, slave.log_min)
            if self.stop is None:
                high = min(master.log_flushed, slave.log_flushed)
                self.stop = high if self._limit is None else min(high, self._limit)
                self.start = self.place = max(self.place, low)
                self._file_bytes = master.file_bytes
                if self.place < self.stop:
                    continue
            elif self.place < low:  # retention has taken it, on one side at least
                self.place = low
            elif self.place < ahead:
                yield from self._look(master, slave, ahead)
            if self.place >= self.stop:
                return

    def _file_end(self, place: int) -> int:
        return place - place % self._file_bytes + self._file_bytes

    def _ahead(self, place: int) -> int:
        """Where the next step ends: it does not cross log files."""
        assert self.stop is not None
        return max(place, min(place + self._step, self._file_end(place), self.stop))

    def _look(self, master: LogChecksums, slave: LogChecksums, ahead: int) -> Steps[None]:
        """Go on behind the ranges that are the same, or behind the first that is not."""
        if not master.checksums or not slave.checksums:
            raise NotComparable(f"a log has changed: it has nothing durable at offset {self.place} any more")
        for one, other in zip(master.checksums, slave.checksums, strict=False):
            if self.place >= ahead:
                return
            end = min(self.place + RANGE_BYTES, ahead)
            if one == other >= 0:
                self.compared += end - self.place
                self.place = end
            else:
                yield from self._inspect(master, slave, end)
                return  # the ranges behind begin elsewhere now

    def _inspect(self, master: LogChecksums, slave: LogChecksums, end: int) -> Steps[None]:
        """Judge the range up to `end`, and what belongs to its records. Raises NotComparable."""
        piece = yield from self._read(self.place, end)
        if piece is None:
            return
        different = first_difference(piece.master, piece.slave)
        if different == len(piece.master):
            self.unread += 1
            self.place = end
            return
        different += piece.start
        border = border_before(piece, different)
        first = self.place - self.place % self._file_bytes
        while border is None and piece.start > first and end - piece.start < DAMAGE_BYTES_MAX:
            before = yield from self._read(max(first, piece.start - RANGE_BYTES), piece.start)
            if before is None:
                return
            piece = _joined(before, piece)
            border = border_before(piece, different)
        if border is None:
            border = piece.start  # a file begins with a record; elsewhere both are damaged for very long
        yield from self._judge(piece, border, master, slave)

    def _judge(self, piece: Bytes, border: int, master: LogChecksums, slave: LogChecksums) -> Steps[None]:
        assert self.stop is not None
        last = min(piece.file_end, self.stop)
        while True:
            final = piece.end >= last or piece.end - border >= DAMAGE_BYTES_MAX
            places, judged = judge(piece, border, final=final)
            if judged >= piece.end or final:
                break
            behind = yield from self._read(piece.end, min(piece.end + RANGE_BYTES, last))
            if behind is None:
                return
            piece = _joined(piece, behind)
        for place in places:
            self._note(place, master, slave)
        self.place = max(self.place, piece.end)

    def _read(self, start: int, end: int) -> Steps[Bytes | None]:
        """The bytes of both logs; None: one of them has let go of them. Raises NotComparable."""
        master, slave = yield GetLogBytes(start, end - start)
        self.compared += end - start
        if len(master) == len(slave) == end - start:
            return Bytes(start, self._file_end(start), master, slave)
        now = _both((yield GetLogChecksums(start, start)))
        low = max(one.log_min for one in now)
        if low <= start:
            raise NotComparable(
                f"of {end - start} bytes from log offset {start} on, the master tells {len(master)} and the slave {len(slave)}, and "
                "their logs begin before that"
            )
        self.place = max(self.place, low)
        return None

    def _note(self, place: Place, master: LogChecksums, slave: LogChecksums) -> None:
        at = master if place.damaged is DamagedSide.MASTER else slave
        last = self.differences[-1] if self.differences else None
        if (
            last is not None
            and (last.log_end, last.damaged) == (place.log_offset, place.damaged)
            and self.found == len(self.differences)
            and last.size + place.size <= _JOINED_BYTES_MAX
            and place.log_offset % self._file_bytes
        ):
            self.differences[-1] = LogDifference(
                last.log_offset, last.size + place.size, last.damaged, last.file, last.at
            )
            return
        self.found += 1
        if len(self.differences) < DIFFERENCES_MAX:
            path, in_file = at.path(place.log_offset), place.log_offset % self._file_bytes
            self.differences.append(LogDifference(place.log_offset, place.size, place.damaged, path, in_file))


def _both(told: tuple[LogChecksums | None, LogChecksums | None]) -> tuple[LogChecksums, LogChecksums]:
    """Raises NotComparable."""
    master, slave = told
    if master is None or slave is None:
        raise NotComparable(
            f"the {'master' if master is None else 'slave'} tells no checksums of its log: it is a RocketMQ, or older"
        )
    if master.file_bytes != slave.file_bytes:
        raise NotComparable(
            f"the master has log files of {master.file_bytes} bytes, and the slave of {slave.file_bytes} (mappedFileSizeCommitLog)"
        )
    return master, slave


def _joined(one: Bytes, other: Bytes) -> Bytes:
    return Bytes(one.start, one.file_end, one.master + other.master, one.slave + other.slave)
