"""Groups: members, and consumer groups' progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping

from msgspec import Struct, structs

from metaq.admin.brokers import BrokerNotFound, masters
from metaq.admin.figures.sizes import MessagesSize, size_of, total
from metaq.client.conversation.administration import ResetOffsets
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.following import GROUP_OFFSETS, GROUPS, GetTable
from metaq.client.conversation.groups import GetConnections, GetConsumeStats, GetMetaq1Groups, GetProducers
from metaq.client.conversation.reading.offsets import GetMaxOffset, GetMinOffset, SetPosition
from metaq.client.conversation.reading.time_search import first_at_or_after, store_time_from
from metaq.client.identity.names import EARLIEST, LATEST
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, MetaqError, NotFound
from metaq.model import ClientConnection, ConsumerView, ConsumeStats, GroupConfig, MessageModel, MessageQueue
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.wire import bodies

_PULL_SECONDS = 5.0
"""Timeout of one pull of a search by time, which may read from the disk."""


class GroupNotFound(NotFound):
    """No broker has an offset of the group, and it has no members."""


class GroupOfMetaq1(MetaqError):
    """A group of MetaQ 1.x: its clients keep their progress, in ZooKeeper or a table, and no broker can change it."""


async def check_own(core: ClientCore, addresses: Collection[str], group: str, what: str) -> None:
    """Raise GroupOfMetaq1 if only ZooKeeper knows the group: whatever is written of it at these brokers, its clients would not see.

    Args: what: is not done.
    """
    if group not in await own_groups(core, addresses) and group in await metaq1_groups(core, addresses):
        raise GroupOfMetaq1(
            f"group {group} {what}: it is of MetaQ 1.x, and its clients keep its progress in ZooKeeper or a database; stop them, and see "
            "`metaq meta1 show-offset` and `metaq meta1 copy-offsets`"
        )


async def own_groups(core: ClientCore, addresses: Collection[str]) -> set[str]:
    """Return the groups that brokers have settings or progress of."""
    settings, consuming = await asyncio.gather(
        settings_at(core, {address: address for address in addresses}), groups_with_offsets(core, addresses)
    )
    return {group for groups in settings.values() for group in groups} | consuming


async def settings_at(core: ClientCore, addresses: Mapping[str, str]) -> dict[str, dict[str, GroupConfig]]:
    """Return broker → group → settings, of all groups that brokers (name → address) have settings of."""
    tables = await asyncio.gather(*(core.ask(address, GetTable(GROUPS)) for address in addresses.values()))
    return {broker: bodies.group_table_of(table)[1] for broker, table in zip(addresses, tables, strict=True)}


async def groups_with_offsets(core: ClientCore, addresses: Collection[str]) -> set[str]:
    """Return the groups that brokers have offsets of."""
    tables = await asyncio.gather(*(core.ask(address, GetTable(GROUP_OFFSETS)) for address in addresses))
    return {group for table in tables for _, group in bodies.group_offsets_of(table)}


def stopped_at(settings: Mapping[str, Mapping[str, GroupConfig]], group: str) -> tuple[str, ...]:
    """Return the brokers, of the settings that `settings_at` returns, at which a group's members get no messages."""
    return tuple(
        sorted(broker for broker, groups in settings.items() if group in groups and not groups[group].consume_enable)
    )


async def metaq1_groups(core: ClientCore, addresses: Collection[str]) -> set[str]:
    """Return the groups of MetaQ 1.x that brokers know of, also those that have read nothing at these."""
    told = await asyncio.gather(*(core.ask(address, GetMetaq1Groups()) for address in addresses))
    return {group for groups in told for group in groups}


class ProducerInstance(Struct, frozen=True):
    """A process that produces for a group, and may be asked about the group's transactions.

    `version` is RocketMQ's number of the client's protocol. `addresses`: broker name → the instance's address as that
    broker sees it.
    """

    client_id: str
    """The id that the client gave itself."""
    language: str
    """As the client tells it: `PYTHON`, `JAVA` and so on."""
    version: int
    addresses: Mapping[str, str]


