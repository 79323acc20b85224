"""The pure-Python fallback of the compiled extension: pulls that can be answered without a question. See
__init__.pyi."""

from __future__ import annotations

import struct
from typing import Any, Final

from metaq.wire.hot.fallback.frames import KIND_PULL, FrameTable, Replies
from metaq.wire.hot.fallback.read import Filter, check, gather, select
from metaq.wire.hot.fallback.tails import UNIT_BYTES, LogTail

_COMMITS: Final = 1
"""Bits of a pull's SYSFLAG."""
_BRINGS: Final = 4
_ONEWAY: Final = 2
# RocketMQ's limit: a filter that nothing passes must not hold up other pulls.
_SCAN_UNITS: Final = 800


class PullGate:
    __slots__ = ("committed", "counts", "owner", "queue", "suggest", "version", "wanted")

    def __init__(self, queue: Any, wanted: Filter | None, version: int, suggest: int, owner: Any = None) -> None:
        if wanted is not None and wanted.reads:
            raise ValueError("a filter that reads messages may need more than one look")
        self.queue, self.wanted, self.version, self.suggest, self.owner = queue, wanted, version, suggest, owner
        self.committed = -1
        self.counts = [0, 0, 0]
        """Pulls answered since the path's last take(), their messages and bytes; in the path's list unless 0."""


class PullPath:
    __slots__ = (
        "answered", "behind_max", "body_bytes_max", "bytes_max", "count_max", "fresh_from", "gates", "log", "moved", "near_bytes",
    )  # fmt: skip

    def __init__(
        self,
        log: LogTail,
        *,
        fresh_from: int,
        near_bytes: int,
        behind_max: int,
        body_bytes_max: int,
        bytes_max: int,
        count_max: int,
    ) -> None:
        self.gates: dict[bytes, PullGate] = {}
        self.log, self.fresh_from, self.near_bytes, self.behind_max = log, fresh_from, near_bytes, behind_max
        self.body_bytes_max, self.bytes_max, self.count_max = body_bytes_max, bytes_max, count_max
        self.answered: list[PullGate] = []
        self.moved: list[PullGate] = []

    def take(self) -> tuple[list[tuple[Any, int, int, int]], list[PullGate]]:
        answered: list[tuple[Any, int, int, int]] = []
        for gate in self.answered:
            pulls, messages, size = gate.counts
            answered.append((gate.owner, pulls, messages, size))
            gate.counts = [0, 0, 0]
        moved = self.moved
        self.answered, self.moved = [], []
        return answered, moved


def _sized(text: bytes | None) -> bytes:
    return struct.pack(">i", -1) if text is None else struct.pack(">i", len(text)) + text


def pull_key(table: FrameTable, row: int) -> bytes:
    if table.kind(row) != KIND_PULL:
        raise TypeError(f"row {row} is no pull")
    group, topic, queue_id, _, _, flags, _, _, subscription, _, expression_type, _ = table.pull(row)
    brings = flags & _BRINGS != 0
    return b"".join((
        struct.pack(">i?", queue_id, brings), _sized(group), _sized(topic), _sized(expression_type),
        _sized(subscription if brings else None),
    ))  # fmt: skip


def _answer(table: FrameTable, row: int, fast_path: PullPath, replies: Replies) -> bool:
    """Answer one pull. False: not plain, and nothing was written."""
    _, _, _, offset, count_max, flags, commit_offset, _, _, version, _, bytes_max = table.pull(row)
    if table.flag(row) & _ONEWAY or bytes_max > 0:
        return False
    gate = fast_path.gates.get(pull_key(table, row))
    # A newer subVersion than the gate's: the client has changed its subscription, and a heartbeat will bring it (code 25).
    if gate is None or version > gate.version:
        return False
    commit = commit_offset if flags & _COMMITS else -1
    return _answer_from(fast_path, gate, offset, count_max, commit, table.opaque(row), table.binary(row), replies)


def answer_held(
    fast_path: PullPath, gate: PullGate, place: int, count_max: int, opaque: int, binary: bool, replies: Replies
) -> bool:
    return _answer_from(fast_path, gate, place, count_max, -1, opaque, binary, replies)


def _answer_from(
    fast_path: PullPath,
    gate: PullGate,
    offset: int,
    count_max: int,
    commit: int,
    opaque: int,
    binary: bool,
    replies: Replies,
) -> bool:
    """Answer with the records from `offset` on. False: not plain, and nothing was written. `commit`: the offset to
    commit, or -1."""
    log = fast_path.log
    if not log.base <= log.end <= log.limit:
        return False
    tail, low = gate.queue.tail, gate.queue.min_offset
    high = tail.end_below(log.read_end)
    if not low <= offset < high or offset < tail.first or high > tail.limit or high - offset > fast_path.behind_max:
        return False
    (first_log,) = struct.unpack_from(">q", tail.view, (offset - tail.first) * UNIT_BYTES)
    if not max(log.base, fast_path.fresh_from) <= first_log < log.end or log.end - first_log > fast_path.near_bytes:
        return False
    # RocketMQ never stops before the first record, whatever the limits.
    count_max = max(1, min(count_max, fast_path.count_max))
    stop = min(high, offset + max(_SCAN_UNITS, count_max))
    found = select(tail.view, tail.first, offset, stop, gate.wanted, count_max, fast_path.bytes_max, log.base, log.end)
    if not found.count or found.damaged or found.size > fast_path.body_bytes_max:
        return False
    if commit >= 0:
        if gate not in fast_path.moved:
            fast_path.moved.append(gate)
        gate.committed = commit
    body = gather(found, log.view, log.base)
    if check(found, body, tail, fast_path.fresh_from)[1] < found.size:
        return False
    replies.add_pull(opaque, binary, 0, "FOUND", gate.suggest, found.next_offset, low, high, body)
    counts = gate.counts
    if not counts[0]:
        fast_path.answered.append(gate)
    counts[0] += 1
    counts[1] += found.count
    counts[2] += found.size
    return True


def answer_pulls(
    table: FrameTable, row: int, end: int, fast_path: PullPath, replies: Replies, reply_bytes_max: int
) -> int:
    if not 0 <= row <= end <= len(table):
        raise IndexError(f"rows [{row}, {end}) of {len(table)}")
    while row < end and len(replies) < reply_bytes_max:
        if table.kind(row) != KIND_PULL or not _answer(table, row, fast_path, replies):
            break
        row += 1
    return row
