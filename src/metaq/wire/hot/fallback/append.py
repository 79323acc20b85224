"""The pure-Python fallback of the compiled extension: rows to log, queue and index. See __init__.pyi for what each name
promises."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from metaq.errors import LocalProtocolError
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.wire.hot.fallback.frames import KIND_BACK, KIND_ENDING, KIND_OTHER, KIND_PULL, KIND_SEND, FrameTable, Replies
from metaq.wire.hot.fallback.tails import (
    SENDER_FLAGS,
    SIZE,
    STOP_END,
    STOP_INDEX_FULL,
    STOP_LOG_FULL,
    STOP_QUEUE_FULL,
    STOP_SLOW,
    UNIT,
    UNIT_BYTES,
    AppendOutcome,
    IndexTail,
    LogTail,
    QueueTail,
    TopicGate,
    key_hash,
    no_room,
    tags_code_of,
)
from metaq.wire.hot.fallback.transactions import asks_for_half, delay_level, end_transaction, held_back, values_of
from metaq.wire.record import (
    BATCH_ENTRY_BYTES_MIN,
    BLANK_BYTES_MIN,
    HEAD_V4,
    HOST_V4,
    MAGIC,
    RECORD_BYTES_MIN,
    crc31,
    encode_record,
)

_BATCH_ENTRY = struct.Struct(">iIIii").unpack_from
_LENGTH = struct.Struct(">h")

_SYS_FLAG_SLOW = 0xF8
"""IPv6 and inner-batch bits (5.x), and those that only ends of transactions set: sends with one of them go by the slow
path."""
_PREPARED = 4
_NOT_SENDS: Final = frozenset({KIND_OTHER, KIND_PULL, KIND_ENDING, KIND_BACK})
_DROPS_MAX = 3
"""Most WAIT and CLUSTER in one text on the fast path. No client sends more."""

_KEYS_MAX = 4
"""Most keys of a record in `append_records`; one with more is put alone."""

_Entry = tuple[int, Any, bytes, int, list[bytes]]
"""One message ready to be written: (flag, body, stored properties, tags code, index keys without their topic)."""
_Facts = tuple[bytes, bytes, list[bytes], bool]
"""Of a property text: (text to store, tag, keys to index, whether WAIT says false)."""
_Held = tuple[TopicGate, QueueTail, int | None]
"""Where a message waits: (the topic's gate, the queue, what its unit holds if that is not the hash of its tag)."""

_WAIT, _CLUSTER, _TAGS, _KEYS, _UNIQUE = range(1, 6)
_NAMES: Final = {b"WAIT": _WAIT, b"CLUSTER": _CLUSTER, b"TAGS": _TAGS, b"KEYS": _KEYS, b"UNIQ_KEY": _UNIQUE}


def _facts(text: bytes, cluster: bytes, slow: Collection[bytes], *, keep_wait: bool) -> _Facts | None:
    """Return what append needs of a property text. None: malformed, or with a property for the slow path."""
    tag = unique = keys = b""
    no_wait, drops = False, 0
    kept: list[bytes] = []
    if text:
        # Go and older Java clients end the text with a separator, Java 4.9 does not.
        for piece in (text[:-1] if text[-1] == 2 else text).split(b"\x02"):
            name, _, value = piece.partition(b"\x01")
            if not value or not name or name in slow:
                return None
            what = _NAMES.get(name)
            if what is not None:
                if what == _WAIT:
                    no_wait = value.lower() != b"true"
                    # RocketMQ stores WAIT with delayed messages, half messages and batches, and drops it from plain ones.
                    if not keep_wait:
                        drops += 1
                        continue
                elif what == _UNIQUE:
                    unique = value
                elif what == _TAGS:
                    tag = value
                elif what == _KEYS:
                    keys = value
                else:  # CLUSTER: the broker writes its own
                    drops += 1
                    continue
            kept.append(piece)
    if drops > _DROPS_MAX:
        return None
    if cluster:
        kept.append(cluster)
    # The index has the producer's unique id of a message first, then its keys, which are separated by blanks.
    tokens = [token for token in keys.split(b" ") if token] if keys else []
    if unique:
        tokens.insert(0, unique)
    stored = b"\x02".join(kept)
    return None if len(stored) > PROPERTIES_BYTES_MAX else (stored, tag, tokens, no_wait)


def batch_entries(body: Any, gate: TopicGate, log: LogTail) -> list[_Entry] | None:
    """Return the entries of a batch body; None if it is malformed or holds an entry for the slow path."""
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
        entries.append((flag, body[start + 20 : middle], facts[0], tags_code_of(facts[1]), facts[2]))
        start += size
    return entries


class _Run(NamedTuple):
    """Common to all rows of one run."""

    table: FrameTable
    gates: Mapping[bytes, TopicGate]
    log: LogTail
    index_tail: IndexTail | None
    born_host: bytes
    store_ms: int
    outcome: AppendOutcome
    now_ms: int


_Done = tuple[QueueTail, int, bytes, int]
"""An appended row: (queue, first queue offset, message ids, number of messages)."""


def _append_send(found: tuple[Any, ...], run: _Run) -> _Done | None:
    """Append one message. None: `outcome` says why not, and nothing was written.

    Most rows of most brokers come this way: one function, without a call that can be spared.
    """
    table, gates, log, index, born_host, store_ms, outcome, _ = run
    ext, start, stop = found[4], found[6], found[7]
    gate, queue_id, text, sys_flag = gates.get(ext.topic.encode()), ext.queue_id, ext.properties, ext.sys_flag
    body_bytes = stop - start
    facts = held = None
    if gate is not None:
        raw = text.encode() if text else b""
        if asks_for_half(raw, gate):
            facts, held = _half_facts(raw, gate, queue_id, log)
            sys_flag &= SENDER_FLAGS
        elif sys_flag & _PREPARED:
            pass  # a half message by its flag alone, without TRAN_MSG: the slow path decides
        elif (level := delay_level(raw, gate)) is not None:
            facts, held = _delayed_facts(raw, gate, queue_id, log, level, run.now_ms)
            sys_flag &= SENDER_FLAGS if level else -1
        else:
            facts = _facts(raw, log.cluster, gate.slow, keep_wait=False)
    if (
        gate is None
        or facts is None
        or not 0 <= queue_id < len(gate.queues)
        or not 1 <= body_bytes <= gate.body_bytes_max
        or body_bytes > log.message_bytes_max
        or (gate.retries_max is not None and ext.reconsume_times >= min(ext.retries_max, gate.retries_max))
        or (gate.wait_is_slow and facts[3])
    ):
        outcome.stop = STOP_SLOW
        return None
    properties, tag, keys, _ = facts
    queue, code = gate.queues[queue_id], None
    if held is not None:
        gate, queue, code = held
    offset, queue_offset = log.end, queue.next_offset
    size = RECORD_BYTES_MIN + body_bytes + len(gate.topic) + len(properties)
    if no_room(size, 1, len(keys), queue, log, index, outcome):
        return None
    body, at, log_view = table.raw[start - table.raw_start : stop - table.raw_start], offset - log.base, log.view
    # The size is written last (below): a reader, and recovery after a kill, take a record with size 0 for the end of the log.
    log_view[at : at + size] = b"".join((
        HEAD_V4.pack(
            0, MAGIC, crc31(body), queue.queue_id, ext.flag, queue_offset, offset, sys_flag, ext.born_ms, born_host,
            store_ms, log.store_host, ext.reconsume_times, 0, body_bytes,
        ),
        body, gate.trailer, _LENGTH.pack(len(properties)), properties,
    ))  # fmt: skip
    SIZE.pack_into(log_view, at, size)
    log.end = log_end = offset + size
    log.store_ms = store_ms
    if code is None:
        code = tags_code_of(tag) if tag else 0
    UNIT.pack_into(queue.view, (queue_offset - queue.first) * UNIT_BYTES, offset, size, code)
    queue.next_offset = queue_offset + 1
    queue.log_end = log_end
    if index is not None:
        for key in keys:
            index.put_hash(key_hash(gate.key_prefix, key), offset, store_ms)
    return queue, queue_offset, b"%b%016X" % (log.id_prefix, offset), 1


def _half_facts(text: bytes, gate: TopicGate, queue_id: int, log: LogTail) -> tuple[_Facts | None, _Held | None]:
    """Return what append needs of a half message, and its place in RMQ_SYS_TRANS_HALF_TOPIC."""
    transactions = gate.transactions
    stored = held_back(text, gate, queue_id, log)
    facts = _facts(text, b"", gate.slow - {b"TRAN_MSG"}, keep_wait=True)
    values = values_of(text)
    if stored is None or facts is None or transactions is None or values.get(b"TRAN_MSG", b"").lower() != b"true":
        return None, None
    if not transactions.takes_halves or transactions.half is None or b"PGROUP" not in values:
        return None, None
    return (stored, *facts[1:]), (transactions.half, transactions.half.queues[0], None)


def _delayed_facts(
    text: bytes, gate: TopicGate, queue_id: int, log: LogTail, level: int, now_ms: int
) -> tuple[_Facts | None, _Held | None]:
    """Return what append needs of a message with a delay level, and where it waits. Level 0 does not wait."""
    delays, slow = gate.delays, gate.slow - {b"DELAY"}
    if delays is None or sum(piece.startswith(b"DELAY\x01") for piece in text.split(b"\x02")) > 1:
        return None, None
    if not level:
        return _facts(text, log.cluster, slow, keep_wait=False), None
    stored, facts, place = (
        held_back(text, gate, queue_id, log),
        _facts(text, b"", slow, keep_wait=True),
        delays.places.get(level),
    )
    if stored is None or facts is None or place is None:
        return None, None
    # The unit of a waiting message has the time of delivery where others have the hash of their tag, as in RocketMQ.
    return (stored, *facts[1:]), (delays.waiting, place[0], now_ms + place[1])


def _append_batch(found: tuple[Any, ...], run: _Run) -> _Done | None:
    """Append a batch. None as `_append_send`."""
    table, gates, log, index, _, store_ms, outcome, _ = run
    ext, start, stop = found[4], found[6], found[7]
    gate = gates.get(ext.topic.encode())
    facts = None
    if gate is not None:
        facts = _facts(ext.properties.encode() if ext.properties else b"", b"", gate.slow, keep_wait=False)
    entries = None
    if (
        gate is not None
        and facts is not None
        and gate.retries_max is None
        and not ext.sys_flag & _PREPARED
        and not facts[0]  # properties of the batch as a whole: the slow path merges them into each entry
        and 0 <= ext.queue_id < len(gate.queues)
        and stop - start <= min(gate.body_bytes_max, log.message_bytes_max)
        and not (gate.wait_is_slow and facts[3])
    ):
        entries = batch_entries(table.view[start:stop], gate, log)
    if gate is None or not entries:
        outcome.stop = STOP_SLOW
        return None
    queue = gate.queues[ext.queue_id]
    size = len(entries) * (RECORD_BYTES_MIN + len(gate.topic)) + sum(len(entry[1]) + len(entry[2]) for entry in entries)
    keys = sum(len(entry[4]) for entry in entries)
    if no_room(size, len(entries), keys, queue, log, index, outcome):
        return None
    log.store_ms = store_ms
    queue_offset = queue.next_offset
    ids = [_write(run, queue, gate, ext, entry) for entry in entries]
    return queue, queue_offset, b",".join([b"%b%016X" % (log.id_prefix, offset) for offset in ids]), len(entries)


def append(
    table: FrameTable,
    row: int,
    end: int,
    gates: dict[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    born_host: bytes,
    replies: Replies,
    outcome: AppendOutcome,
) -> None:
    outcome.touched = touched = []
    outcome.stop, outcome.queue, outcome.needed, outcome.messages, outcome.size = STOP_END, None, 0, 0, 0
    mark = object()
    rows, first_end = table.rows, log.end
    if not 0 <= row <= end <= len(rows):
        raise IndexError(f"rows [{row}, {end}) of {len(rows)}")
    # With an IPv6 host the record's head has another size.
    no_hosts = len(born_host) != HOST_V4 or len(log.store_host) != HOST_V4
    # Store times never go back in the log, whatever the clock does: RocketMQ searches it by time.
    run = _Run(table, gates, log, index, born_host, max(now_ms, log.store_ms), outcome, now_ms)
    while row < end:
        found = rows[row]
        kind = found[0]
        if kind == KIND_ENDING and not no_hosts:
            grown = end_transaction(found, gates, log, index, now_ms, replies, outcome)
            if not grown:
                outcome.stop = STOP_SLOW
                break
            for queue in grown:
                if queue.watched and queue.run is not mark:
                    queue.run = mark
                    touched.append(queue)
            row += 1
            continue
        if no_hosts or kind in _NOT_SENDS or found[4].sys_flag & _SYS_FLAG_SLOW:
            outcome.stop = STOP_SLOW
            break
        put = _append_send if kind == KIND_SEND else _append_batch
        done = put(found, run)
        if done is None:
            break
        queue, queue_offset, message_ids, messages = done
        outcome.messages += messages
        if not found[3] & 2:
            replies.put_send(found[2], found[8], found[4].queue_id, message_ids, queue_offset)
        if queue.watched and queue.run is not mark:
            queue.run = mark
            touched.append(queue)
        row += 1
    if index is not None:
        index.put_header()
    outcome.row = row
    outcome.size = log.end - first_end


def _write(run: _Run, queue: QueueTail, gate: TopicGate, ext: Any, entry: _Entry) -> int:
    """Write one record, its unit and its index entries, for which there is room. Return the record's LogOffset."""
    _, _, log, index, born_host, store_ms, _, _ = run
    flag, body, properties, tags_code, keys = entry
    body_bytes, offset, queue_offset = len(body), log.end, queue.next_offset
    size = RECORD_BYTES_MIN + body_bytes + len(gate.topic) + len(properties)
    head = HEAD_V4.pack(
        size, MAGIC, crc31(body), queue.queue_id, flag, queue_offset, offset, ext.sys_flag, ext.born_ms, born_host,
        store_ms, log.store_host, ext.reconsume_times, 0, body_bytes,
    )  # fmt: skip
    log.write(b"".join((head, body, gate.trailer, _LENGTH.pack(len(properties)), properties)))
    UNIT.pack_into(queue.view, (queue_offset - queue.first) * UNIT_BYTES, offset, size, tags_code)
    queue.next_offset = queue_offset + 1
    queue.log_end = offset + size
    if index is not None:
        for key in keys:
            index.put_hash(key_hash(gate.key_prefix, key), offset, store_ms)
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
    # Store times never go back in the log: it is searched by time.
    store_ms = max(store_ms, log.store_ms)
    record = encode_record(
        topic=topic, queue_id=queue_id, queue_offset=queue.next_offset if queue is not None else queue_offset,
        log_offset=log.end, flag=flag, sys_flag=sys_flag, born_ms=born_ms, born_host=born_host, store_ms=store_ms,
        store_host=log.store_host, reconsume_times=reconsume_times, prepared_offset=prepared_offset, body=body,
        properties=properties,
    )  # fmt: skip
    # As the compiled extension refuses it, whose argument has 64 bits.
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


def append_records(
    log: LogTail, queue: QueueTail, index: IndexTail | None, records: Sequence[Any], row: int, store_ms: int
) -> int:
    while row < len(records):
        record = records[row]
        if index is not None and (len(record.keys) > _KEYS_MAX or len(record.keys) > index.room()):
            break
        offset = append_record(
            log, queue, index, topic=queue.topic, queue_id=queue.queue_id, queue_offset=0, flag=record.flag,
            sys_flag=record.sys_flag, born_ms=record.born_ms, born_host=record.born_host, store_ms=store_ms,
            reconsume_times=record.reconsume_times, prepared_offset=record.prepared_offset, body=record.body,
            properties=record.properties, tags_code=record.tags_code, keys=record.keys,
        )  # fmt: skip
        if offset < 0:
            break
        row += 1
    return row