class QueueProgress(Struct, frozen=True):
    """A group's progress in one queue.

    `oldest_waiting_ms`: store time of the first message that it has not consumed; None if there is none (or it cannot
    be read any more). `waiting`: bytes of all that it has not consumed; None: the broker does not tell.
    """

    queue: MessageQueue
    """The queue."""
    max_offset: int
    """Its end: the QueueOffset that the next message gets."""
    consumed: int
    """QueueOffset of the message that the group consumes next."""
    oldest_waiting_ms: int | None = None
    waiting: MessagesSize | None = MessagesSize(0)

    @property
    def lag(self) -> int:
        """Number of messages in the queue that the group has not consumed yet."""
        return max(0, self.max_offset - self.consumed)


class GroupProgress(Struct, frozen=True):
    """A group: its members, its rate over the last minute, its queues. `now_ms`: when this was asked.

    A member has `wants` (topic → filter) if the members of the group differ in it and the broker is one of ours.
    `consumer` is what a broker knows of the group as a whole; None if nobody is in it.
    """

    group: str
    """Name of the group."""
    now_ms: int
    members: tuple[ClientConnection, ...]
    """Members that are connected."""
    rate: float
    """Messages delivered a second, over the last minute."""
    queues: tuple[QueueProgress, ...]
    """Progress in each queue that the group has an offset in."""
    consumer: ConsumerView | None = None
    stopped_at: tuple[str, ...] = ()
    """Brokers at which it is stopped (`consumeEnable` is false): its members get no messages there."""

    @property
    def subscriptions(self) -> dict[str, str]:
        """Topic → filter, without the group's own retry topic."""
        known = self.consumer.subscriptions if self.consumer else {}
        return {topic: data.spelling for topic, data in sorted(known.items()) if not topic.startswith(RETRY_PREFIX)}

    @property
    def broadcasting(self) -> bool:
        """Whether each member gets every message and has its own progress, which brokers do not know."""
        return self.consumer is not None and self.consumer.model is MessageModel.BROADCASTING

    @property
    def lag(self) -> int:
        """Messages not consumed yet, all queues together."""
        return sum(queue.lag for queue in self.queues)

    @property
    def waiting(self) -> MessagesSize | None:
        """Bytes not consumed yet, all queues together; None: not all brokers tell."""
        return total(queue.waiting for queue in self.queues)

    @property
    def unread(self) -> tuple[MessageQueue, ...]:
        """Queues in which it has progress, and that nobody in it reads: all of them if it has no members."""
        known = self.consumer.subscriptions if self.consumer else {}
        return tuple(one.queue for one in self.queues if one.queue.topic not in known)

    @property
    def differs(self) -> bool:
        """Whether members subscribe to different things: each of them misses messages."""
        return any(member.wants is not None for member in self.members)

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest message that waits, seconds: 0 if none does, None if it is unknown."""
        if not self.lag:
            return 0.0
        waiting = [queue.oldest_waiting_ms for queue in self.queues if queue.oldest_waiting_ms is not None]
        return max(0, self.now_ms - min(waiting)) / 1000 if waiting else None


async def producers(core: ClientCore, group: str) -> list[ProducerInstance]:
    """Return the instances of producer group `group`, by client id. Raises GroupNotFound: no broker knows one."""
    addresses = await masters(core)
    call = GetProducers(group)
    found = await asyncio.gather(*(core.ask(address, call) for address in addresses.values()))
    seen: dict[str, dict[str, ClientConnection]] = {}
    for broker, connections in zip(addresses, found, strict=True):
        for one in connections:
            seen.setdefault(one.client_id, {})[broker] = one
    if not seen:
        raise GroupNotFound(
            f"no broker at name servers {core.name_servers} is connected to a producer of group {group}: brokers know a "
            "producer from its first send on, a transactional one from its start"
        )
    return [
        ProducerInstance(client_id, one.language, one.version, {broker: it.address for broker, it in at.items()})
        for client_id, at in sorted(seen.items())
        for one in [next(iter(at.values()))]
    ]


async def progress(core: ClientCore, group: str) -> GroupProgress:
    """Return the progress of `group`. Raises GroupNotFound."""
    addresses = await masters(core)
    settings, found = await asyncio.gather(settings_at(core, addresses), progress_at(core, addresses, group))
    if not found.queues and not found.members and not any(group in groups for groups in settings.values()):
        raise GroupNotFound(f"no broker at name servers {core.name_servers} knows consumer group {group}")
    return structs.replace(found, stopped_at=stopped_at(settings, group))


async def progress_at(
    core: ClientCore, addresses: Mapping[str, str], group: str, stopped: tuple[str, ...] = ()
) -> GroupProgress:
    """Return the progress of `group` at brokers (name → address): without queues and members if none of them knows it.

    Args: stopped: brokers at which it is stopped, if the caller knows.
    """
    stats_call, members_call = GetConsumeStats(group), GetConnections(group)
    parts = await asyncio.gather(*(core.ask(address, stats_call) for address in addresses.values()))
    online = [found for address in addresses.values() if (found := await core.ask(address, members_call)) is not None]
    members = [member for found, _ in online for member in found]
    stats: dict[MessageQueue, ConsumeStats] = {}
    for table, _ in parts:
        stats |= table
    queues = await asyncio.gather(
        *(_queue(core, addresses.get(queue.broker), queue, stats[queue]) for queue in sorted(stats))
    )
    unique: dict[str, ClientConnection] = {}
    for member in members:
        # A member is connected to all brokers; only ours report its own subscription (`wants`).
        if member.client_id not in unique or member.wants is not None:
            unique[member.client_id] = member
    rate = sum(rate for _, rate in parts)
    # Any broker's: a member sends the same heartbeat to all.
    known = online[0][1] if online else None
    sorted_members = tuple(unique[key] for key in sorted(unique))
    return GroupProgress(group, core.clock.now_ms(), sorted_members, rate, tuple(queues), known, stopped)


class MovedProgress(Struct, frozen=True):
    """A group's move in one queue: from `consumed` to `offset`."""

    queue: MessageQueue
    """The queue."""
    consumed: int
    offset: int
    online: bool
    """Whether members were notified, and go on there within seconds; else the broker's table was written."""

    @property
    def skipped(self) -> int:
        """Messages that it will not consume."""
        return max(0, self.offset - self.consumed)

    @property
    def repeated(self) -> int:
        """Messages that it will consume again."""
        return max(0, self.consumed - self.offset)


