"""Reading without a group: from any offset or moment on, as often as wanted, leaving no trace at the brokers.

Every queue has a task that keeps a bounded number of messages ready. Within one queue messages come in order; between
queues in no order. A reader's position moves when a message is handed out, so `seek` to `positions()` of another
reader goes on exactly there.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack

from metaq.client.arrow.columns import ARROW_ROWS, batch_layout
from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.window import Chunk
from metaq.client.consumer.read_message import Readings, ReadMessage
from metaq.client.consumer.reader_core import CORRUPT, RAISE, ReaderCore
from metaq.client.consumer.replaying import CALL_SECONDS as REPLAY_SECONDS
from metaq.client.consumer.replaying import Replay
from metaq.client.identity.names import EARLIEST, checked, milliseconds, start_of
from metaq.client.identity.options import client_options
from metaq.client.observing.observing import ObservedArguments, Observing
from metaq.client.shared import cores
from metaq.client.shared.pending import PendingCalls
from metaq.client.shared.serializers import Deserialize, decoder_of
from metaq.client.shared.values import Received_co
from metaq.clock import SYSTEM, Clock
from metaq.errors import (
    BodyUnreadable,
    ClientClosed,
    ConfigError,
)
from metaq.model import MessageQueue
from metaq.model.filters.subscription import Expression, checked_expression, subscribe
from metaq.model.topics.system import TOOLS_GROUP
from metaq.model.topics.topic import check_topic

if TYPE_CHECKING:
    from metaq.client.arrow.reading import BatchLayout, Part, RecordBatch

log = logging.getLogger("metaq.client")

CALL_SECONDS = 10.0

Start = str | float | dt.datetime


class ReaderBase(Generic[Received_co]):
    """What the two kinds of reader share."""

    def __init__(
        self,
        namesrv: str | None = None,
        topic: str = "",
        *,
        start: Start = EARLIEST,
        tags: Expression = "*",
        queues: Iterable[MessageQueue] | None = None,
        stop_at_end: bool = False,
        pull_count: int = 1000,
        pull_bytes: int = 1024 * 1024,
        deserialize: Deserialize[Received_co] | None = None,
        archive: str | Path | None = None,
        corrupt: str = RAISE,
        clock: Clock = SYSTEM,
        **common: Unpack[ObservedArguments],
    ) -> None:
        """
        Args:
            namesrv: name servers, `host:port`, `;`-separated; None: the environment's NAMESRV_ADDR.
            topic: the one to read; needed.
            start: "earliest", "latest" (or "first", "last"), or a time (datetime, or seconds since the epoch): the first
                message stored then or later.
            tags: tag expression or `metaq.Sql`, as in a subscription.
            queues: only these; by default all of the topic.
            stop_at_end: iteration ends where each queue ended when it began.
            pull_count, pull_bytes: most messages and bytes of one pull from a MetaQ broker (a RocketMQ gives at most 32 messages).
            deserialize: makes `message.value` of the body, when it is asked for: "json", `metaq.Json(Order)`, a function,
                see docs/serializers.md.
            archive: a folder that the pipeline `archive` writes: each queue is read from it as far as it goes, and then
                from its broker (docs/archive.md).
            corrupt: what becomes of a message whose body cannot be decompressed. `raise`: `BodyUnreadable` in its place, once;
                reading on gives what is behind it. `skip`: it is logged and left out. `raw`: it is handed out with the body as
                it is stored, and says so in `body_fault`.
            common: as of `metaq.Consumer`; the group in traces is TOOLS_CONSUMER.
        Raises: ConfigError: also if there is no archive, or pyarrow, which it needs, is missing.
        """
        self._open = False
        self.topic = checked(check_topic, topic)
        """Topic that is read."""
        if pull_count < 1 or pull_bytes < 1:
            raise ConfigError("pull_count and pull_bytes must be positive")
        if corrupt not in CORRUPT:
            raise ConfigError(f"corrupt={corrupt!r}: need one of {', '.join(CORRUPT)}")
        self._raises = corrupt == RAISE
        wanted = checked_expression(topic, tags)
        self._start: str | int | None = start_of(start)
        given: dict[str, Any] = dict(common)
        observing, decode = Observing.taken_from(given), decoder_of(deserialize)
        self._options = client_options(**given)
        self._options.namespace.check_topic(topic)
        namespace = self._options.namespace
        replay = Replay(archive, namespace, topic, subscribe(topic, wanted)) if archive is not None else None
        self._core = cores.acquire(namesrv, self._options, clock)
        self._calls = PendingCalls(self._core)
        self._readings = Readings(self._core, TOOLS_GROUP, observing, decode)
        self._core.thread.post(self._readings.begin)
        self._handover: Handover[ReadMessage] = Handover()
        self._reading = ReaderCore(
            self._core, topic, wanted, self._handover, replay=replay,
            queues=queues, stop_at_end=stop_at_end, pull_count=pull_count, pull_bytes=pull_bytes,
            corrupt=corrupt,
        )  # fmt: skip
        self._call_seconds = CALL_SECONDS if archive is None else REPLAY_SECONDS
        self._positions: dict[MessageQueue, int] = {}
        self._current: Iterator[ReadMessage] = iter(())
        self._open = True

    def _check_open(self) -> None:
        """Raises ClientForked, ClientClosed."""
        self._core.check_process()
        if not self._open:
            raise ClientClosed(f"the reader of topic {self.topic} was closed")

    def positions(self) -> dict[MessageQueue, int]:
        """For every queue that something was read of: the offset after the last message handed out."""
        return dict(self._positions)

    async def _begin(self) -> None:
        if self._start is not None:
            # Taken before it is awaited, so that it begins once, whoever asks.
            start, self._start = self._start, None
            await self._reading.begin(start)

    async def _seek(self, queue: MessageQueue | None, offset: int | None, time: float | dt.datetime | None) -> None:
        if (offset is None) == (time is None):
            raise ConfigError("seek needs either offset= or time=")
        time_ms = milliseconds(time) if time is not None else 0
        await self._begin()
        await self._reading.seek(queue, offset, time_ms)
        for one in [queue] if queue is not None else list(self._positions):
            self._positions.pop(one, None)

    def _of(self, chunk: Chunk[ReadMessage]) -> Generator[ReadMessage]:
        """The messages of a chunk, each moving the position. Closed early, it leaves the rest to the next taker."""
        window, number = chunk.window, 0
        looks = self._raises and self._reading.faulty
        try:
            for message in chunk.messages:
                if window.dropped:  # `seek` has moved this queue elsewhere.
                    return
                number += 1
                self._positions[window.queue] = message.queue_offset + 1
                if looks and message.body_fault:
                    raise _unreadable(message)
                if not self._readings.idle:
                    self._readings.hand_out((message,))
                yield message
        finally:
            # Also when left early: the queue goes on only for what was taken.
            self._core.thread.post(self._reading.handed_out, window, number)
            if number < len(chunk.messages) and not window.dropped:
                self._handover.give_back(chunk.rest(number))

    def _many_of(self, chunk: Chunk[ReadMessage], count: int) -> Sequence[ReadMessage]:
        """As `_of`, up to so many at once."""
        window = chunk.window
        if window.dropped:
            return ()
        messages = chunk.messages[:count]
        fault: BodyUnreadable | None = None
        if self._raises and self._reading.faulty:
            good = list(itertools.takewhile(lambda message: not message.body_fault, messages))
            if not good:
                fault = _unreadable(messages[0])
            messages = good or messages[:1]
        self._positions[window.queue] = messages[-1].queue_offset + 1
        if not self._readings.idle and fault is None:
            self._readings.hand_out(messages)
        self._core.thread.post(self._reading.handed_out, window, len(messages))
        if len(messages) < len(chunk.messages):
            self._handover.give_back(chunk.rest(len(messages)))
        if fault is not None:
            raise fault
        return messages

    def _batch_layout(self, columns: Sequence[str] | None, rows: int) -> BatchLayout:
        """Raises ConfigError, TypeError, ClientClosed, ClientForked."""
        self._check_open()
        wanted = batch_layout(columns, rows)
        self._handover.with_records = True
        return wanted

    def _give_back_current(self) -> None:
        """Give the rest of what `receive` or iteration has begun to the next taker."""
        current, self._current = self._current, iter(())
        if isinstance(current, Generator):
            current.close()

    def _gather(self, chunk: Chunk[ReadMessage] | None, rows: int) -> list[Part]:
        """Gather what is ready, from this chunk on, up to so many rows."""
        parts: list[Part] = []
        while chunk is not None:
            # The error is raised in its place: what was gathered before is a batch of its own.
            if parts and self._raises and self._reading.faulty and chunk.messages[0].body_fault:
                self._handover.give_back(chunk)
                break
            if messages := self._many_of(chunk, rows):
                parts.append((messages, chunk.records))
                rows -= len(messages)
            if not rows:
                break
            try:
                chunk = self._handover.take_now()
            except LookupError:
                break
        return parts

    def _end(self) -> None:
        """End an iteration: nothing more is ready. Raises what made a queue unreadable."""
        if (failure := self._reading.failure) is not None:
            raise failure

    async def _close(self) -> None:
        self._calls.end(f"the reader of topic {self.topic} was closed")
        try:
            await self._reading.stop()
            await self._readings.close()
        finally:
            await cores.release(self._core, self._options)

    def __del__(self) -> None:
        if getattr(self, "_open", False) and self._core.in_own_process:
            warnings.warn(
                f"{type(self).__name__} of topic {self.topic} was not closed: use `with`, or call close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self._open = False
            if self._core.thread.alive:
                self._core.thread.start(self._close())

    def __repr__(self) -> str:
        if not hasattr(self, "_reading"):
            return f"<{type(self).__name__}, not made>"
        return f"<{type(self).__name__} of topic {self.topic}: {'open' if self._open else 'closed'}>"


def _unreadable(message: ReadMessage[Any]) -> BodyUnreadable:
    return BodyUnreadable(message.queue, message.queue_offset, message, message.body_fault)


class Reader(ReaderBase[Received_co]):
    """Reads a topic without a group: nothing is kept of where it is, see `positions`. Iterate over it; use it with `with`.

    Iteration gives `metaq.ReadMessage`, with `stop_at_end` until there are no more. It raises OffsetOutOfRange: a queue's position
    left the log (`seek` to `error.kept.start` goes on, knowing what was missed); BodyUnreadable: a body cannot be decompressed, and
    iterating again goes on behind it; NoRoute, BrokerError, ClientClosed.
    """

    def __iter__(self) -> Iterator[ReadMessage[Received_co]]:
        """Messages as they come; with `stop_at_end` until there are no more.

        Raises: OffsetOutOfRange: a queue's position left the log (`seek` to `error.kept.start` goes on with what is
        kept, knowing what was missed). BodyUnreadable: a body cannot be decompressed; iterate again to go on behind it.
            NoRoute, BrokerError. ClientClosed if it is closed already.
        """
        self._check_open()
        return self._messages()

    def _messages(self) -> Iterator[ReadMessage]:
        self._calls.run(self._begin(), self._call_seconds)
        while (chunk := self._handover.take(None)) is not None:
            yield from self._of(chunk)
        self._end()

    def receive(self, timeout: float | None = None) -> ReadMessage[Received_co] | None:
        """The next message; None after `timeout` seconds (None: it waits) or at the end. For one thread.

        Raises what the class says of iteration.
        """
        self._check_open()
        self._calls.run(self._begin(), self._call_seconds)
        while (message := next(self._current, None)) is None:
            try:
                chunk = self._handover.take(timeout)
            except TimeoutError:
                return None
            if chunk is None:
                self._end()
                return None
            self._current = self._of(chunk)
        return message

    def arrow_batches(self, columns: Sequence[str] | None = None, rows: int = ARROW_ROWS) -> Iterator[RecordBatch]:
        """What is read, as record batches of pyarrow (docs/arrow.md); they end, or go on, as iteration does.

        A batch holds what is ready, of one or several queues, and never waits to be full. Positions move as a batch is handed
        out. `deserialize` is not asked.

        Args:
            columns: as of `metaq.Consumer.arrow_batches`.
            rows: rows per batch at most, 10 000 by default.
        Raises: ConfigError: a column that does not exist, or pyarrow is missing. TypeError. And as iteration.
        """
        return self._arrow_batches(self._batch_layout(columns, rows))

    def _arrow_batches(self, wanted: BatchLayout) -> Iterator[RecordBatch]:
        self._calls.run(self._begin(), self._call_seconds)
        self._give_back_current()
        while (chunk := self._handover.take(None)) is not None:
            if parts := self._gather(chunk, wanted.rows):
                yield wanted.batch(parts)
            self._give_back_current()
        self._end()

    def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset or a moment, in one queue or (None) in all.

        `time`: a datetime, without a zone local time; or seconds since the epoch. Raises ConfigError: neither or both are given, or
        the queue is not read here; TypeError, NoRoute, BrokerError.
        """
        self._check_open()
        self._calls.run(self._seek(queue, offset, time), self._call_seconds)

    def queues(self) -> list[MessageQueue]:
        """The queues that are read. Raises NoRoute."""
        self._check_open()
        return self._calls.run(self._reading.queues(), self._call_seconds)

    def ranges(self) -> Mapping[MessageQueue, range]:
        """What every queue holds now: [min, max) offsets. Raises NoRoute, BrokerError."""
        self._check_open()
        return self._calls.run(self._reading.ranges(), self._call_seconds)

    def close(self) -> None:
        """End all iterations and disconnect."""
        if not self._open or not self._core.in_own_process:  # A forked child leaves the parent's clients alone.
            return
        self._open = False
        # First, so that iterations in other threads end, and do not wait for a client that is gone.
        self._handover.close()
        self._core.thread.run(self._close(), self._call_seconds)

    def __enter__(self) -> Self:
        """Finds the start: "latest" is the end as it is now."""
        try:
            self._check_open()
            self._calls.run(self._begin(), self._call_seconds)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
