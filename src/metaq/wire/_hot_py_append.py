"""The plain twin of the hot module, second part: rows to log, queue and index. See hot.pyi for what each name promises."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from metaq.errors import LocalProtocolError
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.wire._hot_py_frames import KIND_OTHER, KIND_PULL, KIND_SEND, FrameTable, Replies
from metaq.wire.hashing import crc31, java_hash
from metaq.wire.record import (
    BATCH_ENTRY_BYTES_MIN,
    BLANK_BYTES_MIN,
    BLANK_MAGIC,
    HEAD_V4,
    HOST_V4,
    MAGIC,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX,
    encode_record,
)

STOP_END: Final = 0
STOP_SLOW: Final = 1
STOP_LOG_FULL: Final = 2
STOP_QUEUE_FULL: Final = 3
STOP_INDEX_FULL: Final = 4

INDEX_HEADER_BYTES: Final = 40
INDEX_ENTRY_BYTES: Final = 20
UNIT_BYTES: Final = 20

_UNIT = struct.Struct(">qiq")
_INDEX_HEADER = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")
_SIZE = struct.Struct(">I")
_BATCH_ENTRY = struct.Struct(">iIIii").unpack_from
_LENGTH = struct.Struct(">h")

_SYS_FLAG_SLOW = 0xFC
"""Transaction, IPv6 and inner-batch bits: sends with one of them are judged one by one."""
SLOW_NAME_BYTES_MAX: Final = 63
_DROPS_MAX = 3
"""WAIT and CLUSTER more often than that in one text: nobody sends it, so nobody needs it fast."""
_MASK32 = 0xFFFFFFFF
_CACHED_MAX = 50_000


class LogTail:
    __slots__ = (
        "base",
        "cluster",
        "end",
        "id_prefix",
        "limit",
        "message_bytes_max",
        "store_host",
        "store_ms",
        "view",
    )  # fmt: skip

    def __init__(self, store_host: bytes, cluster: bytes, message_bytes_max: int) -> None:
        self.store_host, self.message_bytes_max = store_host, message_bytes_max
        self.cluster = b"CLUSTER\x01" + cluster if cluster else b""
        self.id_prefix = store_host.hex().upper().encode()
        self.end = self.store_ms = 0
        self.view = memoryview(b"")
        self.base = self.limit = 0

    def attach(self, buffer: Any, file_offset: int, file_bytes: int, end: int) -> None:
        view = memoryview(buffer).cast("B")
        if (
            not 0 < file_bytes <= min(len(view), 0x7FFFFFFF)
            or not 0 <= end - file_offset <= file_bytes
            or file_offset < 0
        ):
            raise ValueError(f"end {end} in a file of {file_bytes} bytes at {file_offset}, buffer of {len(view)}")
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
        self.view[at + 4 : at + 8] = _SIZE.pack(BLANK_MAGIC)
        _SIZE.pack_into(self.view, at, room)
        self.end = self.limit

    def write(self, record: bytes) -> int:
        """Append encoded bytes whose TOTALSIZE is written last. The caller has looked at room()."""
        at, size = self.end - self.base, len(record)
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

    def put(self, log_offset: int, size: int, tags_code: int) -> bool:
        if log_offset + size <= self.log_end:
            return True
        if self.room() < 1:
            return False
        _UNIT.pack_into(self.view, (self.next_offset - self.first) * UNIT_BYTES, log_offset, size, tags_code)
        self.next_offset += 1
        self.log_end = log_offset + size
        return True


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
        self.put_hash(java_hash(key) & _MASK32, log_offset, store_ms)
        self.put_header()
        return True

    def put_header(self) -> None:
        if self.count > 1:
            _INDEX_HEADER.pack_into(self.view, 0, *self._header, self.count)

    def put_hash(self, unsigned: int, log_offset: int, store_ms: int) -> None:
        """One entry for a key whose unsigned Java hash is known. The caller looked at room(), and calls put_header()."""
        view, header, count = self.view, self._header, self.count
        hashed = unsigned if unsigned < 1 << 31 else (1 << 32) - unsigned
        if hashed >> 31:
            hashed = 0
        if count == 1:
            header[0], header[2] = store_ms, log_offset
        slot_at = INDEX_HEADER_BYTES + 4 * (hashed % self._slots)
        (previous,) = _SIZE.unpack_from(view, slot_at)
        if previous >= count:
            previous = 0
        seconds = min((store_ms - header[0]) // 1000, 0x7FFFFFFF) if 0 < header[0] < store_ms else 0
        at = self._entries_at + count * INDEX_ENTRY_BYTES
        _INDEX_ENTRY.pack_into(view, at, hashed, log_offset, seconds, previous)
        _SIZE.pack_into(view, slot_at, count)
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
    for ordinal in range(1, count):
        (hashed,) = _SIZE.unpack_from(view, entries_at + ordinal * INDEX_ENTRY_BYTES)
        newest[(hashed & 0x7FFFFFFF) % slots] = ordinal
    for slot, ordinal in newest.items():
        _SIZE.pack_into(view, INDEX_HEADER_BYTES + 4 * slot, ordinal)
    return len(newest)


class TopicGate:
    __slots__ = ("body_bytes_max", "key_prefix", "queues", "slow", "topic", "trailer", "wait_is_slow")

    def __init__(
        self,
        topic: bytes,
        queues: Sequence[QueueTail],
        body_bytes_max: int,
        slow: Collection[bytes] = (),
        wait_is_slow: bool = False,
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
        self.key_prefix = java_hash(topic + b"#")
        self.trailer = len(topic).to_bytes(1, "big") + topic


class AppendOutcome:
    __slots__ = ("messages", "needed", "queue", "row", "size", "stop", "touched")

    def __init__(self) -> None:
        self.stop = self.row = self.messages = self.size = self.needed = 0
        self.queue: QueueTail | None = None
        self.touched: list[QueueTail] = []


_Entry = tuple[int, Any, bytes, int, list[bytes]]
"""One message ready to be written: (flag, body, stored properties, tags code, index keys without their topic)."""
_Facts = tuple[bytes, bytes, list[bytes], bool]
"""Of a property text: (text to store, tag, keys to index, whether WAIT says false)."""

_WAIT, _CLUSTER, _TAGS, _KEYS, _UNIQUE = range(1, 6)
_NAMES: Final = {b"WAIT": _WAIT, b"CLUSTER": _CLUSTER, b"TAGS": _TAGS, b"KEYS": _KEYS, b"UNIQ_KEY": _UNIQUE}


def _facts(text: bytes, cluster: bytes, slow: Collection[bytes], *, keep_wait: bool) -> _Facts | None:
    """What append needs to know of a property text. None: malformed, or a property that the slow lane must look at."""
    tag = unique = keys = b""
    no_wait, drops = False, 0
    kept: list[bytes] = []
    if text:
        for piece in (text[:-1] if text[-1] == 2 else text).split(b"\x02"):
            name, _, value = piece.partition(b"\x01")
            if not value or not name or name in slow:
                return None
            what = _NAMES.get(name)
            if what is not None:
                if what == _WAIT:
                    no_wait = value.lower() != b"true"
                    if not keep_wait:
                        drops += 1
                        continue
                elif what == _UNIQUE:
                    unique = value
                elif what == _TAGS:
                    tag = value
                elif what == _KEYS:
                    keys = value
                else:
                    drops += 1
                    continue
            kept.append(piece)
    if drops > _DROPS_MAX:
        return None
    if cluster:
        kept.append(cluster)
    tokens = [token for token in keys.split(b" ") if token] if keys else []
    if unique:
        tokens.insert(0, unique)
    stored = b"\x02".join(kept)
    return None if len(stored) > PROPERTIES_BYTES_MAX else (stored, tag, tokens, no_wait)


_tag_codes: dict[bytes, int] = {}
_head_hashes: dict[bytes, int] = {}
_tail_hashes: dict[bytes, int] = {}


def _tags_code(tag: bytes) -> int:
    if not tag:
        return 0
    code = _tag_codes.get(tag)
    if code is None:
        if len(_tag_codes) > _CACHED_MAX:
            _tag_codes.clear()
        code = _tag_codes[tag] = java_hash(tag)
    return code


def _key_hash(prefix: int, key: bytes) -> int:
    """Unsigned Java hash of a text with the hash `prefix` followed by `key`.

    A producer's unique ids share their first 28 characters for a millisecond, and the last four are a counter: with
    both halves remembered an id costs two look-ups instead of 32 steps.
    """
    if not key.isascii():
        units = len(key.decode("utf-8", "replace").encode("utf-16-be")) // 2
        return (prefix * pow(31, units, 1 << 32) + java_hash(key)) & _MASK32
    if len(key) != 32:
        return (prefix * pow(31, len(key), 1 << 32) + java_hash(key)) & _MASK32
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
    return (prefix * _POWER_32 + head * _POWER_4 + tail) & _MASK32


_POWER_4, _POWER_32 = 31**4, pow(31, 32, 1 << 32)


def _batch_entries(body: Any, gate: TopicGate, log: LogTail) -> list[_Entry] | None:
    """The entries of a batch body; None if it is malformed or holds an entry for the slow lane."""
    entries: list[_Entry] = []
    start, end = 0, len(body)
    while start < end:
        if end - start < BATCH_ENTRY_BYTES_MIN:
            return None
        size, _, _, flag, body_bytes = _BATCH_ENTRY(body, start)
        if not (BATCH_ENTRY_BYTES_MIN <= size <= end - start and 1 <= body_bytes <= size - BATCH_ENTRY_BYTES_MIN):
            return None
        middle = start + 20 + body_bytes
        if _LENGTH.unpack_from(body, middle)[0] != size - BATCH_ENTRY_BYTES_MIN - body_bytes:
            return None
        facts = _facts(bytes(body[middle + 2 : start + size]), log.cluster, gate.slow, keep_wait=True)
        if facts is None or body_bytes > gate.body_bytes_max or (gate.wait_is_slow and facts[3]):
            return None
        entries.append((flag, body[start + 20 : middle], facts[0], _tags_code(facts[1]), facts[2]))
        start += size
    return entries


_Done = tuple[QueueTail, int, bytes, int]
"""Of a row that was appended: (queue, first queue offset, message ids, messages)."""


def _append_send(
    found: tuple[Any, ...],
    table: FrameTable,
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    born_host: bytes,
    store_ms: int,
    outcome: AppendOutcome,
) -> _Done | None:
    """Append one message. None: `outcome` says why not, and nothing was written.

    Most rows of most brokers come this way, so it is one function without a call that could be spared.
    """
    ext, start, stop = found[4], found[6], found[7]
    gate, queue_id, text = gates.get(ext.topic.encode()), ext.queue_id, ext.properties
    body_bytes = stop - start
    facts = None
    if gate is not None:
        facts = _facts(text.encode() if text else b"", log.cluster, gate.slow, keep_wait=False)
    if (
        gate is None
        or facts is None
        or not 0 <= queue_id < len(gate.queues)
        or not 1 <= body_bytes <= gate.body_bytes_max
        or body_bytes > log.message_bytes_max
        or (gate.wait_is_slow and facts[3])
    ):
        outcome.stop = STOP_SLOW
        return None
    properties, tag, keys, _ = facts
    queue, offset = gate.queues[queue_id], log.end
    queue_offset = queue.next_offset
    size = RECORD_BYTES_MIN + body_bytes + len(gate.topic) + len(properties)
    if _no_room(size, 1, len(keys), queue, log, index, outcome):
        return None
    body, at, log_view = table.raw[start - table.raw_start : stop - table.raw_start], offset - log.base, log.view
    log_view[at : at + size] = b"".join((
        HEAD_V4.pack(
            0, MAGIC, crc31(body), queue_id, ext.flag, queue_offset, offset, ext.sys_flag, ext.born_ms, born_host,
            store_ms, log.store_host, ext.reconsume_times, 0, body_bytes,
        ),
        body, gate.trailer, _LENGTH.pack(len(properties)), properties,
    ))  # fmt: skip
    _SIZE.pack_into(log_view, at, size)
    log.end = log_end = offset + size
    log.store_ms = store_ms
    _UNIT.pack_into(queue.view, (queue_offset - queue.first) * UNIT_BYTES, offset, size, _tags_code(tag) if tag else 0)
    queue.next_offset = queue_offset + 1
    queue.log_end = log_end
    if index is not None:
        for key in keys:
            index.put_hash(_key_hash(gate.key_prefix, key), offset, store_ms)
    return queue, queue_offset, b"%b%016X" % (log.id_prefix, offset), 1


def _append_batch(
    found: tuple[Any, ...],
    table: FrameTable,
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    born_host: bytes,
    store_ms: int,
    outcome: AppendOutcome,
) -> _Done | None:
    """The same for a batch."""
    ext, start, stop = found[4], found[6], found[7]
    gate = gates.get(ext.topic.encode())
    facts = None
    if gate is not None:
        facts = _facts(ext.properties.encode() if ext.properties else b"", b"", gate.slow, keep_wait=False)
    entries = None
    if (
        gate is not None
        and facts is not None
        and not facts[0]  # properties of the batch as a whole: the slow lane merges them into each entry
        and 0 <= ext.queue_id < len(gate.queues)
        and stop - start <= log.message_bytes_max
        and not (gate.wait_is_slow and facts[3])
    ):
        entries = _batch_entries(table.view[start:stop], gate, log)
    if gate is None or not entries:
        outcome.stop = STOP_SLOW
        return None
    queue = gate.queues[ext.queue_id]
    size = len(entries) * (RECORD_BYTES_MIN + len(gate.topic)) + sum(len(entry[1]) + len(entry[2]) for entry in entries)
    keys = sum(len(entry[4]) for entry in entries)
    if _no_room(size, len(entries), keys, queue, log, index, outcome):
        return None
    log.store_ms = store_ms
    queue_offset = queue.next_offset
    ids = [_write(log, queue, index, gate, ext, entry, born_host, store_ms) for entry in entries]
    return queue, queue_offset, b",".join([b"%b%016X" % (log.id_prefix, offset) for offset in ids]), len(entries)


def append(
    table: FrameTable,
    row: int,
    end: int,
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    born_host: bytes,
    replies: Replies,
    outcome: AppendOutcome,
) -> None:
    outcome.touched = touched = []
    outcome.stop, outcome.queue, outcome.needed, outcome.messages, outcome.size = STOP_END, None, 0, 0, 0
    run = object()
    rows, first_end = table.rows, log.end
    if not 0 <= row <= end <= len(rows):
        raise IndexError(f"rows [{row}, {end}) of {len(rows)}")
    no_hosts = len(born_host) != HOST_V4 or len(log.store_host) != HOST_V4
    store_ms = max(now_ms, log.store_ms)
    while row < end:
        found = rows[row]
        kind = found[0]
        if no_hosts or kind in {KIND_OTHER, KIND_PULL} or found[4].sys_flag & _SYS_FLAG_SLOW:
            outcome.stop = STOP_SLOW
            break
        put = _append_send if kind == KIND_SEND else _append_batch
        done = put(found, table, gates, log, index, born_host, store_ms, outcome)
        if done is None:
            break
        queue, queue_offset, message_ids, messages = done
        outcome.messages += messages
        if not found[3] & 2:
            replies.put_send(found[2], found[8], queue.queue_id, message_ids, queue_offset)
        if queue.watched and queue.run is not run:
            queue.run = run
            touched.append(queue)
        row += 1
    if index is not None:
        index.put_header()
    outcome.row = row
    outcome.size = log.end - first_end


def _no_room(
    size: int,
    messages: int,
    keys: int,
    queue: QueueTail,
    log: LogTail,
    index: IndexTail | None,
    outcome: AppendOutcome,
) -> bool:
    """Whether one of the three files has no room; `outcome` then says which, and for how much."""
    if size + BLANK_BYTES_MIN > log.limit - log.end:
        outcome.stop, outcome.needed = STOP_LOG_FULL, size + BLANK_BYTES_MIN
    elif queue.next_offset + messages > queue.limit or queue.next_offset < queue.first:
        outcome.stop, outcome.needed, outcome.queue = STOP_QUEUE_FULL, messages, queue
    elif index is not None and keys and index.count + keys > index.limit:
        outcome.stop, outcome.needed = STOP_INDEX_FULL, keys
    else:
        return False
    return True


def _write(
    log: LogTail,
    queue: QueueTail,
    index: IndexTail | None,
    gate: TopicGate,
    ext: Any,
    entry: _Entry,
    born_host: bytes,
    store_ms: int,
) -> int:
    """One record, its unit and its index entries; the room was looked at. Returns the record's LogOffset."""
    flag, body, properties, tags_code, keys = entry
    body_bytes, offset, queue_offset = len(body), log.end, queue.next_offset
    size = RECORD_BYTES_MIN + body_bytes + len(gate.topic) + len(properties)
    head = HEAD_V4.pack(
        size, MAGIC, crc31(body), queue.queue_id, flag, queue_offset, offset, ext.sys_flag, ext.born_ms, born_host,
        store_ms, log.store_host, ext.reconsume_times, 0, body_bytes,
    )  # fmt: skip
    log.write(b"".join((head, body, gate.trailer, _LENGTH.pack(len(properties)), properties)))
    _UNIT.pack_into(queue.view, (queue_offset - queue.first) * UNIT_BYTES, offset, size, tags_code)
    queue.next_offset = queue_offset + 1
    queue.log_end = offset + size
    if index is not None:
        for key in keys:
            index.put_hash(_key_hash(gate.key_prefix, key), offset, store_ms)
    return offset


