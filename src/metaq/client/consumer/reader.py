"""Reading without a group: from any offset or moment on, as often as wanted, leaving no trace at the brokers.

Every queue has a task that keeps a bounded number of messages ready. Within one queue messages come in order; between
queues in no order. A reader's position moves when a message is handed out, so `seek` to `positions()` of another
reader goes on exactly there.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from metaq.client.arrow.columns import ARROW_ROWS, batch_layout
from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.window import Chunk, Window
from metaq.client.consumer.read_message import Readings, ReadMessage
from metaq.client.consumer.replaying import CALL_SECONDS as REPLAY_SECONDS
from metaq.client.consumer.replaying import Replay, ReplayedQueue
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.pulling import PLAIN_COUNT, PullStatus
from metaq.client.conversation.reading.time_search import first_at_or_after
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.observing.observing import ObservedArguments, Observing
from metaq.client.shared import core as cores
from metaq.client.shared.core import ClientCore
from metaq.client.shared.names import EARLIEST, LATEST, checked, milliseconds, start_of
from metaq.client.shared.options import client_options
from metaq.client.shared.pulling import PullSettings, pull
from metaq.client.shared.serializers import Deserialize, decoder_of
from metaq.clock import SYSTEM, Clock
from metaq.errors import (
    BadRequest,
    ClientClosed,
    ConfigError,
    MetaqError,
    OffsetOutOfRange,
    RemoteProtocolError,
)
from metaq.model import MessageQueue
from metaq.model.filters.subscription import Expression, checked_expression, subscribe
from metaq.model.topics.system import TOOLS_GROUP
from metaq.model.topics.topic import check_topic

if TYPE_CHECKING:
    from metaq.client.arrow.reading import BatchLayout, Part, RecordBatch

log = logging.getLogger("metaq.client")

READY_MESSAGES_MAX = 2000
"""Messages of one queue that wait to be handed out."""
CALL_SECONDS = 10.0
POLL_SECONDS = 0.05

Start = str | float | dt.datetime


class _QueueReader:
    """One queue: where to go on, and what is ready. Lives in the background loop."""

    def __init__(self, queue: MessageQueue, offset: int, end: int | None) -> None:
        self.window: Window[ReadMessage] = Window(queue, offset)
        self.end = end
        self.ready = 0
        self.drained = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.failing = False
        """Whether the last pull failed, which was logged."""
        self.replayed: ReplayedQueue | None = None
        """The archive's reading of the queue, as long as the archive has its messages."""
        self.has_broker = True
        """Whether a broker has the queue; if not, only the archive knows it."""


