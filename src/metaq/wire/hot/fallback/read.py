"""The pure-Python fallback of the compiled extension: stored bytes to values, pulls, and the producer's batch. See
__init__.pyi."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from metaq.errors import LocalProtocolError, RemoteProtocolError
from metaq.model import StoredMessage
from metaq.model.message import BODY_BYTES_MAX, as_body
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.wire.hot.fallback.sql import Condition, property_table
from metaq.wire.record import BATCH_ENTRY_BYTES_MIN, BLANK_MAGIC, MAGIC, RECORD_BYTES_MIN, Broken, split

_M = TypeVar("_M", bound=StoredMessage)

END_CLEAN: Final = 0
END_ZERO: Final = 1
END_BLANK: Final = 2
END_BAD: Final = 3
END_SHORT: Final = 4

_SIZE_AND_MAGIC = struct.Struct(">iI").unpack_from
_SIZE = struct.Struct(">i").unpack_from
_UNIT = struct.Struct(">qii")
_UNIT_BYTES = 20
_BATCH_ENTRY = struct.Struct(">iIIii")
_VIEW_LONG = struct.Struct("=i4sii")
_VIEW_SHORT = struct.Struct("=i12s")
_MASK31 = 0x7FFFFFFF
# An entry's unique id ends with its index in four hexadecimal digits.
BATCH_ENTRIES_MAX = 65536


class RecordHead:
    __slots__ = (
        "delay_level", "keys", "log_offset", "prepared_offset", "queue_id", "queue_offset", "size", "store_ms",
        "sys_flag", "tags", "topic", "unique_id",
    )  # fmt: skip
    log_offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    prepared_offset: int
    tags: bytes
    delay_level: int
    unique_id: bytes
    keys: bytes


def _property(text: bytes, name: bytes) -> bytes:
    """Return the value of the last property `name` in a stored text, b"" without one. Names are ASCII, so bytes do."""
    if name not in text:
        return b""
    found = b""
    for piece in text.split(b"\x02"):
        if piece.startswith(name + b"\x01") and len(piece) > len(name) + 1:
            found = piece[len(name) + 1 :]
    return found


def scan_records(
    data: Any, start: int, end: int, base: int, limit: int, check_crc: bool
) -> tuple[list[RecordHead], int, int]:
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"scan of [{start}, {end}) in a buffer of {len(view)} bytes")
    heads: list[RecordHead] = []
    while start < end and len(heads) < limit:
        if end - start < 4:
            return heads, start, END_SHORT
        if _SIZE(view, start)[0] == 0:  # nothing written yet: files are made at their full size
            return heads, start, END_ZERO
        if end - start < 8:
            return heads, start, END_SHORT
        size, magic = _SIZE_AND_MAGIC(view, start)
        if magic == BLANK_MAGIC and size >= 8:
            return heads, start, END_BLANK
        if magic != MAGIC or size < RECORD_BYTES_MIN:
            return heads, start, END_BAD
        if size > end - start:
            return heads, start, END_SHORT
        try:
            fields = split(view, start, start + size, check_crc)
        except Broken:
            return heads, start, END_BAD
        if fields[5] != base + start:  # a record of another place: left from before a recovery cut the log here
            return heads, start, END_BAD
        heads.append(_head(view, fields))
        start += size
    return heads, start, END_CLEAN


def record_run(
    data: Any, start: int, end: int, base: int, limit: int, until: int, check_crc: bool
) -> tuple[int, int, int]:
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"run of records in [{start}, {end}) of a buffer of {len(view)} bytes")
    rows = 0
    while start < end and start < until and rows < limit:
        heads, stop, outcome = scan_records(view, start, end, base, 1, check_crc)
        if not heads:
            return rows, start, outcome
        rows, start = rows + 1, stop
    return rows, start, END_CLEAN


def _head(view: memoryview, fields: Any) -> RecordHead:
    head = RecordHead()
    head.size, head.queue_id, head.queue_offset, head.log_offset = fields[0], fields[2], fields[4], fields[5]
    head.sys_flag, head.prepared_offset, head.store_ms, head.topic = fields[6], fields[8], fields[10], fields[16]
    text = bytes(view[fields[17] : fields[18]])
    head.tags, head.unique_id, head.keys = (_property(text, name) for name in (b"TAGS", b"UNIQ_KEY", b"KEYS"))
    # Nine digits fit the 32 bits that the native twin has for a level, and Python's `int` of a long text takes long.
    level = _property(text, b"DELAY")
    head.delay_level = int(level) if level.isdigit() and len(level) < 10 else 0
    return head


def _split_run(view: memoryview, start: int, end: int, check_crc: bool) -> list[Any]:
    """Return the fields of back-to-back records that fill view[start:end]. Raises RemoteProtocolError."""
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"records in [{start}, {end}) of a buffer of {len(view)} bytes")
    found: list[Any] = []
    while start < end:
        try:
            fields = split(view, start, end, check_crc)
        except Broken as error:
            raise RemoteProtocolError(f"record {len(found)} at byte {start} is broken: {error}") from None
        found.append(fields)
        start = fields[18]
    return found


def decode_records(
    data: Any,
    start: int,
    end: int,
    cls: type[_M],
    broker: str,
    min_offset: int,
    max_offset: int,
    check_crc: bool = True,
) -> list[_M]:
    view = memoryview(data).cast("B")
    messages: list[_M] = []
    if not issubclass(cls, StoredMessage):
        raise TypeError(f"{cls!r} is no StoredMessage class")
    for fields in _split_run(view, start, end, check_crc):
        message = cls.__new__(cls)
        (
            _, _, message.queue_id, message.flag, message.queue_offset, message.log_offset, message.sys_flag,
            message.born_ms, message.prepared_offset, message.born_host_raw, message.store_ms, message.store_host_raw,
            message.reconsume_times, body_start, body_end, _, topic, properties_start, stop,
        ) = fields  # fmt: skip
        message.topic = topic.decode("utf-8", "replace")
        message.body = bytes(view[body_start:body_end])
        message.properties_raw = bytes(view[properties_start:stop])
        message.broker, message.min_offset, message.max_offset = broker, min_offset, max_offset
        message._properties = None  # noqa: SLF001  the slot that StoredMessage fills when asked
        messages.append(message)
    return messages


_FIXED_COLUMNS: Final = (
    ("queue_id", "i", 2), ("queue_offset", "q", 4), ("log_offset", "q", 5), ("flag", "i", 3), ("sys_flag", "i", 6),
    ("born_ms", "q", 7), ("store_ms", "q", 10), ("reconsume_times", "i", 12), ("size", "i", 0),
)  # fmt: skip


def binary_view(view: memoryview, start: int, stop: int) -> bytes:
    """Arrow's 16-byte view of view[start:stop]: up to 12 bytes in place, else prefix, buffer 0 and where."""
    size = stop - start
    if size <= 12:
        return _VIEW_SHORT.pack(size, bytes(view[start:stop]))
    return _VIEW_LONG.pack(size, bytes(view[start : start + 4]), 0, start)


