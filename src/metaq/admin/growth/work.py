"""What is still open at one broker: messages that groups have not consumed, delays, transactions; and whether anything is still sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field

from metaq.admin.brokers import masters
from metaq.admin.growth.places import BrokerReplicas, Tables, each, offsets_at
from metaq.client.conversation.administration import GetRuntime, GetTopicStats
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import GetConnections, GetConsumeStats, GetGroups, GetMetaq1Groups
from metaq.client.conversation.staged.xa_by_hand import ListBranches
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError
from metaq.model import MessageModel, MessageQueue, QueueStats
from metaq.model.topics.system import HALF_TOPIC, TRANSACTION_GROUP, is_system_group
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.model.transactions.metaq1 import BranchPhase

_SHOWN = 5
BRANCHES_MAX = 200


class OpenWork(Struct, frozen=True):
    """What a broker has to do yet. `stored`: messages that its users' topics have ever had, by which sends are noticed.

    `lags`: group → messages that it has not consumed there, its retries included; only groups that lack some. `delayed`: messages
    that wait for their time, retries included. `halves`: half messages without an end. `staged`: parts of staged transactions.
    `branches`: transactions of MetaQ 1.x clients that are open or prepared. `unread`: topic → messages, of topics in which no group has any
    progress, dead letters included: nobody is waited for there.
    """

    stored: int = 0
    lags: dict[str, int] = field(default_factory=dict)
    delayed: int = 0
    halves: int = 0
    staged: int = 0
    branches: int = 0
    unread: dict[str, int] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether something is open that ends by itself when consumers and producers do their part."""
        return bool(self.lags or self.delayed or self.halves or self.staged or self.branches)

    def sentences(self) -> list[str]:
        """What is open, in words; empty if nothing is. `unread` is not among it."""
        most = sorted(self.lags.items(), key=lambda pair: (-pair[1], pair[0]))
        said = [f"group {group} has {_messages(lag)} to consume" for group, lag in most[:_SHOWN]]
        if len(most) > _SHOWN:
            said.append(f"{len(most) - _SHOWN} more groups have {_messages(sum(lag for _, lag in most[_SHOWN:]))}")
        for number, one, many in (
            (self.delayed, "delayed message waits for its time", "delayed messages wait for their time"),
            (self.halves, "half message has no end yet", "half messages have no end yet"),
            (self.staged, "part of staged transactions is open", "parts of staged transactions are open"),
            (self.branches, "transaction of MetaQ 1.x is open", "transactions of MetaQ 1.x are open"),
        ):
            if number:
                said.append(f"{number} {one if number == 1 else many}")
        return said

    def unread_text(self) -> str:
        """What nobody reads, in words; empty if there is none."""
        most = sorted(self.unread.items(), key=lambda pair: (-pair[1], pair[0]))
        said = [f"{_messages(count)} of topic {topic}" for topic, count in most[:_SHOWN]]
        return ", ".join([*said, *([f"and {len(most) - _SHOWN} more topics"] if len(most) > _SHOWN else [])])


