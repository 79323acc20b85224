"""What the brokers, topics and groups of a cluster do at this moment, by a bounded number of requests."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from metaq.admin import topics
from metaq.admin.brokers import BrokerStatus, ask_all, places_of
from metaq.client.conversation.call import FAULTS, Call
from metaq.client.conversation.groups import GetConnections
from metaq.client.conversation.statistics import GetAllProgress, GetStatistic
from metaq.client.shared.core import ClientCore
from metaq.model import ConsumeStats, MessageQueue
from metaq.model.topics.route import MASTER_ID
from metaq.model.topics.system import is_system_group
from metaq.model.topics.topic import RETRY_PREFIX

T = TypeVar("T")

FIRST_MAX: Final = 1024
"""Topics at each master, and groups, that the first look asks about one by one."""
LATER_MAX: Final = 64
"""The same of each further look: those whose figures are the oldest. Brokers sample theirs each ten seconds anyway."""
BUSY: Final = 4
"""How many times as often as the others those are asked about in which something happens."""
_AT_ONCE: Final = 32
"""Requests of a look that are under way at once."""

Progress = Mapping[str, Sequence[tuple[Mapping[MessageQueue, ConsumeStats], float]]]
"""Group → progress in each of its topics at a broker, and the messages that it gets there in a second."""


class TopicRate(Struct, frozen=True):
    """Messages and bytes that a topic gets in a second at one broker, as it was `at`, monotonic seconds."""

    messages: float
    """Messages a second."""
    bytes: float
    """Bytes a second."""
    at: float


class TopicActivity(Struct, frozen=True):
    """A topic. What it stores is of the last minute; None: it was not asked about yet.

    `delivered`: messages a second to all its groups; `lag`: messages that they have not consumed, all together.
    """

    topic: str
    """Name of the topic."""
    stored: float | None
    """Messages a second, at all brokers together."""
    stored_bytes: float | None
    """Bytes a second, at all brokers together."""
    delivered: float
    groups: int
    """Number of groups that have progress in it."""
    lag: int


class GroupActivity(Struct, frozen=True):
    """A consumer group. `delivered`: messages a second, of the last minute; `members`: None: it was not asked about yet.

    `growth`: by how many messages a second its lag has grown since the look before; None: there was none, or a broker has come or gone.
    """

    group: str
    """Name of the group."""
    members: int | None
    topics: int
    """Number of topics in which it has progress."""
    delivered: float
    lag: int
    """Messages that it has not consumed, all topics together."""
    growth: float | None


class Activity(Struct, frozen=True):
    """One look at a cluster. `requests`: that it has taken; `notes`: what could not be found out, and why."""

    now_ms: int
    """Wall clock of the look, ms since 1970."""
    at: float
    """Monotonic seconds."""
    brokers: tuple[BrokerStatus, ...]
    """All brokers that are or were known."""
    topics: tuple[TopicActivity, ...]
    """Topics, by name."""
    groups: tuple[GroupActivity, ...]
    """Consumer groups, by name."""
    requests: int
    notes: tuple[str, ...]
    asked: tuple[str, ...]
    """Masters whose groups are in it, by name."""
    rates: Mapping[tuple[str, str], TopicRate]
    """(topic, broker) → what it stores."""
    members: Mapping[str, tuple[int, float]]
    """Group → its members, and when it was asked about."""


async def activity(core: ClientCore, before: Activity | None) -> Activity:
    """Look at a cluster once. `before`: the look before this one, whose figures stand for what is not asked about again.

    A broker that was seen before stays in it: with its error, if it does not answer. Raises, in the first look, as `core.consult`.
    """
    return await _Look(core, before).all()


class _Look:
    def __init__(self, core: ClientCore, before: Activity | None) -> None:
        self._core, self._before = core, before
        self._most = FIRST_MAX if before is None else LATER_MAX
        self._requests, self._notes = 0, list[str]()
        self._at = core.clock.monotonic()
        self._lags = {one.group: one.lag for one in before.groups} if before is not None else {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def all(self) -> Activity:
        brokers, names = await self._servers()
        masters = {one.broker: one.address for one in brokers if one.broker_id == MASTER_ID and not one.error}
        progress = await self._progress(masters)
        rates = await self._rates(names, masters)
        named = {name for found in progress.values() for name in found}
        groups = sorted(name for name in named if not is_system_group(name))
        members = await self._members(groups, [masters[name] for name in progress])
        found = _by_topic(groups, progress)
        return Activity(
            self._core.clock.now_ms(),
            self._at,
            tuple(brokers),
            tuple(_topic(name, found.get(name, []), rates, masters) for name in names),
            tuple(self._group(name, progress, members) for name in groups),
            self._requests,
            tuple(self._notes),
            tuple(progress),
            rates,
            members,
        )

    async def _ask(self, address: str, call: Call[T]) -> T:
        async with self._places:
            self._requests += 1
            return await self._core.ask(address, call)

    async def _ask_or_note(self, what: str, address: str, call: Call[T]) -> T | None:
        try:
            return await self._ask(address, call)
        except FAULTS as error:
            self._notes.append(f"{what}: {error}")
            return None

    async def _servers(self) -> tuple[list[BrokerStatus], list[str]]:
        """Return the brokers as they are now, and the names of the topics."""
        core, before = self._core, self._before
        known = {one.address: structs.replace(one, registered=False) for one in before.brokers} if before else {}
        try:
            info = await core.consult(core.name_servers.cluster())
            names = await topics.names(core, system=False)
            known |= {one.address: one for one in places_of(info.brokers.values())}
        except FAULTS as error:
            if before is None:
                raise
            # What a name server has told goes on to hold while none answers.
            known = {one.address: one for one in before.brokers}
            names = [one.topic for one in before.topics]
            self._notes.append(f"name servers: {error}")
        self._requests += 2 + len(known)
        return await ask_all(core, known.values()), names

    async def _progress(self, masters: Mapping[str, str]) -> dict[str, Progress]:
        """Return broker → progress of all its groups, of those that answer."""
        call = GetAllProgress()
        found = await asyncio.gather(
            *(self._ask_or_note(f"groups at {name}", address, call) for name, address in masters.items())
        )
        return {name: one for name, one in zip(masters, found, strict=True) if one is not None}

    async def _rates(self, names: Sequence[str], masters: Mapping[str, str]) -> dict[tuple[str, str], TopicRate]:
        """Return what topics store at each master."""
        kept = set(names)
        old = self._before.rates if self._before is not None else {}
        found = {key: rate for key, rate in old.items() if key[0] in kept and key[1] in masters}
        await asyncio.gather(*(self._rates_at(name, masters[name], names, found) for name in masters))
        return found

    async def _rates_at(
        self, broker: str, address: str, names: Sequence[str], found: dict[tuple[str, str], TopicRate]
    ) -> None:
        old = {topic: (bool(rate.messages), rate.at) for (topic, at), rate in found.items() if at == broker}

        async def one(topic: str) -> None:
            size = None
            count = await self._ask(address, GetStatistic("TOPIC_PUT_NUMS", topic))
            if count is not None and count.minute.per_second:
                size = await self._ask(address, GetStatistic("TOPIC_PUT_SIZE", topic))
            found[topic, broker] = TopicRate(
                count.minute.per_second if count is not None else 0.0,
                size.minute.per_second if size is not None else 0.0,
                self._at,
            )

        await self._each(f"topics at {broker}", [one(topic) for topic in self._turn(names, old)])

    async def _each(self, what: str, work: Collection[Coroutine[Any, Any, None]]) -> None:
        """Do some work, and note one of its faults."""
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        if unforeseen := [one for one in outcomes if one is not None and not isinstance(one, FAULTS)]:
            raise unforeseen[0]
        if faults := [one for one in outcomes if one is not None]:
            self._notes.append(f"{what}: {faults[0]}")

    async def _members(self, groups: Sequence[str], addresses: Sequence[str]) -> dict[str, tuple[int, float]]:
        """Return how many members groups have, as one master knows: they are registered at all of them."""
        old = self._before.members if self._before is not None else {}
        found = {name: old[name] for name in groups if name in old}

        async def one(name: str) -> None:
            online = await self._ask(addresses[0], GetConnections(name))
            found[name] = (0 if online is None else len(online[0]), self._at)

        if addresses:
            turn = self._turn(groups, {name: (bool(many), at) for name, (many, at) in found.items()})
            await self._each("members of groups", [one(name) for name in turn])
        return found

    def _turn(self, names: Sequence[str], old: Mapping[str, tuple[bool, float]]) -> list[str]:
        """Return those to ask about now. `old`: whether something happens in them, and when they were asked about."""

        def age(name: str) -> float:
            if name not in old:
                return float("inf")
            busy, at = old[name]
            return (self._at - at) * (BUSY if busy else 1)

        return heapq.nlargest(self._most, names, key=age)

    def _group(
        self, name: str, progress: Mapping[str, Progress], members: Mapping[str, tuple[int, float]]
    ) -> GroupActivity:
        parts = [part for found in progress.values() for part in found.get(name, ())]
        lag = sum(_lag(queues) for queues, _ in parts)
        names = {queue.topic for queues, _ in parts for queue in queues} - {RETRY_PREFIX + name}
        growth, before = None, self._before
        if before is not None and set(before.asked) == progress.keys() and self._at > before.at:
            old = self._lags.get(name)
            growth = None if old is None else (lag - old) / (self._at - before.at)
        many = members.get(name)
        return GroupActivity(name, many[0] if many else None, len(names), sum(rate for _, rate in parts), lag, growth)


def _lag(queues: Mapping[MessageQueue, ConsumeStats]) -> int:
    return sum(max(0, one.broker_offset - one.consumer_offset) for one in queues.values())


def _by_topic(groups: Collection[str], progress: Mapping[str, Progress]) -> dict[str, list[tuple[str, int, float]]]:
    """Return topic → (group, lag, messages a second) at each broker."""
    found: dict[str, list[tuple[str, int, float]]] = {}
    for one in progress.values():
        for group in groups:
            for queues, rate in one.get(group, ()):
                if queues:
                    found.setdefault(next(iter(queues)).topic, []).append((group, _lag(queues), rate))
    return found


def _topic(
    name: str,
    groups: Sequence[tuple[str, int, float]],
    rates: Mapping[tuple[str, str], TopicRate],
    masters: Collection[str],
) -> TopicActivity:
    here = [rate for broker in masters if (rate := rates.get((name, broker))) is not None]
    return TopicActivity(
        name,
        sum(rate.messages for rate in here) if here else None,
        sum(rate.bytes for rate in here) if here else None,
        sum(rate for _, _, rate in groups),
        len({group for group, _, _ in groups}),
        sum(lag for _, lag, _ in groups),
    )
