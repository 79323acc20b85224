"""Appends one by one, and everything else that changes log, queues and index: all under one lock.

The lock is held from the first byte of a record to its last index entry. So between two appends everything below the log's
end is in its queue and in the index; `Snapshot` is such a moment as a value. Runs of messages are appended by `fast_path.py`.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from metaq.errors import MessageIllegal, Refused, StoreError
from metaq.model.message import TRANSACTION_MASK, SysFlag
from metaq.model.properties import PAIR_END, PROPERTIES_BYTES_MAX
from metaq.model.topics.topic import check_partition_topic
from metaq.store.checkpoint import IndexMark
from metaq.store.log.commit_log import BLANK_BYTES
from metaq.store.log.parts import Parts
from metaq.store.log.populate import Populator
from metaq.store.log.raw import Appended, Copied, Target, groups, runs_of
from metaq.store.log.scan import LogScan, past_damage
from metaq.store.queues.consume_queue import ConsumeQueue, Unit
from metaq.store.queues.dispatch import is_queued, tags_code
from metaq.store.queues.table import QueueKey
from metaq.wire import hot
from metaq.wire.record import RECORD_BYTES_MIN

# Both hosts as IPv6, 12 bytes more each: the check is for the worst case.
_HOSTS_V6_MORE: Final = 24
_PAIR_END: Final = PAIR_END.encode()


class PutRecord(Struct):
    """One message for `Writer.put`.

    `properties`: the text as stored. `tags_code`: third field of its unit: the tag's hash, or in the schedule topic the
    time of delivery, ms. `keys`: whole `topic#key` texts to index. `born_host`: address and port, 8 bytes, or 20 with IPv6.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_offset: int = 0
    tags_code: int = 0
    keys: tuple[bytes, ...] = ()
    is_judged: bool = False
    """What the body holds was checked when it came, so it may be larger than `maxMessageSize`."""

    @property
    def is_copy(self) -> bool:
        """Whether it is made of a record of the log, which was within the limits when it came: they may be lower now."""
        return self.prepared_offset != 0 or bool(self.sys_flag & TRANSACTION_MASK)


class Put(Struct):
    """Where messages were stored: offsets and store time (ms) of the first, `log_end` behind the last."""

    log_offset: int
    log_end: int
    queue_offset: int
    store_ms: int


class Snapshot(Struct, frozen=True):
    """Log, queues and index between two appends: all records below `log_end` are in these queues and in the index."""

    log_end: int
    store_ms: int
    """Store time of the newest record."""
    queues: Sequence[ConsumeQueue]
    """All queues, also empty ones: the same object as in the snapshot before, unless one was made or removed since."""
    ends: bytes
    """The max offset of each, an int64."""
    changed: Sequence[int]
    """Places of those with another end than in the snapshot before; of all that are not empty, if `queues` is another."""
    newest: Unit | None
    """The unit of the newest record that is in a queue."""
    index: IndexMark | None

    def filled(self) -> Iterator[tuple[ConsumeQueue, int]]:
        """Return the queues that are not empty, with their max offsets."""
        pairs = zip(self.queues, memoryview(self.ends).cast("q"), strict=True)
        return ((queue, end) for queue, end in pairs if end)

    def max_offset(self, place: int) -> int:
        """Return the max offset of the queue at this place of `queues`."""
        return int.from_bytes(self.ends[8 * place : 8 * place + 8], sys.byteorder)


def end_properties(text: bytes) -> bytes:
    """Return properties as they are stored: they never end in a NUL."""
    # Properties have no checksum, and sectors that never reached the disk read as zeros: recovery takes a newest record that
    # ends in NULs for torn. So a value that does gets the separator behind it that older RocketMQ brokers put behind every
    # property. In the fast path a property of the broker's own is the last.
    return text + _PAIR_END if text.endswith(b"\0") else text