def _messages(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"


Readers = Mapping[str, Collection[str]]
"""Topic → groups."""


async def look(core: ClientCore, place: BrokerReplicas, tables: Tables, elsewhere: Readers) -> OpenWork:
    """Return what is open at a broker now. Raises FAULTS: it cannot be asked. Args: elsewhere: of `readers_elsewhere`."""
    address = place.master
    runtime = await core.ask(address, GetRuntime())
    stats = await each(
        [*tables.topics, *tables.retries, *tables.dead_letters], lambda topic: stats_at(core, address, topic)
    )
    lags = await lags_at(core, address, stats, elsewhere)
    read = {topic for found in lags.values() for topic in found}
    kept = {topic: _kept(stats[topic]) for topic in (*tables.topics, *tables.dead_letters) if topic not in read}
    return OpenWork(
        sum(one.max_offset for topic in tables.topics for one in stats[topic].values()),
        {group: lag for group, found in lags.items() if (lag := sum(found.values()))},
        sum(end - delivered for delivered, end in delays(runtime).values()),
        await _halves(core, address, runtime),
        int(runtime.get("metaqStagedParts", "0")),
        await _branches(core, address) if place.ours else 0,
        {topic: number for topic, number in kept.items() if number},
    )


TopicStats = dict[MessageQueue, QueueStats]


async def readers_elsewhere(core: ClientCore, place: BrokerReplicas) -> Readers:
    """Return topic → groups that have progress in it at other brokers: also what is here waits for them. One that is away is left out."""

    async def at(address: str) -> Collection[tuple[str, str]]:
        try:
            return (await offsets_at(core, address)).keys()
        except FAULTS:
            return ()

    others = [address for name, address in (await masters(core)).items() if name != place.broker]
    found: dict[str, set[str]] = {}
    for pairs in (await each(others, at)).values():
        for topic, group in pairs:
            if not is_system_group(group):
                found.setdefault(topic, set()).add(group)
    return found


async def lags_at(
    core: ClientCore, address: str, stats: Mapping[str, TopicStats], elsewhere: Readers
) -> dict[str, dict[str, int]]:
    """Return group → topic → messages that it has not consumed at one broker, 0 where it has all; of these topics, and their retries.

    A group that reads a topic, here or elsewhere, and has no progress here lacks all that is there; one that broadcasts is left out:
    only its members know its progress. So is a topic of which an online group wants nothing any more.
    """
    plain = [topic for topic in stats if not topic.startswith(RETRY_PREFIX)]
    here = await each(plain, lambda topic: _groups(core, address, topic))
    readers = {
        topic: {*found, *(elsewhere.get(topic, ()) if _kept(stats[topic]) else ())} for topic, found in here.items()
    }
    groups = {name for found in readers.values() for name in found}
    groups |= {topic.removeprefix(RETRY_PREFIX) for topic in stats if topic.startswith(RETRY_PREFIX)}
    # Groups of MetaQ 1.x are not asked for by topic: the table of each says what it has read here.
    groups |= set(await core.ask(address, GetMetaq1Groups()))

    async def of(group: str) -> dict[str, int]:
        table, _ = await core.ask(address, GetConsumeStats(group))
        found: dict[str, int] = {}
        for queue, one in table.items():
            if (known := stats.get(queue.topic)) is not None:
                # What retention has deleted waits for nobody.
                first = known[queue].min_offset if queue in known else 0
                lag = max(0, one.broker_offset - max(one.consumer_offset, first))
                found[queue.topic] = found.get(queue.topic, 0) + lag
        begun = [topic for topic in plain if group in readers[topic] and topic not in found and _kept(stats[topic])]
        if begun or any(found.values()):
            return await _wanted(core, address, group, found, {topic: _kept(stats[topic]) for topic in begun})
        return found

    return await each(sorted(groups), of)


async def _wanted(
    core: ClientCore, address: str, group: str, lags: dict[str, int], begun: dict[str, int]
) -> dict[str, int]:
    """Return the lags of what an online group wants; of one that is offline, of all that it has ever read. Args: begun: without progress."""
    online = await core.ask(address, GetConnections(group))
    if online is None:
        return {**lags, **begun}
    view = online[1]
    if view.model is MessageModel.BROADCASTING:
        return {}
    wanted = {*view.subscriptions, RETRY_PREFIX + group}
    return {topic: lag for topic, lag in {**lags, **begun}.items() if topic in wanted}


def _kept(stats: TopicStats) -> int:
    return sum(one.max_offset - one.min_offset for one in stats.values())


def delays(runtime: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return delay level → (delivered, end) of its queue."""
    found: dict[str, tuple[int, int]] = {}
    for key, text in runtime.items():
        delivered, _, end = text.partition(",")
        if key.startswith("scheduleMessageOffset_") and delivered.isdecimal() and end.isdecimal():
            found[key] = int(delivered), max(int(delivered), int(end))
    return found


async def half_offsets(core: ClientCore, address: str) -> tuple[int, int]:
    """Return (first half message that may be open, end of their queue), as the broker has saved it; (0, 0) if there never was one."""
    table, _ = await core.ask(address, GetConsumeStats(TRANSACTION_GROUP))
    found = [one for queue, one in table.items() if queue.topic == HALF_TOPIC]
    return (found[0].consumer_offset, found[0].broker_offset) if found else (0, 0)


async def _halves(core: ClientCore, address: str, runtime: Mapping[str, str]) -> int:
    if (told := runtime.get("metaqOpenHalves", "")).isdecimal():
        return int(told)
    first, end = await half_offsets(core, address)
    return max(0, end - first)


async def _branches(core: ClientCore, address: str) -> int:
    try:
        found = await core.ask(address, ListBranches("", BRANCHES_MAX))
    except BrokerError:  # it serves no clients of MetaQ 1.x
        return 0
    return sum(one.phase in {BranchPhase.OPEN, BranchPhase.PREPARED} for one in found)


async def stats_at(core: ClientCore, address: str, topic: str) -> TopicStats:
    """Return the bounds of a topic's queues at one broker; none if it is not there."""
    try:
        return await core.ask(address, GetTopicStats(topic))
    except BrokerError:  # it was deleted meanwhile
        return {}


async def _groups(core: ClientCore, address: str, topic: str) -> Iterable[str]:
    try:
        return [name for name in await core.ask(address, GetGroups(topic)) if not is_system_group(name)]
    except BrokerError:
        return ()
