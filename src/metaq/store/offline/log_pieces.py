"""Reads a commit log in pieces, offline: no lock, no changes; also while a broker writes it, or after one was killed.

A piece is a range of one log file, and what is in it are the records that *begin* there. Where a record begins is known
surely only by walking to it from another one: a body may hold bytes that look like a record, its own log offset and a right
checksum included, since whoever sends can guess where it will lie. So a piece is walked to from a border that nobody but
the broker makes: the begin of the file, or a unit of a consume queue. However a log is cut, the walk is the same, so no
record is in two pieces or in none.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from metaq.errors import MetaqError, StoreCorrupt
from metaq.store.config_file import ConfigFile
from metaq.store.log.log_bytes import AHEAD_BYTES_MAX, BLOCK_BYTES, LogBytes
from metaq.store.log.log_bytes import LogFile as LogFile  # noqa: PLC0414  for readers outside of the store
from metaq.store.log.scan import BACKWARDS_MS_MAX, WHY
from metaq.store.mapped_file import NAME_DIGITS
from metaq.store.offline.damage import Damage
from metaq.store.queues.consume_queue import UNIT, UNIT_BYTES
from metaq.wire import hot
from metaq.wire.files import DELETED_TOPICS
from metaq.wire.record import BLANK_MAGIC, MAGIC

log = logging.getLogger(__name__)

UNPUBLISHED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of records behind zeros up to which they count as being written: the size of the first one is written last."""
FLOORS: Final = "metaqFloors.json"
_HEADS: Final = 4096
_QUEUES_ASKED: Final = 64
"""Consume queues that are searched for a record near a place, at most."""
_NEAR_BYTES: Final = 1024 * 1024
_MAGIC: Final = MAGIC.to_bytes(4, "big")


class LogPiece(Struct, frozen=True):
    """The records of a log file that begin in [start, stop)."""

    file: LogFile
    start: int
    stop: int
    """LogOffsets."""
    border: int
    """LogOffset of a record at or before `start`: the walk to `start` begins here."""


class Run(Struct, frozen=True):
    """Whole records back to back, checksums verified."""

    log_offset: int
    data: memoryview
    """Good until the next one is asked for."""
    rows: int


def find_log_files(folder: Path) -> list[LogFile]:
    """Return the files of a `commitlog` folder, oldest first, without empty ones and other names."""
    found = []
    for path in folder.iterdir():
        if is_log_name(path.name) and path.is_file():
            with contextlib.suppress(FileNotFoundError):  # retention took it
                found.append(LogFile(int(path.name), str(path), path.stat().st_size))
    return sorted((file for file in found if file.size), key=lambda file: file.start)


def may_begin(file: LogFile) -> bool:
    """Whether its first bytes are those of a log file: a record's, blank ones, or untouched."""
    with LogBytes(file) as source:
        head = bytes(source.read(0, 8))
    return head[:4] == bytes(4) or head[4:] in {_MAGIC, BLANK_MAGIC.to_bytes(4, "big")}