class Writer:
    """Appends to the log, its queues and its index. From any thread, one at a time (a lock holds the others)."""

    def __init__(self, parts: Parts, populator: Populator) -> None:
        self._parts, self._populator, self._deleted, self._delays_ms = parts, populator, parts.deleted, parts.delays_ms
        self._clock, self._state, self._queues = parts.clock, parts.state, parts.queues
        self._log, self._index = parts.log, parts.index
        self._index_tail = parts.index.tail if parts.index else None
        self.lock = threading.Lock()
        """Of all that goes into the log. Held by whoever calls `roll`."""

    # ------------------------------------------------------------------ one by one

    def put(self, records: Sequence[PutRecord], *, carrying: bool = False) -> Put:
        """Append messages, all to one queue, back to back in queue and log file.

        Args: carrying: they replace older records, so that a log file can go; taken though the disk is nearly full.
        Raises: MessageIllegal: one of them can never be stored. StoreFull: there is no room now. StoreFailed. Nothing
        was written in any of these cases.
        """
        first = records[0]
        self._check_place(first)
        bytes_in_log = keys = 0
        for record in records:
            if record.properties.endswith(b"\0"):
                record.properties = end_properties(record.properties)
            bytes_in_log += self._check(record)
            keys += len(record.keys)
        # RocketMQ acknowledges a message that is larger than a log file, and does not store it.
        if bytes_in_log + BLANK_BYTES > self._log.file_bytes:
            raise MessageIllegal(
                f"{len(records)} messages for topic {first.topic} take {bytes_in_log} bytes, and a log file has "
                f"{self._log.file_bytes} (mappedFileSizeCommitLog)"
            )
        # The clock is read before the lock, which is held for less then; the tail keeps store times from going back.
        now_ms = self._clock.now_ms()
        with self.lock:
            if not (self._state.takes or (carrying and self._state.carries)):
                raise self._state.refusal()
            # All room first, queue, index, log: a full disk refuses all records or none.
            queue = self._queues.made(first.topic, first.queue_id) if is_queued(first.sys_flag) else None
            if queue:
                queue.prepare(len(records))
            if self._index and keys > self._index.tail.room():
                self._index.grow(keys, now_ms)
            if bytes_in_log + BLANK_BYTES > self._log.tail.room():
                self.roll()
            # 0 for records without a unit, as in RocketMQ: prepared and rolled-back ones.
            queue_offset = queue.max_offset if queue else 0
            log_offset = self._log.end
            row = 0
            while row < len(records):  # native code stops at a record that it does not take, or where a queue file ends
                if queue is not None:
                    row = hot.append_records(self._log.tail, queue.tail, self._index_tail, records, row, now_ms)
                if row < len(records):
                    self._append(records[row], queue, now_ms)
                    row += 1
            put = Put(log_offset, self._log.end, queue_offset, self._log.tail.store_ms)
        if put.log_end > self._populator.due_at:
            self._populator.wake()
        return put

    def _check_place(self, record: PutRecord) -> None:
        """Check topic and queue id. Raises MessageIllegal."""
        try:
            check_partition_topic(record.topic)
        except Refused as error:
            raise MessageIllegal(str(error)) from None
        if record.queue_id < 0:
            raise MessageIllegal(f"topic {record.topic} has no queue {record.queue_id}")

    def _check(self, record: PutRecord) -> int:
        """Check the sizes. Returns the bytes that the record takes in the log at most. Raises MessageIllegal."""
        body_bytes_max = self._parts.options.max_message_size
        if len(record.body) > body_bytes_max and not (record.is_copy or record.is_judged):
            raise MessageIllegal(
                f"the body for topic {record.topic} has {len(record.body)} bytes, allowed are "
                f"{body_bytes_max} (maxMessageSize)"
            )
        if len(record.properties) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"the properties for topic {record.topic} have {len(record.properties)} bytes, allowed are "
                f"{PROPERTIES_BYTES_MAX}"
            )
        return RECORD_BYTES_MIN + _HOSTS_V6_MORE + len(record.body) + len(record.topic) + len(record.properties)

    def _append(self, record: PutRecord, queue: ConsumeQueue | None, now_ms: int) -> None:
        while True:
            offset = hot.append_record(
                self._log.tail,
                queue.tail if queue else None,
                None,
                topic=record.topic.encode(),
                queue_id=record.queue_id,
                queue_offset=0,
                flag=record.flag,
                sys_flag=record.sys_flag,
                born_ms=record.born_ms,
                born_host=record.born_host,
                store_ms=now_ms,
                reconsume_times=record.reconsume_times,
                prepared_offset=record.prepared_offset,
                body=record.body,
                properties=record.properties,
                tags_code=record.tags_code,
                keys=(),
            )
            if offset >= 0:
                break
            assert queue is not None, "the log had room for all records"
            queue.advance()
        if (
            self._index and record.sys_flag & TRANSACTION_MASK != SysFlag.ROLLED_BACK
        ):  # as RocketMQ: those are not indexed
            for key in record.keys:
                self._index.put(key, offset, self._log.tail.store_ms, now_ms)

    # ------------------------------------------------------------------ as another log has them

    def append_raw(self, data: bytes | memoryview, log_offset: int, *, partial: bool = False) -> Appended:
        """Append bytes of another log, which begin there at `log_offset`, as they are; fill queues and index.

        Args:
            data: whole records back to back, as they lie in the log, blank records included.
            log_offset: where this log ends. An empty one may begin at any log offset where a file would.
            partial: they may end within a record, which is left.

        Raises: StoreError: a gap, or not all of it is whole records that go on with this log and its queues; nothing was
        appended. StoreFull, StoreFailed: `log_end` says how far it came; go on from there.
        """
        view = memoryview(data).cast("B")
        with self.lock:
            if not self._state.copies:
                raise self._state.refusal(copied=True)
            self._refuse_gap(log_offset)
            runs = runs_of(view, log_offset, self._log.file_bytes, partial=partial)
            targets, restarts = self._targets([head for run in runs for head in run.heads])
            if runs and not self._log.is_attached:  # it is empty, or ends where a file does
                self._log.start_at(log_offset)
                self.roll()
            now_ms, touched, restarted, first = self._clock.now_ms(), set[QueueKey](), set[QueueKey](), 0
            keys_max = self._index.entries_max - 1 if self._index else 1 << 62  # a group's keys fit into one index file
            for run in runs:
                of_run, first = targets[first : first + len(run.heads)], first + len(run.heads)
                for copied in groups(run, of_run, keys_max, restarts):
                    touched |= self._append_group(copied, restarts, restarted, now_ms)
                # The rest of the file is copied as well: both logs stay the same bytes.
                if run.blank:
                    self._log.end_file(run.blank)
                    self._rolled()
            log_end = self._log.end
        if log_end > self._populator.due_at:
            self._populator.wake()
        return Appended(log_offset, log_end, frozenset(touched), frozenset(restarted))

    def _refuse_gap(self, log_offset: int) -> None:
        """Raises StoreError: the log does not go on at `log_offset`."""
        log = self._log
        if log_offset != log.end and (log.run.files or log_offset % log.file_bytes):
            raise StoreError(
                f"bytes from log offset {log_offset} on cannot be appended to a log that ends at {log.end}: nothing was "
                f"appended; they have to go on there{'' if log.run.files else ', or begin a log file'}"
            )

    def _targets(self, heads: Sequence[hot.RecordHead]) -> tuple[list[Target | None], set[int]]:
        """Return the queue of each record, and the LogOffsets of those with which a queue begins anew: an empty queue, or one of a
        topic that was made again.

        Raises StoreError: a queue offset is missing.
        """
        known: dict[tuple[bytes, int], Target] = {}
        targets, restarts = list[Target | None](), set[int]()
        for head in heads:
            place = head.topic, head.queue_id
            target = known.get(place)
            if target is None:
                key = head.topic.decode(), head.queue_id
                target = known[place] = Target(key, self._queues.get(*key), self._deleted.get(key[0], 0))
            if not is_queued(head.sys_flag) or head.log_offset < target.dead_below:
                targets.append(None)
                continue
            if head.queue_offset != target.wanted:
                # An empty queue may begin anywhere: the master's retention took what came before. 0: the topic was made again.
                is_empty = not target.wanted or (target.is_spent and head.queue_offset > target.wanted)
                if head.queue_offset and not is_empty:
                    raise StoreError(
                        f"queue {head.queue_id} of topic {target.key[0]} goes on with queue offset {target.wanted}, and the record at "
                        f"log offset {head.log_offset} of the bytes to append has {head.queue_offset}: none of them was appended"
                    )
                restarts.add(head.log_offset)
            target.wanted, target.is_spent = head.queue_offset + 1, False
            targets.append(target)
        return targets, restarts

    def _append_group(self, copied: Copied, restarts: set[int], restarted: set[QueueKey], now_ms: int) -> set[QueueKey]:
        """Append all of them or none. Returns the queues that grew. Raises StoreFull.

        Args: restarts: LogOffsets with which a queue begins anew; restarted: gets the queues that had messages before.
        """
        heads, counts = copied.heads, Counter(copied.targets)
        counts.pop(None, None)
        first = heads[0]
        if first.log_offset in restarts:  # `groups` begins a group there: the units so far are of the deleted topic
            anew = self._queues.made(first.topic.decode(), first.queue_id)
            if anew.max_offset:
                restarted.add((anew.topic, anew.queue_id))
            anew.restart_at(first.queue_offset)
        # As in `put`: all room first, so that a full disk refuses the group as a whole.
        for target, count in counts.items():
            if target is not None:
                target.queue = self._queues.made(*target.key)
                target.queue.prepare(count)
        if self._index and copied.entries > self._index.tail.room():
            self._index.grow(copied.entries, now_ms)
        self._log.write(copied.records, max(head.store_ms for head in heads))
        for head, target, keys in zip(heads, copied.targets, copied.keys, strict=True):
            if target is not None and (queue := target.queue) is not None:
                unit = head.log_offset, head.size, tags_code(head, self._delays_ms)
                # The queue file is full: `prepare` has made the next one.
                if not queue.tail.put(*unit):
                    queue.advance()
                    queue.tail.put(*unit)
            if self._index:
                for words in keys:
                    self._index.put(words, head.log_offset, head.store_ms, now_ms)
        return {target.key for target in counts if target is not None}

    def snapshot_below(self, log_offset: int) -> Snapshot:
        """Return the snapshot that would be if the log ended at `log_offset`.
        Raises StoreError: no record begins or ends there."""
        with self.lock:
            return self._snapshot_below(log_offset)

    def _snapshot_below(self, log_offset: int) -> Snapshot:
        log = self._log
        if not log.min <= log_offset <= log.end or not log.is_border(log_offset):
            raise StoreError(
                f"the log cannot be cut at {log_offset}: no record begins there (it reaches from {log.min} to {log.end}); "
                "nothing was changed"
            )
        queues, newest = self._queues.listed()[0], None
        ends = array("q", [queue.first_at(log_offset) for queue in queues])
        for queue, end in zip(queues, ends, strict=True):
            if end:
                unit = queue.unit(end - 1)
                # Units of records that retention has deleted say nothing about the log's newest one.
                is_there = unit is not None and unit.size > 0 and not unit.is_fill and unit.log_offset >= log.min
                if unit is not None and is_there and (newest is None or unit.log_offset > newest.log_offset):
                    newest = unit
        begin = newest.log_offset if newest else log.min
        # A clock may have been set back: the newest record need not have the latest store time.
        past = past_damage(log.run, log_offset, [])
        scan = LogScan(log.run, begin, log_offset, check_crc=False, past=past)
        times = [head.store_ms for heads in scan for head in heads]
        changed = [place for place, end in enumerate(ends) if end]
        return Snapshot(log_offset, max(times, default=0), queues, ends.tobytes(), changed, newest, None)

    def truncate(self, log_offset: int) -> Snapshot:
        """Cut log, queues and index: everything at and behind `log_offset` is gone. Returns what is left.

        A part of `MessageWriter.truncate`, which has written down beforehand what a crash in between must not go beyond.
        Raises StoreError: as `snapshot_below`. OSError: how much of it was done is unknown.
        """
        with self.lock:
            left = self._snapshot_below(log_offset)
            ends = dict(left.filled())
            for queue in self._queues.all():  # first: nobody is to be led to records that go
                end = ends.get(queue, 0)
                if end < queue.max_offset:
                    unit = queue.unit(end - 1) if end else None
                    queue.start_at(end, unit.log_end if unit else 0)
                    queue.min_offset = min(queue.min_offset, end)
                    queue.cut()
                    queue.run.unsynced = True  # the deletions become durable with the next checkpoint
            self._log.cut(log_offset)
            self._log.tail.store_ms = left.store_ms
            if self._index:
                self._index.truncate(log_offset)
            for topic, place in list(self._deleted.items()):  # a mark behind a shorter log would cover what comes there
                self._deleted[topic] = min(place, log_offset)
            self._populator.restart()
            return left

    # ------------------------------------------------------------------ files

    def roll(self) -> None:
        """Go on in the next log file. Raises StoreFull."""
        self._log.roll()
        self._rolled()

    def _rolled(self) -> None:
        # Pulls read by pread what lies further behind the end than `hot_bytes`: the mappings are not used any more.
        self._log.release_before(self._log.end - self._parts.options.hot_bytes)
        self._populator.wake()

    def delete_topic(self, topic: str, place: int | None) -> Path | None:
        """Forget the topic's queues, and note below which LogOffset its records are gone with it (None: the end).

        Returns where their files are now, which may be deleted; None: there were none. Raises OSError.
        """
        with self.lock:
            place = self._deleted[topic] = self._log.end if place is None else place
            return self._queues.remove(topic, place)

    def drop_index_below(self, log_min: int) -> list[Path]:
        """Forget index files that point wholly below the log's begin. Returns them, see `Index.drop_below`."""
        if self._index is None:
            return []
        with self.lock:
            return self._index.drop_below(log_min)

    def snapshot(self, before: Snapshot | None = None) -> Snapshot:
        """Return where log, queues and index stand, between two appends. Args: before: an earlier one, which tells what changed.

        Raises OSError: the newest unit cannot be read.
        """
        # All under the lock, the table of queues too. A queue made between a look at the table and one at the log's end would
        # be left out: its messages would count as lying below the end and be in no queue, so that the next start would not
        # look for their units. And a unit that is read later may be of a queue that has taken the name of a deleted one.
        with self.lock:
            log_end = self._log.end
            queues, tails = self._queues.listed()
            known = before.ends if before is not None and before.queues is queues else None
            ends, changed, place = hot.queue_ends(tails, known)
            return Snapshot(
                log_end,
                self._log.tail.store_ms,
                queues,
                ends,
                changed,
                queues[place].unit(tails[place].next_offset - 1) if place >= 0 else None,
                self._index.mark(log_end) if self._index else None,
            )

    def close(self) -> None:
        """Close all files. The caller has closed the state, and made everything durable."""
        with self.lock:
            self._log.detach()
            self._queues.close()
            if self._index:
                self._index.close()
            self._log.run.close()
