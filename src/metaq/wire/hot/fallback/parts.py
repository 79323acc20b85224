"""The pure-Python fallback of `native/parts.pxi`. Contract: __init__.pyi."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metaq.wire.hot.fallback.append import append
from metaq.wire.hot.fallback.frames import FrameTable, Replies
from metaq.wire.hot.fallback.tails import AppendOutcome, IndexTail, LogTail, TopicGate

_COLUMNS = 6


def append_parts(
    data: Any,
    parts: memoryview,
    senders: Sequence[tuple[dict[bytes, TopicGate], bytes] | None],
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
            gates, born_host = sender
            used, outcome.row = start, 0
            outcome.touched, outcome.messages, outcome.size = [], 0, 0
            try:
                used += table.scan(data, start, end)
                append(table, 0, len(table), gates, log, index, now_ms, born_host, replies, outcome)
            finally:
                if outcome.row < len(table):
                    used = start + sum(len(table.frame(row)) + 4 for row in range(outcome.row))
                parts[place + 4], parts[place + 5] = used, len(replies)
                touched += [queue for queue in outcome.touched if queue not in touched]
                messages, size = messages + outcome.messages, size + outcome.size
    finally:
        outcome.touched, outcome.messages, outcome.size = touched, messages, size
        table.release()