def is_log_name(name: str) -> bool:
    """Whether a log file may be called so."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def read_piece(piece: LogPiece) -> Iterator[Run | Damage]:
    """Yield the records of a piece, and its damaged places.

    Damage belongs to the piece in which it begins. Behind it, reading goes on with the next whole record.
    Raises FileNotFoundError, OSError.
    """
    file = piece.file
    stop = piece.stop - file.start
    limit = file.size
    with LogBytes(file) as source:
        place = _walk(source, piece.border - file.start, piece.start - file.start, limit)
        while place < stop:
            block, rows, size, outcome = source.run(place, limit, stop, check_crc=True)
            if rows:
                yield Run(file.start + place, block[:size], rows)
                place += size
            if outcome == hot.END_BLANK:
                return
            if outcome == hot.END_CLEAN:  # a block's worth, or the border of the piece
                if not rows:
                    return  # the file is shorter than it was
                continue
            # Its sizes are right: only this one record is lost, and the next one is found without a search.
            damaged = source.is_record(place, limit, check_crc=False)
            if damaged:
                yield Damage(file.path, place, damaged, "a record's body does not fit its checksum")
            else:
                damaged = source.next_record(place + 1, limit) - place
                yield Damage(file.path, place, damaged, WHY[outcome])
            place += damaged


def _walk(source: LogBytes, place: int, start: int, limit: int) -> int:
    """Walk from record to record. Returns where the first one at or behind `start` begins."""
    if place and not source.is_record(place, limit, check_crc=False):
        place = 0
    while place < start:
        _, rows, size, outcome = source.run(place, limit, start, check_crc=False)
        place += size
        if outcome == hot.END_BLANK or (outcome == hot.END_CLEAN and not rows):
            return limit
        if outcome != hot.END_CLEAN:
            place = source.next_record(place + 1, limit)
    return place


class Borders:
    """LogOffsets at which records begin, by the units of consume queues."""

    def __init__(self, consume_queues: Path) -> None:
        self._root = consume_queues
        self.known = consume_queues.is_dir()
        """Whether there are consume queues at all."""
        self._queues = self._find() if self.known else []

    def _find(self) -> list[list[tuple[Path, int]]]:
        """Return the files of the largest queues, the largest first."""
        queues: list[tuple[int, list[tuple[Path, int]]]] = []
        with contextlib.suppress(OSError):
            for topic in self._root.iterdir():
                for queue in topic.iterdir() if topic.is_dir() else ():
                    if not queue.is_dir():
                        continue
                    files = sorted(path for path in queue.iterdir() if is_log_name(path.name))
                    sized = [(path, path.stat().st_size) for path in files]
                    if sized:
                        queues.append((sum(size for _, size in sized), sized))
        # The largest first: they have units near most places of the log.
        queues.sort(key=lambda queue: -queue[0])
        return [files for _, files in queues[:_QUEUES_ASKED]]

    def before(self, place: int, low: int) -> int:
        """Return where a record in [low, place] begins, near `place` if a queue has one there; `low` if none is known."""
        best = low
        for number, files in enumerate(self._queues):
            with contextlib.suppress(OSError):
                best = max(best, _before(files, place))
            if best > low and place - best <= _NEAR_BYTES:
                self._queues.insert(0, self._queues.pop(number))  # asked first the next time
                break
        return best

    def points_at(self, head: hot.RecordHead) -> bool:
        """Whether the record has its unit."""
        place = head.queue_offset * UNIT_BYTES
        try:
            folder = self._root / head.topic.decode() / str(head.queue_id)
            file_bytes = next(path for path in folder.iterdir() if is_log_name(path.name)).stat().st_size
            with (folder / f"{place - place % file_bytes:0{NAME_DIGITS}d}").open("rb") as file:
                file.seek(place % file_bytes)
                unit = file.read(UNIT_BYTES)
        except (OSError, StopIteration, ZeroDivisionError, ValueError):
            return False
        return len(unit) == UNIT_BYTES and UNIT.unpack(unit)[:2] == (head.log_offset, head.size)


def _before(files: Sequence[tuple[Path, int]], place: int) -> int:
    """Return the largest LogOffset of a queue's units that is not above `place`; -1: there is none."""
    found = -1
    low, high = 0, len(files) - 1
    while low <= high:
        middle = (low + high) // 2
        path, size = files[middle]
        with path.open("rb") as file:
            first = _unit(file.read(UNIT_BYTES))
            if first is None or first > place:
                high = middle - 1
                continue
            found, begin, end = max(found, first), 0, size // UNIT_BYTES
            while end - begin > 1:
                unit = (begin + end) // 2
                file.seek(unit * UNIT_BYTES)
                at = _unit(file.read(UNIT_BYTES))
                if at is None or at > place:
                    end = unit
                else:
                    found, begin = max(found, at), unit
        low = middle + 1
    return found


def _unit(data: bytes) -> int | None:
    """Return a unit's LogOffset; None: it was never written."""
    if len(data) < UNIT_BYTES:
        return None
    log_offset, size, _ = UNIT.unpack(data)
    return log_offset if size > 0 and log_offset >= 0 else None


class LogEnd(Struct, frozen=True):
    """Where a log ends."""

    place: int
    """One past the newest record, or past the last file if it is full."""
    why: str = ""
    """What lies behind it, if that is more than untouched bytes."""


