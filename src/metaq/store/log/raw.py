"""Checks bytes of another log before a replica appends them: whole records back to back, and the blank record that ends a file.

They are appended as they are, at the same log offset, so that both logs are the same bytes. All checks come before the first
byte is written: a later start would end the log at a record that it does not believe.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final, NamedTuple

from metaq.errors import StoreError
from metaq.store.log.commit_log import BLANK_BYTES
from metaq.store.log.scan import WHY
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.queues.dispatch import index_keys, topic_of
from metaq.wire import hot

_RECORDS_MAX: Final = 1 << 30
_SIZE_BYTES: Final = 4


class Appended(NamedTuple):
    """Result of `append_raw`: the log has grown by [log_offset, log_end), and these queues with it."""

    log_offset: int
    log_end: int
    queues: frozenset[tuple[str, int]]
    restarted: frozenset[tuple[str, int]] = frozenset()
    """Those of them that had messages, and have begun anew: queue offsets of the time before mean nothing in them."""


class RawRun(NamedTuple):
    """Records of one log file, back to back."""

    records: memoryview
    heads: list[hot.RecordHead]
    blank: memoryview
    """The rest of the file behind them, if it ends here; else empty."""


def runs_of(data: memoryview, log_offset: int, file_bytes: int, *, partial: bool) -> list[RawRun]:
    """Cut `data`, the log's bytes from `log_offset` on, where log files end. `partial`: a record that it ends within is left out.

    Raises StoreError: it is not all records.
    """
    runs, legal = [], set[bytes]()
    start = 0
    while start < len(data):
        border = file_bytes - (log_offset + start) % file_bytes + start
        stop = min(border, len(data))
        # The network is not trusted with the log: a record damaged on the way would be acknowledged as a copy.
        heads, end, outcome = hot.scan_records(data, start, stop, log_offset, _RECORDS_MAX, check_crc=True)
        for head in heads:
            if head.queue_id < 0 or (
                head.topic not in legal and topic_of(head) is None
            ):  # its queue's folder is named after them
                raise _refusal(head.log_offset, f"a record of queue {head.queue_id} of topic {head.topic[:200]!r}")
            legal.add(head.topic)
        blank = data[end:end]
        rest = False
        if outcome == hot.END_BLANK:
            rest = partial and stop < border
            blank = _blank(data[end:], border - end, log_offset + end, partial=rest)
        elif partial and outcome == hot.END_SHORT and stop < border and _fits(data[end:stop], border - end):
            rest = True
        elif outcome != hot.END_CLEAN:
            raise _refusal(log_offset + end, WHY[outcome])
        elif border - end < BLANK_BYTES:
            raise _refusal(
                log_offset + end, f"a log file without a blank record at its end (files of {file_bytes} bytes)"
            )
        if heads or blank:
            runs.append(RawRun(data[start:end], heads, blank))
        if rest:
            break
        start = end + len(blank)
    return runs


def _fits(data: memoryview, left: int) -> bool:
    """Whether a record, of which `data` is the begin, fits into the bytes that are left of its file: it or a blank one fills them."""
    size = int.from_bytes(data[:_SIZE_BYTES], "big") if len(data) >= _SIZE_BYTES else 0
    return size <= left - BLANK_BYTES or (size == left and len(data) < BLANK_BYTES)


def _blank(data: memoryview, size: int, place: int, *, partial: bool) -> memoryview:
    """The blank record with which `data` begins; `size` bytes of its log file are left. With `partial`, empty if not all is there.

    Raises StoreError.
    """
    told = int.from_bytes(data[:4], "big")
    if told != size:  # RocketMQ's replica takes them, and cannot read its log afterwards
        raise _refusal(
            place,
            f"a blank record of {told} bytes where {size} are left in the log file (is mappedFileSizeCommitLog the same in "
            "both stores?)",
        )
    if len(data) < size and partial:
        return data[:0]
    if len(data) < size:
        raise _refusal(place, f"{len(data)} of the {size} bytes of a blank record")
    return data[:size]


def _refusal(place: int, what: str) -> StoreError:
    return StoreError(f"log offset {place} of the bytes to append holds {what}: none of them was appended")


class Target:
    """A queue that copied records belong to."""

    __slots__ = ("dead_below", "is_spent", "key", "queue", "wanted")

    def __init__(self, key: tuple[str, int], queue: ConsumeQueue | None, dead_below: int) -> None:
        self.key, self.queue = key, queue
        self.dead_below = dead_below
        """LogOffset below which its records are of a deleted topic of the name."""
        self.wanted = queue.max_offset if queue is not None else 0
        """Queue offset of the next record."""
        self.is_spent = queue is not None and queue.min_offset >= queue.max_offset
        """All its messages lie before the log's begin. They may be of a log that was here before: a power cut brings back units."""


class Copied(NamedTuple):
    """Records of a run that are appended together."""

    records: memoryview
    heads: Sequence[hot.RecordHead]
    targets: Sequence[Target | None]
    """Of each; None: it has no unit."""
    keys: Sequence[list[bytes]]
    """Of each, what it is indexed by."""

    @property
    def entries(self) -> int:
        """Index entries of all."""
        return sum(map(len, self.keys))


def groups(run: RawRun, targets: Sequence[Target | None], keys_max: int, restarts: Container[int]) -> Iterator[Copied]:
    """The run in pieces of so many index keys at most, or of one record.

    Args:
        targets: of each record of the run.
        restarts: the log offsets of records with which a queue begins anew; each is the first of its piece.
    """
    heads, keys = run.heads, [index_keys(head) for head in run.heads]
    if not restarts and sum(map(len, keys)) <= keys_max:
        if heads:
            yield Copied(run.records, heads, targets, keys)
        return
    first = start = stop = entries = 0
    for number, (head, more) in enumerate(zip(heads, keys, strict=True)):
        if number > first and (entries + len(more) > keys_max or head.log_offset in restarts):
            yield Copied(run.records[start:stop], heads[first:number], targets[first:number], keys[first:number])
            first, start, entries = number, stop, 0
        stop += head.size
        entries += len(more)
    if heads:
        yield Copied(run.records[start:stop], heads[first:], targets[first:], keys[first:])
