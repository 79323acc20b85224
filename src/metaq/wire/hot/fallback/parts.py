"""The pure-Python fallback of `native/parts.pxi`. Contract: __init__.pyi."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from metaq.wire.hot.fallback.append import append
from metaq.wire.hot.fallback.frames import FrameTable, Replies
from metaq.wire.hot.fallback.signed import SignKey, signed_until
from metaq.wire.hot.fallback.tails import AppendOutcome, IndexTail, LogTail, TopicGate

_COLUMNS = 6

Sender: TypeAlias = (
    tuple[dict[bytes, TopicGate], bytes] | tuple[dict[bytes, TopicGate], bytes, dict[bytes, SignKey], SignKey]
)


def append_parts(
    data: Any,
    parts: memoryview,
    senders: Sequence[Sender | None],
    table: FrameTable,
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    replies: Replies,
    outcome: AppendOutcome,
) -> None:
    touched, messages, size = [], 0, 0
    outcome.touched, outcome.messages, outcome.size = [], 0, 0
    try:
        for place in range(0, len(parts) // _COLUMNS * _COLUMNS, _COLUMNS):
            slot, _, start, end = parts[place : place + 4]
            if not 0 <= slot < len(senders):
                raise IndexError(f"there is no sender {slot} of {len(senders)}")
            sender = senders[slot]
            if sender is None or start >= end:
                continue
            gates, born_host = sender[:2]
            used, outcome.row = start, 0
            outcome.touched, outcome.messages, outcome.size = [], 0, 0
            try:
                used += table.scan(data, start, end)
                rows = len(table)
                if len(sender) > 2:
                    keys, key = sender[2:]
                    rows = signed_until(table, 0, rows, key) if keys.get(key.access_key) is key else 0
                append(table, 0, rows, gates, log, index, now_ms, born_host, replies, outcome)
            finally:
                if outcome.row < len(table):
                    used = start + sum(len(table.frame(row)) + 4 for row in range(outcome.row))
                parts[place + 4], parts[place + 5] = used, len(replies)
                touched += [queue for queue in outcome.touched if queue not in touched]
                messages, size = messages + outcome.messages, size + outcome.size
    finally:
        outcome.touched, outcome.messages, outcome.size = touched, messages, size
        table.release()
