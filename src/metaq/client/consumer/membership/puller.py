"""Pull loop of a queue: flow control, processing of responses, and pauses after failures."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from metaq.client.consumer.delivery.delivery import Delivery
from metaq.client.consumer.membership.generations import Anchor, tell
from metaq.client.consumer.membership.once_log import OnceLog
from metaq.client.consumer.membership.subscriptions import Subscriptions
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.replying import Reply, ReplyFuture, Replying
from metaq.client.consumer.telling.rates import Rates
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.reading.pulling import PLAIN_COUNT, PullResult, PullStatus
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pull_replicas import PullReplicas
from metaq.client.shared.pulling import PulledMessages, PullSettings, pull
from metaq.client.shared.serializers import Decode
from metaq.client.shared.together import in_thread
from metaq.errors import AccessDenied, MetaqError, RemoteProtocolError
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.model.topics.topic import RETRY_PREFIX

log = logging.getLogger("metaq.client")

REPLY_MARK = props.REPLY_TO.encode()
REPLY_SECONDS = 0.001
"""How long the next pull waits for the reply to a request that came alone: a requester waits for that reply, and under
the GIL one thread at a time runs."""


class Pulling:
    """State shared by the pull loops of one member."""

    def __init__(
        self, core: ClientCore, group: str, subscriptions: Subscriptions, options: GroupOptions, delivery: Delivery,
        faults: OnceLog, *, commits: bool, look: Callable[[Collection[MessageQueue]], Awaitable[bool]], denied: Callable[[AccessDenied], None],
    ) -> None:  # fmt: skip
        """
        Args:
            commits: pulls carry the committed offset (commitOffset).
            look: begins anew in those of the queues whose topic was made anew, and returns whether one was.
            denied: called when access control refuses a pull.
        """
        self.look, self._denied = look, denied
        self.core, self.group, self.subscriptions, self.options = core, group, subscriptions, options
        self.retry_topic = RETRY_PREFIX + group
        self.delivery, self.faults, self.commits = delivery, faults, commits
        self.queues_of: Counter[str] = Counter()
        """Topic → number of its queues that are pulled here."""
        self.skipped = 0
        """Messages never handed out: deleted before they were consumed, or skipped by `skip_when_behind`."""
        self.replying = Replying(core, group)
        self.rates = Rates(core.clock.monotonic)
        self.wanted = PullSettings(group, options.message_class, options.pull_bytes, PullReplicas(core.clock))
        self._heartbeat_from = 0.0
        """When a pull that was refused for lack of a heartbeat may send the next one (monotonic seconds of the core's
        clock)."""

    def after_failure(self, queue: MessageQueue, error: MetaqError) -> float:
        """Seconds to wait before the next try. There always is one: a refusal of today may be mended tomorrow, a
        missing topic be created."""
        judgement = judge(error, Purpose.PULL)
        if judgement.no_heartbeat:
            now = self.core.clock.monotonic()
            # A restarted broker refuses the pulls of all queues at once.
            if now >= self._heartbeat_from:  # One for the pulls of all queues.
                self._heartbeat_from = now + judgement.pause
                self.core.spawn(self.core.send_heartbeats())
        else:
            self.delivery.doubt(queue.broker)
            self.faults.once(f"pull {queue}", f"group {self.group} cannot pull {queue}: {error}; trying again")
            if isinstance(error, AccessDenied) and queue.topic != self.retry_topic:
                self._denied(error)
        return judgement.pause

    async def skip(self, queue: MessageQueue, gone: range, why: str) -> None:
        """Report which messages will never be handed out. The listener may block, so it runs in a thread."""
        self.skipped += len(gone)
        log.warning(
            "%d messages of %s %s group %s consumed them: offsets %d to %d",
            len(gone), queue, why, self.group, gone.start, gone.stop - 1,
        )  # fmt: skip
        await self._tell_skip(queue, gone)

    async def made_anew(self, queue: MessageQueue, gone: range, begin: int) -> None:
        """Report that a queue's topic was made anew. `gone`: known messages of the one before that were not pulled."""
        tell(self.group, queue, gone.start, begin)
        self.skipped += len(gone)
        await self._tell_skip(queue, gone)

    async def _tell_skip(self, queue: MessageQueue, gone: range) -> None:
        if self.options.on_skip is not None:
            try:
                await in_thread(self.options.on_skip, queue, gone)
            except Exception:
                log.exception("on_skip raised")

    def limits(self, topic: str) -> tuple[int, int]:
        """Return the flow-control limits of one queue of a topic: unfinished messages, and bytes."""
        options, queues = self.options, max(1, self.queues_of[topic])
        messages, size = options.queue_messages_max, options.queue_bytes_max
        # RocketMQ's pullThresholdForTopic: divided by the number of queues.
        if options.topic_messages_max is not None:
            messages = max(1, options.topic_messages_max // queues)
        if options.topic_bytes_max is not None:
            size = max(1, options.topic_bytes_max // queues)
        return messages, size


class QueuePuller:
    """Pull loop of one queue, from assignment to release."""

    def __init__(self, pulling: Pulling, queue: MessageQueue, offset: int, *, held: bool = False) -> None:
        self._pulling, self._options = pulling, pulling.options
        self.window = pulling.delivery.window(queue, offset)
        self.window.replies = self._reply
        self.window.held = held
        self.end_seen = offset
        """The queue's end, as the last pull saw it."""
        self.newest: Anchor | None = None
        """The newest message that was pulled."""
        self.pulled_ms = 0
        """When the last pull was begun."""
        self._asked_at = 0.0
        pulling.queues_of[queue.topic] += 1
        self._wake = asyncio.Event()
        self.task = pulling.core.spawn(self._pull_for_ever())

    @property
    def queue(self) -> MessageQueue:
        return self.window.queue

    def _reply(self, message: ReceivedMessage, reply: Reply) -> ReplyFuture:
        return self._pulling.replying.begin(message, reply, self.look)

    def look(self) -> None:
        """Wake the loop, to see whether there is room for the next pull."""
        self._wake.set()

    def release(self) -> None:
        """Stop pulling and handing out."""
        # First: what a pull that returns now brings is dropped.
        self.window.dropped = True
        self._pulling.queues_of[self.queue.topic] -= 1
        self._pulling.rates.gone(self.queue.topic, self.window.unfinished)
        self.task.cancel()

    async def _pull_for_ever(self) -> None:
        while not self.window.dropped:
            if pause := await self._pull_once():
                # Shorter if another one leads the queue's broker meanwhile.
                await self._pulling.core.leaders.pause(self.queue.broker, pause, self._asked_at)

    async def _pull_once(self) -> float:
        """Pull once, when there is room. Returns the pause before the next pull, s."""
        pulling, window, queue, seconds = self._pulling, self.window, self.queue, self._options.seconds
        count = await self._room()
        asked = self._asked_at = pulling.core.clock.monotonic()
        self.pulled_ms = pulling.core.clock.now_ms()
        try:
            pulled = await pull(
                pulling.core, pulling.wanted, queue, window.next_offset, count, pulling.subscriptions[queue.topic],
                commit_offset=self._commit_offset(),
            )  # fmt: skip
        except RemoteProtocolError as error:
            log.error("%s from %d on cannot be read: %s", queue, window.next_offset, error)  # noqa: TRY400  its traceback says nothing
            return seconds.retry
        except FAULTS as error:
            return pulling.after_failure(queue, error)
        if window.dropped:  # the queue went to another member during the pull
            return 0.0
        pulling.faults.over(f"pull {queue}")
        result, took = pulled.result, pulling.core.clock.monotonic() - asked
        if result.status is PullStatus.OUT_OF_RANGE:
            # Java's client waits 10 s and drops the queue until the next rebalance; here it continues at once.
            await self._out_of_range(result)
            return seconds.pause
        self.end_seen = result.max_offset
        if pulled.messages:
            self.newest = Anchor.of(pulled.messages[-1])
        limit = self._options.skip_when_behind
        if queue.topic == pulling.retry_topic:
            limit = None  # retries are not outdated news: they would be lost
        if limit is not None and result.max_offset - window.next_offset > limit:
            pulled = await self._skip_to(result.max_offset - limit, pulled)
        if self._options.decode is not None and pulled.messages:
            # User code: on the loop it would delay heartbeats, and every other client of the process.
            pulled = await in_thread(decoded, pulled, self._options.decode)
            if window.dropped:
                return 0.0
        if count := len(pulled.messages) + len(pulled.broken) + len(pulled.undecodable):
            pulling.rates.pulled(queue.topic, took, count)
        pulling.delivery.deliver(window, pulled)
        # A request that came alone: let its reply go out before the next pull takes the loop.
        if len(pulled.messages) == 1 and REPLY_MARK in pulled.messages[0].properties_raw:
            await self._wait(REPLY_SECONDS)
        # A broker without long polling (longPollingEnable=false, or a full table) must not be asked in a busy loop.
        unheld = result.status is PullStatus.NOTHING_NEW and pulling.core.clock.monotonic() - asked < seconds.pause
        return max(self._options.pull_interval, seconds.pause if unheld else 0.0)

    def _commit_offset(self) -> int:
        # Progress in a file or in a store of the user's is not committed at the broker as well.
        return self.window.finished_offset() if self._pulling.commits else 0

    async def _skip_to(self, offset: int, pulled: PulledMessages[ReceivedMessage]) -> PulledMessages[ReceivedMessage]:
        """Continue at `offset` in a queue that is too far behind. Returns the part of `pulled` from there on."""
        gone = range(self.window.next_offset, offset)
        # Not `reset`: acks of messages in hand still count.
        self.window.add([], offset)
        limit = self._options.skip_when_behind
        await self._pulling.skip(self.queue, gone, f"are skipped, because more than {limit} wait there, before")
        return PulledMessages(
            pulled.result._replace(next_offset=max(pulled.result.next_offset, offset)),
            [message for message in pulled.messages if message.queue_offset >= offset],
            tuple((message, why) for message, why in pulled.broken if message.queue_offset >= offset),
        )

    async def _out_of_range(self, result: PullResult) -> None:
        wanted = self.window.next_offset
        if wanted < result.min_offset:
            await self._pulling.skip(self.queue, range(wanted, result.min_offset), "were deleted before")
            self.window.add([], result.next_offset)
        elif await self._pulling.look([self.queue]):
            return  # the topic was made anew, and is begun at its first message
        else:  # the broker has lost its newest messages, or an older slave was promoted: continue at its end
            log.warning(
                "%s ends at %d, group %s wanted %d: going on at %d",
                self.queue, result.max_offset, self._pulling.group, wanted, result.next_offset,
            )  # fmt: skip
            # Messages in hand are beyond the queue's end: their acks must not move the progress there again.
            self._pulling.rates.gone(self.queue.topic, self.window.unfinished)
            self.window.reset(result.next_offset)

    async def _room(self) -> int:
        """Wait until the flow-control limits allow a pull. Returns the number of messages to ask for."""
        core, options, window = self._pulling.core, self._options, self.window
        # A RocketMQ broker returns 32 at most; for more, this would wait for room that is not used.
        most = options.pull_count if core.is_ours(self.queue.broker) else min(options.pull_count, PLAIN_COUNT)
        stalled_at = core.clock.monotonic() + options.seconds.stall
        while True:
            if window.held:
                # Paused by the user: that is no stall.
                await self._wait(options.seconds.retry)
                stalled_at = core.clock.monotonic() + options.seconds.stall
                continue
            finished = window.finished_offset()
            messages_max, bytes_max = self._pulling.limits(self.queue.topic)
            free = messages_max - window.unfinished
            # Room for a whole pull: many small ones cost the broker more than they bring.
            if (
                free >= min(most, messages_max)
                and window.next_offset - finished <= options.span_max
                and window.unfinished_bytes <= bytes_max
            ):
                window.paused = False
                return max(1, min(most, free))
            window.paused = True
            if core.clock.monotonic() > stalled_at:
                self._warn_of_stall()
            await self._wait(options.seconds.pause)

    async def _wait(self, seconds: float) -> None:
        """Wait until `look` is called, or so long."""
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _warn_of_stall(self) -> None:
        self._pulling.faults.once(
            f"stall {self.queue}",
            f"{self.window.unfinished} messages of {self.queue} have been unfinished for "
            f"{self._options.seconds.stall:.0f} s, and group {self._pulling.group} pulls no more of it until some are: are "
            "handlers slow or stuck, or messages taken without `with message:` or ack()?",
        )


def decoded(pulled: PulledMessages[ReceivedMessage], decode: Decode) -> PulledMessages[ReceivedMessage]:
    """In a thread: deserialize each message; those that fail are removed."""
    messages, undecodable = list[ReceivedMessage](), list[tuple[ReceivedMessage, Exception]]()
    for message in pulled.messages:
        try:
            message._value = decode(message.body)  # noqa: SLF001  a slot for us
        except BaseException as error:  # noqa: BLE001  whatever the user's own code raises
            log.warning("no value can be made of %s: %s: %s", message, type(error).__name__, error)
            said = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__} was raised")
            undecodable.append((message, said))
        else:
            messages.append(message)
    return pulled._replace(messages=messages, undecodable=tuple(undecodable))