def decode_columns(data: Any, start: int, end: int, check_crc: bool = True) -> dict[str, Any]:
    view = memoryview(data).cast("B")
    if len(view) > _MASK31:
        raise ValueError(f"{len(view)} bytes: Arrow views reach 2 GiB")
    found = _split_run(view, start, end, check_crc)
    columns: dict[str, Any] = {"rows": len(found)}
    for name, code, place in _FIXED_COLUMNS:
        columns[name] = struct.pack(f"={len(found)}{code}", *(fields[place] for fields in found))
    spans: dict[str, list[tuple[int, int]]] = {
        "body": [(fields[13], fields[14]) for fields in found],
        "topic": [(fields[15], fields[17] - 2) for fields in found],
        "properties": [(fields[17], fields[18]) for fields in found],
        "born_host": [(fields[18] - fields[0] + 48, fields[13] - 24 - len(fields[11])) for fields in found],
        "store_host": [(fields[13] - 16 - len(fields[11]), fields[13] - 16) for fields in found],
    }
    for column, property_name in (("tag", b"TAGS"), ("keys", b"KEYS"), ("unique_id", b"UNIQ_KEY")):
        places = [_property_span(view, fields[17], fields[18], property_name) for fields in found]
        spans[column] = places
        bits = bytearray((len(found) + 7) // 8)
        for row, (value_start, value_stop) in enumerate(places):
            if value_stop > value_start:
                bits[row >> 3] |= 1 << (row & 7)
        columns[column + "_valid"] = bytes(bits)
    for column, pairs in spans.items():
        columns[column] = b"".join(binary_view(view, *pair) for pair in pairs)
    columns["compressed"] = tuple(row for row, fields in enumerate(found) if fields[6] & 1)
    return columns


def expand_bodies(
    data: Any, views: Any, sys_flags: Any, rows: tuple[int, ...], limit: int, expand: Callable[[bytes, int], bytes]
) -> tuple[bytes, bytes, int]:
    view, made = memoryview(data).cast("B"), bytearray(views)
    flags = memoryview(sys_flags).cast("B").cast("i")
    found: list[bytes] = []
    total = 0
    for number, row in enumerate(rows):
        # The views come from a caller: one that points elsewhere must not be read.
        if not 0 <= row < min(len(made) // 16, len(flags)):
            raise IndexError(f"row {row} of {len(made) // 16}")
        size, _, _, at = _VIEW_LONG.unpack_from(views, 16 * row)
        if size < 0 or (size > 12 and not 0 <= at <= len(view) - size):
            raise ValueError(f"the body of row {row} is not in the data")
        stored = views[16 * row + 4 : 16 * row + 4 + size] if size <= 12 else view[at : at + size]
        body = expand(bytes(stored), flags[row])
        if found and total + len(body) > limit:
            return bytes(made), b"".join(found), number
        if total + len(body) > _MASK31:
            raise ValueError(f"{total + len(body)} bytes: Arrow views reach 2 GiB")
        if len(body) <= 12:
            _VIEW_SHORT.pack_into(made, 16 * row, len(body), body)
        else:
            _VIEW_LONG.pack_into(made, 16 * row, len(body), body[:4], 1, total)
            found.append(body)
            total += len(body)
    return bytes(made), b"".join(found), len(rows)


def _property_span(view: memoryview, start: int, stop: int, name: bytes) -> tuple[int, int]:
    """Where the value of the last property `name` lies; an empty span without one."""
    text = bytes(view[start:stop])
    found = (start, start)
    if name in text:
        at = start
        for piece in text.split(b"\x02"):
            if piece.startswith(name + b"\x01") and len(piece) > len(name) + 1:
                found = (at + len(name) + 1, at + len(piece))
            at += len(piece) + 1
    return found


class Filter:
    __slots__ = ("condition", "reads", "retried", "tag_hashes")

    def __init__(
        self,
        tag_hashes: Iterable[int] = (),
        condition: Condition | None = None,
        retried: Mapping[bytes, Condition] | None = None,
    ) -> None:
        self.tag_hashes, self.condition = frozenset(tag_hashes), condition
        self.retried = None if retried is None else dict(retried)
        self.reads = condition is not None or retried is not None


_WORK_MAX: Final = 1 << 20


def _takes_record(wanted: Filter, view: memoryview, start: int, size: int) -> tuple[bool, int]:
    """Whether the expression is true of a record, and how much work that was."""
    try:
        if size < RECORD_BYTES_MIN or int.from_bytes(view[start : start + 4], "big", signed=True) != size:
            return True, 0
        *_, properties_start, stop = split(view, start, start + size, False)
    except Broken:
        return True, 0
    properties = bytes(view[properties_start:stop])
    condition = wanted.condition
    if condition is None:
        assert wanted.retried is not None
        condition = wanted.retried.get(property_table(properties).get(b"RETRY_TOPIC", b""))
    if condition is None:
        return True, len(properties)
    program = condition.program
    return condition.matches(properties), len(properties) * (1 + program.searches) + program.cost


class Selection:
    __slots__ = (
        "_units", "contiguous", "count", "damaged", "first_log", "last_log_end", "next_offset", "numbers", "size",
    )  # fmt: skip

    def __init__(self, units: list[tuple[int, int]], numbers: list[int], next_offset: int, damaged: bool) -> None:
        self._units, self.next_offset, self.damaged = units, next_offset, damaged
        self.numbers = numbers
        self.count, self.size = len(units), sum(size for _, size in units)
        self.first_log = units[0][0] if units else -1
        self.last_log_end = sum(units[-1]) if units else -1
        self.contiguous = all(a + size == b for (a, size), (b, _) in itertools.pairwise(units))

    def spans(self) -> list[tuple[int, int]]:
        merged: list[tuple[int, int]] = []
        for offset, size in self._units:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = merged[-1][0], merged[-1][1] + size
            else:
                merged.append((offset, size))
        return merged


def select(
    units: Any,
    first_unit: int,
    start: int,
    stop: int,
    wanted: Filter | None,
    count_max: int,
    bytes_max: int,
    log_min: int,
    log_end: int,
    data: Any = None,
    file_offset: int = 0,
) -> Selection:
    view = memoryview(units).cast("B")
    log = memoryview(b"" if data is None else data).cast("B")
    if not 0 <= first_unit <= start <= stop or (stop - first_unit) * _UNIT_BYTES > len(view):
        raise ValueError(f"units [{start}, {stop}) in a buffer of {len(view)} bytes from {first_unit}")
    reads = wanted is not None and wanted.reads
    if reads and data is None:
        raise ValueError("an expression looks at the records: pass the log file that holds them")
    if data is not None and (not 0 <= file_offset <= log_min or log_end - file_offset > len(log)):
        raise ValueError(f"[{log_min}, {log_end}) is not in the file [{file_offset}, {file_offset + len(log)})")
    found: list[tuple[int, int]] = []
    numbers: list[int] = []
    total, last, damaged, low, work = 0, stop, False, -1, 0
    window = view[(start - first_unit) * _UNIT_BYTES : (stop - first_unit) * _UNIT_BYTES]
    for unit, (offset, size, _, code) in enumerate(struct.iter_unpack(">qiii", window), start):
        if len(found) >= count_max or work > _WORK_MAX:
            last = unit
            break
        # Units of a queue follow each other as their records do in the log: one that goes back is damaged.
        if offset < 0 or size <= 0 or offset < low:
            last, damaged = unit, True
            break
        # Retention has taken the record; or RocketMQ has filled the file up to the first offset of a queue that was
        # empty.
        if offset < log_min or (offset == 0 and size == _MASK31):
            continue
        # Just being written, or in the next log file: the next pull begins there.
        if offset >= log_end or offset + size > log_end:
            last = unit
            break
        low = offset + size
        if reads:
            assert wanted is not None
            taken, more = _takes_record(wanted, log, offset - file_offset, size)
            work += more
        else:
            taken = wanted is None or code in wanted.tag_hashes
        if not taken:
            continue
        # RocketMQ never stops before the first record, whatever the limits.
        if found and total + size > bytes_max:
            last = unit
            break
        found.append((offset, size))
        numbers.append(unit)
        total += size
    return Selection(found, numbers, last, damaged)


def sift(data: Any, wanted: Filter, count_max: int, bytes_max: int) -> tuple[int, bytes, int, int]:
    view = memoryview(data).cast("B")
    kept: list[memoryview] = []
    at = used = 0
    next_offset = last_log_end = -1
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big", signed=True) if len(view) - at >= RECORD_BYTES_MIN else 0
        if not RECORD_BYTES_MIN <= size <= len(view) - at:
            raise ValueError(f"no record at byte {at} of {len(view)}")
        if _takes_record(wanted, view, at, size)[0]:
            number, log_offset = struct.unpack_from(">qq", view, at + 20)
            # As in `select`: the first one that fits the filter is taken whatever its size.
            if len(kept) == count_max or (kept and used + size > bytes_max):
                next_offset = number
                break
            kept.append(view[at : at + size])
            used, last_log_end = used + size, log_offset + size
        at += size
    return len(kept), b"".join(kept), next_offset, last_log_end


def check(selection: Selection, data: Any, owner: Any, fresh_from: int) -> tuple[int, int, int]:
    view = memoryview(data).cast("B")
    if len(view) != selection.size:
        raise ValueError(f"{len(view)} bytes for a selection of {selection.size}")
    at = count = 0
    for start, length in selection.spans():
        offset, stop = start, start + length
        while offset < stop:
            if count == selection.count:  # a unit that says too much of its record: what follows has no unit here
                return count, at, selection.next_offset
            number = selection.numbers[count]
            try:  # by the record's own size: a unit that says too much of its last one is no reason to refuse it
                fields = split(view, at, at + stop - offset, offset < fresh_from)
            except Broken:
                return count, at, number
            if (fields[2], fields[4], fields[5], fields[16]) != (owner.queue_id, number, offset, owner.topic):
                return count, at, number
            offset, at, count = offset + fields[0], at + fields[0], count + 1
    return selection.count, at, selection.next_offset


def gather(selection: Selection, data: Any, file_offset: int) -> bytes:
    view = memoryview(data).cast("B")
    parts: list[memoryview] = []
    for offset, size in selection.spans():
        at = offset - file_offset
        if not 0 <= file_offset <= offset or at + size > len(view):
            raise ValueError(f"record at {offset} is not in the file [{file_offset}, {file_offset + len(view)})")
        parts.append(view[at : at + size])
    return b"".join(parts)


def read(
    units: Any,
    first_unit: int,
    start: int,
    stop: int,
    wanted: Filter | None,
    count_max: int,
    bytes_max: int,
    log_min: int,
    log_end: int,
    data: Any,
    file_offset: int,
    view_bytes_min: int,
    owner: Any,
    fresh_from: int,
) -> tuple[int, int, int, int, int, bytes | None, bool]:
    found = select(
        units, first_unit, start, stop, wanted, count_max, bytes_max, log_min, log_end, data, file_offset
    )  # fmt: skip
    copied = gather(found, data, file_offset)
    count, size, next_offset = check(found, copied, owner, fresh_from)
    body = None if found.contiguous and found.size >= view_bytes_min else copied[:size]
    last_log_end = found.last_log_end if size == found.size else found.first_log + size
    return count, size, next_offset, found.first_log, last_log_end, body, found.damaged or size < found.size


class _Spans:
    """A column of byte strings as Arrow keeps it: n + 1 offsets (32 bits, this machine's order) into one buffer."""

    def __init__(self, column: tuple[Any, Any], count: int) -> None:
        offsets, self._data = memoryview(column[0]).cast("B"), memoryview(column[1]).cast("B")
        if len(offsets) < 4 * (count + 1):
            raise ValueError(f"{count} rows need {count + 1} offsets, there are {len(offsets) // 4}")
        self._offsets = offsets[: 4 * (count + 1)].cast("i")
        before = 0
        for index, at in enumerate(self._offsets):
            if not before <= at <= len(self._data):
                raise ValueError(
                    f"offset {index} of {count + 1} is not between the one before it and the end of the data"
                )
            before = at

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])


