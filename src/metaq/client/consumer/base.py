"""What `Consumer` and `metaq.aio.Consumer` share: arguments, life, chunks. They differ in how one waits for a message."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Unpack

from msgspec import structs

from metaq.client.arrow.columns import batch_layout
from metaq.client.consumer.arguments import (
    TOPICS_MAX,
    MemberArguments,
    Patterns,
    Topics,
    check_keeping,
    check_limits,
    handover_for,
    message_model,
    start_place,
)
from metaq.client.consumer.closing import Closable
from metaq.client.consumer.delivery.orderly import Turn
from metaq.client.consumer.delivery.ranks import Ranks
from metaq.client.consumer.delivery.window import Chunk
from metaq.client.consumer.handling.watch import Slot, Watch
from metaq.client.consumer.membership.group import GroupMember
from metaq.client.consumer.membership.offset_store import Offsets, OffsetStore, checked_store, offsets_of
from metaq.client.consumer.membership.rebalance import Strategy, strategy_of
from metaq.client.consumer.options import USUAL, GroupOptions, OnShare, OnSkip
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.observed import Deliveries, ObservedMessage
from metaq.client.consumer.telling.properties import Teller
from metaq.client.identity.names import LATEST, milliseconds
from metaq.client.identity.options import check_flag, checked_seconds
from metaq.client.observing.message_log import MessageLog
from metaq.client.observing.observing import DeliveryObserver, ObservedArguments
from metaq.client.observing.tracing import Tracer
from metaq.client.observing.wanted import delivery_spans
from metaq.client.shared import cores
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pending import PendingCalls
from metaq.client.shared.roles import Member
from metaq.client.shared.serializers import Deserialize, decoder_of
from metaq.client.shared.values import Received_co
from metaq.clock import SYSTEM, Clock
from metaq.errors import ClientClosed, ConfigError
from metaq.model import MessageQueue
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.net.address import local_address

if TYPE_CHECKING:
    from metaq.client.arrow.reading import BatchLayout

log = logging.getLogger("metaq.client")

CALL_SECONDS = 10.0
CLOSE_SECONDS = 30.0
MIB = 1024 * 1024
_RECONSUME_TIMES = 16
"""As with RocketMQ's consumers: 16 delays, up to two hours, take some five hours."""


