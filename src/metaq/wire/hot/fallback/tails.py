"""The pure-Python fallback of the compiled extension: the ends of log, queue and index that rows are written into. See
__init__.pyi."""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from metaq.wire.record import BLANK_BYTES_MIN, BLANK_MAGIC, TOPIC_BYTES_MAX, java_hash

STOP_END: Final = 0
STOP_SLOW: Final = 1
STOP_LOG_FULL: Final = 2
STOP_QUEUE_FULL: Final = 3
STOP_INDEX_FULL: Final = 4

INDEX_HEADER_BYTES: Final = 40
INDEX_ENTRY_BYTES: Final = 20
UNIT_BYTES: Final = 20

UNIT: Final = struct.Struct(">qiq")
SIZE: Final = struct.Struct(">I")
SLOW_NAME_BYTES_MAX: Final = 63
MASK32: Final = 0xFFFFFFFF
SENDER_FLAGS: Final = 0x703
"""The bits of SYSFLAG that a sender decides: compression and several tags."""
NUMBER: Final = re.compile(rb"-?(0|[1-9][0-9]{0,18})").fullmatch
_CACHED_MAX: Final = 50_000
# Delay and time of day must not add up to more than 64 bits.
_DELAY_MS_MAX: Final = 1 << 60
_INDEX_HEADER = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")
_FILL: Final = 0, 0x7FFFFFFF
"""LogOffset and size of a unit for messages that were gone before its file was made."""


class RunLost(OSError):
    """Never raised here: what is made in place is in the file."""


class LogTail:
    __slots__ = (
        "base",
        "cluster",
        "end",
        "id_prefix",
        "limit",
        "message_bytes_max",
        "read_end",
        "store_host",
        "store_ms",
        "view",
    )  # fmt: skip

    def __init__(self, store_host: bytes, cluster: bytes, message_bytes_max: int) -> None:
        self.store_host, self.message_bytes_max = store_host, message_bytes_max
        self.cluster = b"CLUSTER\x01" + cluster if cluster else b""
        self.id_prefix = store_host.hex().upper().encode()
        self.end = self.store_ms = 0
        self.read_end = (1 << 63) - 1
        self.view = memoryview(b"")
        self.base = self.limit = 0

    def attach(self, buffer: Any, file_offset: int, file_bytes: int, end: int, descriptor: int = -1) -> None:  # noqa: ARG002  in place
        view = memoryview(buffer).cast("B")
        if (
            # The blank record at a file's end says its size in 31 bits.
            not 0 < file_bytes <= min(len(view), 0x7FFFFFFF)
            or not 0 <= end - file_offset <= file_bytes
            or not 0 <= file_offset < (1 << 63) - file_bytes
        ):
            raise ValueError(f"end {end} in a file of {file_bytes} bytes at {file_offset}, buffer of {len(view)}")
        # A mapping cannot be closed as long as there is a view of it.
        self.view.release()
        self.view, self.base, self.limit, self.end = view, file_offset, file_offset + file_bytes, end

    def detach(self) -> None:
        self.view.release()
        self.view, self.base, self.limit = memoryview(b""), self.end, self.end

    def room(self) -> int:
        return self.limit - self.end

    def pad(self) -> None:
        room = self.room()
        if room < BLANK_BYTES_MIN:
            raise ValueError(f"{room} bytes are too few for the blank record")
        at = self.end - self.base
        self.view[at + 4 : at + 8] = SIZE.pack(BLANK_MAGIC)
        SIZE.pack_into(self.view, at, room)
        self.end = self.limit

    def write(self, record: bytes) -> int:
        """Append encoded bytes whose TOTALSIZE is written last. The caller has looked at room()."""
        at, size = self.end - self.base, len(record)
        # The size last: readers, and recovery after a kill, take a record with size 0 for the log's end.
        self.view[at : at + size] = b"\0\0\0\0" + record[4:]
        self.view[at : at + 4] = record[:4]
        offset = self.end
        self.end = offset + size
        return offset


