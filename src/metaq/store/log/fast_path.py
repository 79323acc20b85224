"""Appends runs of messages by one native call each, as far as they are plain.

Native code writes into the files that are attached, and stops where one is full; here it gets the next one. What is not
plain is left to the caller, who appends it by `Writer.put`.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from metaq.errors import StoreError
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.store.log.parts import Parts
from metaq.store.log.populate import Populator
from metaq.store.log.writer import Put, Writer
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.wire import hot

_SCHEDULE: Final = SCHEDULE_TOPIC.encode()


class FastPath:
    """Appends runs of messages, under the writer's lock. From any thread."""

    def __init__(self, parts: Parts, populator: Populator, writer: Writer) -> None:
        self._populator, self._writer, self._lock = populator, writer, writer.lock
        self._clock, self._state, self._queues = parts.clock, parts.state, parts.queues
        self._log, self._index = parts.log, parts.index
        self._index_tail = parts.index.tail if parts.index else None

    def append_rows(
        self,
        table: hot.FrameTable,
        row: int,
        end: int,
        gates: dict[bytes, hot.TopicGate],
        born_host: bytes,
        replies: hot.Replies,
        outcome: hot.AppendOutcome,
    ) -> None:
        """Append the plain rows of [row, end) of a frame table, until STOP_END or STOP_SLOW (see `hot.append`).

        Raises: StoreFull, StoreFailed: `outcome.row` is the first row not appended; those before it are stored and
        answered in `replies`. `outcome.touched`, `.messages`, `.size` cover the whole run also then.
        """
        # The clock is read before the lock, which is held for less then; the tail keeps store times from going back.
        now_ms, log, index = self._clock.now_ms(), self._log.tail, self._index_tail
        with self._lock:
            # The results are set before anything can raise: the caller answers by them also after an error.
            outcome.row, outcome.touched, outcome.messages, outcome.size = row, [], 0, 0
            if not self._state.takes:
                raise self._state.refusal()
            try:
                hot.append(table, row, end, gates, log, index, now_ms, born_host, replies, outcome)
                if outcome.stop > hot.STOP_SLOW:  # a file is full, or what is reserved of it
                    run = functools.partial(  # a closure would make cells of all arguments, for each run: 0.1 us
                        hot.append, table, end=end, gates=gates, log=log, index=index, now_ms=now_ms, born_host=born_host,
                        replies=replies, outcome=outcome,
                    )  # fmt: skip
                    self._append_rest(run, now_ms, outcome)
            except hot.RunLost as error:
                raise self._not_written(error) from error
        if log.end > self._populator.due_at:
            self._populator.wake()

    def append_parts(
        self,
        data: memoryview,
        parts: memoryview,
        senders: Sequence[tuple[dict[bytes, hot.TopicGate], bytes] | None],
        table: hot.FrameTable,
        replies: hot.Replies,
        outcome: hot.AppendOutcome,
    ) -> None:
        """Append the plain sends of many connections (see `hot.append_parts`), as far as the attached files have room.

        Raises StoreFull, StoreFailed: nothing is appended.
        """
        log = self._log.tail
        with self._lock:
            outcome.touched, outcome.messages, outcome.size = [], 0, 0
            if not self._state.takes:
                raise self._state.refusal()
            # All connections of the pass get one time.
            now_ms = self._clock.now_ms()
            try:
                hot.append_parts(data, parts, senders, table, log, self._index_tail, now_ms, replies, outcome)
            except hot.RunLost as error:
                raise self._not_written(error) from error
        if log.end > self._populator.due_at:
            self._populator.wake()

    def append_puts(
        self,
        data: memoryview,
        start: int,
        gates: dict[bytes, hot.PartitionGate],
        ids: range,
        born_host: bytes,
        replies: hot.Replies,
        outcome: hot.AppendOutcome,
    ) -> list[hot.PartitionGate]:
        """Append the plain puts of MetaQ 1.x at the start of `data[start:]`, with these ids (see `hot.put_lines`).

        Returns the gates that they went through. Raises as `append_rows` does, and `outcome` says the same.
        """
        now_ms, log, used = self._clock.now_ms(), self._log.tail, list[hot.PartitionGate]()
        with self._lock:
            outcome.row, outcome.touched, outcome.messages, outcome.size = start, [], 0, 0
            if not self._state.takes:
                raise self._state.refusal()
            try:
                hot.put_lines(data, start, gates, log, ids.start, len(ids), now_ms, born_host, replies, outcome, used)
                if outcome.stop > hot.STOP_SLOW:
                    # The ids of the first run are left out: none may be given twice.
                    left = ids[outcome.messages :]

                    def run(place: int) -> None:
                        nonlocal left
                        first, count = left.start, len(left)
                        hot.put_lines(data, place, gates, log, first, count, now_ms, born_host, replies, outcome, used)
                        left = left[outcome.messages :]

                    self._append_rest(run, now_ms, outcome)
            except hot.RunLost as error:
                raise self._not_written(error) from error
        if log.end > self._populator.due_at:
            self._populator.wake()
        return used

    def deliver(
        self,
        outcome: hot.AppendOutcome,
        records: bytes | memoryview,
        units: bytes,
        end: int,
        level_queue: int,
        gates: Mapping[bytes, hot.TopicGate],
    ) -> None:
        """Append copies of delayed records where they belong, rows [outcome.row, end), until STOP_END or STOP_SLOW (see
        `hot.deliver`).

        Raises as `append_rows` does, and `outcome` says the same.
        """
        log, index = self._log.tail, self._index_tail
        with self._appending(outcome) as now_ms:

            def run(row: int) -> None:
                hot.deliver(records, units, row, end, _SCHEDULE, level_queue, gates, log, index, now_ms, outcome)

            run(outcome.row)
            if outcome.stop > hot.STOP_SLOW:
                self._append_rest(run, now_ms, outcome)

    def give_back(
        self,
        delays: hot.DelayGate,
        log_offset: int,
        topic: bytes,
        queue_id: int,
        retries_max: int,
        level: int,
        outcome: hot.AppendOutcome,
    ) -> tuple[Put, int] | None:
        """Append the delayed copy of a record that a consumer gave back (see `hot.give_back`). Returns its delay level, too.

        None: nothing was appended; the caller puts it as any other record, and is told there if that cannot be.
        """
        log, index = self._log.tail, self._index_tail
        now_ms = self._clock.now_ms()
        with self._lock:
            # No refusal is raised here: the slow path words it.
            if not self._state.takes:
                return None
            done = hot.give_back(log, index, delays, log_offset, topic, queue_id, retries_max, level, now_ms, outcome)
            log_end = log.end
        if done is None:
            return None
        if log_end > self._populator.due_at:
            self._populator.wake()
        offset, queue_offset, store_ms, level = done
        return Put(offset, log_end, queue_offset, store_ms), level

    def expand(
        self,
        outcome: hot.AppendOutcome,
        place: int,
        gates: Mapping[bytes, hot.TopicGate],
        *,
        record: bytes | None = None,
        carrying: bool = False,
    ) -> None:
        """Append copies of a chunk's messages from `outcome.row` on, until STOP_END or STOP_SLOW (see `hot.expand`).

        They lie back to back and in one log file if any file has room for them, and either all or none are appended then.

        Args:
            place: LogOffset of the chunk.
            record: the chunk; without it, one in the file that is written to is read there, and any other is STOP_SLOW.
            carrying: see `Writer.put`.

        Raises as `append_rows` does, and `outcome` says the same.
        """
        with self._appending(outcome, carrying=carrying) as now_ms:
            data = self._log.recent(place) if record is None else record
            # The chunk lies in an older file: the caller reads it, outside the lock.
            if data is None:
                outcome.stop = hot.STOP_SLOW
                return
            log, index = self._log.tail, self._index_tail
            hot.expand(data, place, outcome.row, gates, log, index, whole=True, now_ms=now_ms, outcome=outcome)
            if outcome.stop > hot.STOP_SLOW:
                self._expand_rest(data, place, gates, now_ms, outcome)

    def expand_all(
        self, outcome: hot.AppendOutcome, places: Sequence[int], gates: Mapping[bytes, hot.TopicGate]
    ) -> int:
        """Append copies of these chunks as long as chunk and room for the copies are in the current log file.

        Returns how many chunks were appended whole; of the next one, `outcome.row` messages were. `outcome` covers all of
        them. Raises StoreFull, StoreFailed: nothing was appended.
        """
        log, index = self._log.tail, self._index_tail
        touched, messages, size, done = list[hot.QueueTail](), 0, 0, 0
        outcome.row = 0
        with self._appending(outcome) as now_ms:
            try:
                for place in places:
                    data = self._log.recent(place)
                    if data is None:
                        break
                    hot.expand(data, place, 0, gates, log, index, whole=True, now_ms=now_ms, outcome=outcome)
                    messages += outcome.messages
                    size += outcome.size
                    touched += outcome.touched
                    if outcome.stop != hot.STOP_END:
                        break
                    done += 1
                    outcome.row = 0
            except MemoryError:  # some messages of a chunk may be there: the caller goes on behind them
                messages += outcome.messages
                size += outcome.size
            outcome.touched, outcome.messages, outcome.size = touched, messages, size
        return done

    @contextlib.contextmanager
    def _appending(self, outcome: hot.AppendOutcome, *, carrying: bool = False) -> Iterator[int]:
        """Hold the lock for one append, which gets the time in ms. Raises StoreFull, StoreFailed: nothing is taken.

        The frame of what copies whole runs. `append_*` and `give_back`, which are called for a few messages each, have it
        inline: a context manager costs them three Python calls.
        """
        outcome.touched, outcome.messages, outcome.size = [], 0, 0
        now_ms = self._clock.now_ms()
        with self._lock:
            if not (self._state.takes or (carrying and self._state.carries)):
                raise self._state.refusal()
            yield now_ms
        if self._log.tail.end > self._populator.due_at:
            self._populator.wake()

    def _expand_rest(
        self,
        record: bytes | memoryview,
        place: int,
        gates: Mapping[bytes, hot.TopicGate],
        now_ms: int,
        outcome: hot.AppendOutcome,
    ) -> None:
        """Go on where a file has no room for the whole chunk; message by message if none has."""
        run = functools.partial(
            hot.expand, record, place, gates=gates, log=self._log.tail, index=self._index_tail, now_ms=now_ms,
            outcome=outcome,
        )  # fmt: skip
        whole = True
        while whole and outcome.stop > hot.STOP_SLOW:
            whole = self._make_room_ahead(outcome, now_ms)
            run(outcome.row, whole=whole)
        if outcome.stop > hot.STOP_SLOW:
            self._append_rest(functools.partial(run, whole=False), now_ms, outcome)

    def _make_room_ahead(self, outcome: hot.AppendOutcome, now_ms: int) -> bool:
        """Make room as `_make_room`, and reserve units in further queue files: a chunk lies in one log file, not in one
        queue file."""
        if outcome.stop == hot.STOP_QUEUE_FULL and (queue := self._queue_of(outcome)):
            queue.prepare(outcome.needed)
            return queue.tail.room() >= outcome.needed
        return self._make_room(outcome, now_ms)

    def _not_written(self, error: hot.RunLost) -> StoreError:
        """Stop the store, and return the refusal. Only with SYNC_FLUSH, where runs are written through a descriptor."""
        # The log's end covers them already, and how much of them is in the file is unknown: nothing may come behind it.
        self._state.fail(f"records could not be written to the commit log: {os.strerror(error.errno or 0)}")
        return self._state.refusal()

    def _append_rest(self, run: Callable[[int], None], now_ms: int, outcome: hot.AppendOutcome) -> None:
        """Call `run(row)` again as often as a file was full; `outcome` then covers all runs."""
        touched, messages, size = outcome.touched, outcome.messages, outcome.size
        try:
            while outcome.stop > hot.STOP_SLOW:
                if not self._make_room(outcome, now_ms):
                    outcome.stop = hot.STOP_SLOW
                    return
                run(outcome.row)
                messages += outcome.messages
                size += outcome.size
                # Several of the runs may touch a queue: it is named once.
                touched += [queue for queue in outcome.touched if queue not in touched]
        finally:
            outcome.touched, outcome.messages, outcome.size = touched, messages, size

    def _make_room(self, outcome: hot.AppendOutcome, now_ms: int) -> bool:
        """Make the room for which a run has stopped. Returns False if only the slow path can. Raises StoreFull."""
        if outcome.stop == hot.STOP_LOG_FULL:
            if outcome.needed > self._log.file_bytes:
                # Larger than a log file: the slow path refuses it with a text.
                return False
            self._writer.roll()
            return True
        if outcome.stop == hot.STOP_INDEX_FULL:
            assert self._index is not None, "only an index can be full"
            return self._index.grow(outcome.needed, now_ms)
        queue = self._queue_of(outcome)
        return queue is not None and queue.grow(outcome.needed)

    def _queue_of(self, outcome: hot.AppendOutcome) -> ConsumeQueue | None:
        """Return the queue that is full; None: its topic was deleted, and a gate still leads to its tail."""
        assert outcome.queue is not None, "STOP_QUEUE_FULL names its queue"
        queue = self._queues.get(outcome.queue.topic.decode(), outcome.queue.queue_id)
        return queue if queue is not None and queue.tail is outcome.queue else None