class PartlyMoved(MetaqError):
    """A group goes on elsewhere in some queues of a topic, and not in others, where a broker refused or was away.

    It can be asked for again: a queue that has moved is moved to the same place. `moved`: what has moved, queue by queue. `left`:
    broker → reason.
    """

    def __init__(self, group: str, topic: str, moved: list[MovedProgress], left: Mapping[str, str]) -> None:
        self.moved, self.left = moved, dict(left)
        done = ", ".join(f"{one.queue.broker}:{one.queue.queue_id} to {one.offset}" for one in moved) or "none"
        reasons = "; ".join(f"{broker}: {reason}" for broker, reason in left.items())
        super().__init__(
            f"group {group} was moved in a part of topic {topic} only: {done}. It was not moved at {reasons}. Repeat it to do the rest"
        )


async def move(
    core: ClientCore, group: str, topic: str, start: str | int, *, dry_run: bool = False
) -> list[MovedProgress]:
    """Move `group` in `topic`: to "earliest", "latest", or the first message stored at a time (ms) or later.

    Online members are notified (requests 222, 220); without any, the progress is written. In a queue in which the group has no
    progress, it is taken to be at the beginning: the broker may be new in the cluster. Other groups are unchanged.

    With `dry_run` nothing is moved: the outcome is what would be.

    Raises: GroupNotFound. GroupOfMetaq1. BrokerError: no broker moves it. PartlyMoved: some do.
    """
    addresses = await masters(core)
    await check_own(core, addresses.values(), group, "is not moved")
    queues = await core.routes.subscribe_queues(topic, fresh=True)
    brokers = {queue.broker for queue in queues}
    # All are asked before anything is moved: if one cannot be reached, nothing changes.
    before = {
        queue: stats.consumer_offset
        for table, _ in await asyncio.gather(
            *(core.ask(addresses[broker], GetConsumeStats(group)) for broker in brokers if broker in addresses)
        )
        for queue, stats in table.items()
        if queue.topic == topic
    }
    if not before:
        raise GroupNotFound(
            f"consumer group {group} has no progress in topic {topic} at any broker: there is nothing to skip or to repeat"
        )
    # RocketMQ's request takes a time alone: -1 is its "end of the queue", 0 is older than all.
    time_ms = {EARLIEST: 0, LATEST: -1}.get(start, start) if isinstance(start, str) else start
    assert isinstance(time_ms, int)
    moved: list[MovedProgress] = []
    left: dict[str, MetaqError] = {}
    for broker in sorted(brokers):
        if broker not in addresses:
            left[broker] = BrokerNotFound("no master is registered, and only a master can move it")
            continue
        known = {queue: at for queue, at in before.items() if queue.broker == broker}
        try:
            here = [one for one in queues if one.broker == broker]
            if dry_run:
                moved += await _foreseen(core, addresses[broker], group, time_ms, known, here)
            else:
                moved += await _move_at(core, addresses[broker], group, time_ms, known, here)
        except FAULTS as error:
            left[broker] = error
    if left and not moved:
        raise next(iter(left.values()))
    if left:
        raise PartlyMoved(group, topic, moved, {broker: str(error) for broker, error in left.items()})
    return moved