class QueueTail:
    __slots__ = ("first", "limit", "log_end", "next_offset", "queue_id", "run", "topic", "view", "watched")

    def __init__(self, topic: bytes, queue_id: int) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.next_offset = self.log_end = 0
        self.watched = False
        self.run: object = None
        self.view = memoryview(b"")
        self.first = self.limit = 0

    def attach(self, buffer: Any, first_unit: int, units: int) -> None:
        view = memoryview(buffer).cast("B")
        if not 0 <= units * UNIT_BYTES <= len(view) or not 0 <= first_unit < 1 << 60:
            raise ValueError(f"{units} units from {first_unit} in a buffer of {len(view)} bytes")
        self.view.release()
        self.view, self.first, self.limit = view, first_unit, first_unit + units

    def detach(self) -> None:
        self.view.release()
        self.view, self.first, self.limit = memoryview(b""), 0, 0

    def room(self) -> int:
        return max(0, self.limit - self.next_offset) if self.next_offset >= self.first else 0

    def end_below(self, log_end: int) -> int:
        if self.log_end <= log_end:
            return self.next_offset
        if not self.first < self.next_offset <= self.limit:
            return -1

        def is_past(unit: int) -> bool:
            offset, size, _ = UNIT.unpack_from(self.view, (unit - self.first) * UNIT_BYTES)
            return offset > log_end - max(size, 0) and (offset, size) != _FILL

        # Back from the end by steps that double: what replicas lack yet is mostly a few units.
        high, step = self.next_offset, 1
        while is_past(low := max(self.first, high - step)):
            high, step = low, 2 * step
            if high == self.first:
                return -1
        return bisect_left(range(high), True, lo=low + 1, key=is_past)

    def record_end(self, offset: int) -> int:
        if not self.first <= offset < min(self.next_offset, self.limit):
            return -1
        log_offset, size, _ = UNIT.unpack_from(self.view, (offset - self.first) * UNIT_BYTES)
        return int(log_offset + size)

    def put(self, log_offset: int, size: int, tags_code: int) -> bool:
        if log_offset + size <= self.log_end:  # recovery puts records again whose units may be there already
            return True
        if self.room() < 1:
            return False
        UNIT.pack_into(self.view, (self.next_offset - self.first) * UNIT_BYTES, log_offset, size, tags_code)
        self.next_offset += 1
        self.log_end = log_offset + size
        return True


def queue_ends(tails: list[QueueTail], before: bytes | None = None) -> tuple[bytes, list[int], int]:
    if before is not None and len(before) != 8 * len(tails):
        raise ValueError(f"{len(before)} bytes of ends before, for {len(tails)} queues")
    ends = array("q", [tail.next_offset for tail in tails])
    old = array("q", before) if before is not None else array("q", bytes(8 * len(tails)))
    changed = [place for place, (end, was) in enumerate(zip(ends, old, strict=True)) if end != was]
    newest = max((place for place, end in enumerate(ends) if end), key=lambda place: tails[place].log_end, default=-1)
    return ends.tobytes(), changed, newest


