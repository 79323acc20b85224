"""Writes the records of bases of byte positions, and says when they are durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from metaq.broker.environment import Environment
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import put_record
from metaq.errors import Reason, Refused
from metaq.model.topics.system import POSITIONS_TOPIC
from metaq.saved import Pending
from metaq.store.metaq1.position_bases import BODY_BYTES_MAX, encode_bases
from metaq.store.queues.table import QueueKey

Entry: TypeAlias = tuple[QueueKey, int, int]
"""(queue, queue offset, position)."""


class BaseRecords:
    """The records that one broker writes."""

    def __init__(
        self, environment: Environment, appender: Appender, call_soon: Callable[[Callable[[], None]], None]
    ) -> None:
        self._environment, self._store, self._appender = environment, environment.store, appender
        self._call_soon = call_soon
        self._settling: list[tuple[int, Pending]] = []
        """(LogOffset, pending): finished when the log is durable up to there."""

    def put(self, body: bytes) -> int:
        """Append a record, and return its LogOffset. Raises Refused."""
        clock = self._environment.clock
        record = put_record(
            POSITIONS_TOPIC, 0, body, {}, flag=0, sys_flag=0, born_ms=clock.now_ms(), born_host=self._environment.store_host
        )  # fmt: skip
        return self._appender.put([record], carrying=True).log_offset

    def write(self, entries: Sequence[Entry]) -> Iterator[tuple[list[Entry], int]]:
        """Append bases, in as many records as they need. Yields what each holds, and its LogOffset. Raises Refused."""
        some, size = list[Entry](), 0
        for entry in entries:
            some.append(entry)
            size += len(entry[0][0].encode()) + 21
            if size > BODY_BYTES_MAX or entry is entries[-1]:
                yield some, self.put(encode_bases(some))
                some, size = [], 0

    def durable(self) -> Pending:
        """Return a pending that ends when the log is durable up to its current end."""
        pending, end = Pending(), self._store.log.end
        self._settling.append((end, pending))
        self._store.flusher.when_flushed(end, lambda _good: self._call_soon(self.settle))
        return pending

    def settle(self) -> None:
        """End what waits for a part of the log that is durable by now, or never will be."""
        flushed, failed = self._store.state.flushed, self._store.state.failed
        over = [(end, pending) for end, pending in self._settling if end <= flushed or failed is not None]
        if over:
            # Before anything is finished: what waited may begin something that waits again.
            self._settling = [(end, pending) for end, pending in self._settling if end > flushed and failed is None]
            for end, pending in over:
                pending.finish(None if end <= flushed else Refused(Reason.NOT_STORED, failed or "the store has failed"))
