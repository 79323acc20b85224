"""One member of a consumer group: subscriptions, rebalance, a pull loop per queue, offset commits.

Everything here runs in the background loop. User threads touch three things only: they take chunks from the handover,
set flags in them, and say that a message failed.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from metaq.client.consumer.delivery.delivery import ConcurrentDelivery, Delivery
from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.ordering import OrderedDelivery
from metaq.client.consumer.delivery.window import Chunk, Shut, Window
from metaq.client.consumer.membership.generations import Anchor, Generations
from metaq.client.consumer.membership.offset_store import BrokerOffsets, Offsets, kept_in_time
from metaq.client.consumer.membership.once_log import OnceLog
from metaq.client.consumer.membership.patterns import Discovery
from metaq.client.consumer.membership.puller import Pulling, QueuePuller
from metaq.client.consumer.membership.sharing import Sharing
from metaq.client.consumer.membership.starting import Starting
from metaq.client.consumer.membership.subscriptions import Subscriptions
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.telling.direct import Direct
from metaq.client.consumer.telling.rates import SAMPLE_SECONDS
from metaq.client.consumer.telling.state import Properties, nothing_told, queue_of, state_of
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.reading.time_search import first_at_or_after
from metaq.client.shared.core import ClientCore
from metaq.client.shared.together import together
from metaq.errors import AccessDenied, ConfigError, MetaqError
from metaq.model import ConsumerView, MessageModel, MessageQueue
from metaq.model.filters.subscription import Expression
from metaq.model.inspection import ConsumedDirectly, MemberState
from metaq.model.topics.topic import RETRY_PREFIX

log = logging.getLogger("metaq.client")

QUEUES_AT_ONCE = 64
"""Queues begun concurrently; each costs a request or two."""


class GroupMember:
    """One member of a consumer group, see the module's text. `start` joins the group, `stop` leaves it."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        topics: Mapping[str, Expression],
        options: GroupOptions,
        offsets: Offsets,
        handover: Handover[ReceivedMessage],
    ) -> None:
        self.group, self.options = group, options
        self._core, self._offsets, self._handover = core, offsets, handover
        self._retry_topic = RETRY_PREFIX + group
        everything: dict[str, Expression] = dict(topics)
        if options.model is MessageModel.CLUSTERING:
            # As Java's push consumer: members of a clustering group consume their retry topic, broadcasting has no retries.
            everything[self._retry_topic] = "*"
        self._subscriptions = Subscriptions(everything, core.clock)
        self._generations = Generations(core)
        offsets.generation = self._generations.of
        self._starting = Starting(core, group, offsets, options)
        faults = OnceLog(log)
        delivery = OrderedDelivery if options.orderly else ConcurrentDelivery
        self._delivery: Delivery = delivery(core, group, self._retry_topic, options, handover, self)
        self._pulling = Pulling(
            core,
            group,
            self._subscriptions,
            options,
            self._delivery,
            faults,
            commits=isinstance(offsets, BrokerOffsets),
            look=self._look_for_new,
            denied=self.denied,
        )
        self._sharing = Sharing(core, group, self._subscriptions, self._retry_topic, options, self, faults)
        self._pullers: dict[MessageQueue, QueuePuller] = {}
        self._beginning: dict[MessageQueue, int | None] = {}
        """Queues whose start offset is being looked up → where an administrator has moved them meanwhile."""
        self._paused: frozenset[MessageQueue] = frozenset()
        """Queues that the user has paused. Replaced as a whole: any thread reads it."""
        self._pausing = threading.RLock()  # re-entrant: a signal handler may call `pause` in the thread that holds it
        """Held while `_paused` is replaced, by users in any threads or the loop."""
        self._halts: Counter[MessageQueue] = Counter()
        """Queue → number of running pauses that handlers asked for."""
        self._unannounced: set[MessageQueue] = set()
        """Queues that are ours, but of which the listener has not been notified yet."""
        self._tasks: list[asyncio.Task[None]] = []
        self._discovery: Discovery | None = None
        self.direct = Direct(core, group, options, self._pulling.replying.begin)
        """The handlers that run, for messages that an administrator has consumed."""
        self.properties: Properties = nothing_told
        """Returns the options by RocketMQ's names."""
        self.on_sample: Callable[[], None] = lambda: None
        """Called, in the loop, every ten seconds."""

    def denied(self, error: AccessDenied) -> None:
        """Raise `error` where somebody waits for messages."""
        self._handover.refuse(error)

    # -------------------------------------------------------------- what the core needs

    def heartbeat(self) -> ConsumerView:
        return ConsumerView(
            self.group,
            self._subscriptions.view(),
            push=True,
            model=self.options.model,
            consume_from=self.options.consume_from,
            unit_mode=self.options.unit_mode,
            keep_seconds=self.options.keep_seconds,
        )

    def rebalance_soon(self) -> None:
        self._sharing.soon()

    def uses(self, topic: str) -> bool:
        return topic in self._subscriptions

    def leader_changed(self, broker: str) -> None:
        self._delivery.leader_changed(broker)
        self._offsets.doubt(broker)
        self._core.spawn(self.persist())

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            # Notices come for all queues of the topic; only those of ours are worth a line.
            if queue in self._pullers or queue in self._beginning:
                log.info("an administrator moved %s of group %s to %d", queue, self.group, offset)
        # A queue whose start offset is being looked up has no puller yet: `_take` applies the new offset.
        beginning = self._beginning.keys() & offsets.keys()
        self._beginning.update((queue, offsets[queue]) for queue in beginning)
        self._core.spawn(self._moved_by_order({queue: to for queue, to in offsets.items() if queue not in beginning}))

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: one.finished_offset() for queue, one in self.windows.items() if topic in ("", queue.topic)}

    async def state(self, *, stacks: bool) -> MemberState:
        clock = self._core.clock
        past_ms = clock.now_ms() - 1000 * clock.monotonic()
        queues = {
            queue: queue_of(
                puller.window, self._delivery.hold(queue), puller.pulled_ms, lambda at: round(past_ms + 1000 * at)
            )
            for queue, puller in self._pullers.items()
        }
        rates = self._pulling.rates.of(self._subscriptions, self._unfinished())
        loops = self.direct.loops if stacks else None
        return await state_of(self.properties(), self._subscriptions.view().values(), queues, rates, loops)

    async def consume(self, record: bytes, broker: str) -> ConsumedDirectly:
        return await self.direct.consume(record, broker)

    def count_failure(self, queue: MessageQueue, given_back: bool) -> None:
        self._pulling.rates.failed(queue.topic, given_back=given_back)

    def timed(self, topic: str, seconds: float) -> None:
        """Any thread: note how long one call of a handler took."""
        self._pulling.rates.timed(topic, seconds)

    async def _sample(self) -> None:
        self._pulling.rates.sample(self._unfinished())
        self.on_sample()

    def _unfinished(self) -> Counter[str]:
        """Topic → pulled messages that are not finished."""
        unfinished: Counter[str] = Counter()
        for queue, puller in self._pullers.items():
            unfinished[queue.topic] += puller.window.unfinished
        return unfinished

    async def _moved_by_order(self, offsets: Mapping[MessageQueue, int]) -> None:
        # A member that has just joined has not begun the queues that are to be moved.
        await self._sharing.settled.wait()
        await self.move(offsets)

    # -------------------------------------------------------------- life

    def start(self) -> None:
        """Join the group: learn the routes, send a heartbeat, rebalance."""
        self._delivery.start()
        self._tasks = [
            self._core.spawn(self._share()),
            self._core.every(self.options.seconds.persist, self.persist),
            self._core.every(self.options.seconds.rebalance, self._look_at_generations),
            self._core.every(SAMPLE_SECONDS, self._sample),
        ]

    def discover(self, patterns: Mapping[re.Pattern[str], Any], *, topics_max: int, seconds: float) -> None:
        """Consume the topics that match, too. Called before `start`; topic names are looked up every so many seconds."""
        fixed = [topic for topic in self._subscriptions if topic != self._retry_topic]
        self._discovery = Discovery(
            self._core, self.group, patterns, fixed, self, topics_max=max(0, topics_max - len(fixed)), seconds=seconds
        )

    async def _share(self) -> None:
        if self._discovery is not None:
            # Before the first heartbeat and the first rebalance, which then have these topics already.
            await self._discovery.look()
            self._tasks.append(self._core.spawn(self._discovery.run()))
        await self._sharing.run()

    def subscribe_to(self, topics: Mapping[str, Any], *, new: bool) -> None:
        self._starting.found(topics, new=new)
        self._subscriptions.add(topics)
        self._sharing.newly_subscribed()

    def unsubscribe(self, topics: Collection[str]) -> None:
        self._subscriptions.leave(topics)
        self._starting.forget(topics)
        self._sharing.newly_subscribed()

    def hand_out_no_more(self) -> None:
        """Any thread: the messages of a chunk that nobody has taken yet stay unfinished. Acks still count."""
        for puller in list(self._pullers.values()):
            puller.window.dropped = True

    def suspend(self) -> None:
        """Any thread: hand out nothing until `go_on`. What there is room for is pulled."""
        # The handover first: a window that is begun meanwhile looks at it (`_begin`).
        self._handover.suspend()
        for window in self.windows.values():
            window.close(Shut.SUSPENDED)

    def go_on(self) -> None:
        """Any thread: undo `suspend`."""
        # The windows first: a taker woken before that would find its window shut.
        for window in self.windows.values():
            window.open(Shut.SUSPENDED)
        self._handover.resume()

    async def stop(self) -> None:
        """Leave the group: stop pulling, commit offsets, notify the brokers."""
        tasks = [*self._tasks, *(puller.task for puller in self._pullers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._delivery.drain()
        # In this order: messages in progress end, offsets are committed, locks released, and last the brokers notified: the next
        # owner loads the offsets then.
        await self.persist()
        await self._delivery.stopped()
        self._core.remove_member(self)
        await self._core.leave(consumer_group=self.group)

    async def persist(self) -> None:
        """Commit every queue's smallest unfinished offset, as far as that works now."""
        await self._persist(self.windows)

    async def commit(self, timeout: float | None) -> None:
        """As `persist`, until it is done. Raises RequestTimeout after `timeout` seconds, BrokerError, OffsetsNotKept."""
        await kept_in_time(lambda: self._persist(self.windows), timeout)

    async def _persist(self, queues: Iterable[MessageQueue]) -> list[MetaqError]:
        windows = self.windows
        return await self._offsets.persist({one: windows[one].finished_offset() for one in queues if one in windows})

    async def assigned(self) -> None:
        """Return after the first rebalance."""
        await self._sharing.settled.wait()

    # -------------------------------------------------------------- queues

    @property
    def windows(self) -> dict[MessageQueue, Window[ReceivedMessage]]:
        """Any thread: the queues that are this member's now, each with what is unfinished of it."""
        # `copy` is one step under the GIL: the loop may change the table meanwhile.
        return {queue: puller.window for queue, puller in self._pullers.copy().items()}

    def handed_out(self, window: Window[ReceivedMessage]) -> None:
        """Look whether there is room for the next pull: a chunk of this queue was handed out."""
        if (puller := self._pullers.get(window.queue)) is not None:
            puller.look()

    def owned(self) -> Collection[MessageQueue]:
        return self._pullers.keys()

    def seen(self, topic: str, queues: Collection[MessageQueue]) -> None:
        self._starting.seen(topic, queues)

    async def take(self, queues: Sequence[MessageQueue]) -> bool:
        """Begin to consume queues. Returns False if the start of one could not be found out."""
        if self.options.on_share is not None:
            self._unannounced.update(queues)
        # Orderly consumption: the lock first, then the offset, or another member might still move it.
        admitted = await self._delivery.admit(queues)
        await self._generations.learn(admitted, self._pullers)
        taken = await together(self._take, admitted, QUEUES_AT_ONCE)
        return len(admitted) == len(queues) and all(taken)

    async def _take(self, queue: MessageQueue) -> bool:
        self._beginning[queue] = None
        try:
            stored = await self._starting.offset(queue)
            offset = self._delivery.start_of(queue, stored)
        except FAULTS as error:
            self._sharing.note(error)
            log.info("%s is not consumed yet, its offset is not known: %s", queue, error)
            return False
        finally:
            moved = self._beginning.pop(queue)
        if moved is not None:
            offset = moved
        self._begin(queue, offset)
        if moved is not None:
            # At once: the broker's table still has the offset from before the reset.
            await self._offsets.persist({queue: moved})
        log.debug("group %s consumes %s from %d on", self.group, queue, offset)
        return True

    async def _look_at_generations(self) -> None:
        """Begin anew in topics that were deleted and made anew since they were taken."""
        await self._look_for_new(list(self._pullers), short=False)

    async def _look_for_new(self, queues: Collection[MessageQueue], *, short: bool = True) -> bool:
        """As `_look_at_generations`, in queues that end before positions. Returns whether one is begun anew, soon."""
        begin = await self._generations.renewed(queues, self._newest, short=short)
        if begin:
            self._core.spawn(self._begin_anew(begin))
        return bool(begin)

    def _newest(self, queue: MessageQueue) -> Anchor | None:
        puller = self._pullers.get(queue)
        return None if puller is None else puller.newest

    async def _begin_anew(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if (puller := self._pullers.get(queue)) is not None:
                await self._pulling.made_anew(queue, range(puller.window.next_offset, puller.end_seen), offset)
        await self.move(offsets)

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        self._pullers[queue] = puller = QueuePuller(self._pulling, queue, offset, held=self._held(queue))
        if self._handover.suspended:
            puller.window.close(Shut.SUSPENDED)

    def _held(self, queue: MessageQueue) -> bool:
        """Whether nothing of the queue is to be handed out for now."""
        return queue in self._paused or queue in self._unannounced or queue in self._halts

    def announced(self, queues: Sequence[MessageQueue]) -> None:
        self._unannounced.difference_update(queues)
        self._look_at(queues)

    def _look_at(self, queues: Iterable[MessageQueue]) -> None:
        """Any thread: hold or release queues after a change of pauses."""
        for queue in queues:
            if (puller := self._pullers.get(queue)) is None:
                continue
            puller.window.held = self._held(queue)
            if not puller.window.held:
                self._delivery.look(puller.window)
                self._core.thread.post(puller.look)

    async def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets in queues that are ours, and commit them."""
        await self._move(offsets)

    async def _move(self, offsets: Mapping[MessageQueue, int]) -> list[MetaqError]:
        """As `move`: with new windows, so that acks of the old ones count no more. Returns what was not committed."""
        moved = {queue: offset for queue, offset in offsets.items() if queue in self._pullers}
        for queue, offset in moved.items():
            if queue in self._pullers:  # it may have been given up while another queue was admitted
                self._leave(queue)
            if await self._delivery.admit([queue]):
                if queue in self._pullers:  # a rebalance has taken it again meanwhile
                    self._leave(queue)
                self._begin(queue, offset)
        errors = await self._offsets.persist(moved)
        self._sharing.soon()  # for queues that could not be taken again at once
        return errors

    async def seek(self, queue: MessageQueue | None, offset: int | None, time_ms: int) -> None:
        """Go on at an offset, or at the first message stored at `time_ms` or later; None: in all our queues.

        Raises ConfigError: the queue is not ours. What asking its broker raises; and, though it goes on there, BrokerError or
        OffsetsNotKept: the progress is not kept. Until it is, other failures are repeated without limit.
        """
        if queue is None and not self._pullers:
            # Without queues yet, nothing would be moved, and the caller would not know.
            await self._sharing.settled.wait()
        chosen = [one for one in self._pullers if one.topic != self._retry_topic] if queue is None else [queue]
        places = {
            one: offset
            if offset is not None
            else await self._core.converse(one.broker, first_at_or_after(one, time_ms))
            for one in chosen
        }
        self.check_ours(chosen)  # after the requests: a rebalance may have come meanwhile
        if await self._move(places):
            # What is kept now may be behind the place already. A queue that has gone to another member is that member's.
            await kept_in_time(lambda: self._persist(places), None)

    def check_ours(self, queues: Iterable[MessageQueue]) -> None:
        """Any thread. Raises ConfigError."""
        if others := [queue for queue in queues if queue not in self._pullers]:
            raise ConfigError(
                f"{', '.join(map(str, others))}: not this member's now; `queues` lists those that are, and on_share is told "
                "when that changes"
            )

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Any thread: hand out and pull nothing of these until `resume`. Forgotten when a queue goes to another member."""
        with self._pausing:
            self._paused |= frozenset(queues)
        self._look_at(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Any thread: undo `pause`."""
        with self._pausing:
            self._paused -= frozenset(queues)
        self._look_at(queues)

    def park(self, chunk: Chunk[ReceivedMessage]) -> None:
        """Any thread: keep messages of a queue that is held."""
        chunk.window.parked.append(chunk)
        if not chunk.window.held:  # resumed meanwhile, perhaps before the chunk was parked
            self._delivery.look(chunk.window)

    def halt(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, seconds: float) -> None:
        """Any thread: pause the message's queue for so long, as a handler asked; then the message comes first."""
        # At once, in the handler's thread: no other taker may begin a message of this queue before the loop hears of
        # it.
        chunk.window.held = True
        self._core.thread.post(self._halt, chunk, message, seconds)

    def _halt(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, seconds: float) -> None:
        window = chunk.window
        # Again, because an older pause may have ended meanwhile and released the queue.
        window.held = True
        again = copy.copy(message)  # a copy: verdicts of the last holder are on the old object, and ignored
        again._chunk = kept = chunk.again(again)  # noqa: SLF001  a slot for us
        window.parked.appendleft(kept)
        self._halts[window.queue] += 1
        log.info("nothing of %s is handed out for %.1f s", window.queue, seconds)
        asyncio.get_running_loop().call_later(seconds, self._end_halt, window.queue)

    def _end_halt(self, queue: MessageQueue) -> None:
        self._halts[queue] -= 1
        if not self._halts[queue]:
            del self._halts[queue]
            self._look_at([queue])

    @property
    def paused(self) -> frozenset[MessageQueue]:
        return self._paused

    @property
    def skipped(self) -> int:
        """Messages that were never handed out."""
        return self._pulling.skipped

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        released = [self._pullers.pop(queue) for queue in queues if queue in self._pullers]
        for puller in released:
            puller.release()
        with self._pausing:
            self._paused -= frozenset(queues)
        await self._delivery.given_up([puller.window for puller in released])
        log.debug("group %s gave up %s", self.group, ", ".join(map(str, queues)))

    def kept(self, queue: MessageQueue) -> int:
        """Return the last committed offset of a queue that we know; 0: none."""
        return self._offsets.kept(queue) or 0

    async def keep(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets of queues that have gone to other members."""
        await self._offsets.persist(offsets)

    def lost(self, queue: MessageQueue) -> None:
        """Drop a queue that another member has already: committing its offset would overwrite that member's."""
        if queue in self._pullers:
            self._leave(queue)
        self._sharing.soon()

    def _leave(self, queue: MessageQueue) -> None:
        """Leave a queue at once: acks count no more."""
        puller = self._pullers.pop(queue)
        puller.release()
        self._delivery.dropped(puller.window)
