"""The pure-Python fallback of the compiled extension: half messages, and their ends; delayed messages. See __init__.pyi
for what each name promises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.wire.hot.fallback.frames import Replies
from metaq.wire.hot.fallback.tails import (
    NUMBER,
    SENDER_FLAGS,
    UNIT,
    UNIT_BYTES,
    AppendOutcome,
    IndexTail,
    LogTail,
    QueueTail,
    TopicGate,
    key_hash,
    tags_code_of,
)
from metaq.wire.record import BLANK_BYTES_MIN, RECORD_BYTES_MIN, Broken, encode_record, split

_PIECES_MAX: Final = 24
_PROPERTIES_LEFT: Final = 128
_COMMIT, _ROLLBACK = 8, 12
_LEVEL: Final = re.compile(rb"[0-9]{1,9}").fullmatch
_BROKERS_OWN: Final = frozenset({
    b"REAL_TOPIC", b"REAL_QID", b"CLUSTER", b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET",
})  # fmt: skip


def asks_for_half(text: bytes, gate: TopicGate) -> bool:
    """Return whether a message with these properties is a half message, at a gate that takes those."""
    if gate.transactions is None or b"TRAN_MSG\x01" not in text or b"TRAN_MSG" not in gate.slow:
        return False
    return any(piece.startswith(b"TRAN_MSG\x01") for piece in text.split(b"\x02"))


def delay_level(text: bytes, gate: TopicGate) -> int | None:
    """Return the delay level in these properties, at a gate that takes delayed messages: 0 if it is no number, None
    without one."""
    if gate.delays is None or b"DELAY\x01" not in text or b"DELAY" not in gate.slow:
        return None
    value = values_of(text).get(b"DELAY")
    if value is None:
        return None
    # RocketMQ takes a level above its highest for the highest.
    return min(int(value), gate.delays.levels) if _LEVEL(value) else 0


def held_back(text: bytes, gate: TopicGate, queue_id: int, log: LogTail) -> bytes | None:
    """Return the stored properties of a delayed or half message. None: not plain."""
    if not log.cluster:
        return None
    pieces = (text[:-1] if text.endswith(b"\x02") else text).split(b"\x02")
    names = [piece.partition(b"\x01")[0] for piece in pieces]
    # A property twice, or one of the broker's own: merging them is left to the slow path.
    if len(names) > _PIECES_MAX or len(names) != len(set(names)) or not _BROKERS_OWN.isdisjoint(names):
        return None
    pieces += log.cluster, b"REAL_TOPIC\x01" + gate.topic, b"REAL_QID\x01%d" % queue_id
    stored = b"\x02".join(pieces)
    return stored if len(stored) <= PROPERTIES_BYTES_MAX - _PROPERTIES_LEFT else None


def values_of(text: bytes) -> dict[bytes, bytes]:
    """Return the last value of each property; pieces without a value are skipped."""
    found = {}
    for piece in text.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if value:
            found[name] = value
    return found


def end_transaction(
    found: tuple[Any, ...],
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    replies: Replies,
    outcome: AppendOutcome,
) -> tuple[QueueTail, ...]:
    """Handle END_TRANSACTION. Return the queues that grew; none: not plain, and nothing was written."""
    _, _, opaque, flag, ext, _, body_start, frame_end, binary = found
    commits, place = ext.outcome == _COMMIT, ext.log_offset - log.base
    if (not commits and ext.outcome != _ROLLBACK) or body_start != frame_end:
        return ()
    # The half record must lie in the newest log file, which is mapped.
    if place < 0 or ext.log_offset > log.end - RECORD_BYTES_MIN or not log.room():
        return ()
    try:
        (
            size, _, half_queue, user_flag, half_offset, log_offset, sys_flag, born_ms, _, born_host, _, _,
            reconsume_times, start, stop, _, topic, text_start, text_end,
        ) = split(log.view, place, log.end - log.base)  # fmt: skip
    except Broken:
        return ()
    text = bytes(log.view[text_start:text_end])
    values = values_of(text)
    number, unique = NUMBER(values.get(b"REAL_QID", b"")), values.get(b"UNIQ_KEY")
    gate = gates.get(values.get(b"REAL_TOPIC", b""))
    if (
        (log_offset, half_offset, half_queue) != (ext.log_offset, ext.half_offset, 0)
        or sys_flag & 0x30  # IPv6 hosts
        or not text
        or text[-1] == 0
        or values.get(b"PGROUP") != ext.group.encode()
        # RocketMQ does not compare ids; here a producer that names another message is refused, by the slow path.
        or (ext.message_id and unique and ext.message_id.encode() != unique)
        or number is None
        or number[0][0] == 45  # a minus
        or gate is None
        or gate.transactions is None
        or not 0 <= (queue_id := int(number[0])) < len(gate.queues)
    ):
        return ()
    transactions = gate.transactions
    half, op = transactions.half, transactions.op
    if (
        half is None
        or op is None
        or topic != half.topic
        or not _is_unit_of(half.queues[0], half_offset, log_offset, size)
        or not transactions.may_end(half_offset)
    ):
        return ()
    queue, ops = gate.queues[queue_id], op.queues[0]
    digits = b"%d" % half_offset
    words = [word for word in values.get(b"KEYS", b"").split(b" ") if word]
    if unique:
        words.insert(0, unique)
    size = size - len(topic) + len(gate.topic) if commits else 0
    op_size = RECORD_BYTES_MIN + len(op.topic) + len(digits) + len(transactions.op_properties)
    if commits and (
        queue.room() < 1 or (index is not None and len(words) > index.room()) or stop - start > gate.body_bytes_max
    ):
        return ()
    if ops.room() < 1 or size + op_size + BLANK_BYTES_MIN > log.room():
        return ()
    log.store_ms = store_ms = max(now_ms, log.store_ms)
    if commits:
        record = encode_record(
            topic=gate.topic, queue_id=queue.queue_id, queue_offset=queue.next_offset, log_offset=log.end,
            flag=user_flag, sys_flag=sys_flag & SENDER_FLAGS | _COMMIT, born_ms=born_ms, born_host=born_host,
            store_ms=store_ms, store_host=log.store_host, reconsume_times=reconsume_times, prepared_offset=log_offset,
            body=log.view[start:stop], properties=text,
        )  # fmt: skip
        queue.put(offset := log.write(record), size, tags_code_of(values.get(b"TAGS", b"")))
        if index is not None:
            for word in words:
                index.put_hash(key_hash(gate.key_prefix, word), offset, store_ms)
        outcome.messages += 1
    # RocketMQ's op record: its body is the QueueOffset of the half message, which needs no more attention.
    op_offset = ops.next_offset
    record = encode_record(
        topic=op.topic, queue_id=ops.queue_id, queue_offset=op_offset, log_offset=log.end, flag=0, sys_flag=0,
        born_ms=now_ms, born_host=log.store_host, store_ms=store_ms, store_host=log.store_host, reconsume_times=0,
        prepared_offset=0, body=digits, properties=transactions.op_properties,
    )  # fmt: skip
    ops.put(log.write(record), op_size, transactions.op_tags_code)
    outcome.messages += 1
    if not flag & 2:
        replies.add_done(opaque, binary)
    transactions.ended(half_offset, op_offset)
    return (queue, ops) if commits else (ops,)


def _is_unit_of(queue: QueueTail, number: int, log_offset: int, size: int) -> bool:
    """Return whether unit `number` of the queue leads to that record."""
    if not queue.first <= number < queue.next_offset <= queue.limit:
        return False
    return UNIT.unpack_from(queue.view, (number - queue.first) * UNIT_BYTES)[:2] == (log_offset, size)
