"""Walks a commit log for a check: every record, with its bytes, and every place that holds none."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from metaq.model.message import SysFlag
from metaq.store.log.log_bytes import LogBytes, LogFile
from metaq.store.log.scan import BACKWARDS_MS_MAX
from metaq.store.offline.damage import Damage
from metaq.store.offline.log_pieces import LogPiece, Run, read_piece
from metaq.store.queues.dispatch import topic_of
from metaq.store.upkeep.findings import Kind, Progress
from metaq.wire import hot
from metaq.wire.record import BLANK_MAGIC, HOST_V4, HOST_V6

_HEADS: Final = 4096
_BLANK_BYTES: Final = 8
_BORN_HOST_AT: Final = 48
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_PORT_MAX: Final = 65535


class Seen(Struct):
    """A record of the log, for those who hold other files against it. `data` is good until the next one."""

    head: hot.RecordHead
    data: memoryview
    file: LogFile

    @property
    def place(self) -> int:
        """Byte of its file at which it begins."""
        return self.head.log_offset - self.file.start


class _Neighbour(NamedTuple):
    """What the record before has in fields that no checksum covers."""

    path: str
    place: int
    store_ms: int
    store_ms_at: int
    host: bytes
    host_at: int


class LogRecords:
    """Yields every record up to a LogOffset, and tells `kind` of what is damaged."""

    def __init__(self, files: Sequence[LogFile], end: int, kind: Kind, progress: Progress) -> None:
        self._files, self._end, self._kind, self._progress = files, end, kind, progress
        self._lost: list[tuple[int, int]] = []
        """LogOffsets [start, stop) of places that hold no record, ascending."""
        self._before: tuple[_Neighbour, ...] = ()
        """The two records before."""
        self._legal: set[bytes] = set()
        """Topics that were looked at and are some."""
        self.newest_ms = self.last_ms = 0
        """Store time of the newest record by time, and by place."""

    @property
    def lost_bytes(self) -> int:
        """Size of all places that hold no record so far."""
        return sum(stop - start for start, stop in self._lost)

    def is_lost(self, log_offset: int) -> bool:
        """Whether the LogOffset lies in a place that holds no record."""
        found = bisect_right(self._lost, (log_offset, 1 << 63)) - 1
        return found >= 0 and log_offset < self._lost[found][1]

    def __iter__(self) -> Iterator[Seen]:
        total = sum(min(file.end, self._end) - file.start for file in self._files if file.start < self._end)
        done = 0
        for number, file in enumerate(self._files):
            if file.start >= self._end:
                break
            self._check_place(number)
            stop = min(file.end, self._end)
            at = file.start
            try:
                for found in read_piece(LogPiece(file, file.start, stop, file.start)):
                    if isinstance(found, Run):
                        yield from self._records(file, found)
                        at = found.log_offset + len(found.data)
                    else:
                        self._damaged(file, found, stop)
                        at = file.start + found.place + found.size
                    self._progress(done + at - file.start, total)
            except FileNotFoundError:  # retention took it
                self._lost.append((at, stop))
            except OSError as error:
                self._lose(file, at - file.start, stop - at, f"the disk cannot read it: {error.strerror}")
            else:
                if at < stop:
                    self._check_blank(file, at, stop)
            done += stop - file.start
            self._progress(done, total)

    def _check_place(self, number: int) -> None:
        file = self._files[number]
        if number and self._files[number - 1].end != file.start:
            before = self._files[number - 1]
            why = f"the log file before it ends at {before.end}: a file is missing, or that one is not of its size"
            self._kind.add(file.path, 0, 0, why)
            self._lost.append((before.end, file.start))

    def _damaged(self, file: LogFile, found: Damage, stop: int) -> None:
        size = min(found.size, stop - file.start - found.place)
        self._lose(file, found.place, size, found.why)

    def _lose(self, file: LogFile, place: int, size: int, why: str) -> None:
        self._kind.add(file.path, place, size, why)
        self._lost.append((file.start + place, file.start + place + size))

    def _check_blank(self, file: LogFile, at: int, stop: int) -> None:
        """Hold the blank record that ends a file against the room that it fills."""
        with LogBytes(file) as source:
            head = bytes(source.read(at - file.start, _BLANK_BYTES))
        if head == (file.end - at).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big"):
            return
        if stop == file.end:
            self._lose(
                file, at - file.start, stop - at, f"a blank record that does not fill the {file.end - at} bytes left"
            )
        else:
            self._lose(file, at - file.start, stop - at, f"no record, and the log is known to go on to {self._end}")

    def _records(self, file: LogFile, run: Run) -> Iterator[Seen]:
        place, data = 0, run.data
        while place < len(data):
            heads, following, _ = hot.scan_records(data, place, len(data), run.log_offset, _HEADS, check_crc=False)
            if not heads:  # cannot be: `read_piece` has seen whole records there
                return
            for head in heads:
                at = head.log_offset - run.log_offset
                self._kind.checked += 1
                self._judge(file, head, data[at : at + _BORN_HOST_AT + 2 * HOST_V6 + 8])
                yield Seen(head, data[at : at + head.size], file)
            place = following

    def _judge(self, file: LogFile, head: hot.RecordHead, start: memoryview) -> None:
        """Look at what no checksum covers: topic, queue, store time and store host."""
        place = head.log_offset - file.start
        if head.topic not in self._legal and not self._is_legal(head):
            self._kind.add(file.path, place, head.size, f"a record of the impossible topic {head.topic[:60]!r}")
        if head.queue_id < 0 or head.queue_offset < 0:
            why = f"a record of queue {head.queue_id} with queue offset {head.queue_offset}"
            self._kind.add(file.path, place, head.size, why)
        store_at = _BORN_HOST_AT + (HOST_V6 if head.sys_flag & _BORN_V6 else HOST_V4)
        size = HOST_V6 if head.sys_flag & _STORE_V6 else HOST_V4
        host = bytes(start[store_at + 8 : store_at + 8 + size])
        mine = _Neighbour(file.path, place, head.store_ms, place + store_at, host, place + store_at + 8)
        if not 0 <= int.from_bytes(host[-4:], "big") <= _PORT_MAX:
            self._kind.add(file.path, mine.host_at, size, "a store host with an impossible port")
        elif len(self._before) == 2:
            before, one = self._before
            if not (before.host == one.host == host and before.store_ms <= one.store_ms <= head.store_ms):
                self._between(before, one, mine)
        self._before = (self._before[-1], mine) if self._before else (mine,)
        self.last_ms, self.newest_ms = head.store_ms, max(self.newest_ms, head.store_ms)

    def _is_legal(self, head: hot.RecordHead) -> bool:
        if topic_of(head) is None:
            return False
        self._legal.add(head.topic)
        return True

    def _between(self, before: _Neighbour, one: _Neighbour, behind: _Neighbour) -> None:
        """Judge a record by its neighbours: a broker's address changes, and its clock is set, for more than one record."""
        if before.host == behind.host != one.host and int.from_bytes(one.host[-4:], "big") <= _PORT_MAX:
            self._kind.add(one.path, one.host_at, len(one.host), "a store host that the records around it do not have")
        low, high = before.store_ms, behind.store_ms
        ahead = one.store_ms > high + BACKWARDS_MS_MAX
        if low <= high and (ahead or one.store_ms < low - BACKWARDS_MS_MAX):
            off = one.store_ms - (high if ahead else low)
            why = f"a store time that is {abs(off)} ms {'behind' if ahead else 'before'} those of the records around it"
            self._kind.add(one.path, one.store_ms_at, 8, why)
