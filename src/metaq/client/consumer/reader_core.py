"""The queues of a reader: a task for each keeps a bounded number of messages ready, from brokers or from an archive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.window import Chunk, Window
from metaq.client.consumer.membership.generations import Anchor, Generations
from metaq.client.consumer.read_message import ReadMessage
from metaq.client.consumer.replaying import Replay, ReplayedQueue
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.pulling import PLAIN_COUNT, PullStatus
from metaq.client.conversation.reading.time_search import first_at_or_after
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.identity.names import EARLIEST, LATEST
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pull_replicas import PullReplicas
from metaq.client.shared.pulling import PullSettings, pull
from metaq.errors import ConfigError, MetaqError, OffsetOutOfRange, RemoteProtocolError
from metaq.model import MessageQueue
from metaq.model.filters.subscription import Expression, subscribe
from metaq.model.topics.system import TOOLS_GROUP

if TYPE_CHECKING:
    pass

log = logging.getLogger("metaq.client")

RAISE, SKIP, RAW = CORRUPT = ("raise", "skip", "raw")
"""What becomes of messages whose bodies cannot be decompressed."""
READY_MESSAGES_MAX = 2000
"""Messages of one queue that wait to be handed out."""
POLL_SECONDS = 0.05
LOOK_SECONDS = 20.0
"""Between two looks whether the topic was made anew."""


class _QueueReader:
    """One queue: where to go on, and what is ready. Lives in the background loop."""

    def __init__(self, queue: MessageQueue, offset: int, end: int | None) -> None:
        self.window: Window[ReadMessage] = Window(queue, offset)
        self.end = end
        self.ready = 0
        self.drained = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.newest: Anchor | None = None
        """The newest message that was pulled."""
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
        replay: Replay | None, corrupt: str,
    ) -> None:  # fmt: skip
        self._core, self.topic, self._handover = core, topic, handover
        self._chosen = list(queues) if queues is not None else None
        self._stop_at_end, self._pull_count = stop_at_end, pull_count
        self._subscription = subscribe(topic, tags)
        self._replay, self._corrupt = replay, corrupt
        self._routed: set[MessageQueue] = set()
        """The queues that have a broker, by the last route."""
        self._wanted = PullSettings(
            TOOLS_GROUP, ReadMessage, pull_bytes, PullReplicas(core.clock), inline=True, hold=not stop_at_end
        )
        self._readers: dict[MessageQueue, _QueueReader] = {}
        self._generations = Generations(core)
        self._looks: asyncio.Task[None] | None = None
        self.faulty = False
        """Whether a message was put whose body cannot be decompressed: only then are messages looked at."""
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
        await self._generations.learn(list(places), self._readers)
        # Beside the pulls, which brokers hold. With an archive, positions are the archive's.
        if self._looks is None and self._replay is None:
            self._looks = self._core.every(LOOK_SECONDS, self._look)
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
        if self._looks is not None:
            self._looks.cancel()
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
        if self._corrupt == SKIP:
            messages = [message for message in messages if not message.body_fault]
        elif not self.faulty:
            self.faulty = any(message.body_fault for message in messages)
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
        if offset > kept.stop and await self._look_for_new(short=True):
            return False
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

    async def _look(self) -> None:
        await self._look_for_new()

    async def _look_for_new(self, *, short: bool = False) -> bool:
        """Look whether the topic was made anew, at a broker or all. Returns whether queues are begun anew, soon."""
        if self._replay is not None:
            return False
        begin = await self._generations.renewed(list(self._readers), self._newest, short=short)
        if begin:
            self._seeking += 1  # until then the ends of tasks are not the end of all
            self._core.spawn(self._begin_anew(begin))
        return bool(begin)

    def _newest(self, queue: MessageQueue) -> Anchor | None:
        return self._readers[queue].newest if queue in self._readers else None

    async def _begin_anew(self, offsets: Mapping[MessageQueue, int]) -> None:
        try:
            for queue, offset in offsets.items():
                if (reader := self._readers.get(queue)) is not None:
                    log.warning(
                        "topic %s was deleted and made anew at broker %s: %s, which was read to %d, is read from its first "
                        "message on, %d", queue.topic, queue.broker, queue, reader.window.next_offset, offset,
                    )  # fmt: skip
                    self._close(queue)
            await self._begin_at(offsets)
        except FAULTS as error:
            self._fail(error)
        finally:
            self._seeking -= 1
            self._finish_if_at_end()

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
            await self._core.leaders.pause(window.queue.broker, judgement.pause, asked)
            return True
        reader.failing = False
        result = pulled.result
        if result.status is PullStatus.OUT_OF_RANGE:
            return await self._out_of_range(reader, range(result.min_offset, result.max_offset))
        messages = pulled.messages
        if messages:
            reader.newest = Anchor.of(messages[-1])
        if pulled.broken and self._corrupt != SKIP:
            self.faulty = True
            for message, why in pulled.broken:
                message._fault = why  # noqa: SLF001  a slot for us
            messages = sorted([*messages, *(message for message, _ in pulled.broken)], key=_by_offset)
        if reader.end is not None:
            messages = [message for message in messages if message.queue_offset < reader.end]
        # Never back: a next offset below ours would bring the same messages again, without end.
        chunk = window.add(messages, max(result.next_offset, window.next_offset))
        window.reset(window.next_offset)  # Nothing is acknowledged here: the window must not keep the chunk.
        if chunk is not None:
            # With a body that cannot be read, columns are made of the messages.
            if self._handover.with_records and not pulled.broken:
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


def _by_offset(message: ReadMessage) -> int:
    return message.queue_offset
