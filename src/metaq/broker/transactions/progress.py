"""Progress of transactions: which half messages are done (a bit for each), the saved offsets, and recovery from the log.

RocketMQ keeps two offsets, those of CID_RMQ_SYS_TRANS in the half and op queues, and reads the op records between them into a
map when it checks. We keep the same offsets, in `consumerOffset.json`, but the map always, as a bitmap, so a repeated
END_TRANSACTION is recognised. With the offsets we save the log's end at that time: a start reads op records and log from there.

A half message is done by an op record, by its next generation, or by its copy in TRANS_CHECK_MAX_TIME_TOPIC. The latter two name
it in the log (`metaq.wire.record.copy_mark`). A committed message names it too: if a crash came before its op record, the start
writes that, and no second commit happens.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from metaq.broker.tables.offsets import Offsets
from metaq.broker.transactions.records import op_slots
from metaq.model import properties as props
from metaq.model.message import TRANSACTION_MASK, SysFlag
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC, OUR_PREFIX, TRANSACTION_GROUP
from metaq.store.message_store import MessageStore
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.reads.pull import ReadStatus
from metaq.wire.hot import RecordHead
from metaq.wire.record import HEAD, copied_from, decode_record

log = logging.getLogger(__name__)

LOG_POSITION: Final = OUR_PREFIX + "TRANSACTIONS"
"""Entry of the offsets' file, under a topic name that does not exist, with the log's end at the time of the offsets."""
PAGE_BITS: Final = 8192
_PAGE_BYTES: Final = PAGE_BITS // 8
_FULL: Final = b"\xff" * _PAGE_BYTES
RUN_OPS: Final = 1024
RUNS_MAX: Final = 8192
GENERATIONS_MAX: Final = 100_000
READ_OPS: Final = 4096
READ_BYTES: Final = 1 << 20


class Slots:
    """Bitmap of done slots, from the first one that is not done. Pages that are all done or all open take no memory."""

    def __init__(self, first: int) -> None:
        self.first = first
        """Lowest slot that is not done."""
        self._pages: dict[int, bytearray | bytes] = {}
        self.done_above = 0
        """Number of done slots above `first`."""

    def is_done(self, number: int) -> bool:
        if number < self.first:
            return True
        page = self._pages.get(number // PAGE_BITS)
        return page is not None and bool(page[number % PAGE_BITS >> 3] >> (number & 7) & 1)

    def finish(self, number: int) -> bool:
        """Mark a slot as done. Returns False if it was."""
        if number == self.first:
            # The usual case needs no page: transactions end in order.
            self._pass()
            return True
        if self.is_done(number):
            return False
        key, place = divmod(number, PAGE_BITS)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = bytearray(_PAGE_BYTES)
        assert isinstance(page, bytearray), "in a full page all are done"
        page[place >> 3] |= 1 << (place & 7)
        self.done_above += 1
        if page[place >> 3] == 0xFF and page == _FULL:
            # Full pages share one object, so a long-open transaction in front of many ended ones costs little memory.
            self._pages[key] = _FULL
        return True

    def _pass(self) -> None:
        old = self.first
        self.first = old + 1
        if not self.done_above:  # most often: transactions end in their order
            if self.first % PAGE_BITS == 0:
                self._pages.pop(old // PAGE_BITS, None)
            return
        self.first = new = self.next_open(old + 1)
        self.done_above -= new - old - 1
        for key in range(old // PAGE_BITS, new // PAGE_BITS):
            self._pages.pop(key, None)

    def next_open(self, number: int) -> int:
        """Return the lowest slot from this one on that is not done."""
        number = max(number, self.first)
        while True:
            key, place = divmod(number, PAGE_BITS)
            page = self._pages.get(key)
            if page is None:
                return number
            if page is _FULL:
                number = (key + 1) * PAGE_BITS
                continue
            # The bits below `place` count as done.
            rest = page[place >> 3] | ((1 << (place & 7)) - 1)
            if rest != 0xFF:
                return key * PAGE_BITS + (place & ~7) + (~rest & rest + 1).bit_length() - 1
            tail = page[(place >> 3) + 1 :]
            # Whole bytes of done slots, counted without a loop in Python.
            whole = len(tail) - len(tail.lstrip(b"\xff"))
            if whole == len(tail):
                number = (key + 1) * PAGE_BITS
                continue
            rest = tail[whole]
            return key * PAGE_BITS + ((place >> 3) + 1 + whole) * 8 + (~rest & rest + 1).bit_length() - 1


class OpRuns:
    """Offset below which op records are no longer needed, because all half messages they name are below the half offset.

    Kept per run of op records (the highest half message of each run), not per record, so its size is bounded.
    """

    def __init__(self, start: int) -> None:
        self.start = self._end = start
        self._highest, self._count, self._size = -1, 0, RUN_OPS
        self._runs: deque[tuple[int, int]] = deque()
        """(one past the run's last op record, highest half message that the run names)."""

    def add(self, offset: int, slot: int) -> None:
        """Add the op record at `offset`, which follows the last one and names `slot`."""
        self._end = offset + 1
        self._highest = max(self._highest, slot)
        self._count += 1
        if self._count >= self._size:
            self._close()

    def _close(self) -> None:
        if self._count:
            self._runs.append((self._end, self._highest))
            self._highest, self._count = -1, 0
            if len(self._runs) > RUNS_MAX:
                # Too many runs: merge them in pairs, and make new ones twice as long.
                self._size *= 2
                pairs = [self._runs.popleft() for _ in range(len(self._runs))]
                self._runs.extend(
                    (after[0], max(before[1], after[1])) for before, after in zip(pairs[::2], pairs[1::2], strict=False)
                )
                if len(pairs) % 2:
                    self._runs.append(pairs[-1])

    def position(self, first_open: int) -> int:
        """Return the offset below which op records are not needed, all half messages below `first_open` being done."""
        self._close()
        while self._runs and self._runs[0][1] < first_open:
            self.start = self._runs.popleft()[0]
        if not self._runs:
            self._size = RUN_OPS
        return self.start


class TransactionProgress:
    """Done half messages of one broker, by QueueOffset (*slot*), and the offsets saved for them.

    Offsets are put into `Offsets` only when the log behind them is durable. Otherwise a power cut could lose the next generation
    of a half message, and leave an offset beyond the one before it: the transaction would never be checked again.
    """

    def __init__(self, store: MessageStore, offsets: Offsets) -> None:
        self._store, self._offsets = store, offsets
        self.owed: deque[int] = deque()
        """Slots of committed half messages whose op records are still to be written."""
        self.slots = Slots(0)
        self._ops = OpRuns(0)
        self._pending: tuple[int, tuple[int, int]] | None = None
        """(log end, (half, op) offsets): offsets to save once the log is durable up to that end."""
        self._put = 0, 0
        """The (half, op) offsets that `Offsets` has."""

    def open(self) -> None:
        """Recover which half messages are done: from the op queue, from the saved offset on, then from the log."""
        half, op = self._store.reader.existing_queue(HALF_TOPIC, 0), self._store.reader.existing_queue(OP_TOPIC, 0)
        saved_half, saved_op = self._saved(HALF_TOPIC), self._saved(OP_TOPIC)
        self.slots, self._ops = Slots(self._within(half, saved_half)), OpRuns(self._within(op, saved_op))
        # What differs from what is saved is saved: a slave is told what has changed.
        self._put = (
            self.slots.first if saved_half is None else saved_half,
            self._ops.start if saved_op is None else saved_op,
        )
        if half and op:
            self._read_ops(op.max_offset, half)
        if half and self.slots.first < half.max_offset:
            self._read_log()

    def _within(self, queue: ConsumeQueue | None, saved: int | None) -> int:
        """Return a saved offset as it holds for the queue that is here.

        Retention may have moved the queue's start past it, and a crash may have cut its end. What it counts was in the log when it was
        saved: a queue begins anew at a replica that never had its records, because retention had taken them before.
        """
        if queue is None:
            return 0
        taken_at = self._saved(LOG_POSITION)
        if saved is None or (taken_at is not None and taken_at > self._store.log.end):
            return queue.min_offset
        end = queue.max_offset if taken_at is None else queue.first_at(taken_at)
        return max(min(saved, end), queue.min_offset)

    def _saved(self, topic: str) -> int | None:
        return self._offsets.get(TRANSACTION_GROUP, topic, 0)

    # ------------------------------------------------------------------ what is done

    @property
    def first_open(self) -> int:
        """Lowest slot that is not done; the end of the half queue if all are."""
        return self.slots.first

    @property
    def open_halves(self) -> int:
        """Number of half messages that are not done."""
        queue = self._store.reader.existing_queue(HALF_TOPIC, 0)
        return max(0, queue.max_offset - self.slots.first - self.slots.done_above) if queue is not None else 0

    def is_open(self, slot: int) -> bool:
        """Return whether the half message in this slot is not done."""
        return not self.slots.is_done(slot)

    def finish(self, slot: int) -> None:
        """Mark a half message as done: its op record, next generation or last copy is in the log, or it has left the log."""
        self.slots.finish(slot)

    def may_end(self, slot: int) -> bool:
        """Return whether the fast path may end this half message: it is open, and no op record is owed before its own."""
        return not self.owed and not self.slots.is_done(slot)

    def ended(self, slot: int, op_offset: int) -> None:
        """Note an op record stored by the fast path at `op_offset`, which ends this slot."""
        self.slots.finish(slot)
        self._ops.add(op_offset, slot)

    def op_stored(self, offset: int, slot: int) -> None:
        """Note an op record stored at this QueueOffset."""
        self._ops.add(offset, slot)

    # ------------------------------------------------------------------ saving

    def settle(self) -> None:
        """Pass the offsets to `Offsets` once the log behind them is durable. Called ten times a second, and cheap."""
        if self._pending is not None:
            log_end, positions = self._pending
            if log_end > self._store.state.flushed:
                return
            self._pending = None
            self._hand_over(log_end, positions)
        positions = self.slots.first, self._ops.position(self.slots.first)
        # An owed op record is not in the log yet: an offset beyond its half message would forget to write it.
        if positions != self._put and not self.owed:
            self._pending = self._store.log.end, positions

    def _hand_over(self, log_end: int, positions: tuple[int, int]) -> None:
        self._put = positions
        for topic, place in ((HALF_TOPIC, positions[0]), (OP_TOPIC, positions[1]), (LOG_POSITION, log_end)):
            self._offsets.put(TRANSACTION_GROUP, topic, 0, place)

    def close(self) -> None:
        """Flush the log, and pass the final offsets to `Offsets`."""
        self.settle()
        if self._pending is not None:
            self._store.flusher.flush()
            self.settle()

    # ------------------------------------------------------------------ what is owed

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest open half message; None: all are done. From any thread."""
        queue = self._store.reader.existing_queue(HALF_TOPIC, 0)
        first = self.slots.first
        unit = queue.unit(max(first, queue.min_offset)) if queue and first < queue.max_offset else None
        return unit.log_offset if unit is not None and unit.size > 0 and not unit.is_fill else None

    # ------------------------------------------------------------------ after a start

    def _read_ops(self, end: int, half: ConsumeQueue) -> None:
        """Read the op records from the saved offset on.

        Those in front of the oldest half message may name slots of a queue that was here before: at a replica that had none of its
        records, it has begun anew.
        """
        oldest = half.unit(half.min_offset) if half.min_offset < half.max_offset else None
        begin = self._store.log.end if oldest is None else oldest.log_offset
        offset = self._ops.start
        while offset < end:
            pulled = self._store.reader.pull(OP_TOPIC, 0, offset, READ_OPS, READ_BYTES)
            if pulled.status is ReadStatus.COLD and pulled.job is not None:
                # Read here, without a thread: nothing else is served before the start is over.
                pulled = pulled.job()
            for number, (log_offset, slot) in enumerate(op_slots(pulled.body), offset):
                is_of_before = log_offset < begin and slot >= half.min_offset
                self._ops.add(number, -1 if is_of_before else slot)
                if slot >= 0 and not is_of_before:
                    self.slots.finish(slot)
            if pulled.next_offset <= offset:
                log.error(
                    "the op records from queue offset %d on cannot be read: transactions that they end are asked for",
                    offset,
                )
                return
            offset = pulled.next_offset

    def _read_log(self) -> None:
        """Read from the log what became of half messages that are still open: commits, next generations and last copies.

        All of that lies behind the half message, so reading starts at the oldest open one at the earliest.
        """
        oldest = self.oldest()
        if oldest is None:
            return
        taken_at = self._saved(LOG_POSITION)
        # The saved log position is only a hint; without a valid one, reading begins at the oldest open half message.
        if taken_at is None or taken_at < oldest or self._store.reader.record_at(taken_at) is None:
            taken_at = oldest  # also when the log was cut meanwhile: no record need begin there now
        newest: dict[bytes, int] = {}
        for head in self._store.reader.heads(taken_at):
            if head.sys_flag & TRANSACTION_MASK == SysFlag.COMMITTED:
                self._take_up(head.prepared_offset, owed=True)
            elif head.topic in _COPIED:
                origin = copied_from(head.prepared_offset)
                if origin is not None:
                    self._take_up(origin, owed=False)
                if head.unique_id and head.topic == _HALF:
                    self._replace(head, newest)

    def _replace(self, head: RecordHead, newest: dict[bytes, int]) -> None:
        """Match a generation written by a RocketMQ broker, which names its predecessor by the message's unique id only.

        A producer may send one message twice as half message; TRANSACTION_CHECK_TIMES tells a check's copy from that.
        """
        before = newest.pop(head.unique_id, None)
        newest[head.unique_id] = head.queue_offset
        if len(newest) > GENERATIONS_MAX:
            # Bounds the memory of a start.
            del newest[next(iter(newest))]
        if before is None or not self.is_open(before) or copied_from(head.prepared_offset) is not None:
            return
        data = self._store.reader.record_at(head.log_offset)
        if data is not None and props.CHECK_TIMES in decode_record(data).properties:
            self.slots.finish(before)

    def _take_up(self, log_offset: int, *, owed: bool) -> None:
        data = self._store.reader.record_at(log_offset)
        queue = self._store.reader.existing_queue(HALF_TOPIC, 0)
        if data is None or queue is None:
            return
        slot: int = HEAD.unpack_from(data)[5]
        units = queue.units(slot, 1) if self.is_open(slot) else []
        if units and units[0].log_offset == log_offset:
            if owed:
                self.owed.append(slot)
            self.slots.finish(slot)


_HALF: Final = HALF_TOPIC.encode()
_COPIED: Final = (_HALF, CHECK_MAX_TOPIC.encode())
