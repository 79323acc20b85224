"""One member of a consumer group: subscriptions, its share of the queues, a pull loop per queue, progress.

Everything here runs in the background loop. User threads touch three things only: they take chunks from the handover,
set flags in them, and call `send_back`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from msgspec import Struct

from metaq.client.consumer.handover import Handover
from metaq.client.consumer.outcome import DEAD_LETTER_LEVEL
from metaq.client.consumer.received import ReceivedMessage
from metaq.client.consumer.seconds import USUAL, GroupSeconds
from metaq.client.consumer.send_back import SendBack
from metaq.client.consumer.window import Chunk, Window
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import members_of
from metaq.client.conversation.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.pulling import PLAIN_COUNT, PullResult, PullStatus
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.conversation.time_search import first_at_or_after
from metaq.client.core import ClientCore
from metaq.client.offset_store import OffsetStore
from metaq.client.pulling import PulledMessages, Wanted, pull
from metaq.client.rebalance import Strategy
from metaq.errors import ClientError, MetaqError, NoRoute, RemoteProtocolError
from metaq.model import ConsumeFrom, ConsumerView, MessageModel, MessageQueue, SubscriptionData
from metaq.model import properties as props
from metaq.model.subscription import subscribe
from metaq.model.topic import RETRY_PREFIX

log = logging.getLogger("metaq.client")

OnSkip = Callable[[MessageQueue, range], object]
"""Told which offsets of a queue were gone before they were consumed."""


class GroupOptions(Struct, frozen=True):
    """How a member consumes."""

    model: MessageModel
    consume_from: ConsumeFrom
    start_ms: int
    strategy: Strategy
    pull_count: int
    pull_bytes: int
    queue_messages_max: int
    queue_bytes_max: int
    span_max: int
    max_reconsume_times: int
    on_skip: OnSkip | None
    seconds: GroupSeconds = USUAL


class GroupMember:
    """See the module's text. `start` joins the group, `stop` leaves it."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        topics: Mapping[str, str],
        options: GroupOptions,
        offsets: OffsetStore,
        handover: Handover[ReceivedMessage],
    ) -> None:
        self.group, self.options, self._seconds = group, options, options.seconds
        self._core, self._offsets, self._handover = core, offsets, handover
        now = core.clock.now_ms()
        self._subscriptions = {topic: subscribe(topic, tags, now) for topic, tags in topics.items()}
        self._retry_topic = RETRY_PREFIX + group
        if options.model is MessageModel.CLUSTERING:
            self._subscriptions[self._retry_topic] = subscribe(self._retry_topic, "*", now)
        self._wanted = Wanted(group, ReceivedMessage, options.pull_bytes)
        self.windows: dict[MessageQueue, Window[ReceivedMessage]] = {}
        self._pullers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._wake: dict[MessageQueue, asyncio.Event] = {}
        self._rebalance_due = asyncio.Event()
        self._complained: set[str] = set()
        self._heartbeat_from = 0.0
        """When a pull that is refused for want of a heartbeat may send the next (seconds, the core's even clock)."""
        self._tasks: list[asyncio.Task[None]] = []
        self.send_back_service = SendBack(core, group, options.max_reconsume_times, handover, options.seconds)
        self.assigned = asyncio.Event()
        """Set once the first rebalance is through."""

    # -------------------------------------------------------------- what the core needs

    def heartbeat(self) -> ConsumerView:
        return ConsumerView(
            self.group, self._subscriptions, push=True, model=self.options.model, consume_from=self.options.consume_from
        )

    def rebalance_soon(self) -> None:
        self._rebalance_due.set()

    def uses(self, topic: str) -> bool:
        return topic in self._subscriptions

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue in self.windows:
                log.info("an administrator moved %s of group %s to %d", queue, self.group, offset)
                self._core.spawn(self._move(queue, offset))

    async def _move(self, queue: MessageQueue, offset: int) -> None:
        """Begin again at `offset`: with a new window, so that acks of the old one count no more."""
        if queue in self.windows:
            self._release(queue)
        await self._offsets.persist({queue: offset})
        self.rebalance_soon()

    # -------------------------------------------------------------- life

    def start(self) -> None:
        """Join: learn the routes, send a heartbeat, take our share."""
        self._tasks = [
            self._core.spawn(self._rebalance_for_ever()),
            self._core.every(self._seconds.persist, self.persist),
        ]

    def hand_out_no_more(self) -> None:
        """Any thread: the messages of a chunk that nobody has taken yet stay unfinished. Acks still count."""
        for window in list(self.windows.values()):
            window.dropped = True

    async def stop(self) -> None:
        """Leave: stop pulling, keep the progress, tell the brokers."""
        for task in [*self._tasks, *self._pullers.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._pullers.values(), return_exceptions=True)
        await self.send_back_service.drain()
        await self.persist()
        self._core.remove_member(self)
        await self._core.leave(consumer_group=self.group)

    async def persist(self) -> None:
        """Commit every queue's smallest unfinished offset."""
        await self._offsets.persist({queue: window.finished_offset() for queue, window in self.windows.items()})

    def resume(self, window: Window[ReceivedMessage]) -> None:
        """A chunk of this queue was handed out: there may be room for the next."""
        if (event := self._wake.get(window.queue)) is not None:
            event.set()

    # -------------------------------------------------------------- rebalance

    async def _rebalance_for_ever(self) -> None:
        await self._learn_routes()
        await self._core.send_heartbeats()
        while True:
            self._rebalance_due.clear()
            try:
                settled = await self._rebalance()
            except FAULTS as error:
                log.debug("rebalance of group %s: %s", self.group, error)
                settled = False
            if settled:
                self.assigned.set()
            try:
                async with asyncio.timeout(self._seconds.rebalance if settled else self._seconds.retry):
                    await self._rebalance_due.wait()
            except TimeoutError:
                continue

    async def _learn_routes(self) -> None:
        """So that the first heartbeat finds the brokers."""
        for topic in self._subscriptions:
            try:
                await self._core.routes.route(topic)
            except FAULTS as error:
                log.debug("no route for %s yet: %s", topic, error)

    async def _rebalance(self) -> bool:
        """Take and give up queues. Returns False if something must be tried again soon."""
        settled, changed = True, False
        for topic in list(self._subscriptions):
            try:
                share = await self._share(topic)
            except NoRoute as error:
                if topic != self._retry_topic:
                    self._complain_once(topic, f"consumer group {self.group} waits for topic {topic}: {error}")
                    settled = False
                continue
            except _NotListed as error:
                log.debug("the share of %s in %s stays as it is: %s", self.group, topic, error)
                settled = False
                continue
            except FAULTS as error:
                if topic != self._retry_topic:
                    self._complain_once(
                        f"share {topic}",
                        f"consumer group {self.group} cannot find its share of topic {topic}, trying again: {error}",
                    )
                settled = False
                continue
            self._complained.discard(f"share {topic}")
            self._complained.discard(topic)
            for queue in [queue for queue in self.windows if queue.topic == topic and queue not in share]:
                if queue in self.windows:  # An administrator may have moved it since.
                    await self._give_up(queue)
                changed = True
            for queue in share:
                if queue not in self.windows:
                    taken = await self._take(queue)
                    changed, settled = changed or taken, settled and taken
        if changed:
            now = self._core.clock.now_ms()
            self._subscriptions = {
                topic: subscribe(topic, data.expression, now) for topic, data in self._subscriptions.items()
            }
            await self._core.send_heartbeats()
        return settled

    async def _share(self, topic: str) -> list[MessageQueue]:
        queues = await self._core.routes.subscribe_queues(topic)
        if self.options.model is MessageModel.BROADCASTING:
            return queues
        members = await self._members(queues)
        if self._core.client_id not in members:
            # The broker has restarted, or our heartbeat is under way: no reason to give up what we have.
            self._core.spawn(self._core.send_heartbeats())
            raise _NotListed(f"the broker does not list this client as a member of {self.group} yet")
        return self.options.strategy(queues, members, self._core.client_id)

    async def _members(self, queues: list[MessageQueue]) -> list[str]:
        """Client ids of the group, from any broker of the topic."""
        names = sorted({queue.broker for queue in queues})
        start = self._core.clock.random_below(len(names)) if names else 0
        addresses = [self._core.address_of(name) for name in names[start:] + names[:start]]
        return await self._core.consult(members_of(self.group, [one for one in addresses if one is not None]))

    async def _take(self, queue: MessageQueue) -> bool:
        """Begin to consume a queue. Returns False if its start could not be found out."""
        try:
            offset = await self._start_offset(queue)
        except FAULTS as error:
            log.info("%s is not consumed yet, its offset is not known: %s", queue, error)
            return False
        window: Window[ReceivedMessage] = Window(queue, offset, self.send_back)
        self.windows[queue] = window
        self._wake[queue] = asyncio.Event()
        self._pullers[queue] = self._core.spawn(self._pull_for_ever(window))
        log.debug("group %s consumes %s from %d on", self.group, queue, offset)
        return True

    async def _give_up(self, queue: MessageQueue) -> None:
        window = self.windows[queue]
        self._release(queue)
        await self._offsets.persist({queue: window.finished_offset()})
        log.debug("group %s gave up %s", self.group, queue)

    def _release(self, queue: MessageQueue) -> None:
        window = self.windows.pop(queue)
        window.dropped = True
        self._pullers.pop(queue).cancel()
        del self._wake[queue]

    async def _start_offset(self, queue: MessageQueue) -> int:
        stored = await self._offsets.load(queue)
        if stored is not None:
            return stored
        if queue.topic == self._retry_topic or self.options.consume_from is ConsumeFrom.FIRST:
            return await self._core.ask_broker(queue.broker, GetMinOffset(queue))
        if self.options.consume_from is ConsumeFrom.TIMESTAMP:
            return await self._core.converse(queue.broker, first_at_or_after(queue, self.options.start_ms))
        return await self._core.ask_broker(queue.broker, GetMaxOffset(queue))

    # -------------------------------------------------------------- pulling

    async def _pull_for_ever(self, window: Window[ReceivedMessage]) -> None:
        while not window.dropped:
            if pause := await self._pull_once(window):
                await asyncio.sleep(pause)

    async def _pull_once(self, window: Window[ReceivedMessage]) -> float:
        """One pull, when there is room for it. Returns how many seconds to wait before the next."""
        queue = window.queue
        count = await self._room(window)
        asked = self._core.clock.monotonic()
        try:
            pulled = await pull(
                self._core, self._wanted, queue, window.next_offset, count, self._subscription(queue.topic),
                commit_offset=self._commit_offset(window), broker_id=window.broker_id,
            )  # fmt: skip
        except RemoteProtocolError as error:
            log.error("%s from %d on cannot be read: %s", queue, window.next_offset, error)  # noqa: TRY400  its traceback says nothing
            return self._seconds.retry
        except FAULTS as error:
            window.broker_id = 0
            return self._after_failure(queue, error)
        if window.dropped:
            return 0.0
        self._complained.discard(f"pull {queue}")
        status = pulled.result.status
        window.broker_id = pulled.result.suggested_broker_id
        self._received(window, pulled)
        # A broker that does not hold pulls must not be asked all the time.
        pause = self._seconds.pause
        unheld = status is PullStatus.NOTHING_NEW and self._core.clock.monotonic() - asked < pause
        return pause if unheld or status is PullStatus.OUT_OF_RANGE else 0.0

    def _subscription(self, topic: str) -> SubscriptionData:
        return self._subscriptions[topic]

    def _commit_offset(self, window: Window[ReceivedMessage]) -> int:
        return window.finished_offset() if self.options.model is MessageModel.CLUSTERING else 0

    def _received(self, window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage]) -> None:
        result = pulled.result
        if result.status is PullStatus.OUT_OF_RANGE:
            self._out_of_range(window, result)
            return
        everything = pulled.messages
        if pulled.broken:
            everything = sorted([*everything, *(message for message, _ in pulled.broken)], key=_by_offset)
        chunk = window.add(everything, result.next_offset, len(result.records))
        if chunk is None:
            return
        for message, _ in pulled.broken:
            self.send_back(chunk, message, DEAD_LETTER_LEVEL)
        chunk.messages = pulled.messages
        if window.queue.topic == self._retry_topic:
            for message in chunk.messages:
                message.topic = message.properties.get(props.RETRY_TOPIC, message.topic)
        for message in chunk.messages:
            message._chunk = chunk  # noqa: SLF001  a slot for us
        self._handover.put(chunk)

    def _out_of_range(self, window: Window[ReceivedMessage], result: PullResult) -> None:
        wanted, queue = window.next_offset, window.queue
        if wanted < result.min_offset:
            gone = range(wanted, result.min_offset)
            log.warning(
                "%d messages of %s were deleted before group %s consumed them: offsets %d to %d",
                len(gone), queue, self.group, gone.start, gone.stop - 1,
            )  # fmt: skip
            if self.options.on_skip is not None:
                try:
                    self.options.on_skip(queue, gone)
                except Exception:
                    log.exception("on_skip raised")
            window.add([], result.next_offset)
        else:
            log.warning(
                "%s ends at %d, group %s wanted %d: going on at %d",
                queue, result.max_offset, self.group, wanted, result.next_offset,
            )  # fmt: skip
            window.reset(result.next_offset)

    def _after_failure(self, queue: MessageQueue, error: MetaqError) -> float:
        """Seconds to wait before the next try. There is always one: a final answer today may be another tomorrow."""
        judgement = judge(error, Purpose.PULL)
        if judgement.no_heartbeat:
            now = self._core.clock.monotonic()
            if now >= self._heartbeat_from:  # One for the pulls of all queues.
                self._heartbeat_from = now + judgement.pause
                self._core.spawn(self._core.send_heartbeats())
        else:
            self._complain_once(f"pull {queue}", f"group {self.group} cannot pull {queue}: {error}; trying again")
        return judgement.pause

    async def _room(self, window: Window[ReceivedMessage]) -> int:
        """Wait until so little is unfinished that a pull is due; how many messages to ask for."""
        options = self.options
        most = options.pull_count if self._core.is_ours(window.queue.broker) else min(options.pull_count, PLAIN_COUNT)
        stalled_at = self._core.clock.monotonic() + self._seconds.stall
        while True:
            finished = window.finished_offset()
            free = options.queue_messages_max - window.unfinished
            if (
                free >= min(most, options.queue_messages_max)
                and window.next_offset - finished <= options.span_max
                and window.unfinished_bytes <= options.queue_bytes_max
            ):
                window.paused = False
                return max(1, min(most, free))
            window.paused = True
            if self._core.clock.monotonic() > stalled_at:
                self._warn_of_stall(window)
            event = self._wake[window.queue]
            event.clear()
            try:
                async with asyncio.timeout(self._seconds.pause):
                    await event.wait()
            except TimeoutError:
                continue

    def _warn_of_stall(self, window: Window[ReceivedMessage]) -> None:
        self._complain_once(
            f"stall {window.queue}",
            f"{window.unfinished} messages of {window.queue} have been unfinished for {self._seconds.stall:.0f} s, and group "
            f"{self.group} pulls no more of it until some are: are handlers slow or stuck, or messages taken without "
            "`with message:` or ack()?",
        )

    # -------------------------------------------------------------- any thread

    def send_back(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, delay_level: int) -> None:
        """A message failed: to the broker with it, for later or for the dead letters."""
        if self.options.model is MessageModel.BROADCASTING:
            log.warning("%s failed; a broadcast message is not sent again", message)
            chunk.flags[message.queue_offset - chunk.base] = 1
            return
        self._core.thread.post(self.send_back_service.begin, chunk, message, delay_level)

    def _complain_once(self, key: str, text: str) -> None:
        if key not in self._complained:
            self._complained.add(key)
            log.warning("%s", text)


class _NotListed(ClientError):
    """Our heartbeat is still under way."""


def _by_offset(message: ReceivedMessage) -> int:
    return message.queue_offset
