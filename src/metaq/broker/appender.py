"""The way into the log for everything that is not in the fast lane, and the place where sends are refused when it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from metaq.broker.hold import HeldPulls
from metaq.broker.stats import Stats
from metaq.errors import MessageIllegal, Reason, Refused, StoreFailed, StoreFull
from metaq.options import BrokerOptions
from metaq.store.message_store import MessageStore, Put, PutRecord
from metaq.wire.hot import AppendOutcome, TopicGate


class Appender:
    """Puts records and tells the held pulls.

    Args: options: `unflushed_bytes_max` says how far the log may run ahead of the disk, `unanswered_bytes_max` how many
          bytes of acknowledgements may wait for it.
    """

    def __init__(self, store: MessageStore, hold: HeldPulls, stats: Stats, options: BrokerOptions) -> None:
        self._store, self._hold, self._stats, self._options = store, hold, stats, options
        self.unanswered_bytes: Callable[[], int] = lambda: 0
        """Bytes of acknowledgements that wait for the disk; set by the door that holds them."""

        self.closed: Callable[[str], bool] = lambda _topic: False
        """Whether a topic is being deleted, so that what is put there now would be lost or come back later; or is being
        made, and its queues with it."""

    def refusal(self) -> Refused | None:
        """Why nothing may be appended now: the store has failed, or its disk is slower than the producers."""
        store = self._store
        if store.failed is not None:
            return Refused(Reason.NOT_STORED, store.failed)
        if store.log_end - store.flushed > self._options.unflushed_bytes_max:
            return Refused(
                Reason.THROTTLED,
                f"{store.log_end - store.flushed} bytes wait for the disk, the limit is {self._options.unflushed_bytes_max}",
            )
        if self.unanswered_bytes() > self._options.unanswered_bytes_max:
            return Refused(
                Reason.THROTTLED,
                f"{self.unanswered_bytes()} bytes of answers wait for the disk, the limit is "
                f"{self._options.unanswered_bytes_max}",
            )
        return None

    def put(self, records: Sequence[PutRecord]) -> Put:
        """Store records of one queue, contiguously.

        Raises Refused: NOT_STORED (disk full or failed), THROTTLED, BUSY (the topic is being made or
        deleted), or ILLEGAL_MESSAGE.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        if self.closed(records[0].topic):
            text = f"the topic {records[0].topic} is being made or deleted, try again"
            raise Refused(Reason.BUSY, text)
        try:
            put = self._store.put(records)
        except (StoreFull, StoreFailed) as error:
            self._stats.put_failures += 1
            raise Refused(Reason.NOT_STORED, str(error)) from error
        except MessageIllegal as error:
            raise Refused(Reason.ILLEGAL_MESSAGE, str(error)) from error
        self._stats.put(len(records), put.log_end - put.log_offset)
        self._hold.grew(records[0].topic, records[0].queue_id)
        return put

    def deliver(
        self,
        records: bytes | memoryview,
        units: bytes,
        row: int,
        end: int,
        level_queue: int,
        gates: Mapping[bytes, TopicGate],
        outcome: AppendOutcome,
    ) -> None:
        """Append copies of delayed records where they belong (see `MessageStore.deliver`).

        Raises Refused as `put` does; rows before `outcome.row` are delivered.
        """
        outcome.row, outcome.touched, outcome.messages, outcome.size = row, [], 0, 0
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        try:
            self._store.deliver(records, units, row, end, level_queue, gates, outcome)
        except (StoreFull, StoreFailed) as error:
            self._stats.put_failures += 1
            raise Refused(Reason.NOT_STORED, str(error)) from error
        finally:
            self._stats.put(outcome.messages, outcome.size)
            for tail in outcome.touched:
                self._hold.grew(tail.topic.decode(), tail.queue_id)