class RowColumns:
    def __init__(self, count: int, bodies: tuple[Any, Any], properties: Any = None, flags: Any = None) -> None:
        if count < 0:
            raise ValueError(f"{count} rows")
        self.count = count
        self._bodies = _Spans(bodies, count)
        self._properties = _Spans(properties, count) if properties is not None else None
        self._flags = None
        if flags is not None:
            given = memoryview(flags).cast("B")
            if len(given) < 4 * count:
                raise ValueError(f"{count} rows need {count} flags, there are {len(given) // 4}")
            self._flags = given[: 4 * count].cast("i")

    def body(self, row: int) -> bytes:
        return self._bodies[row]

    def properties(self, row: int) -> bytes:
        return self._properties[row] if self._properties is not None else b""

    def flag(self, row: int) -> int:
        return self._flags[row] if self._flags is not None else 0

    def sizes(self, row: int) -> tuple[int, int]:
        if not 0 <= row < self.count:
            raise IndexError(f"there is no row {row} of {self.count}")
        return len(self.body(row)), len(self.properties(row))


class Batch:
    __slots__ = ("_empty", "_lock", "_parts", "_prefix", "bytes_max", "count", "size")

    def __init__(self, id_prefix: bytes = b"", bytes_max: int = BODY_BYTES_MAX, empty: bool = False) -> None:
        self._prefix, self.bytes_max, self._empty = id_prefix, bytes_max, empty
        self._parts: list[Any] | None = []
        self._lock = threading.Lock()  # What native code gets from the GIL.
        self.count = self.size = 0

    def add(self, flag: int, body: Any, properties: bytes) -> int:
        body = as_body(body)
        with self._lock:
            parts, index = self._parts, self.count
            if self._prefix:
                # Texts of older Java clients and of Go end with a separator, Java's since 4.9.8 do not.
                joint = b"\x02" if properties and not properties.endswith(b"\x02") else b""
                properties = b"%b%bUNIQ_KEY\x01%b%04X" % (properties, joint, self._prefix, index)
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise LocalProtocolError(f"{len(properties)} bytes of properties, allowed are {PROPERTIES_BYTES_MAX}")
            size = BATCH_ENTRY_BYTES_MIN + len(body) + len(properties)
            if (
                parts is None
                or not (body or self._empty)
                or self.size + size > self.bytes_max
                or index == BATCH_ENTRIES_MAX
            ):
                return -1
            parts += (
                _BATCH_ENTRY.pack(size, 0, 0, flag, len(body)), body, len(properties).to_bytes(2, "big"), properties
            )  # fmt: skip
            self.size += size
            self.count = index + 1
            return index

    def add_message(self, body: Any, tag: bytes | None, keys: bytes | None) -> int:
        text = b"WAIT\x01true"
        if keys:
            text = b"KEYS\x01%b\x02%b" % (keys, text)
        if tag:
            text = b"TAGS\x01%b\x02%b" % (tag, text)
        return self.add(0, body, text)

    def add_rows(self, columns: RowColumns, start: int = 0, rows: Any = None) -> int:
        chosen = range(columns.count) if rows is None else memoryview(rows).cast("B").cast("i")
        if start < 0:
            raise IndexError(f"there is no row {start}")
        row = start
        while row < len(chosen):
            which = chosen[row]
            if not 0 <= which < columns.count:
                raise IndexError(f"there is no row {which} of {columns.count}")
            try:
                if self.add(columns.flag(which), columns.body(which), columns.properties(which)) < 0:
                    break
            except LocalProtocolError:
                break
            row += 1
        return row

    def take(self) -> bytes:
        with self._lock:
            parts, self._parts = self._parts, None
        return b"".join(parts or ())
