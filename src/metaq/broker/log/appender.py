"""The way into the log for every message, of whichever server and path; sends that must be refused are refused here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

from metaq.broker.environment import Environment
from metaq.broker.log.acks import AckPolicy
from metaq.broker.log.closing import ClosedQueues
from metaq.broker.part import BrokerPart
from metaq.broker.stats import Stats
from metaq.errors import MessageIllegal, NotLeading, Reason, Refused, StoreError, shortage
from metaq.log import RateLimitedLog
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.store.log.raw import Appended
from metaq.store.log.writer import Put, PutRecord
from metaq.wire.hot import AppendOutcome, DelayGate, FrameTable, PartitionGate, QueueTail, Replies, TopicGate

log = logging.getLogger(__name__)

Growth: TypeAlias = Callable[[Sequence[QueueTail], int, int, int, int], None]
"""(queues, messages, bytes, log start, log end): so much was appended, and the log grew from here to there.

The queues are those that grew and that somebody watches (`QueueTail.watched`), each once; and one that `put` gave its first
message, which somebody may have waited for before the queue was made. The log may have grown by more than the bytes of the
messages: by the rest of a file that was full.
"""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Sender: TypeAlias = tuple[dict[bytes, TopicGate], bytes]
"""The gates of a connection's client, and its host as records have it."""