async def _move_at(
    core: ClientCore,
    address: str,
    group: str,
    time_ms: int,
    known: Mapping[MessageQueue, int],
    queues: Collection[MessageQueue],
) -> list[MovedProgress]:
    """Move a group in the queues of one broker. `known`: where it is, of the queues in which it has progress."""
    before = await _begins(core, address, known, queues)
    reset = ResetOffsets(group, next(iter(before)).topic, time_ms)
    try:
        if known:
            moved = await core.ask(address, reset)
        else:
            moved = await _with_progress(core, address, reset, before)
    except BrokerError:
        # RocketMQ's refuses if one of the queues has no progress, which its table does not tell from 0.
        moved = await _with_progress(core, address, reset, before)
    online = moved is not None
    # No member is online. Online members must be notified instead: they would overwrite the broker's table with their own
    # progress.
    if moved is None:
        moved = {}
        for queue in before:
            moved[queue] = await _place(core, address, queue, time_ms)
            await core.ask(address, SetPosition(group, queue, moved[queue]))
    return [MovedProgress(queue, before.get(queue, 0), offset, online) for queue, offset in sorted(moved.items())]


async def _begins(
    core: ClientCore, address: str, known: Mapping[MessageQueue, int], queues: Collection[MessageQueue]
) -> dict[MessageQueue, int]:
    """Return where a group is in the queues of one broker: in those without progress, at the beginning."""
    return {
        queue: known[queue] if queue in known else await core.ask(address, GetMinOffset(queue))
        for queue in sorted({*queues, *known})
    }


async def _foreseen(
    core: ClientCore,
    address: str,
    group: str,
    time_ms: int,
    known: Mapping[MessageQueue, int],
    queues: Collection[MessageQueue],
) -> list[MovedProgress]:
    """Return what `_move_at` would do now."""
    before = await _begins(core, address, known, queues)
    online = await core.ask(address, GetConnections(group)) is not None
    return [
        MovedProgress(queue, at, await _place(core, address, queue, time_ms), online) for queue, at in before.items()
    ]


async def _with_progress(
    core: ClientCore, address: str, reset: ResetOffsets, before: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int] | None:
    """Write where a group is, and ask again: brokers notify no members of a group that has no progress."""
    for queue, offset in before.items():
        await core.ask(address, SetPosition(reset.group, queue, offset))
    return await core.ask(address, reset)


async def _place(core: ClientCore, address: str, queue: MessageQueue, time_ms: int) -> int:
    """Return the offset of the first message stored at `time_ms` or later. 0: the first of all; -1: after the last one."""
    if time_ms < 0:
        return await core.ask(address, GetMaxOffset(queue))
    if time_ms == 0:
        return await core.ask(address, GetMinOffset(queue))
    return await core.converse_at(address, first_at_or_after(queue, time_ms), _PULL_SECONDS)


async def _queue(core: ClientCore, address: str | None, queue: MessageQueue, stats: ConsumeStats) -> QueueProgress:
    if address is None or stats.consumer_offset >= stats.broker_offset:
        return QueueProgress(queue, stats.broker_offset, stats.consumer_offset)
    oldest, size = await asyncio.gather(
        _oldest(core, address, queue, stats.consumer_offset),
        size_of(core, address, queue, stats.consumer_offset, stats.broker_offset),
    )
    return QueueProgress(queue, stats.broker_offset, stats.consumer_offset, oldest, size)


async def _oldest(core: ClientCore, address: str, queue: MessageQueue, offset: int) -> int | None:
    with contextlib.suppress(
        BrokerError
    ):  # Without read permission, for instance: the other figures are still worth showing.
        return await core.converse_at(address, store_time_from(queue, offset), _PULL_SECONDS)
    return None