def find_end(files: Sequence[LogFile], borders: Borders) -> LogEnd:
    """Return where the log ends now: behind its last whole record.

    A broken place is the end, unless the log's own records lie behind it: then it is damage, which `read_piece` reports.
    """
    if not files:
        return LogEnd(0)
    tail = len(files) - 1
    while tail and not _begins(files[tail]):  # brokers make the next file ahead of need: it is empty
        tail -= 1
    end = LogEnd(files[tail].start)
    for number, file in enumerate(files[tail:]):
        # From a record near the end: the walk from the file's begin would read all of it. The newest unit may be of an append
        # that was cut short, and so the walk begins in front of all that this one may have.
        low = file.start
        if not number:
            low = borders.before(max(low, borders.before(file.end, low) - AHEAD_BYTES_MAX), low)
        end = _end_in(file, low, borders) or end
    return end


def _begins(file: LogFile) -> bool:
    try:
        with LogBytes(file) as source:
            return bool(source.is_record(0, file.size, check_crc=False))
    except OSError:
        return False


def _end_in(file: LogFile, low: int, borders: Borders) -> LogEnd | None:
    """Where the log ends in a file, in which a record may begin at `low`. None: no record is in it."""
    limit = file.size
    with LogBytes(file) as source:
        place = low - file.start
        if place and not source.is_record(place, limit, check_crc=False):
            place = 0
        block_start, tried, any_record, newest_ms = place, -1, place > 0, 0
        while True:
            block, rows, size, outcome = source.run(place, limit, limit, check_crc=True)
            if rows:
                stale, newest_ms = _stale(source, place, block[:size], newest_ms, borders)
                if stale is not None:
                    return LogEnd(file.start + stale, f"records of an earlier time from byte {stale} on")
                block_start, any_record = place, True
                place += size
            if outcome == hot.END_BLANK or place >= limit:
                return LogEnd(file.end)
            if outcome == hot.END_CLEAN and rows:
                continue
            behind = source.next_record(place + 1, limit)
            if tried != place and source.is_record(place, limit, check_crc=True):
                tried = place  # a running broker has written it since it was read: read on
                continue
            why = _not_the_log(source, block_start, place, behind, borders) if behind < limit else ""
            if why or behind >= limit:
                return LogEnd(file.start + place, why) if any_record else None
            place = block_start = behind


def _stale(
    source: LogBytes, place: int, records: memoryview, newest_ms: int, borders: Borders
) -> tuple[int | None, int]:
    """Return where, among whole records from `place` on, one is too old to follow the others, and the newest store time
    so far."""
    # Behind a tail that RocketMQ has cut off lie whole old records; newer ones may have grown up to one of them exactly.
    parts = hot.decode_columns(records, 0, len(records), False)
    for ms, size in zip(memoryview(parts["store_ms"]).cast("q"), memoryview(parts["size"]).cast("i"), strict=True):
        if ms < newest_ms - BACKWARDS_MS_MAX:
            (head,) = _heads(source, place, place + size, 1)
            if not borders.points_at(head):  # else it was dispatched, and the clock was set back
                return place, newest_ms
        newest_ms = max(newest_ms, ms)
        place += size
    return None, newest_ms


def _not_the_log(source: LogBytes, block_start: int, place: int, behind: int, borders: Borders) -> str:
    """Return why the records from `behind` on are leftovers, in a log that is broken at `place`; "": they are the log's."""
    file = source.file
    if source.is_unpublished(place):
        return f"records from byte {behind} on that a broker was about to add"
    head = _heads(source, behind, file.size, 1)[0]
    if borders.points_at(head):
        return ""
    if borders.known:  # consumers read by units: what has none, nobody has consumed
        return f"records from byte {behind} on to which no consume queue points"
    before = _heads(source, block_start, place, None)
    if before and head.store_ms < before[-1].store_ms - BACKWARDS_MS_MAX:
        return f"older records from byte {behind} on"
    # The size of the first record of a run is written last: zeros in front of a few whole records are an append under way, or
    # one that a kill has cut short.
    if bytes(source.read(place, 4)) == bytes(4):
        at = behind
        while at < file.size and at - place <= UNPUBLISHED_BYTES_MAX:
            _, rows, size, outcome = source.run(at, file.size, file.size, check_crc=False)
            at += size
            if outcome != hot.END_CLEAN or not rows:
                break
        if at - place <= UNPUBLISHED_BYTES_MAX:
            return f"records from byte {behind} on that a broker was about to add"
    return ""


