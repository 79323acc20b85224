"""The pure-Python fallback of the compiled extension: chunks of staged transactions, to the queues that they name. See
__init__.pyi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.wire.hot.fallback.append import batch_entries
from metaq.wire.hot.fallback.tails import (
    NUMBER,
    SENDER_FLAGS,
    STOP_END,
    STOP_SLOW,
    AppendOutcome,
    IndexTail,
    LogTail,
    TopicGate,
    key_hash,
    no_room,
)
from metaq.wire.hot.fallback.transactions import values_of
from metaq.wire.record import Broken, copy_mark, encode_record, host_flags, record_bytes, split

# A broker may have another, longer cluster name by the time of the decision.
_PROPERTIES_LEFT: Final = 128
_ANYTHING: Final = TopicGate(b"-", (), 0x7FFFFFFF)
"""A gate that takes all entries: they were judged when they were staged."""


def check_batch(body: Any, gate: TopicGate, log: LogTail) -> int:
    entries = batch_entries(memoryview(body).cast("B"), gate, log)
    # The room that is checked now is the copy's: a chunk that was staged must fit when it is committed.
    if not entries or any(len(entry[2]) > PROPERTIES_BYTES_MAX - _PROPERTIES_LEFT for entry in entries):
        return -1
    return len(entries)


def expand(
    record: Any,
    place: int,
    row: int,
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    *,
    whole: bool,
    now_ms: int,
    outcome: AppendOutcome,
) -> None:
    outcome.touched = []
    outcome.stop, outcome.queue, outcome.needed, outcome.messages, outcome.size = STOP_SLOW, None, 0, 0, 0
    outcome.row = row
    view, first_end = memoryview(record).cast("B"), log.end
    try:
        fields = split(view, 0, len(view))
    except Broken:
        return
    (
        size, _, _, _, _, log_offset, sys_flag, born_ms, _, born_host, _, _, reconsume_times, start, stop, _, _,
        text_start, text_stop,
    ) = fields  # fmt: skip
    values = values_of(bytes(view[text_start:text_stop]))
    number, gate = NUMBER(values.get(b"REAL_QID", b"")), gates.get(values.get(b"REAL_TOPIC", b""))
    entries = batch_entries(view[start:stop], _ANYTHING, log)
    if (
        size != len(view)
        or log_offset != place
        or number is None
        or gate is None
        or not entries
        or not 0 <= (queue_id := int(number[0])) < len(gate.queues)
    ):
        return
    count, queue = len(entries), gate.queues[queue_id]
    if not 0 <= row <= count:
        raise IndexError(f"entry {row} of {count}")
    sys_flag = host_flags(sys_flag & SENDER_FLAGS, born_host, log.store_host)
    store_ms = max(now_ms, log.store_ms)
    while row < count:
        # Message by message a chunk may go on in the next file; as a whole it has to lie in one.
        run = entries[row:] if whole else entries[row : row + 1]
        wanted = sum(record_bytes(sys_flag, len(entry[1]), len(gate.topic), len(entry[2])) for entry in run)
        if no_room(wanted, len(run), sum(len(entry[4]) for entry in run), queue, log, index, outcome):
            break
        # Only when there is room: a run that appends nothing leaves the log as it was.
        log.store_ms = store_ms
        for flag, body, properties, tags_code, keys in run:
            copy = encode_record(
                topic=gate.topic, queue_id=queue.queue_id, queue_offset=queue.next_offset, log_offset=log.end, flag=flag,
                sys_flag=sys_flag, born_ms=born_ms, born_host=born_host, store_ms=store_ms, store_host=log.store_host,
                reconsume_times=reconsume_times, prepared_offset=copy_mark(place), body=body, properties=properties,
            )  # fmt: skip
            offset = log.write(copy)
            queue.put(offset, len(copy), tags_code)
            if index is not None:
                for key in keys:
                    index.put_hash(key_hash(gate.key_prefix, key), offset, store_ms)
            row += 1
    if index is not None:
        index.put_header()
    outcome.messages, outcome.row, outcome.size = row - outcome.row, row, log.end - first_end
    if row == count:
        outcome.stop = STOP_END
    if queue.watched and outcome.messages:
        outcome.touched.append(queue)