class IndexTail:
    __slots__ = ("_entries_at", "_entries_max", "_header", "_slots", "count", "limit", "view")

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self._header = [0, 0, 0, 0, 0]
        self._slots = self._entries_at = self._entries_max = self.limit = 0
        self.count = 1

    def attach(self, buffer: Any, slots: int, entries_max: int) -> None:
        view = memoryview(buffer).cast("B")
        entries_at = INDEX_HEADER_BYTES + 4 * slots
        if slots < 1 or entries_at + entries_max * INDEX_ENTRY_BYTES > len(view):
            raise ValueError(f"{slots} slots and {entries_max} entries do not fit into {len(view)} bytes")
        *header, count = _INDEX_HEADER.unpack_from(view)
        self.view.release()
        self.view, self._slots, self._entries_at, self._header = view, slots, entries_at, header
        self._entries_max = self.limit = entries_max
        # RocketMQ counts from 1: slot value 0 says that there is no entry. A new file is all zeros.
        self.count = max(1, count)

    def detach(self) -> None:
        self.view.release()
        self.view = memoryview(b"")
        self._entries_max = self.limit = 0

    @property
    def end_log(self) -> int:
        return self._header[3]

    def room(self) -> int:
        return max(0, self.limit - self.count)

    def reserve(self, entries: int) -> None:
        self.limit = min(entries, self._entries_max)

    def put(self, key: bytes, log_offset: int, store_ms: int) -> bool:
        if self.room() < 1:
            return False
        self.put_hash(java_hash(key) & MASK32, log_offset, store_ms)
        self.put_header()
        return True

    def put_header(self) -> None:
        if self.count > 1:
            _INDEX_HEADER.pack_into(self.view, 0, *self._header, self.count)

    def put_hash(self, unsigned: int, log_offset: int, store_ms: int) -> None:
        """Add an entry for a key whose unsigned Java hash is known. The caller has checked room(), and calls
        put_header()."""
        view, header, count = self.view, self._header, self.count
        # Java's abs, with 0 for -2^31, as RocketMQ has it.
        hashed = unsigned if unsigned < 1 << 31 else (1 << 32) - unsigned
        if hashed >> 31:
            hashed = 0
        if count == 1:
            header[0], header[2] = store_ms, log_offset
        slot_at = INDEX_HEADER_BYTES + 4 * (hashed % self._slots)
        (previous,) = SIZE.unpack_from(view, slot_at)
        if previous >= count:  # a slot of a damaged or rewound index
            previous = 0
        # Seconds since the first entry of the file, as RocketMQ has it.
        seconds = min((store_ms - header[0]) // 1000, 0x7FFFFFFF) if 0 < header[0] < store_ms else 0
        at = self._entries_at + count * INDEX_ENTRY_BYTES
        _INDEX_ENTRY.pack_into(view, at, hashed, log_offset, seconds, previous)
        SIZE.pack_into(view, slot_at, count)
        if previous == 0:
            header[4] += 1
        header[1], header[3] = store_ms, log_offset
        self.count = count + 1


def rewind_index(buffer: Any, slots: int, count: int) -> int:
    view = memoryview(buffer).cast("B")
    entries_at = INDEX_HEADER_BYTES + 4 * slots
    if not 1 <= slots <= len(view) // 4 or not 1 <= count <= (len(view) - entries_at) // INDEX_ENTRY_BYTES:
        raise ValueError(f"{slots} slots and {count} entries do not fit into {len(view)} bytes")
    view[INDEX_HEADER_BYTES:entries_at] = bytes(4 * slots)
    newest: dict[int, int] = {}
    # Ascending: in each slot the newest entry stands at the end.
    for ordinal in range(1, count):
        (hashed,) = SIZE.unpack_from(view, entries_at + ordinal * INDEX_ENTRY_BYTES)
        newest[(hashed & 0x7FFFFFFF) % slots] = ordinal
    for slot, ordinal in newest.items():
        SIZE.pack_into(view, INDEX_HEADER_BYTES + 4 * slot, ordinal)
    return len(newest)


class TransactionGate:
    __slots__ = ("ended", "half", "may_end", "op", "op_properties", "op_tags_code", "takes_halves")

    def __init__(
        self,
        op_properties: bytes,
        op_tags_code: int,
        may_end: Callable[[int], bool],
        ended: Callable[[int, int], None],
    ) -> None:
        self.op_properties, self.op_tags_code, self.may_end, self.ended = op_properties, op_tags_code, may_end, ended
        self.half: TopicGate | None = None
        self.op: TopicGate | None = None
        self.takes_halves = True


class DelayGate:
    __slots__ = ("levels", "places", "waiting")

    def __init__(self, topic: bytes, levels: int) -> None:
        if levels < 0:
            raise ValueError(f"{levels} delay levels")
        self.waiting = TopicGate(topic, (), 1)
        self.levels = levels
        self.places: dict[int, tuple[QueueTail, int]] = {}

    def open(self, level: int, queue: QueueTail, delay_ms: int) -> None:
        if not 1 <= level <= self.levels or not 0 <= delay_ms <= _DELAY_MS_MAX:
            raise ValueError(f"level {level} of {self.levels} with {delay_ms} ms, allowed are 0 to {_DELAY_MS_MAX}")
        self.places[level] = queue, delay_ms

    def is_open(self, level: int) -> bool:
        return level in self.places


class TopicGate:
    __slots__ = (
        "body_bytes_max",
        "delays",
        "key_prefix",
        "queues",
        "retries_max",
        "slow",
        "topic",
        "trailer",
        "transactions",
        "wait_is_slow",
    )  # fmt: skip

    def __init__(
        self,
        topic: bytes,
        queues: Sequence[QueueTail],
        body_bytes_max: int,
        slow: Collection[bytes] = (),
        wait_is_slow: bool = False,
        transactions: TransactionGate | None = None,
        delays: DelayGate | None = None,
        retries_max: int | None = None,
    ) -> None:
        if not 1 <= len(topic) <= TOPIC_BYTES_MAX:
            raise ValueError(f"topic {topic!r} has {len(topic)} bytes, allowed are 1 to {TOPIC_BYTES_MAX}")
        for name in slow:
            if not 1 <= len(name) <= SLOW_NAME_BYTES_MAX:
                raise ValueError(
                    f"the property name {name!r} has {len(name)} bytes, allowed are 1 to {SLOW_NAME_BYTES_MAX}"
                )
        self.topic, self.queues, self.body_bytes_max = topic, list(queues), body_bytes_max
        self.slow, self.wait_is_slow = frozenset(slow), wait_is_slow
        self.transactions, self.delays, self.retries_max = transactions, delays, retries_max
        self.key_prefix = java_hash(topic + b"#")
        self.trailer = len(topic).to_bytes(1, "big") + topic


class AppendOutcome:
    __slots__ = ("messages", "needed", "queue", "row", "size", "stop", "touched")

    def __init__(self) -> None:
        self.stop = self.row = self.messages = self.size = self.needed = 0
        self.queue: QueueTail | None = None
        self.touched: list[QueueTail] = []


def no_room(
    size: int,
    messages: int,
    keys: int,
    queue: QueueTail,
    log: LogTail,
    index: IndexTail | None,
    outcome: AppendOutcome,
) -> bool:
    """Return whether log, queue or index has no room; `outcome` says which, and for how much."""
    # A log file keeps 8 bytes for the blank record that fills its rest: RocketMQ demands one.
    if size + BLANK_BYTES_MIN > log.limit - log.end:
        outcome.stop, outcome.needed = STOP_LOG_FULL, size + BLANK_BYTES_MIN
    elif queue.next_offset + messages > queue.limit or queue.next_offset < queue.first:
        outcome.stop, outcome.needed, outcome.queue = STOP_QUEUE_FULL, messages, queue
    elif index is not None and keys and index.count + keys > index.limit:
        outcome.stop, outcome.needed = STOP_INDEX_FULL, keys
    else:
        return False
    return True


_tag_codes: dict[bytes, int] = {}
_head_hashes: dict[bytes, int] = {}
_tail_hashes: dict[bytes, int] = {}


def tags_code_of(tag: bytes) -> int:
    if not tag:
        return 0
    code = _tag_codes.get(tag)
    if code is None:
        if len(_tag_codes) > _CACHED_MAX:
            _tag_codes.clear()
        code = _tag_codes[tag] = java_hash(tag)
    return code


def key_hash(prefix: int, key: bytes) -> int:
    """Return the unsigned Java hash of a text with the hash `prefix` followed by `key`.

    A producer's unique ids share their first 28 characters for a millisecond, and the last four are a counter: with
    both halves remembered, an id costs two look-ups instead of 32 steps.
    """
    if not key.isascii():
        units = len(key.decode("utf-8", "replace").encode("utf-16-be")) // 2
        return (prefix * pow(31, units, 1 << 32) + java_hash(key)) & MASK32
    if len(key) != 32:
        return (prefix * pow(31, len(key), 1 << 32) + java_hash(key)) & MASK32
    first, last = key[:28], key[28:]
    head, tail = _head_hashes.get(first), _tail_hashes.get(last)
    if head is None:
        if len(_head_hashes) > _CACHED_MAX:
            _head_hashes.clear()
        head = _head_hashes[first] = java_hash(first)
    if tail is None:
        if len(_tail_hashes) > 2 * _CACHED_MAX:
            _tail_hashes.clear()
        tail = _tail_hashes[last] = java_hash(last)
    return (prefix * _POWER_32 + head * _POWER_4 + tail) & MASK32


_POWER_4, _POWER_32 = 31**4, pow(31, 32, 1 << 32)
