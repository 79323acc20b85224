"""Consumer groups: who is in them and how far they have come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from metaq.admin.brokers import masters
from metaq.client.core import ClientCore
from metaq.errors import BrokerError, MetaqError
from metaq.model import MessageModel, MessageQueue
from metaq.model.topic import RETRY_PREFIX
from metaq.wire import bodies, headers, record
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import request

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group under which tools look at messages; every RocketMQ broker has it."""

_PULL_SECONDS = 5.0


class GroupNotFound(MetaqError):
    """No broker has an offset of the group, and nobody is in it."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group has come in one queue.

    `oldest_waiting_ms`: store time of the first message that it has not consumed; None if there is none (or it cannot
    be read any more).
    """

    queue: MessageQueue
    max_offset: int
    consumed: int
    oldest_waiting_ms: int | None = None

    @property
    def lag(self) -> int:
        """Messages not consumed yet."""
        return max(0, self.max_offset - self.consumed)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group: its members, its rate over the last minute, its queues. `now_ms`: when this was asked.

    A member has `wants` (topic → filter) if the members of the group differ in it and the broker is one of ours.
    `consumer` is what a broker knows of the group as a whole; None if nobody is in it.
    """

    group: str
    now_ms: int
    members: tuple[bodies.ClientConnection, ...]
    rate: float
    queues: tuple[QueueProgress, ...]
    consumer: bodies.ConsumerData | None = None

    @property
    def subscriptions(self) -> dict[str, str]:
        """Topic → filter, without the group's own retry topic."""
        known = self.consumer.subscriptions if self.consumer else {}
        return {topic: data.spelling for topic, data in sorted(known.items()) if not topic.startswith(RETRY_PREFIX)}

    @property
    def broadcasting(self) -> bool:
        """Whether each member gets every message and keeps its own progress, of which brokers know nothing."""
        return self.consumer is not None and self.consumer.model is MessageModel.BROADCASTING

    @property
    def lag(self) -> int:
        """Messages not consumed yet, all queues together."""
        return sum(queue.lag for queue in self.queues)

    @property
    def differs(self) -> bool:
        """Whether members subscribe to different things: each of them misses messages."""
        return any(member.wants is not None for member in self.members)

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest message that waits: 0 when none does, None when that cannot be told."""
        if not self.lag:
            return 0.0
        waiting = [queue.oldest_waiting_ms for queue in self.queues if queue.oldest_waiting_ms is not None]
        return max(0, self.now_ms - min(waiting)) / 1000 if waiting else None


async def progress(core: ClientCore, group: str) -> GroupProgress:
    """How far `group` has come. Raises GroupNotFound."""
    addresses = await masters(core)
    parts = await asyncio.gather(*(_stats(core, address, group) for address in addresses.values()))
    online = [found for address in addresses.values() if (found := await _members(core, address, group)) is not None]
    members = [member for found, _ in online for member in found]
    stats: dict[MessageQueue, bodies.ConsumeStats] = {}
    for table, _ in parts:
        stats |= table
    if not stats and not members:
        raise GroupNotFound(f"no broker at name servers {core.name_servers} knows consumer group {group}")
    queues = await asyncio.gather(
        *(_queue(core, addresses.get(queue.broker), queue, stats[queue]) for queue in sorted(stats))
    )
    unique: dict[str, bodies.ClientConnection] = {}
    for member in members:
        if member.client_id not in unique or member.wants is not None:
            unique[member.client_id] = member
    rate = sum(rate for _, rate in parts)
    known = online[0][1] if online else None
    sorted_members = tuple(unique[key] for key in sorted(unique))
    return GroupProgress(group, core.clock.now_ms(), sorted_members, rate, tuple(queues), known)


async def _stats(core: ClientCore, address: str, group: str) -> tuple[dict[MessageQueue, bodies.ConsumeStats], float]:
    header = headers.ConsumeStatsHeader(consumer_group=group)
    answer = await core.ask(address, RequestCode.GET_CONSUME_STATS, header, f"tell how far group {group} is")
    return bodies.consume_stats_of(answer.body)


async def _members(
    core: ClientCore, address: str, group: str
) -> tuple[list[bodies.ClientConnection], bodies.ConsumerData] | None:
    """Members of the group at one broker, and what they subscribe to; None: nobody."""
    header = headers.ConsumerGroupHeader(consumer_group=group)
    try:
        answer = await core.ask(
            address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, f"list the members of group {group}"
        )
    except BrokerError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        raise
    return bodies.connections_of(answer.body)


async def _queue(
    core: ClientCore, address: str | None, queue: MessageQueue, stats: bodies.ConsumeStats
) -> QueueProgress:
    if address is None or stats.consumer_offset >= stats.broker_offset:
        return QueueProgress(queue, stats.broker_offset, stats.consumer_offset)
    waiting = await _store_time(core, address, queue, stats.consumer_offset)
    return QueueProgress(queue, stats.broker_offset, stats.consumer_offset, waiting)


async def _store_time(core: ClientCore, address: str, queue: MessageQueue, offset: int) -> int | None:
    # No request tells the store time of an offset, so one message is pulled. An offset that retention has passed is
    # answered with the first that is kept.
    for _ in range(2):
        header = headers.PullHeader(
            group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_messages=1,
            sys_flag=headers.PullHeader.SUBSCRIPTION,
            suspend_ms=0,
            subscription="*",
            expression_type="TAG",
        )
        answer = await core.transport.call(address, request(RequestCode.PULL_MESSAGE, header), _PULL_SECONDS)
        if answer.code == ResponseCode.SUCCESS and answer.body:
            return record.decode_record(answer.body).store_ms
        if answer.code != ResponseCode.PULL_OFFSET_MOVED:
            return None
        offset = headers.PullReplyHeader.from_ext(answer.ext).next_offset
    return None