def append_record(
    log: LogTail,
    queue: QueueTail | None,
    index: IndexTail | None,
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    flag: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    reconsume_times: int,
    prepared_offset: int,
    body: Any,
    properties: bytes,
    tags_code: int,
    keys: Sequence[bytes],
) -> int:
    store_ms = max(store_ms, log.store_ms)
    record = encode_record(
        topic=topic, queue_id=queue_id, queue_offset=queue.next_offset if queue is not None else queue_offset,
        log_offset=log.end, flag=flag, sys_flag=sys_flag, born_ms=born_ms, born_host=born_host, store_ms=store_ms,
        store_host=log.store_host, reconsume_times=reconsume_times, prepared_offset=prepared_offset, body=body,
        properties=properties,
    )  # fmt: skip
    if not -(1 << 63) <= tags_code < 1 << 63:
        raise LocalProtocolError(f"tags code {tags_code} does not fit 64 bits")
    if len(record) + BLANK_BYTES_MIN > log.room():
        return -STOP_LOG_FULL
    if queue is not None and queue.room() < 1:
        return -STOP_QUEUE_FULL
    if index is not None and len(keys) > index.room():
        return -STOP_INDEX_FULL
    log.store_ms = store_ms
    offset = log.write(record)
    if queue is not None:
        queue.put(offset, len(record), tags_code)
    if index is not None:
        for key in keys:
            index.put(key, offset, store_ms)
    return offset
