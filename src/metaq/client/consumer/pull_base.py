"""What `metaq.PullConsumer` and `metaq.aio.PullConsumer` share: arguments, life, pulls, progress."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import re
import threading
from collections.abc import Iterable
from typing import Generic, Unpack

from msgspec import Struct, structs

from metaq.client.consumer.arguments import (
    TOPICS_MAX,
    MemberArguments,
    Patterns,
    Topics,
    check_keeping,
    check_limits,
    check_listener,
    message_model,
    start_place,
    topics_and_patterns,
    topics_of,
)
from metaq.client.consumer.base import (
    warn_of_differences,
)
from metaq.client.consumer.closing import Closable
from metaq.client.consumer.membership.offset_store import Offsets, OffsetStore, checked_store, offsets_of
from metaq.client.consumer.membership.polling import Polling, Stopped
from metaq.client.consumer.membership.pull_member import PullMember
from metaq.client.consumer.membership.rebalance import Strategy, strategy_of
from metaq.client.consumer.options import USUAL, GroupOptions, OnShare
from metaq.client.consumer.read_message import Readings, ReadMessage
from metaq.client.consumer.received.replying import NO_KEYS, REPLY_SECONDS, ReplyFuture, Replying, reply_to
from metaq.client.consumer.telling.properties import Teller
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset
from metaq.client.conversation.reading.pulling import PLAIN_COUNT, PullStatus
from metaq.client.conversation.reading.time_search import first_at_or_after
from metaq.client.conversation.sending.sending import GiveBack
from metaq.client.identity.names import LATEST, milliseconds
from metaq.client.identity.options import check_whole, checked_seconds
from metaq.client.observing.observing import ObservedArguments
from metaq.client.shared import cores
from metaq.client.shared.pending import PendingCalls
from metaq.client.shared.pull_replicas import PullReplicas
from metaq.client.shared.pulling import PullSettings, pull
from metaq.client.shared.serializers import Deserialize, decoder_of
from metaq.client.shared.values import Received_co
from metaq.clock import SYSTEM, Clock
from metaq.errors import ClientClosed, ConfigError, OffsetOutOfRange
from metaq.model import MessageQueue, StoredMessage
from metaq.model.filters.subscription import ALL, Expression, checked_expression, subscribe
from metaq.net.address import local_address

log = logging.getLogger("metaq.client")

MIB = 1024 * 1024
HOLD_MS_MAX = 600_000
"""Longest `hold`. The broker keeps a place for each held pull."""
POLL_COUNT = 500
"""Messages of one pull for `poll`; what is not polled at once waits in the buffer."""
POLL_SECONDS = 1.0


class PulledBatch(Struct, Generic[Received_co], frozen=True):
    """What one pull brought. `messages` may be empty; `next_offset` is where to go on.

    `min_offset`, `max_offset`: what the queue keeps, [min, max). `broken`: queue offsets of messages whose bodies cannot be
    read; they are not among `messages`, and the log says why.
    """

    messages: list[ReadMessage[Received_co]]
    next_offset: int
    min_offset: int
    max_offset: int
    broken: tuple[int, ...] = ()


class PullConsumerBase(Closable, Generic[Received_co]):
    """What the two kinds of pull consumer share: a member of a group from the moment that it is made."""

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str,
        topics: Topics | Patterns = (),
        on_share: OnShare | None = None,
        start: str | float | dt.datetime = LATEST,
        broadcast: bool = False,
        strategy: str | Strategy = "average",
        pull_bytes: int = 1 * MIB,
        pull_timeout: float = 10.0,
        hold: float = 20.0,
        hold_timeout: float = 30.0,
        max_reconsume_times: int = 16,
        offset_store: str | os.PathLike[str] | OffsetStore | None = None,
        commit_interval: float = USUAL.persist,
        keep_queues: float = 0.0,
        deserialize: Deserialize[Received_co] | None = None,
        clock: Clock = SYSTEM,
        **common: Unpack[ObservedArguments],
    ) -> None:
        """
        Args:
            namesrv, group, strategy, offset_store, commit_interval, keep_queues, common: as of `metaq.Consumer`.
            topics: registered at once, as by `register_topics`; there may be none. A `re.Pattern` among them takes part in all
                topics whose whole names match, also in those that come later.
            on_share: the listener of these topics.
            start: where `position` begins in a queue without progress.
            broadcast: every member owns all queues and keeps its own progress.
            pull_bytes: most bytes of one pull from a MetaQ broker.
            pull_timeout: seconds for the answer to a pull.
            hold: seconds for which a broker may hold a pull with `wait=True` that finds nothing (long polling).
            hold_timeout: seconds for the answer to such a pull, so it must be longer.
            max_reconsume_times: how often a message that is sent back is delivered again before it is a dead letter.
            deserialize: makes `message.value` of the body, when it is asked for, see docs/serializers.md.
        Raises: ConfigError, TypeError.
        """
        self._open = False
        given = MemberArguments.of(group, topics, common, required=False)
        self.group, self._options = given.group, given.client
        decode = decoder_of(deserialize)
        check_listener("on_share", on_share)
        consume_from, start_ms = start_place(start)
        # Nothing is pulled ahead here, so the limits of windows have no meaning.
        options = GroupOptions(
            model=message_model(broadcast=broadcast),
            consume_from=consume_from,
            start_ms=start_ms,
            strategy=strategy_of(strategy),
            # The member only shares out queues and keeps progress: it pulls nothing itself, so its limits do not
            # count.
            pull_count=1,
            pull_bytes=pull_bytes,
            queue_messages_max=1,
            queue_bytes_max=1,
            span_max=1,
            max_reconsume_times=max_reconsume_times,
            keep_seconds=keep_queues,
            seconds=structs.replace(USUAL, persist=commit_interval),
            unit_mode=self._options.unit_mode,
        )
        check_limits(options)
        check_keeping(keep_queues, self._options.instance_name, broadcast=broadcast)
        checked_store(offset_store, broadcast=broadcast)
        checked_seconds("pull_timeout", pull_timeout, least=0.001)
        hold_ms = min(round(checked_seconds("hold", hold, least=0.0) * 1000), HOLD_MS_MAX)
        if checked_seconds("hold_timeout", hold_timeout, least=0.001) <= hold:
            raise ConfigError(f"hold_timeout={hold_timeout!r} must be longer than hold={hold!r}")
        self._wanted = PullSettings(
            group, ReadMessage, pull_bytes, PullReplicas(clock), inline=True, hold=False, seconds=pull_timeout
        )
        self._wanted_held = structs.replace(self._wanted, hold=True, hold_ms=hold_ms, seconds=hold_timeout)
        self._max_reconsume_times = max_reconsume_times
        self._stopped = self._assigned = self._running = False
        self._beginning = threading.RLock()
        """Held while `run` or `close` begins, so that they do so one after the other."""
        self._core = cores.acquire(namesrv, self._options, clock)
        self._calls, self._until_stopped = PendingCalls(self._core), PendingCalls(self._core)
        client = self._options.client_id(local_address())
        offsets = offsets_of(offset_store, self._core, given.outside, client=client, broadcast=broadcast)
        self._replying = Replying(self._core, group)
        self._readings = Readings(self._core, group, given.observing, decode)
        self._core.thread.post(self._readings.begin)
        self._join(given, options, offsets, on_share)

    def _join(self, given: MemberArguments, options: GroupOptions, offsets: Offsets, on_share: OnShare | None) -> None:
        """Become a member of the group. Raises ConfigError: this client is one already."""
        self._member = PullMember(self._core, self.group, options, offsets)
        self._member.subscriptions.add(given.topics)
        if on_share is not None:
            self._member.listen(given.topics, on_share)
        self._polling = Polling(self._core, self._member, self._poll_queue)
        self._member.on_moved, self._member.newest = self._polling.moved, self._polling.newest
        self._member.denied = self._polling.refuse
        self._member.properties = Teller(self.group, self._core, options, self._options, self._core.clock.now_ms())
        cores.claim(self._core, self._member, self._options)
        warn_of_differences(self._core, self._member)
        self._core.thread.post(self._member.start)
        if given.patterns:
            self._core.thread.post(self._follow, given.patterns, on_share)
        self._opened()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now."""
        return self._member.queues

    def _begin_run(self) -> None:
        """Raises ConfigError, ClientClosed."""
        with self._beginning:
            self._check_open()
            if self._running:
                raise ConfigError(f"run of the pull consumer of group {self.group} is under way already")
            self._running = True

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that `pause` holds."""
        return self._polling.paused

    @property
    def skipped(self) -> int:
        """Number of messages that were deleted before `poll` came to them."""
        return self._polling.skipped

    @property
    def stopped(self) -> bool:
        """Whether `stop` or `close` was called."""
        return self._stopped

    def stop(self) -> None:
        """End `run`, `poll` and waiting pulls, from any thread: calls in hand end by themselves, no others begin."""
        self._stopped = True
        self._member.on_change()
        self._until_stopped.end(f"the pull consumer of group {self.group} was stopped")
        if self._core.in_own_process:  # a forked child must not write to its parent's loop
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._core.thread.post(self._polling.stop)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's progress in a queue of ours: `offset` is next. Kept with the next commit.

        Raises ConfigError: the queue is not this member's now, or the offset is below 0. ClientClosed.
        """
        self._check_open()
        if offset < 0:
            raise ConfigError(f"update: offset={offset}: offsets begin at 0")
        self._member.update(queue, offset)

    def reply(
        self,
        message: StoredMessage,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = NO_KEYS,
        properties: dict[str, str] | None = None,
        flag: int = 0,
        timeout: float = REPLY_SECONDS,
    ) -> ReplyFuture:
        """Send the reply to a request that was pulled. As `metaq.ReceivedMessage.reply`. Raises ClientClosed too."""
        self._check_open()
        return self._replying.begin(
            message, reply_to(message, body, tag=tag, keys=keys, properties=properties, flag=flag, timeout=timeout)
        )

    def _check_open(self) -> None:
        """Raises ClientForked, ClientClosed."""
        self._core.check_process()
        if not self._open:
            raise ClientClosed(f"the pull consumer of group {self.group} was closed")

    def _follow(self, patterns: dict[re.Pattern[str], Expression], listener: OnShare | None) -> None:
        seconds = self._options.poll_name_server_interval
        self._member.follow(patterns, listener, topics_max=TOPICS_MAX, seconds=seconds)

    # -------------------------------------------------------------- in the loop

    async def _assign(self, queues: Iterable[MessageQueue]) -> None:
        chosen = list(dict.fromkeys(queues))
        if wrong := [one for one in chosen if not isinstance(one, MessageQueue)]:
            raise TypeError(f"{wrong[0]!r} is no MessageQueue")
        # As with RocketMQ's lite pull consumer: a member either assigns its queues or subscribes.
        if self._member.follows or list(self._member.subscriptions):
            raise ConfigError(
                f"group {self.group} shares out its registered topics: a member that assigns registers none"
            )
        for topic in dict.fromkeys(queue.topic for queue in chosen):
            there = await self._all_queues(topic)
            if missing := sorted(queue for queue in chosen if queue.topic == topic and queue not in there):
                raise ConfigError(
                    f"assign: there is no queue {', '.join(map(str, missing))}: topic {topic} has {len(there)}, from "
                    f"{there[0] if there else 'none'} on"
                )
        await self._member.assign(chosen)
        self._assigned = bool(chosen)

    async def _poll_queue(self, queue: MessageQueue, offset: int) -> PulledBatch:
        return await self._pull(queue, offset, POLL_COUNT, None, wait=True)

    async def _poll(self, timeout: float, count: int) -> list[ReadMessage]:
        check_whole("count", count)
        if count < 1:
            raise ConfigError(f"poll: count={count}: need at least 1")
        messages = await self._polling.poll(checked_seconds("timeout", timeout, least=0.0), count)
        if not self._readings.idle:
            self._readings.hand_out(messages)
        return messages

    async def _pull_by_hand(
        self, queue: MessageQueue, offset: int, count: int, tags: Expression | None, *, wait: bool
    ) -> PulledBatch:
        try:
            batch = await self._polling.unless_stopped(self._pull(queue, offset, count, tags, wait=wait))
        except Stopped:
            batch = await self._pull(queue, offset, count, tags, wait=False)  # without waiting at the broker
        if not self._readings.idle:
            self._readings.hand_out(batch.messages)
        return batch

    async def _seek(self, queue: MessageQueue, offset: int | None, time: float | dt.datetime | None) -> None:
        if (offset is None) == (time is None):
            raise ConfigError("seek needs either an offset or time=")
        if offset is not None:
            check_whole("offset", offset)
            if offset < 0:
                raise ConfigError(f"seek: offset={offset}: offsets begin at 0")
        assert offset is not None or time is not None
        self._polling.seek({queue: offset if offset is not None else await self._search(queue, time or 0)})

    async def _seek_to_end(self, queues: Iterable[MessageQueue] | None, *, end: bool) -> None:
        chosen = list(self._member.queues if queues is None else queues)
        # All are asked before one is moved: a broker that does not answer leaves every position as it was.
        kept = [await self._kept(queue) for queue in chosen]
        self._polling.seek({queue: one.stop if end else one.start for queue, one in zip(chosen, kept, strict=True)})

    async def _pause(self, queues: Iterable[MessageQueue]) -> None:
        self._polling.pause(queues)

    async def _resume(self, queues: Iterable[MessageQueue]) -> None:
        self._polling.resume(queues)

    async def _committed(self, queue: MessageQueue) -> int | None:
        await self._find(queue)
        return await self._member.committed(queue)

    async def _commit(self, timeout: float | None) -> None:
        # What the last `poll` handed out counts as consumed, as with RocketMQ's commitSync.
        self._polling.consumed()
        await self._member.commit(timeout)

    async def _persist(self) -> None:
        """At the end of `run`: as `_commit`, as far as that works now."""
        self._polling.consumed()
        await self._member.persist()

    async def _register(self, topics: Topics | Patterns, listener: OnShare | None) -> None:
        if self._assigned:
            raise ConfigError(
                f"this member of group {self.group} has queues assigned: assign([]) before it registers topics"
            )
        check_listener("the listener", listener)
        added, patterns = topics_and_patterns(topics, self._options.namespace)
        topics_of(
            {**dict.fromkeys(self._member.subscriptions, ALL), **added, **({"any": ALL} if patterns else {})}
        )  # Not too many together.
        if added:
            await self._member.register(added, listener)
        if patterns:
            self._follow(patterns, listener)

    async def _pull(
        self, queue: MessageQueue, offset: int, count: int, tags: Expression | None, *, wait: bool
    ) -> PulledBatch:
        if offset < 0 or count < 1:
            raise ConfigError(f"pull: offset={offset}, count={count}: need an offset from 0 on, and at least 1 message")
        if tags is not None:
            subscription = subscribe(queue.topic, checked_expression(queue.topic, tags))
        elif queue.topic in self._member.subscriptions:
            subscription = self._member.subscriptions[queue.topic]
        else:
            subscription = subscribe(queue.topic, ALL)
        await self._find(queue)
        ours = self._core.is_ours(queue.broker)
        # A RocketMQ broker gives at most 32 messages a pull, whatever the request says.
        pulled = await pull(
            self._core, self._wanted_held if wait else self._wanted, queue, offset, count if ours else min(count, PLAIN_COUNT),
            subscription,
        )  # fmt: skip
        result = pulled.result
        if result.status is PullStatus.OUT_OF_RANGE:
            raise OffsetOutOfRange(queue, offset, range(result.min_offset, result.max_offset))
        return PulledBatch(
            pulled.messages, result.next_offset, result.min_offset, result.max_offset,
            tuple(message.queue_offset for message, _ in pulled.broken),
        )  # fmt: skip

    async def _find(self, queue: MessageQueue) -> None:
        """Learn the route of a queue's topic, if nothing else has."""
        if self._core.address_of(queue.broker) is None:
            await self._core.routes.route(queue.topic)

    async def _position(self, queue: MessageQueue) -> int:
        # What `poll` hands out next, which may be ahead of the progress.
        if (polled := self._polling.position(queue)) is not None:
            return polled
        await self._find(queue)
        return await self._member.position(queue)

    async def _kept(self, queue: MessageQueue) -> range:
        await self._find(queue)
        return range(
            await self._core.ask_broker(queue.broker, GetMinOffset(queue)),
            await self._core.ask_broker(queue.broker, GetMaxOffset(queue)),
        )

    async def _search(self, queue: MessageQueue, time: float | dt.datetime) -> int:
        await self._find(queue)
        return await self._core.converse(queue.broker, first_at_or_after(queue, milliseconds(time)))

    async def _send_back(self, message: StoredMessage, delay_level: int) -> None:
        call = GiveBack(
            group=self.group,
            broker=message.queue.broker,
            topic=message.topic,
            message_id=message.message_id,
            log_offset=message.log_offset,
            delay_level=delay_level,
            max_reconsume_times=self._max_reconsume_times,
        )
        await self._core.ask_broker(message.queue.broker, call)

    async def _all_queues(self, topic: str) -> list[MessageQueue]:
        return await self._core.routes.subscribe_queues(topic, fresh=True, patient=True)

    async def _close(self) -> None:
        # First: a `poll` that waits must end, and no more positions move while the progress is kept.
        self._polling.close()
        self._calls.end(f"the pull consumer of group {self.group} was closed")
        try:
            await self._member.stop()
            await self._readings.close()
        finally:
            await cores.release(self._core, self._options)

    def _hand_out_no_more(self) -> None:
        self.stop()

    def __repr__(self) -> str:
        # The constructor has failed.
        if not hasattr(self, "_member"):
            return f"<{type(self).__name__}, not made>"
        state = "closed" if not self._open else f"{len(self.queues)} queues"
        return f"<{type(self).__name__} of group {self.group}: {state}>"