class ConsumerBase(Closable, Generic[Received_co]):
    """What the two kinds of consumer share: a member of a group, running from the moment it is made."""

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str,
        topics: Topics | Patterns,
        start: str | float | dt.datetime = LATEST,
        broadcast: bool = False,
        strategy: str | Strategy = "average",
        pull_count: int = 500,
        pull_bytes: int = 1 * MIB,
        pull_interval: float = 0.0,
        queue_messages_max: int = 1000,
        queue_bytes_max: int = 100 * MIB,
        topic_messages_max: int | None = None,
        topic_bytes_max: int | None = None,
        span_max: int = 2000,
        max_reconsume_times: int | None = None,
        on_skip: OnSkip | None = None,
        skip_when_behind: int | None = None,
        on_share: OnShare | None = None,
        offset_store: str | os.PathLike[str] | OffsetStore | None = None,
        commit_interval: float = USUAL.persist,
        ranks: Ranks | None = None,
        low_share: float = 0.1,
        keep_queues: float = 0.0,
        orderly: bool = False,
        consume_timeout: float = 900.0,
        deserialize: Deserialize[Received_co] | None = None,
        clock: Clock = SYSTEM,
        **common: Unpack[ObservedArguments],
    ) -> None:
        """
        Args:
            namesrv: name servers, `host:port`, `;`-separated; by default the environment's NAMESRV_ADDR.
            group: the members of a group share the messages; each group gets all.
            topics: one name, several, or name → tag expression such as `"paid || refunded"`, a list of tags,
                `metaq.Sql("amount > 10")` (docs/filters.md) or `metaq.Predicate("name")` (docs/predicates.md). A name may be a
                pattern, `re.compile("orders-.*")`: all topics whose whole name matches, new ones within
                `poll_name_server_interval`.
            start: where a group without progress begins: "earliest", "latest" (or RocketMQ's "first", "last"), or a time
                (datetime, or seconds since the epoch).
            broadcast: every member gets every message; progress is kept in a file here, a failed message is not sent again.
            strategy: how queues are shared out, the same for all members: "average", "circle", "consistent_hash" as in RocketMQ,
                or a function of (all queues, ids of all members, this member's id) that returns its queues. docs/groups.md.
            pull_count, pull_bytes: most messages and bytes of one pull from a MetaQ broker (a RocketMQ gives at most 32 messages).
            pull_interval: seconds between two pulls of a queue; 0: the next one follows at once.
            queue_messages_max, queue_bytes_max, span_max: how much of one queue may be pulled and unfinished: messages, bytes, and
                offsets between the first and the last of them.
            topic_messages_max, topic_bytes_max: the same for one topic, shared evenly by its queues here, instead of the former.
            max_reconsume_times: failures after which a message is a dead letter; 16, without limit in orderly consumption.
            on_skip: called, in a thread, with (queue, offsets) when messages were deleted before they were consumed, or skipped.
            skip_when_behind: messages further behind the end of a queue than so many offsets are never handed out; None: all are.
            on_share: called, in a thread, with (topic, all its queues, those of this member) when the latter change.
            offset_store: where progress is kept: "broker", "local" (a file), the path of a file, or an object of yours
                with `load(queue)` → the offset that is next, or None; `update(queue, offset)`; `persist()`, which keeps what was
                updated. They are called in a thread, never two at a time, and may block; what they raise is logged, and they are
                called again. `metaq.client.consumer.membership.offset_store.OffsetStore` describes it for type checkers.
            commit_interval: seconds between two commits of progress, 5 by default.
            ranks: topic, or (topic, range of queue ids), → rank: messages of higher rank are handed out first.
            low_share: the share of messages of lower ranks while there are some of higher ones.
            keep_queues: seconds for which the brokers keep this member's queues for it when it is gone, so that a restart
                moves none; needs an instance_name. See docs/groups.md.
            orderly: one message of a queue at a time, in order, see docs/order.md.
            consume_timeout: seconds after which a handler of `run` that has not returned is named in the log, and its
                message delivered again (not in orderly consumption).
            deserialize: makes `message.value` of the body: `metaq.Json(Order)`, "json", "text", a function of the body; a body
                that it cannot read goes to the retry topic and the dead letters with the reason, see docs/serializers.md.
            common: what every client takes: `instance_name`, `client_ip`, `unit_name`, `unit_mode`, `namespace`,
                `poll_name_server_interval` and `heartbeat_broker_interval` (30 s each), `address_server`,
                `client_callback_executor_threads`; `access_key`, `secret_key`, `security_token`, `acl_file` (docs/client.md,
                "Access control"); `tls`, `ca`, `cert`, `key`, `key_password`, `tls_verify`, `crl` (docs/security.md); `trace`,
                `trace_topic`, `trace_rate`, `message_log`, `message_log_rate` (docs/trace.md); `metrics`
                (`metaq.ClientMetrics`), `opentelemetry` (docs/opentelemetry.md). `metaq.ClientArguments` and
                `metaq.ObservedArguments` describe each.
        Raises: ConfigError, TypeError. A topic that does not exist (yet) is waited for, with a warning in the log.
        """
        self._open = False
        given = MemberArguments.of(group, topics, common, required=True)
        self.group, self.topics, self._options = given.group, given.topics, given.client
        self.patterns = tuple(pattern.pattern for pattern in given.patterns)
        """Patterns among the subscribed topics, as text."""
        check_flag("orderly", orderly)
        # None in orderly consumption: the queue waits for the message, as with RocketMQ's consumers.
        if max_reconsume_times is None and not orderly:
            max_reconsume_times = _RECONSUME_TIMES
        consume_from, start_ms = start_place(start)
        options = GroupOptions(
            model=message_model(broadcast=broadcast),
            consume_from=consume_from,
            start_ms=start_ms,
            strategy=strategy_of(strategy),
            pull_count=pull_count,
            pull_bytes=pull_bytes,
            pull_interval=pull_interval,
            queue_messages_max=queue_messages_max,
            queue_bytes_max=queue_bytes_max,
            topic_messages_max=topic_messages_max,
            topic_bytes_max=topic_bytes_max,
            span_max=span_max,
            max_reconsume_times=max_reconsume_times,
            on_skip=on_skip,
            on_share=on_share,
            skip_when_behind=skip_when_behind,
            keep_seconds=keep_queues,
            orderly=orderly,
            seconds=structs.replace(USUAL, persist=commit_interval),
            unit_mode=self._options.unit_mode,
            decode=decoder_of(deserialize),
            message_class=ObservedMessage if given.observing.wanted else ReceivedMessage,
        )
        check_limits(options)
        checked_seconds("consume_timeout", consume_timeout, least=0.01)
        check_keeping(keep_queues, self._options.instance_name, broadcast=broadcast)
        checked_store(offset_store, broadcast=broadcast)
        self._orderly = orderly
        self._handover = handover_for(ranks, low_share, self.topics, list(given.patterns))
        # All arguments are checked before this: nobody would release the core of a consumer that was not made.
        self._core = cores.acquire(namesrv, self._options, clock)
        self._calls, self._until_stopped = PendingCalls(self._core), PendingCalls(self._core)
        client = self._options.client_id(local_address())
        offsets = offsets_of(offset_store, self._core, given.outside, client=client, broadcast=broadcast)
        self._consume_timeout = consume_timeout
        self._watch = Watch(group, consume_timeout, self._core.clock, orderly=orderly)
        self._one_by_one = threading.Lock()
        self._beginning = threading.RLock()
        """Held while `run` or `close` begins, so that they do so one after the other."""
        self._current: Iterator[ReceivedMessage] = iter(())
        self._join(given, options, offsets)

    def _join(self, given: MemberArguments, options: GroupOptions, offsets: Offsets) -> None:
        """Become a member of the group. Raises ConfigError: this client is one already."""
        watchers = (
            Tracer.of(self._core, self.group, given.observing, role="CONSUME"),
            MessageLog.of(self._core, self.group, given.observing),
            given.observing.meter(self.group),
            delivery_spans(given.observing, self._core, self.group, options.model),
        )
        self._observers: tuple[DeliveryObserver, ...] = tuple(one for one in watchers if one is not None)
        self._deliveries = Deliveries(self._observers, self._core.clock) if self._observers else None
        self._member = GroupMember(self._core, self.group, self.topics, options, offsets, self._handover)
        # Not a method of ours: the core has the member, and a consumer that is forgotten must be found out.
        self._member.properties = Teller(
            self.group,
            self._core,
            options,
            self._options,
            self._core.clock.now_ms(),
            self._watch,
            self._member.direct,
            self._consume_timeout,
        )
        self._member.on_sample = self._watch.time_again
        if given.patterns:
            seconds = self._options.poll_name_server_interval
            self._member.discover(given.patterns, topics_max=TOPICS_MAX, seconds=seconds)
        cores.claim(self._core, self._member, self._options)
        warn_of_differences(self._core, self._member)
        # Only after the claim: if it fails, nothing may run.
        self._core.thread.post(self._begin)
        self._opened()

    def tell(self, more: Callable[[], Mapping[str, str]]) -> None:
        """Add what an application has to say to what administrators see of this member (`metaq group show --client`).

        Args: more: returns name → value, both text; it is called in another thread whenever somebody asks, and must be quick. What we tell
        ourselves under the same name stands. Never secrets.
        """
        teller = self._member.properties
        assert isinstance(teller, Teller), "as `_join` has made it"
        self._member.properties = structs.replace(teller, more=(*teller.more, more))

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now."""
        return sorted(self._member.windows)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that `pause` holds."""
        return sorted(self._member.paused)

    @property
    def skipped(self) -> int:
        """How many messages were never handed out: deleted before they were consumed, or left out by `skip_when_behind`."""
        return self._member.skipped

    def pause(self, queues: MessageQueue | Iterable[MessageQueue]) -> None:
        """Hand out, and pull, nothing more of these queues until `resume`; messages in hand can be finished.

        Lasts while the queue is this member's: one that goes to another member, and comes back, is not paused.
        Raises ConfigError: a queue is not this member's now. ClientClosed.
        """
        self._check_open()
        chosen = _several(queues)
        self._member.check_ours(chosen)
        self._member.pause(chosen)

    def resume(self, queues: MessageQueue | Iterable[MessageQueue] | None = None) -> None:
        """Undo `pause` of these queues; of one that is not paused, nothing happens. Without queues: undo `suspend`.

        Raises ClientClosed.
        """
        self._check_open()
        if queues is None:
            self._member.go_on()
        else:
            self._member.resume(_several(queues))

    def suspend(self) -> None:
        """Hand out nothing from now on, until `resume()`; from any thread. What is in hand is finished as usual.

        The consumer stays a member of its group, with its queues and its progress; it goes on pulling until its buffers
        are full, and what they hold waits. Whoever iterates or receives waits too. Raises ClientClosed.
        """
        self._check_open()
        self._member.suspend()

    @property
    def suspended(self) -> bool:
        """Whether `suspend` was called, and `resume()` not since."""
        return self._handover.suspended

    async def _seek(self, queue: MessageQueue | None, offset: int | None, time: float | dt.datetime | None) -> None:
        if (offset is None) == (time is None):
            raise ConfigError("seek needs either offset= or time=")
        if offset is not None and offset < 0:
            raise ConfigError(f"seek: offset={offset}: offsets begin at 0")
        await self._member.seek(queue, offset, milliseconds(time) if time is not None else 0)

    @property
    def stopped(self) -> bool:
        """Whether `stop` or `close` was called: no message comes any more."""
        return self._handover.closed

    def stop(self) -> None:
        """End all iterations, from any thread or signal handler. What was not handed out stays for the group."""
        self._handover.close()
        # Takers in the middle of a chunk do not look at the handover: they see that their window is dropped.
        self._member.hand_out_no_more()
        self._until_stopped.end(f"the consumer of group {self.group} was stopped")

    def _check_open(self) -> None:
        """Raises ClientForked, ClientClosed."""
        self._core.check_process()
        if not self._open:
            raise ClientClosed(f"the consumer of group {self.group} was closed")

    def _batch_layout(self, columns: Sequence[str] | None, rows: int) -> BatchLayout:
        """Raises ConfigError, TypeError, ClientClosed, ClientForked."""
        self._check_open()
        wanted = batch_layout(columns, rows)
        # Chunks from before this have no records: their rows are made from the messages, which is slower.
        self._handover.with_records = True
        return wanted

    def _of(self, chunk: Chunk[ReceivedMessage]) -> Iterator[ReceivedMessage]:
        """The messages of a chunk, or of an ordered queue whose turn it is."""
        chunk.window.taken_ms = self._core.clock.now_ms()
        messages = chunk.queue.each() if isinstance(chunk, Turn) else self._of_chunk(chunk)
        return messages if self._deliveries is None else self._deliveries.each(messages)

    def _batches_of(self, turn: Turn[ReceivedMessage], size: int) -> Iterator[list[ReceivedMessage]]:
        """The messages of an ordered queue whose turn it is, so many at a time."""
        turn.window.taken_ms = self._core.clock.now_ms()
        hands = turn.queue.batches(size)
        return hands if self._deliveries is None else self._deliveries.hands(hands)

    def _of_chunk(self, chunk: Chunk[ReceivedMessage]) -> Generator[ReceivedMessage]:
        """The messages of a chunk; behind the last one the loop is notified that they are handed out. Closed early, the
        rest goes to the next taker."""
        window, messages, number = chunk.window, chunk.messages, 0
        try:
            for message in messages:
                if window.shut:
                    break
                number += 1
                yield message
        finally:
            if number < len(messages):
                self._put_off(chunk.rest(number))
            # Only a queue that flow control has stopped waits for this: the others need no wake-up of the loop.
            elif window.paused:
                self._core.thread.post(self._member.handed_out, window)
            chunk.messages = ()  # They know the chunk: a circle that only the garbage collector would break.

    def _put_off(self, rest: Chunk[ReceivedMessage]) -> None:
        """Put back messages that nobody has begun. If the consumer stops, or the queue is another member's, they stay
        for the group."""
        if rest.window.dropped:
            return
        if rest.window.held:
            self._member.park(rest)
        else:
            self._handover.give_back(rest)

    def _timed(self, slot: Slot, topic: str, began: float) -> None:
        """Note how long a call of the handler took."""
        slot.timing -= 1
        self._member.timed(topic, self._core.clock.monotonic() - began)

    def _begin(self) -> None:
        """In the loop."""
        self._member.start()
        for observer in self._observers:
            observer.start()
        self._watching = self._core.every(self._watch.every, self._watch.look)

    async def _assigned(self) -> None:
        await self._member.assigned()

    async def _close(self) -> None:
        """In the loop."""
        self._calls.end(f"the consumer of group {self.group} was closed")
        self._watching.cancel()
        try:
            await self._member.stop()
            # After the member, so that what ends while it leaves is observed, too.
            for observer in self._observers:
                await observer.close()
        finally:
            await cores.release(self._core, self._options)

    def _hand_out_no_more(self) -> None:
        self._handover.close()

    def __repr__(self) -> str:
        if not hasattr(self, "_member"):
            return f"<{type(self).__name__}, not made>"
        state = "closed" if not self._open else "stopped" if self.stopped else f"{len(self.queues)} queues"
        return f"<{type(self).__name__} of group {self.group}, topics {', '.join((*self.topics, *self.patterns))}: {state}>"