class Appender(BrokerPart):
    """Appends records, and calls the hooks of what depends on the growth of the log.

    Args:
        stats: told of failures here, of the rest by `when_grown`.
        closed: whether a topic is being deleted, so that what is put there now would be lost or come back later; or is
            being made, and its queues with it.
        closed_queues: those that only take what is put with `through`.
    """

    leads = False

    def __init__(
        self,
        environment: Environment,
        acks: AckPolicy,
        stats: Stats,
        closed: Callable[[str], bool],
        closed_queues: ClosedQueues,
    ) -> None:
        self._environment, self._acks = environment, acks
        self._writer, self._existing_queue = environment.store.writer, environment.store.reader.existing_queue
        self.deliver = self._guarded(self._writer.deliver)
        """As `FastPath.deliver`, and raises Refused as `put` does; rows before `outcome.row` are appended then."""
        self.expand = self._guarded(self._writer.expand)
        """As `FastPath.expand`, and raises Refused in the same way."""
        self.expand_all = self._guarded(self._writer.expand_all)
        """As `FastPath.expand_all`, and raises Refused as `put` does."""
        self._stats, self._closed, self._now = stats, closed, environment.clock.monotonic
        self.closed_queues = closed_queues
        """Closed queues: `put` refuses messages for them, and services whose senders can wait ask first."""
        self.reserved: str | None = None
        """Why messages are refused that the master of a pair has not sent; None: this broker is not the slave of one."""
        self._log, self._state = environment.store.log.tail, environment.store.state
        self._faults = RateLimitedLog(log, environment.clock)
        self._told = self._log.end
        """End of the log at the last call of the hooks."""
        self._outcome = AppendOutcome()
        self._hooks: tuple[Growth, ...] = ()
        self._queue_hooks: tuple[Growth, ...] = ()
        """Hooks that are called for watched queues only."""
        self._restart_hooks: tuple[Callable[[str, int], None], ...] = ()

    def when_grown(self, hook: Growth, *, watched_only: bool = False) -> None:
        """Call `hook` after every append of one message or more, or of those to watched queues. It must not raise, nor append."""
        if watched_only:
            self._queue_hooks += (hook,)
        else:
            self._hooks += (hook,)

    def when_restarted(self, hook: Callable[[str, int], None]) -> None:
        """Call `hook` with each queue that had messages and has begun anew in a copied log, as its master's has."""
        self._restart_hooks += (hook,)

    def refusal(self, *, carrying: bool = False, synced: bool = False) -> Refused | None:
        """Why nothing may be appended now: the store has failed, or its disk is slower than the producers. `carrying`, `synced`: as `put`."""
        state, options = self._state, self._environment.options
        if state.failed is not None:
            return Refused(Reason.NOT_STORED, state.failed)
        if state.follows is not None:
            return Refused(Reason.NOT_LEADING, state.follows)
        if self.reserved is not None and not (carrying or synced):
            return Refused(Reason.NOT_STORED, self.reserved)
        copies = self._acks.copies
        if not (copies.enough or (carrying and copies.carries_alone)):
            return Refused(Reason.NOT_LEADING if copies.lacks_for_now else Reason.NOT_STORED, copies.lacking)
        unflushed = self._log.end - state.flushed
        if unflushed > options.unflushed_bytes_max:
            return Refused(
                Reason.THROTTLED, f"{unflushed} bytes wait for the disk, the limit is {options.unflushed_bytes_max}"
            )
        if self._acks.waiting_bytes > options.unanswered_bytes_max:
            return Refused(
                Reason.THROTTLED,
                f"{self._acks.waiting_bytes} bytes of answers wait for the disk, the limit is "
                f"{options.unanswered_bytes_max}",
            )
        return None

    def is_kept(self, place: int) -> bool:
        """Whether the record at this LogOffset is as durable as acknowledgements promise: others may act on it."""
        return self._acks.covers(place)

    def put(
        self, records: Sequence[PutRecord], *, carrying: bool = False, through: bool = False, synced: bool = False
    ) -> Put:
        """Store records of one queue, contiguously.

        Args: carrying: see `Writer.put`. through: also into a closed queue. synced: they come from the master of a pair.

        Raises Refused: NOT_STORED (disk full or failed), THROTTLED, BUSY (the topic is being made or deleted, or the
        queue is closed), or ILLEGAL_MESSAGE.
        """
        refusal = self.refusal(carrying=carrying, synced=synced)
        if refusal is not None:
            raise refusal
        topic, queue_id = records[0].topic, records[0].queue_id
        why = self._acks.copies.refusal_of(topic)
        if why is not None:
            raise Refused(Reason.NO_PERMISSION, why)
        if self._closed(topic):
            raise Refused(Reason.BUSY, f"the topic {topic} is being made or deleted, try again")
        if not through and self.closed_queues.has(topic, queue_id):
            raise Refused(
                Reason.BUSY, f"queue {queue_id} of topic {topic} takes the messages of a staged transaction, try again"
            )
        timing = self._now() if self._stats.timing else None
        try:
            put = self._writer.put(records, carrying=True) if carrying else self._writer.put(records)
        except MessageIllegal as error:
            raise Refused(Reason.ILLEGAL_MESSAGE, str(error)) from error
        except (StoreError, OSError, MemoryError) as error:  # full or failed, or no more files may be opened
            raise self._not_stored(error) from error
        queue = self._existing_queue(topic, queue_id)
        watched = (queue.tail,) if queue is not None and (queue.tail.watched or put.queue_offset == 0) else ()
        self._grew(watched, len(records), put.log_end - put.log_offset)
        if timing is not None:
            self._stats.took(self._now() - timing)
        return put

    def rows(
        self,
        table: FrameTable,
        row: int,
        end: int,
        gates: dict[bytes, TopicGate],
        born_host: bytes,
        replies: Replies,
        outcome: AppendOutcome,
    ) -> bool:
        """Append plain rows of a read event (see `FastPath.append_rows`); `outcome.row` is the first that was not.

        False: nothing may be appended now. What stops it, or the store's refusal of that row, is for the slow path to
        meet again and to tell.
        """
        # As in `refusal`, without calls: read events of one message are the most frequent ones. A store that has failed
        # says so itself.
        options = self._environment.options
        if (
            self._log.end - self._state.flushed > options.unflushed_bytes_max
            or self._acks.waiting_bytes > options.unanswered_bytes_max
            or (self._acks.promises and not self._acks.copies.enough)
            or self.reserved is not None
        ):
            return False
        timing = self._now() if self._stats.timing else None
        try:
            self._writer.append_rows(table, row, end, gates, born_host, replies, outcome)
        except (StoreError, OSError, MemoryError) as error:  # the rows before it are stored
            log.debug("row %d fails (%s); the slow path will say so, or succeed", outcome.row, error)
        self._grew(outcome.touched, outcome.messages, outcome.size)
        if timing is not None and outcome.messages:
            self._stats.took(self._now() - timing)
        return True

    def parts(
        self,
        data: memoryview,
        parts: memoryview,
        senders: Sequence[Sender | None],
        table: FrameTable,
        replies: Replies,
        outcome: AppendOutcome,
    ) -> None:
        """Append the plain sends of many connections (see `hot.append_parts`). What is left is for `rows` to meet again."""
        if self.refusal() is not None:
            return
        timing = self._now() if self._stats.timing else None
        try:
            self._writer.append_parts(data, parts, senders, table, replies, outcome)
        except (StoreError, OSError, MemoryError) as error:
            log.debug("a part fails (%s); its session will say so, or succeed", error)
        self._grew(outcome.touched, outcome.messages, outcome.size)
        if timing is not None and outcome.messages:
            self._stats.took(self._now() - timing)

    def puts(
        self,
        data: memoryview,
        start: int,
        gates: dict[bytes, PartitionGate],
        ids: range,
        born_host: bytes,
        replies: Replies,
        outcome: AppendOutcome,
    ) -> Sequence[PartitionGate]:
        """Append plain puts of MetaQ 1.x (see `FastPath.append_puts`); `outcome.row` is where the first begins that was not.

        What stops it, or the store's refusal of a put, is for the slow path to meet again and to tell. Returns the gates that
        the puts went through.
        """
        outcome.row, outcome.touched, outcome.messages = start, [], 0
        if self.refusal() is not None:
            return ()
        used: Sequence[PartitionGate]
        try:
            used = self._writer.append_puts(data, start, gates, ids, born_host, replies, outcome)
        except (StoreError, OSError, MemoryError) as error:  # the puts before it are stored
            log.debug("the put at %d fails (%s); the slow path will say so, or succeed", outcome.row, error)
            used = tuple(gates.values())
        self._grew(outcome.touched, outcome.messages, outcome.size)
        return used

    def copy(self, data: memoryview, log_offset: int) -> Appended:
        """Append what a master has in its log from `log_offset` on, where this log ends; the last record may be cut, and is left.

        Raises as `Writer.append_raw`.
        """
        start = self._log.end
        try:
            appended = self._writer.append_raw(data, log_offset, partial=True)
        finally:
            self._told = self._log.end  # after an error, too: it may have come as far as there was room
        for key in appended.restarted:
            for restarted in self._restart_hooks:
                restarted(*key)
        found = (self._existing_queue(*key) for key in appended.queues)
        # All of them: somebody may wait at one that was made for these.
        grown = [queue.tail for queue in found if queue is not None]
        for hook in self._queue_hooks if grown else ():
            hook(grown, len(grown), appended.log_end - start, start, appended.log_end)
        return appended

    def give_back(
        self, delays: DelayGate, log_offset: int, topic: bytes, queue_id: int, retries_max: int, level: int
    ) -> tuple[Put, int] | None:
        """Append what stands for a record that a consumer gave back, and its delay level (see `FastPath.give_back`).

        None: it has to be put as any other record, or may not be put now; `put` will say so.
        """
        if self.refusal() is not None or self._acks.copies.refusal_of(SCHEDULE_TOPIC) is not None:
            return None
        outcome = self._outcome
        done = self._writer.give_back(delays, log_offset, topic, queue_id, retries_max, level, outcome)
        if done is not None:
            self._grew(outcome.touched, 1, outcome.size)
        return done

    def _guarded(
        self, append: Callable[Concatenate[AppendOutcome, Arguments], Result]
    ) -> Callable[Concatenate[AppendOutcome, Arguments], Result]:
        """Wrap an append of `FastPath` for services: errors of the store become Refused, and hooks hear of the growth."""

        def call(outcome: AppendOutcome, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
            outcome.touched, outcome.messages, outcome.size = [], 0, 0
            refusal = self.refusal()
            if refusal is not None:
                raise refusal
            try:
                return append(outcome, *args, **named)
            except (StoreError, OSError, MemoryError) as error:
                raise self._not_stored(error) from error
            finally:
                # After an error, too: the rows before it are appended.
                self._grew(outcome.touched, outcome.messages, outcome.size)

        return call

    def _not_stored(self, error: Exception) -> Refused:
        self._stats.put_failures += 1
        why = shortage(error) or str(error) or type(error).__name__
        self._faults.error(type(error).__name__, "messages are refused, for they cannot be stored: %s", why)
        return Refused(Reason.NOT_LEADING if isinstance(error, NotLeading) else Reason.NOT_STORED, why)

    def tick(self) -> None:
        """Let time pass: what was refused since it was told is counted in the log."""
        self._faults.tick()

    def _grew(self, queues: Sequence[QueueTail], messages: int, size: int) -> None:
        if not messages:
            return
        start = self._told
        self._told = end = self._log.end
        for hook in self._hooks + self._queue_hooks if queues else self._hooks:
            hook(queues, messages, size, start, end)
