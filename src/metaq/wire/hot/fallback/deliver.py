"""The pure-Python fallback of the compiled extension: records that are due, to the queues that they name. See
__init__.pyi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaq.wire.hot.fallback.tails import (
    NUMBER,
    SENDER_FLAGS,
    STOP_END,
    STOP_SLOW,
    UNIT,
    UNIT_BYTES,
    AppendOutcome,
    IndexTail,
    LogTail,
    TopicGate,
    key_hash,
    no_room,
    tags_code_of,
)
from metaq.wire.hot.fallback.transactions import values_of
from metaq.wire.record import Broken, copy_mark, encode_record, split


def deliver(
    records: Any,
    units: Any,
    row: int,
    end: int,
    topic: bytes,
    queue_id: int,
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    outcome: AppendOutcome,
) -> None:
    outcome.touched = touched = []
    outcome.stop, outcome.queue, outcome.needed, outcome.messages, outcome.size = STOP_END, None, 0, 0, 0
    outcome.row = row
    run, first_end = object(), log.end
    view, places = memoryview(records).cast("B"), memoryview(units).cast("B")
    if not 0 <= row <= end <= len(places) // UNIT_BYTES:
        raise IndexError(f"rows [{row}, {end}) of {len(places) // UNIT_BYTES}")
    at = sum(max(0, UNIT.unpack_from(places, number * UNIT_BYTES)[1]) for number in range(row))
    log.store_ms = max(now_ms, log.store_ms)  # store times never go back in the log
    while row < end:
        log_offset, size, _ = UNIT.unpack_from(places, row * UNIT_BYTES)
        try:
            fields = split(view, at, min(len(view), at + max(0, size)))
        except Broken:
            outcome.stop = STOP_SLOW
            break
        (
            found_size, _, found_queue, flag, _, found_offset, sys_flag, born_ms, _, born_host, _, _, reconsume_times,
            body_start, body_end, _, found_topic, properties_start, stop,
        ) = fields  # fmt: skip
        text = bytes(view[properties_start:stop])
        values = values_of(text)
        number = NUMBER(values.get(b"REAL_QID", b""))
        gate = gates.get(values.get(b"REAL_TOPIC", b""))
        # A record that is not the one of its unit, or whose topic has gone: the slow path says what happens to it.
        if (
            (found_size, found_offset, found_queue, found_topic) != (size, log_offset, queue_id, topic)
            or number is None
            or gate is None
            or not 0 <= (real_queue := int(number[0])) < len(gate.queues)
        ):
            outcome.stop = STOP_SLOW
            break
        queue = gate.queues[real_queue]
        words = [word for word in values.get(b"KEYS", b"").split(b" ") if word]
        if unique := values.get(b"UNIQ_KEY"):
            words.insert(0, unique)
        record = encode_record(
            topic=gate.topic, queue_id=queue.queue_id, queue_offset=queue.next_offset, log_offset=log.end, flag=flag,
            sys_flag=sys_flag & SENDER_FLAGS, born_ms=born_ms, born_host=born_host, store_ms=log.store_ms,
            store_host=log.store_host, reconsume_times=reconsume_times, prepared_offset=copy_mark(found_offset),
            body=view[body_start:body_end], properties=text,
        )  # fmt: skip
        if no_room(len(record), 1, len(words), queue, log, index, outcome):
            break
        offset = log.write(record)
        queue.put(offset, len(record), tags_code_of(values.get(b"TAGS", b"")))
        if index is not None:
            for word in words:
                index.put_hash(key_hash(gate.key_prefix, word), offset, log.store_ms)
        outcome.messages += 1
        if queue.watched and queue.run is not run:
            queue.run = run
            touched.append(queue)
        at += size
        row += 1
        outcome.row = row
    if index is not None:
        index.put_header()
    outcome.size = log.end - first_end
