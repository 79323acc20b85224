"""What `Consumer` and `metaq.aio.Consumer` share: arguments, life, chunks. They differ in how one waits for a message."""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import logging
import threading
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence

from metaq.client import core as cores
from metaq.client.consumer.group import GroupMember
from metaq.client.consumer.handover import Handover
from metaq.client.consumer.options import GroupOptions, OnSkip
from metaq.client.consumer.received import ReceivedMessage
from metaq.client.consumer.window import Chunk
from metaq.client.names import EARLIEST, LATEST, checked, start_of
from metaq.client.offset_store import BrokerOffsets, LocalOffsets, OffsetStore
from metaq.client.rebalance import Strategy, strategy_of
from metaq.clock import SYSTEM, Clock
from metaq.errors import ClientClosed, ConfigError, MetaqError
from metaq.model import ConsumeFrom, MessageModel, MessageQueue
from metaq.model.subscription import ALL, checked_expression
from metaq.model.topic import RETRY_PREFIX, check_group, check_topic
from metaq.net.local import local_address

log = logging.getLogger("metaq.client")

CLOSE_SECONDS = 30.0
EXIT_SECONDS = 5.0
MIB = 1024 * 1024

Topics = str | Sequence[str] | Mapping[str, str] | Mapping[str, str | Collection[str]]