def warn_of_differences(core: ClientCore, member: Member) -> None:
    """Warn if another member of the group in this process subscribes to something else."""
    mine = _expressions(member)
    for fellow in cores.fellow_members(core, member):
        if (theirs := _expressions(fellow)) != mine:
            log.warning(
                "two consumers of group %s in this process subscribe differently: %s and %s. A broker keeps one "
                "subscription per group, so each of the two misses messages: give all members of a group the same "
                "topics and tags, or each consumer a group of its own",
                member.group, theirs, mine,
            )  # fmt: skip


def warn_of_busy(group: str, count: int) -> None:
    """Warn that `close` left behind so many busy handlers."""
    if count:
        log.warning(
            "group %s is closed while %d handlers are still busy: their messages will be delivered again", group, count
        )


def _expressions(member: Member) -> dict[str, str]:
    """Topic → its tags in one spelling, without the group's retry topic."""
    return {
        topic: data.spelling
        for topic, data in sorted(member.heartbeat().subscriptions.items())
        if not topic.startswith(RETRY_PREFIX)
    }


def _several(queues: MessageQueue | Iterable[MessageQueue]) -> list[MessageQueue]:
    """Raises TypeError."""
    chosen = [queues] if isinstance(queues, MessageQueue) else list(queues)
    if wrong := [one for one in chosen if not isinstance(one, MessageQueue)]:
        raise TypeError(f"{wrong[0]!r} is no MessageQueue")
    return chosen