def _heads(source: LogBytes, place: int, stop: int, count: int | None) -> list[hot.RecordHead]:
    """The records from `place` to `stop`; all of them, or `count`."""
    found: list[hot.RecordHead] = []
    while place < stop and (count is None or len(found) < count):
        data = source.read(place, min(stop - place, BLOCK_BYTES))
        heads, size, _ = hot.scan_records(data, 0, len(data), source.file.start + place, count or _HEADS, False)
        if not heads:
            needed = source.is_record(place, stop, check_crc=False)
            if not needed:
                break
            data = source.read(place, needed)
            heads, size, _ = hot.scan_records(data, 0, needed, source.file.start + place, 1, False)
        found = [*found, *heads] if count is not None else heads
        place += size
    return found


def pieces_of(
    files: Sequence[LogFile], end: int, piece_bytes: int, borders: Borders
) -> tuple[list[LogPiece], list[Damage]]:
    """Cut a log up to `end` into pieces of about `piece_bytes`. Returns them, and the files that are missing between others."""
    pieces: list[LogPiece] = []
    missing: list[Damage] = []
    for number, file in enumerate(files):
        if number and files[number - 1].end < file.start <= end:
            gap = file.start - files[number - 1].end
            why = f"the log file before it ends at {files[number - 1].end}, {gap} bytes are missing"
            missing.append(Damage(file.path, 0, 0, why))
        stop = min(file.end, end)
        count = max(1, -(-(stop - file.start) // piece_bytes))
        marks = [file.start + (stop - file.start) * step // count for step in range(count + 1)]
        for begin, finish in itertools.pairwise(marks):
            if begin < finish:
                border = borders.before(begin, file.start) if begin > file.start else begin
                pieces.append(LogPiece(file, begin, finish, border))
    return pieces, missing


def store_ms_at(file: LogFile) -> int | None:
    """Return the store time, ms, of the first record of a file; None: it has none."""
    try:
        with LogBytes(file) as source:
            if not source.is_record(0, file.size, check_crc=False):
                return None
            return _heads(source, 0, file.size, 1)[0].store_ms
    except FileNotFoundError:
        return None


def gone(piece: LogPiece, fault: OSError) -> None:
    """Handle a log file that is missing. Returns if retention took it, oldest first; else raises StoreCorrupt."""
    folder = Path(piece.file.path).parent
    left = find_log_files(folder) if folder.is_dir() else []
    if not left or left[0].start < piece.file.start:
        raise StoreCorrupt(
            f"{piece.file.path} was there when the read was planned, and is not any more: {fault}"
        ) from None
    log.warning(
        "%s was deleted while the read ran: the messages from log offset %d to %d are not in it",
        piece.file.path, piece.start, piece.stop,
    )  # fmt: skip


def hidden_below(root: Path, end: int) -> dict[str, int]:
    """Return topic or queue (`metaq.model.upkeep.floors`) → LogOffset below which its records are hidden: they have expired or were trimmed, or the
    topic was deleted and made again.

    Floors behind the log's `end` are ignored, as by a broker. A configuration file that cannot be read is passed over with a
    warning: its hidden records are then read.
    """
    hidden: dict[str, int] = {}
    for name, parse in ((FLOORS, lambda text: _floors(text, end)), (DELETED_TOPICS.name, _deleted)):
        file = ConfigFile(root / "config" / name)
        try:
            text = file.load()
            found = parse(text) if text else {}
        except (MetaqError, msgspec.DecodeError, ValueError, RecursionError) as error:
            log.warning("%s is passed over, so messages that are gone may be read: %s", file.where, error)
            continue
        for topic, below in found.items():
            hidden[topic] = max(below, hidden.get(topic, 0))
    return hidden


class _Floors(Struct, frozen=True):
    floors: dict[str, int] = {}


def _floors(text: str, end: int) -> dict[str, int]:
    found = msgspec.json.decode(text, type=_Floors).floors
    return {topic: floor for topic, floor in found.items() if floor <= end}


def _deleted(text: str) -> dict[str, int]:
    return DELETED_TOPICS.parse(text)[1]