class ConsumerBase:
    """What the two kinds of consumer share: a member of a group, running from the moment it is made."""

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str,
        topics: Topics,
        start: str | float | dt.datetime = LATEST,
        broadcast: bool = False,
        instance_name: str = "DEFAULT",
        strategy: str | Strategy = "average",
        pull_count: int = 500,
        pull_bytes: int = 1 * MIB,
        queue_messages_max: int = 1000,
        queue_bytes_max: int = 100 * MIB,
        span_max: int = 2000,
        max_reconsume_times: int = 16,
        on_skip: OnSkip | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """
        Args: namesrv: name servers, `host:port`, `;`-separated; by default the environment's NAMESRV_ADDR.
              group: its members share the messages; each group gets all. topics: one name, several, or name → tag
              expression such as `"paid || refunded"`, or a list of tags. start: where a group without progress begins: "earliest",
              "latest" (or RocketMQ's "first", "last"), or a time (datetime, or seconds since the epoch). broadcast: every member gets every message, progress
              is kept in a file here, a failed message is not sent again. instance_name: clients of one process with
              one name share their connections; two members of one group in one process need two. strategy: how queues
              are shared out, see `metaq.client.rebalance`. pull_count, pull_bytes: size of one pull from a MetaQ
              broker (a RocketMQ gives at most 32 messages). queue_messages_max, queue_bytes_max, span_max: how much of
              one queue may be pulled and unfinished. max_reconsume_times: failures after which a message is a dead
              letter. on_skip: called with (queue, offsets) when messages were deleted before they were consumed.
        Raises: ConfigError. A topic that does not exist (yet) is waited for, with a warning in the log.
        """
        self._open = False
        self.group = checked(check_group, group)
        self.topics = _topics(topics)
        consume_from, start_ms = _start(start)
        options = GroupOptions(
            model=MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING,
            consume_from=consume_from,
            start_ms=start_ms,
            strategy=strategy_of(strategy),
            pull_count=pull_count,
            pull_bytes=pull_bytes,
            queue_messages_max=queue_messages_max,
            queue_bytes_max=queue_bytes_max,
            span_max=span_max,
            max_reconsume_times=max_reconsume_times,
            on_skip=on_skip,
        )
        if min(pull_count, pull_bytes, queue_messages_max, queue_bytes_max, span_max) < 1 or max_reconsume_times < 0:
            raise ConfigError("the pull and queue limits must be positive, max_reconsume_times not negative")
        self._core = cores.acquire(namesrv, instance_name, clock)
        self._handover: Handover[ReceivedMessage] = Handover()
        offsets: OffsetStore = BrokerOffsets(self._core, group)
        if broadcast:
            offsets = LocalOffsets(LocalOffsets.path(f"{local_address()}@{instance_name}", group))
        self._member = GroupMember(self._core, group, self.topics, options, offsets, self._handover)
        self._core.claim(self._member)
        warn_of_differences(self._core, self._member)
        self._core.thread.post(self._member.start)
        self._one_by_one = threading.Lock()
        self._beginning = threading.RLock()
        """`run` begins, or `close` does, one after the other."""
        self._current: Iterator[ReceivedMessage] = iter(())
        self._open = True
        _open_consumers.add(self)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now."""
        return sorted(self._member.windows)

    @property
    def stopped(self) -> bool:
        """Whether `stop` or `close` was called: no message comes any more."""
        return self._handover.closed

    def stop(self) -> None:
        """End all iterations, from any thread or signal handler. What was not handed out stays for the group."""
        self._handover.close()
        self._member.hand_out_no_more()

    def _check_open(self) -> None:
        """Raises ClientForked, ClientClosed."""
        self._core.check_process()
        if not self._open:
            raise ClientClosed(f"the consumer of group {self.group} was closed")

    def _of(self, chunk: Chunk[ReceivedMessage]) -> Iterator[ReceivedMessage]:
        """The messages of a chunk, then word to the loop that they are in somebody's hands.

        Closed early, it leaves the rest to the next taker.
        """
        window, messages, number = chunk.window, chunk.messages, 0
        try:
            for message in messages:
                if window.dropped:  # We are stopping, or the queue went to another member: the rest is the group's.
                    number = len(messages)
                    break
                number += 1
                yield message
        finally:
            if number < len(messages):
                self._handover.give_back(chunk.rest(number))
            elif window.paused:
                self._core.thread.post(self._member.handed_out, window)
            chunk.messages = ()  # They know the chunk: a circle that only the garbage collector would break.

    async def _assigned(self) -> None:
        await self._member.assigned()

    async def _close(self) -> None:
        """In the loop."""
        try:
            await self._member.stop()
        finally:
            await cores.release(self._core)

    def _forgotten(self) -> None:
        """Nobody closed us: warn, and hand out nothing more."""
        self._open = False
        self._handover.close()
        warnings.warn(
            f"{type(self).__name__} of group {self.group} was not closed: use `with`, or call close(), to be sure that "
            "its progress is kept",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )

    def __del__(self) -> None:
        if getattr(self, "_open", False) and self._core.in_own_process:
            self._forgotten()
            if self._core.thread.alive:
                self._core.thread.start(self._close())

    def __repr__(self) -> str:
        if not hasattr(self, "_member"):
            return f"<{type(self).__name__}, not made>"
        state = "closed" if not self._open else "stopped" if self.stopped else f"{len(self.queues)} queues"
        return f"<{type(self).__name__} of group {self.group}, topics {', '.join(self.topics)}: {state}>"


_open_consumers: weakref.WeakSet[ConsumerBase] = weakref.WeakSet()


@atexit.register
def _commit_forgotten() -> None:
    """The loop is a daemon thread: what was finished since the last commit would be delivered again."""
    for consumer in list(_open_consumers):
        if consumer._open and consumer._core.in_own_process:  # noqa: SLF001  the module's own class
            consumer._forgotten()  # noqa: SLF001  the module's own class
            with contextlib.suppress(MetaqError):
                consumer._core.thread.run(consumer._close(), EXIT_SECONDS)  # noqa: SLF001  the module's own class


def warn_of_differences(core: cores.ClientCore, member: cores.Member) -> None:
    """Tell when another member of the group in this process subscribes to something else."""
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
    """Tell that `close` did not wait for so many handlers any longer."""
    if count:
        log.warning(
            "group %s is closed while %d handlers are still busy: their messages will be delivered again", group, count
        )


def _expressions(member: cores.Member) -> dict[str, str]:
    """Topic → its tags in one spelling, without the group's retry topic."""
    return {
        topic: " || ".join(sorted(data.tags)) or ALL
        for topic, data in sorted(member.heartbeat().subscriptions.items())
        if not topic.startswith(RETRY_PREFIX)
    }


def _topics(topics: Topics) -> dict[str, str]:
    """Topic → tag expression. Raises ConfigError, TypeError."""
    given: Mapping[str, str | Collection[str]]
    if isinstance(topics, Mapping):
        given = topics
    else:
        given = dict.fromkeys([topics] if isinstance(topics, str) else topics, ALL)
    if not given:
        raise ConfigError("no topic to consume")
    return {checked(check_topic, topic): checked_expression(topic, tags) for topic, tags in given.items()}


def _start(start: str | float | dt.datetime) -> tuple[ConsumeFrom, int]:
    place = start_of(start)
    if isinstance(place, int):
        return ConsumeFrom.TIMESTAMP, place
    return (ConsumeFrom.FIRST if place == EARLIEST else ConsumeFrom.LAST), 0
