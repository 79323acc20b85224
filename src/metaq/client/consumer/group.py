"""One member of a consumer group: subscriptions, its share of the queues, a pull loop per queue, progress.

Everything here runs in the background loop. User threads touch three things only: they take chunks from the handover,
set flags in them, and say that a message failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from metaq.client.consumer.complaints import Complaints
from metaq.client.consumer.delivery import ConcurrentDelivery, Delivery
from metaq.client.consumer.handover import Handover
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.puller import Pulling, QueuePuller
from metaq.client.consumer.received import ReceivedMessage
from metaq.client.consumer.sharing import Sharing
from metaq.client.consumer.subscriptions import Subscriptions
from metaq.client.consumer.window import Window
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.time_search import first_at_or_after
from metaq.client.core import ClientCore
from metaq.client.offset_store import OffsetStore
from metaq.model import ConsumeFrom, ConsumerView, MessageModel, MessageQueue
from metaq.model.topic import RETRY_PREFIX

log = logging.getLogger("metaq.client")


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
        self.group, self.options = group, options
        self._core, self._offsets = core, offsets
        self._retry_topic = RETRY_PREFIX + group
        everything = dict(topics)
        if options.model is MessageModel.CLUSTERING:
            everything[self._retry_topic] = "*"
        self._subscriptions = Subscriptions(everything, core.clock)
        complaints = Complaints()
        self._delivery: Delivery = ConcurrentDelivery(core, group, self._retry_topic, options, handover)
        self._pulling = Pulling(core, group, self._subscriptions, options, self._delivery, complaints)
        self._sharing = Sharing(core, group, self._subscriptions, self._retry_topic, options, self, complaints)
        self._pullers: dict[MessageQueue, QueuePuller] = {}
        self._tasks: list[asyncio.Task[None]] = []

    # -------------------------------------------------------------- what the core needs

    def heartbeat(self) -> ConsumerView:
        return ConsumerView(
            self.group,
            self._subscriptions.view(),
            push=True,
            model=self.options.model,
            consume_from=self.options.consume_from,
        )

    def rebalance_soon(self) -> None:
        self._sharing.soon()

    def uses(self, topic: str) -> bool:
        return topic in self._subscriptions

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue in self._pullers:
                log.info("an administrator moved %s of group %s to %d", queue, self.group, offset)
                self._core.spawn(self._move(queue, offset))

    async def _move(self, queue: MessageQueue, offset: int) -> None:
        """Begin again at `offset`: with a new window, so that acks of the old one count no more."""
        if queue in self._pullers:
            self._pullers.pop(queue).release()
        await self._offsets.persist({queue: offset})
        self._sharing.soon()

    # -------------------------------------------------------------- life

    def start(self) -> None:
        """Join: learn the routes, send a heartbeat, take our share."""
        self._tasks = [
            self._core.spawn(self._sharing.run()),
            self._core.every(self.options.seconds.persist, self.persist),
        ]

    def hand_out_no_more(self) -> None:
        """Any thread: the messages of a chunk that nobody has taken yet stay unfinished. Acks still count."""
        for puller in list(self._pullers.values()):
            puller.window.dropped = True

    async def stop(self) -> None:
        """Leave: stop pulling, keep the progress, tell the brokers."""
        tasks = [*self._tasks, *(puller.task for puller in self._pullers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._delivery.drain()
        await self.persist()
        self._core.remove_member(self)
        await self._core.leave(consumer_group=self.group)

    async def persist(self) -> None:
        """Commit every queue's smallest unfinished offset."""
        await self._offsets.persist({queue: window.finished_offset() for queue, window in self.windows.items()})

    async def assigned(self) -> None:
        """Return once the first rebalance is through."""
        await self._sharing.settled.wait()

    # -------------------------------------------------------------- queues

    @property
    def windows(self) -> dict[MessageQueue, Window[ReceivedMessage]]:
        """Any thread: the queues that are this member's now, each with what is unfinished of it."""
        return {queue: puller.window for queue, puller in self._pullers.copy().items()}

    def handed_out(self, window: Window[ReceivedMessage]) -> None:
        """A chunk of this queue was handed out: there may be room for the next."""
        if (puller := self._pullers.get(window.queue)) is not None:
            puller.look()

    def owned(self) -> Collection[MessageQueue]:
        return self._pullers.keys()

    async def take(self, queue: MessageQueue) -> bool:
        """Begin to consume a queue. Returns False if its start could not be found out."""
        try:
            offset = await self._start_offset(queue)
        except FAULTS as error:
            log.info("%s is not consumed yet, its offset is not known: %s", queue, error)
            return False
        self._pullers[queue] = QueuePuller(self._pulling, queue, offset)
        log.debug("group %s consumes %s from %d on", self.group, queue, offset)
        return True

    async def give_up(self, queue: MessageQueue) -> None:
        puller = self._pullers.pop(queue)
        puller.release()
        await self._offsets.persist({queue: puller.window.finished_offset()})
        log.debug("group %s gave up %s", self.group, queue)

    async def _start_offset(self, queue: MessageQueue) -> int:
        stored = await self._offsets.load(queue)
        if stored is not None:
            return stored
        if queue.topic == self._retry_topic or self.options.consume_from is ConsumeFrom.FIRST:
            return await self._core.ask_broker(queue.broker, GetMinOffset(queue))
        if self.options.consume_from is ConsumeFrom.TIMESTAMP:
            return await self._core.converse(queue.broker, first_at_or_after(queue, self.options.start_ms))
        return await self._core.ask_broker(queue.broker, GetMaxOffset(queue))