class ReaderCore:
    """The loop's side of a reader."""

    def __init__(
        self, core: ClientCore, topic: str, tags: Expression, handover: Handover[ReadMessage], *,
        queues: Iterable[MessageQueue] | None, stop_at_end: bool, pull_count: int, pull_bytes: int,
        replay: Replay | None,
    ) -> None:  # fmt: skip
        self._core, self.topic, self._handover = core, topic, handover
        self._chosen = list(queues) if queues is not None else None
        self._stop_at_end, self._pull_count = stop_at_end, pull_count
        self._subscription = subscribe(topic, tags)
        self._replay = replay
        self._routed: set[MessageQueue] = set()
        """The queues that have a broker, by the last route."""
        self._wanted = PullSettings(TOOLS_GROUP, ReadMessage, pull_bytes, inline=True, hold=not stop_at_end)
        self._readers: dict[MessageQueue, _QueueReader] = {}
        self._seeking = 0
        """Seeks under way: until they end, `_readers` does not hold all queues, so its end is not the end of all."""
        self.failure: MetaqError | None = None
        """The error raised behind what was ready before it, again and again until `seek`."""

    async def queues(self) -> list[MessageQueue]:
        """The queues that are read: those chosen, else all of the topic, and of the archive. Raises NoRoute."""
        all_queues = await self._core.routes.subscribe_queues(self.topic, fresh=True, patient=True)
        self._routed = set(all_queues)
        if self._replay is not None:
            all_queues = sorted(self._routed | self._replay.queues)
        if self._chosen is None:
            return all_queues
        if unknown := sorted(set(self._chosen) - set(all_queues)):
            raise ConfigError(f"topic {self.topic} has no queue {', '.join(map(str, unknown))}")
        return sorted(self._chosen)

    async def begin(self, start: str | int) -> None:
        if self._replay is not None:
            await self._replay.look()
        queues = await self.queues()
        await self._core.learn_levels(self.topic)
        await self._begin_at({queue: await self.offset_of(queue, start) for queue in queues})

    async def offset_of(self, queue: MessageQueue, start: str | int) -> int:
        if start == EARLIEST:
            return await self._min_offset(queue)
        if start == LATEST:
            return await self._max_offset(queue)
        assert isinstance(start, int)
        return await (self._time_offset(queue, start) if self._replay is None else self._archived_time(queue, start))

    async def _min_offset(self, queue: MessageQueue) -> int:
        kept = await self._core.ask_broker(queue.broker, GetMinOffset(queue)) if self._has_broker(queue) else None
        if self._replay is not None:
            return await self._replay.earliest(queue, kept)
        assert kept is not None
        return kept

    async def _max_offset(self, queue: MessageQueue) -> int:
        if self._replay is not None and not self._has_broker(queue):
            return self._replay.end(queue)
        return await self._core.ask_broker(queue.broker, GetMaxOffset(queue))

    async def _time_offset(self, queue: MessageQueue, ms: int) -> int:
        return await self._core.converse(queue.broker, first_at_or_after(queue, ms))

    async def _archived_time(self, queue: MessageQueue, ms: int) -> int:
        """The archive's first message of that time or later, else the broker's; the broker's too if that has older ones."""
        assert self._replay is not None
        found, begin = await self._replay.at_time(queue, ms), await self._replay.begin(queue)
        if not self._has_broker(queue):
            return self._replay.end(queue) if found is None else found
        if found is not None and found != begin:
            return found
        live = await self._time_offset(queue, ms)
        if found is None:
            return max(live, self._replay.end(queue))
        return min(live, found)

    def _has_broker(self, queue: MessageQueue) -> bool:
        return self._replay is None or queue in self._routed

    async def seek(self, queue: MessageQueue | None, offset: int | None, time_ms: int) -> None:
        if self._replay is not None:
            await self._replay.look()
        known = await self.queues()
        if queue is not None and queue not in known:
            raise ConfigError(f"{queue} is not read here; the queues are {', '.join(map(str, known))}")
        chosen = known if queue is None else [queue]
        # Found before any queue is closed: if a broker cannot be asked, reading goes on where it was.
        places = {one: offset if offset is not None else await self.offset_of(one, time_ms) for one in chosen}
        # While a queue is between its old place and its new one, it is not at its end.
        self._seeking += 1
        try:
            for one in chosen:
                self._close(one)
            self.failure = None
            # After the windows were dropped: only chunks of dropped windows are thrown away.
            self._handover.restart()
            await self._begin_at(places)
        finally:
            self._seeking -= 1
            self._finish_if_at_end()

    async def _begin_at(self, places: Mapping[MessageQueue, int]) -> None:
        """Begin to read queues. None starts before all ends are known, or a short one would look like the end of all."""
        ends: dict[MessageQueue, int | None] = dict.fromkeys(places)
        if self._stop_at_end:
            ends = {queue: await self._max_offset(queue) for queue in places}
        opened = [_QueueReader(queue, offset, ends[queue]) for queue, offset in places.items()]
        for reader in opened:
            queue, offset, end = reader.window.queue, reader.window.next_offset, reader.end
            self._readers[queue] = reader
            if end is not None and offset > end:
                self._fail(OffsetOutOfRange(queue, offset, range(await self._min_offset(queue), end)))
            elif self._replay is not None:
                await self._open_archived(self._replay, reader)
        for reader in opened:
            if reader.end is None or reader.window.next_offset < reader.end:
                reader.task = self._core.spawn(self._read(reader))
        self._finish_if_at_end()

    async def _open_archived(self, replay: Replay, reader: _QueueReader) -> None:
        """Let a queue begin in the archive, if that has its place."""
        queue = reader.window.queue
        reader.has_broker = self._has_broker(queue)
        kept = range(await self._min_offset(queue), await self._max_offset(queue))
        # A queue that ends before the archive does is another one of the same name: its offsets mean other messages.
        if (fault := replay.foreign(queue, kept)) is not None:
            reader.has_broker = False
            self._fail(fault)
        elif await replay.covers(queue, reader.window.next_offset):
            reader.replayed = replay.open(queue, reader.window.next_offset, kept)
        if queue not in self._routed:
            log.warning("%s has no broker any more: it is read to the end of the archive, %d", queue, kept.stop)

    async def ranges(self) -> dict[MessageQueue, range]:
        """The offsets that every queue keeps now."""
        return {
            queue: range(await self._min_offset(queue), await self._max_offset(queue)) for queue in await self.queues()
        }

    async def stop(self) -> None:
        for queue in list(self._readers):
            self._close(queue)

    def _close(self, queue: MessageQueue) -> None:
        if (reader := self._readers.pop(queue, None)) is not None:
            reader.window.dropped = True
            if reader.task is not None:
                reader.task.cancel()

    def handed_out(self, window: Window[ReadMessage], count: int) -> None:
        reader = self._readers.get(window.queue)
        if reader is not None and reader.window is window:
            reader.ready -= count
            reader.drained.set()

    async def _read(self, reader: _QueueReader) -> None:
        window = reader.window
        try:
            while reader.end is None or window.next_offset < reader.end:
                while reader.ready > READY_MESSAGES_MAX // 2:
                    reader.drained.clear()
                    await reader.drained.wait()
                if reader.replayed is not None:
                    going = await self._replay_once(reader, reader.replayed)
                else:
                    going = reader.has_broker and await self._pull_once(reader)
                if not going:
                    break
        finally:
            if reader.replayed is not None:
                reader.replayed.close()
        reader.task = None
        self._finish_if_at_end()

    async def _replay_once(self, reader: _QueueReader, replayed: ReplayedQueue) -> bool:
        """Read once from the archive, as `_pull_once` does from the broker. At the archive's end the broker is next."""
        try:
            found = await replayed.read()
        except MetaqError as error:
            self._fail(error)
            return False
        if found is None:
            replayed.close()
            reader.replayed = None
            return True
        window, messages = reader.window, found.messages
        if reader.end is not None:
            messages = [message for message in messages if message.queue_offset < reader.end]
        base, window.next_offset = window.next_offset, found.next_offset
        if messages:
            reader.ready += len(messages)
            # Without flags: nothing of a reader is acknowledged.
            self._handover.put(Chunk(window, base, bytearray(), messages))
        return True

    async def _out_of_range(self, reader: _QueueReader, kept: range) -> bool:
        """Look in the archive for a message that the broker does not have. Returns whether it is there by now."""
        queue, offset = reader.window.queue, reader.window.next_offset
        fault: MetaqError = OffsetOutOfRange(queue, offset, kept)
        if self._replay is not None:
            try:
                await self._replay.look()
                if await self._replay.covers(queue, offset):
                    reader.replayed = self._replay.open(queue, offset, kept)
                    return True
                fault = await self._replay.fault_at(queue, offset, kept)
            except MetaqError as error:
                fault = error
        self._fail(fault)
        return False

    async def _pull_once(self, reader: _QueueReader) -> bool:
        """Returns False when the queue cannot be read on."""
        window = reader.window
        ours = self._core.is_ours(window.queue.broker)
        # Half of what may be ready, so that the next pull runs while the last one is handed out; a RocketMQ gives 32 at most.
        count = min(self._pull_count, READY_MESSAGES_MAX // 2) if ours else PLAIN_COUNT
        asked = self._core.clock.monotonic()
        try:
            pulled = await pull(self._core, self._wanted, window.queue, window.next_offset, count, self._subscription)
        except RemoteProtocolError as error:  # Its records are broken, and would be the next time.
            self._fail(error)
            return False
        except FAULTS as error:
            judgement = judge(error, Purpose.READ)
            if not judgement.again:
                self._fail(error)
                return False
            # One warning per outage: it is tried again every second.
            level = logging.DEBUG if reader.failing else logging.WARNING
            log.log(level, "%s cannot be read from %d on, trying again: %s", window.queue, window.next_offset, error)
            reader.failing = True
            await asyncio.sleep(judgement.pause)
            return True
        reader.failing = False
        result = pulled.result
        if result.status is PullStatus.OUT_OF_RANGE:
            return await self._out_of_range(reader, range(result.min_offset, result.max_offset))
        if pulled.broken:
            self._fail(BadRequest(f"{pulled.broken[0][0]}: {pulled.broken[0][1]}"))
            return False
        messages = pulled.messages
        if reader.end is not None:
            messages = [message for message in messages if message.queue_offset < reader.end]
        # Never back: a next offset below ours would bring the same messages again, without end.
        chunk = window.add(messages, max(result.next_offset, window.next_offset))
        window.reset(window.next_offset)  # Nothing is acknowledged here: the window must not keep the chunk.
        if chunk is not None:
            if self._handover.with_records:
                chunk.records = result.records
            reader.ready += len(messages)
            self._handover.put(chunk)
        elif result.status is PullStatus.NOTHING_NEW and self._core.clock.monotonic() - asked < POLL_SECONDS:
            await asyncio.sleep(POLL_SECONDS)  # Not held by the broker: it must not be asked all the time.
        return True

    def _fail(self, error: MetaqError) -> None:
        # The first failure is the one to raise: others often follow from it.
        self.failure = self.failure or error
        self._handover.interrupt()

    def _finish_if_at_end(self) -> None:
        if self._stop_at_end and not self._seeking and all(reader.task is None for reader in self._readers.values()):
            self._handover.interrupt()


class ReaderBase:
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
        deserialize: Deserialize | None = None,
        archive: str | Path | None = None,
        clock: Clock = SYSTEM,
        **common: Unpack[ObservedArguments],
    ) -> None:
        """
        Args:
            namesrv: name servers, `host:port`, `;`-separated; None: the environment's NAMESRV_ADDR.
            start: "earliest", "latest" (or "first", "last"), or a time (datetime, or seconds since the epoch): the first
                message stored then or later.
            tags: tag expression or `metaq.Sql`, as in a subscription.
            queues: only these; by default all of the topic.
            stop_at_end: iteration ends where each queue ended when it began.
            pull_count, pull_bytes: size of one pull from a MetaQ broker.
            deserialize: makes `message.value` of the body, when it is asked for: "json", `metaq.Json(Order)`, a function,
                see docs/serializers.md.
            archive: a folder that the pipeline `archive` writes: each queue is read from it as far as it goes, and then
                from its broker (docs/archive.md).
            common: `trace`, `message_log`, `instance_name` and what else clients take, see
                `metaq.client.observing.observing.ObservedArguments`; the group in traces is TOOLS_CONSUMER.
        Raises: ConfigError: also if there is no archive, or pyarrow, which it needs, is missing.
        """
        self._open = False
        self.topic = checked(check_topic, topic)
        if pull_count < 1 or pull_bytes < 1:
            raise ConfigError("pull_count and pull_bytes must be positive")
        wanted = checked_expression(topic, tags)
        self._start: str | int | None = start_of(start)
        given: dict[str, Any] = dict(common)
        observing, decode = Observing.taken_from(given), decoder_of(deserialize)
        self._options = client_options(**given)
        self._options.namespace.check_topic(topic)
        namespace = self._options.namespace
        replay = Replay(archive, namespace, topic, subscribe(topic, wanted)) if archive is not None else None
        self._core = cores.acquire(namesrv, self._options, clock)
        self._readings = Readings(self._core, TOOLS_GROUP, observing, decode)
        self._core.thread.post(self._readings.begin)
        self._handover: Handover[ReadMessage] = Handover()
        self._reading = ReaderCore(
            self._core, topic, wanted, self._handover, replay=replay,
            queues=queues, stop_at_end=stop_at_end, pull_count=pull_count, pull_bytes=pull_bytes,
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
        try:
            for message in chunk.messages:
                if window.dropped:  # `seek` has moved this queue elsewhere.
                    return
                number += 1
                self._positions[window.queue] = message.queue_offset + 1
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
        self._positions[window.queue] = messages[-1].queue_offset + 1
        if not self._readings.idle:
            self._readings.hand_out(messages)
        self._core.thread.post(self._reading.handed_out, window, len(messages))
        if len(messages) < len(chunk.messages):
            self._handover.give_back(chunk.rest(len(messages)))
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


class Reader(ReaderBase):
    """Reads a topic without a group. Iterate over it; use it with `with`."""

    def __iter__(self) -> Iterator[ReadMessage]:
        """Messages as they come; with `stop_at_end` until there are no more.

        Raises: OffsetOutOfRange: a queue's position left the log (`seek` to `error.kept.start` goes on with what is
        kept, knowing what was missed). NoRoute, BrokerError. ClientClosed if it is closed already.
        """
        self._check_open()
        return self._messages()

    def _messages(self) -> Iterator[ReadMessage]:
        self._core.thread.run(self._begin(), self._call_seconds)
        while (chunk := self._handover.take(None)) is not None:
            yield from self._of(chunk)
        self._end()

    def receive(self, timeout: float | None = None) -> ReadMessage | None:
        """The next message; None after `timeout` seconds or at the end. For one thread. Raises as iteration does."""
        self._check_open()
        self._core.thread.run(self._begin(), self._call_seconds)
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
            columns: of `metaq.client.arrow.records.TYPES`; None: its first ten, which the Spark source has too.
            rows: rows per batch at most.
        Raises: ConfigError: a column that does not exist, or pyarrow is missing. TypeError. And as iteration.
        """
        return self._arrow_batches(self._batch_layout(columns, rows))

    def _arrow_batches(self, wanted: BatchLayout) -> Iterator[RecordBatch]:
        self._core.thread.run(self._begin(), self._call_seconds)
        self._give_back_current()
        while (chunk := self._handover.take(None)) is not None:
            if parts := self._gather(chunk, wanted.rows):
                yield wanted.batch(parts)
            self._give_back_current()
        self._end()

    def seek(
        self, queue: MessageQueue | None = None, *, offset: int | None = None, time: float | dt.datetime | None = None
    ) -> None:
        """Go on at an offset or a moment, in one queue or (None) in all. Raises ConfigError, NoRoute, BrokerError."""
        self._check_open()
        self._core.thread.run(self._seek(queue, offset, time), self._call_seconds)

    def queues(self) -> list[MessageQueue]:
        """The queues that are read. Raises NoRoute."""
        self._check_open()
        return self._core.thread.run(self._reading.queues(), self._call_seconds)

    def ranges(self) -> Mapping[MessageQueue, range]:
        """What every queue holds now: [min, max) offsets. Raises NoRoute, BrokerError."""
        self._check_open()
        return self._core.thread.run(self._reading.ranges(), self._call_seconds)

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
            self._core.thread.run(self._begin(), self._call_seconds)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
