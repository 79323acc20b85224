"""A member of a group that pulls for itself: its share of the queues and its progress, but no pull loops.

Everything here runs in the background loop, unless it says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from metaq.client.consumer.membership.generations import Anchor, Generations, tell
from metaq.client.consumer.membership.group import QUEUES_AT_ONCE
from metaq.client.consumer.membership.offset_store import Offsets, kept_in_time
from metaq.client.consumer.membership.once_log import OnceLog
from metaq.client.consumer.membership.patterns import Discovery
from metaq.client.consumer.membership.sharing import Sharing
from metaq.client.consumer.membership.starting import Starting
from metaq.client.consumer.membership.subscriptions import Subscriptions
from metaq.client.consumer.options import GroupOptions, OnShare
from metaq.client.consumer.telling.state import Properties, nothing_told, state_of
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.client.shared.together import together
from metaq.errors import AccessDenied, ClientError, ConfigError, MetaqError
from metaq.model import ConsumerView, MessageQueue
from metaq.model.filters.subscription import Expression
from metaq.model.inspection import ConsumedDirectly, MemberQueue, MemberState
from metaq.model.topics.topic import RETRY_PREFIX

log = logging.getLogger("metaq.client")


class _Found:
    """Takes the topics that a pattern found, and the listener to be notified of our share of them."""

    def __init__(self, member: PullMember, listener: OnShare | None) -> None:
        self._member, self._listener = member, listener

    def subscribe_to(self, topics: Mapping[str, Any], *, new: bool) -> None:
        self._member.subscribe_to(topics, self._listener, new=new)

    def unsubscribe(self, topics: Collection[str]) -> None:
        self._member.unsubscribe(topics)


class PullMember:
    """`start` joins the group, `stop` leaves it."""

    def __init__(self, core: ClientCore, group: str, options: GroupOptions, offsets: Offsets) -> None:
        self.group = group
        self._core, self._offsets = core, offsets
        self.options = structs.replace(options, on_share=self._share_changed)
        self.subscriptions = Subscriptions({}, core.clock)
        self._generations = Generations(core)
        offsets.generation = self._generations.of
        self._starting = Starting(core, group, offsets, options)
        self._sharing = Sharing(core, group, self.subscriptions, RETRY_PREFIX + group, self.options, self, OnceLog(log))
        self._positions: dict[MessageQueue, int] = {}
        """Our queues, each with the offset that is next there."""
        self._updated: set[MessageQueue] = set()
        """Queues whose position the user has set by `update`."""
        self._changing = threading.Lock()
        self._listeners: dict[str, OnShare] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called, in any thread, when our queues are others than before."""
        self.on_moved: Callable[[MessageQueue], None] = lambda _: None
        """Called, in the loop, when an administrator moved our progress in a queue, or it is no longer ours."""
        self.denied: Callable[[AccessDenied], None] = lambda _: None
        """Called, in the loop, when access control refuses what the group needs."""
        self.newest: Callable[[MessageQueue], Anchor | None] = lambda _: None
        """Returns the newest message that was polled of a queue."""
        self._tasks: list[asyncio.Task[None]] = []
        self.properties: Properties = nothing_told
        """Returns the options by RocketMQ's names."""
        self.follows = False
        """Whether it takes part in sharing out topics by patterns."""

    # -------------------------------------------------------------- what the core needs

    def heartbeat(self) -> ConsumerView:
        options = self.options
        return ConsumerView(
            self.group, self.subscriptions.view(), push=False, model=options.model, consume_from=options.consume_from,
            unit_mode=options.unit_mode, keep_seconds=options.keep_seconds,
        )  # fmt: skip

    def rebalance_soon(self) -> None:
        self._sharing.soon()

    def uses(self, topic: str) -> bool:
        return topic in self.subscriptions

    def leader_changed(self, broker: str) -> None:
        self._offsets.doubt(broker)
        self._core.spawn(self.persist())

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue in offsets.keys() & self._positions.keys():
            log.info("an administrator moved %s of group %s to %d", queue, self.group, offsets[queue])
            self.update(queue, offsets[queue])
            self.on_moved(queue)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: offset for queue, offset in self._positions.copy().items() if topic in ("", queue.topic)}

    async def state(self, *, stacks: bool) -> MemberState:
        queues = {queue: MemberQueue(position=offset) for queue, offset in self._positions.items()}
        return await state_of(self.properties(), self.subscriptions.view().values(), queues, {}, () if stacks else None)

    async def consume(self, record: bytes, broker: str) -> ConsumedDirectly:  # noqa: ARG002  of a push consumer
        raise ClientError(
            f"the member of group {self.group} here is a pull consumer, which has no handler for a message"
        )

    # -------------------------------------------------------------- life

    def start(self) -> None:
        self._tasks = [
            self._core.spawn(self._sharing.run()),
            self._core.every(self.options.seconds.persist, self.persist),
            self._core.every(self.options.seconds.rebalance, self._look_at_generations),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.persist()
        self._core.remove_member(self)
        await self._core.leave(consumer_group=self.group)

    async def register(self, topics: Mapping[str, Expression], listener: OnShare | None) -> None:
        """Take part in sharing out these topics as well. `listener` is called, in a thread, when our share of one changes."""
        if listener is not None:
            self.listen(topics, listener)
        self.subscriptions.add(topics)
        for topic in topics:
            try:
                await self._core.routes.route(topic)
            except FAULTS as error:
                log.debug("no route for %s yet: %s", topic, error)
        # First, because a rebalance shares the queues out among the clients that have sent a heartbeat.
        await self._core.send_heartbeats()
        # `wait_assigned` now waits for the topics just registered.
        self._sharing.settled.clear()
        self._sharing.soon()

    def follow(
        self,
        patterns: Mapping[re.Pattern[str], Expression],
        listener: OnShare | None,
        *,
        topics_max: int,
        seconds: float,
    ) -> None:
        """Take part in sharing out the topics that match as well, also those that come later; looked for every so many
        seconds."""
        self.follows, owner = True, _Found(self, listener)
        discovery = Discovery(
            self._core, self.group, patterns, list(self.subscriptions), owner,
            topics_max=max(0, topics_max - len(list(self.subscriptions))), seconds=seconds,
        )  # fmt: skip
        self._tasks.append(self._core.spawn(self._follow(discovery)))

    async def _follow(self, discovery: Discovery) -> None:
        await discovery.look()
        await discovery.run()

    def subscribe_to(self, topics: Mapping[str, Expression], listener: OnShare | None, *, new: bool) -> None:
        """Subscribe to topics that were found. `new`: they were not there at an earlier look."""
        self._starting.found(topics, new=new)
        if listener is not None:
            self.listen(topics, listener)
        self.subscriptions.add(topics)
        self._sharing.newly_subscribed()

    def unsubscribe(self, topics: Collection[str]) -> None:
        """Unsubscribe from topics that are gone."""
        self.subscriptions.leave(topics)
        self._starting.forget(topics)
        for topic in topics:
            self._listeners.pop(topic, None)
        self._sharing.newly_subscribed()

    def listen(self, topics: Iterable[str], listener: OnShare) -> None:
        """Set the listener of our share of these topics; each topic has one."""
        self._listeners |= dict.fromkeys(topics, listener)

    async def assigned(self) -> None:
        """Return once the topics registered so far are shared out."""
        await self._sharing.settled.wait()

    async def persist(self) -> None:
        """Keep the progress that the user has reported, as far as that works now."""
        await self._persist()

    async def commit(self, timeout: float | None) -> None:
        """As `persist`, until it is done. Raises RequestTimeout after `timeout` seconds, BrokerError, OffsetsNotKept."""
        await kept_in_time(self._persist, timeout)

    async def _persist(self) -> list[MetaqError]:
        with self._changing:
            reported = {queue: self._positions[queue] for queue in self._updated & self._positions.keys()}
        return await self._offsets.persist(reported)

    def _share_changed(self, topic: str, queues: list[MessageQueue], mine: list[MessageQueue]) -> None:
        """In a thread: call the listener."""
        self.on_change()
        if (listener := self._listeners.get(topic)) is not None:
            listener(topic, queues, mine)

    # -------------------------------------------------------------- queues

    @property
    def queues(self) -> list[MessageQueue]:
        """Any thread: the queues that are ours."""
        # `copy` is one step under the GIL: the loop may change the table meanwhile.
        return sorted(self._positions.copy())

    def owned(self) -> Collection[MessageQueue]:
        return self._positions.keys()

    def seen(self, topic: str, queues: Collection[MessageQueue]) -> None:
        self._starting.seen(topic, queues)

    async def take(self, queues: Sequence[MessageQueue]) -> bool:
        await self._generations.learn(queues, self._positions)
        return all(await together(self._take, queues, QUEUES_AT_ONCE))

    async def _look_at_generations(self) -> None:
        await self.look_for_new(list(self._positions), short=False)

    async def look_for_new(self, queues: Collection[MessageQueue], *, short: bool = True) -> bool:
        """Go on at the first message in those of our queues whose topic was made anew. Returns whether one was.

        `short`: they end before positions.
        """
        found = await self._generations.renewed(queues, self.newest, short=short)
        for queue, begin in found.items():
            if (before := self._positions.get(queue)) is not None:
                tell(self.group, queue, before, begin)
                self.update(queue, begin)
                self.on_moved(queue)
        return bool(found)

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            self._positions[queue] = await self._starting.offset(queue)
        except FAULTS as error:
            self._sharing.note(error)
            log.info("%s is not ours yet, its offset is not known: %s", queue, error)
            return False
        return True

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        with self._changing:
            left = {queue: self._positions.pop(queue) for queue in queues if queue in self._positions}
            updated = self._updated & left.keys()
            self._updated -= left.keys()
        for queue in left:
            self.on_moved(queue)
        await self._offsets.persist({queue: left[queue] for queue in updated})

    def announced(self, queues: Sequence[MessageQueue]) -> None:
        """Nothing to do: a pull consumer hands out nothing by itself."""

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """These are ours, and no others. Raises one of FAULTS: where a new one begins cannot be found out; nothing changed."""
        new = [queue for queue in queues if queue not in self._positions]
        await self._generations.learn(new, self._positions)
        starts = await together(self._start_of, new, QUEUES_AT_ONCE)
        await self.give_up([queue for queue in self._positions if queue not in queues])
        self._positions.update(zip(new, starts, strict=True))
        self.on_change()

    def _start_of(self, queue: MessageQueue) -> Coroutine[Any, Any, int]:
        return self._starting.offset(queue, shared=False)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's kept progress in a queue. Raises one of FAULTS; what the offset store raised."""
        return await self._offsets.load(queue)

    async def position(self, queue: MessageQueue) -> int:
        """The offset that is next in a queue, ours or not. Raises one of FAULTS."""
        if (offset := self._positions.get(queue)) is not None:
            return offset
        return await self._starting.offset(queue, shared=False)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Any thread: set the progress of a queue. Raises ConfigError: the queue is not ours."""
        with self._changing:
            if queue not in self._positions:
                raise ConfigError(f"{queue} is not this member's now: its progress is another's to tell")
            self._positions[queue] = offset
            self._updated.add(queue)
