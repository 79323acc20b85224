"""A topic moves from one broker to another: made there, not written here any more, read to its end here, and deleted here.

Each step is seen in the brokers' tables, so that a move that was interrupted goes on when it is called again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field, structs

from metaq.admin import order
from metaq.admin.growth.adding import make, readers_of
from metaq.admin.growth.drain import PAUSE_SECONDS, QUIET_SECONDS, SILENT_SECONDS, Quiet
from metaq.admin.growth.places import (
    BrokerReplicas,
    Refusal,
    Unfinished,
    announced_at,
    at_name_servers,
    find,
    offsets_at,
    orders,
    put_topic,
    tables_of,
    without_write,
)
from metaq.admin.growth.work import TopicStats, delays, half_offsets, lags_at, readers_elsewhere, stats_at
from metaq.admin.topics import TopicNotFound
from metaq.client.conversation.administration import DeleteTopic, GetRuntime
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.group_settings import PutGroup
from metaq.client.conversation.routes import NAME_SERVER_OF_OURS, DeleteTopicRoute, GetNameServerSettings, GetRoute
from metaq.client.identity.names import checked
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError
from metaq.model import TopicConfig
from metaq.model.topics.route import OrderLayout
from metaq.model.topics.topic import Perm, check_topic


class MoveProgress(Struct, frozen=True):
    """How far a topic's move is. All times are seconds.

    `phase`: `moving` while something is sent to the old broker, `reading` while groups have messages there, `leaving` while consumers
    find out that its queues are gone, `done`. `lags`: group → messages that it has not consumed there. `unread`: messages there, if no group has any
    progress in the topic. `waiting`: delayed messages,
    half messages and parts of staged transactions of any topic that may become messages of this one there.
    """

    topic: str
    """Name of the topic."""
    source: str
    """Broker that it leaves."""
    target: str
    """Broker that it goes to."""
    phase: Literal["moving", "reading", "leaving", "done"]
    passed: float
    """Since the move was begun."""
    quiet: float
    """Since the last send to the old broker, or since name servers announce it so."""
    quiet_wanted: float
    """How long it has to be quiet."""
    lags: dict[str, int] = field(default_factory=dict)
    unread: int = 0
    waiting: int = 0
    trouble: str = ""
    """Why the old broker could not be asked the last time; the figures are older then."""

    @property
    def empty(self) -> bool:
        """Whether nothing is left at the old broker that somebody may want."""
        return not (self.lags or self.unread or self.waiting)

    def text(self) -> str:
        """One line for people."""
        if self.phase == "leaving":
            return f"consumers have {self.quiet_wanted - self.quiet:.0f} s to leave {self.source}"
        said = [f"no send to {self.source} for {self.quiet:.0f} s of {self.quiet_wanted:.0f} s"]
        said += [f"group {group} has {lag} to consume" for group, lag in sorted(self.lags.items())]
        if self.unread:
            said.append(f"no group has ever read its {self.unread} messages there")
        if self.waiting:
            said.append(f"{self.waiting} delayed or half messages or parts of transactions wait")
        if self.trouble:
            said.append(f"it does not answer: {self.trouble}")
        return "; ".join(said)


class MovedTopic(Struct, frozen=True):
    """A topic that has moved, or would. `steps`: what was done, or would be. `left`: the old broker still has it, read-only and empty,
    because a RocketMQ name server could only forget the whole topic."""

    topic: str
    """Name of the topic."""
    source: str
    """Broker that it has left."""
    target: str
    """Broker that has it now."""
    steps: tuple[str, ...]
    left: bool = False


Told = Callable[[MoveProgress], None]


async def move(
    core: ClientCore,
    topic: str,
    source: str,
    target: str,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    timeout: float | None = None,
    force: bool = False,
    dry_run: bool = False,
    told: Told | None = None,
) -> MovedTopic:
    """Move a topic from one broker to another.

    Args: force: also a strictly ordered topic, whose keys then may be read from both brokers at once, for as long as the old one has
    messages; and do not wait until groups have read what is there: it is deleted.
    Raises: TopicNotFound, BrokerNotFound, ConfigError; Refusal: nothing was done. Unfinished: go on by calling it again.
    """
    checked(check_topic, topic)
    here, there = await find(core, source), await find(core, target)
    if here.broker == there.broker:
        raise ConfigError(f"topic {topic} cannot be moved from broker {here.broker} to itself")
    if there.draining:
        raise Refusal(f"topic {topic} is not moved: broker {there.broker} is drained, and nobody would send to it")
    old, new = await _at(core, here, topic), await _at(core, there, topic)
    if old is None:
        if new is None or not new.writable:
            raise TopicNotFound(f"there is no topic {topic} at broker {here.broker}, to be moved to {there.broker}")
        return MovedTopic(topic, here.broker, there.broker, ())
    layout = (await orders(core)).get(topic)
    fixed = layout is not None and here.broker in dict(layout.parts)
    if fixed and not force:
        raise Refusal(
            f"topic {topic} is not moved: its order is fixed to {layout}, and keys would be read from both brokers at once while {here.broker} "
            "still has messages. Stop its producers until it is read, or force it"
        )
    if not force and not dry_run:
        _, unread = await _unconsumed(core, here, topic, await stats_at(core, here.master, topic))
        if unread:
            raise Refusal(
                f"topic {topic} is not moved: no group has ever read its {unread} messages at broker {here.broker}, which would be deleted. "
                "Read them first, or force it"
            )
    wanted = structs.replace(old, perm=old.perm | int(Perm.WRITE))
    steps = _steps(here, there, topic, old, new, fixed=fixed)
    if dry_run:
        return MovedTopic(topic, here.broker, there.broker, steps)
    if new is None or not new.writable or new.write_queues < wanted.write_queues:
        await _make(core, here, there, wanted if new is None else _larger(new, wanted))
    if fixed and layout is not None:
        await order.put(core, topic, str(_instead(layout, here.broker, there.broker)))
    if old.writable:
        await core.ask(here.master, put_topic(without_write(old)))
    moving = _Moving(core, here, there, topic, quiet_seconds, timeout, told)
    await moving.until_read(force=force)
    left = not await moving.leave()
    return MovedTopic(topic, here.broker, there.broker, steps, left)


def _steps(
    here: BrokerReplicas, there: BrokerReplicas, topic: str, old: TopicConfig, new: TopicConfig | None, *, fixed: bool
) -> tuple[str, ...]:
    queues = f"{old.write_queues} queues"
    return (
        *([] if new is not None and new.writable else [f"topic {topic} is made at {there.broker} with {queues}"]),
        *([f"{there.broker} takes the place of {here.broker} in its fixed layout"] if fixed else []),
        *([f"{here.broker} loses its write permission"] if old.writable else []),
        f"when nothing is sent to {here.broker} any more and its groups have read what is there, its queues there leave the route",
        f"topic {topic} is deleted at {here.broker}",
    )


def _larger(one: TopicConfig, other: TopicConfig) -> TopicConfig:
    return structs.replace(
        one,
        read_queues=max(one.read_queues, other.read_queues),
        write_queues=max(one.write_queues, other.write_queues),
        perm=one.perm | other.perm,
    )


def _instead(layout: OrderLayout, old: str, new: str) -> OrderLayout:
    counts = dict(layout.parts)
    if new in counts:  # each broker once: its queues then take the others' keys, too
        return OrderLayout(tuple(part for part in layout.parts if part[0] != old))
    return OrderLayout(tuple((new if broker == old else broker, count) for broker, count in layout.parts))


async def _at(core: ClientCore, place: BrokerReplicas, topic: str) -> TopicConfig | None:
    return (await tables_of(core, place.master, place.cluster, place.broker)).topics.get(topic)


async def _make(core: ClientCore, here: BrokerReplicas, there: BrokerReplicas, wanted: TopicConfig) -> None:
    groups = (await tables_of(core, here.master, here.cluster, here.broker)).groups
    known = (await tables_of(core, there.master, there.cluster, there.broker)).groups
    readers = readers_of([await offsets_at(core, here.master)], groups).get(wanted.name, [])
    for name in readers:
        if name not in known:
            await core.ask(there.master, PutGroup(groups[name]))
    await make(core, there, wanted, readers, await offsets_at(core, there.master))


async def _unconsumed(
    core: ClientCore, here: BrokerReplicas, topic: str, stats: TopicStats
) -> tuple[dict[str, int], int]:
    """Return group → messages that it lacks, and, if no group reads the topic at all, the messages that are there."""
    found = await lags_at(core, here.master, {topic: stats}, await readers_elsewhere(core, here))
    lags = {group: one[topic] for group, one in found.items() if topic in one}
    kept = 0 if lags else sum(one.max_offset - one.min_offset for one in stats.values())
    return {group: lag for group, lag in lags.items() if lag}, kept


class _Moving:
    """The part of a move that waits."""

    def __init__(
        self,
        core: ClientCore,
        here: BrokerReplicas,
        there: BrokerReplicas,
        topic: str,
        quiet_seconds: float,
        timeout: float | None,
        told: Told | None,
    ) -> None:
        self._core, self._here, self._there, self._topic = core, here, there, topic
        self._quiet_seconds, self._timeout, self._told = quiet_seconds, timeout, told
        self._start = self._answered = core.clock.monotonic()
        self._owed: tuple[dict[str, int], int] | None = None
        """Ends of the delay levels, and of the half messages, when the last send had come."""

    def _tell(self, progress: MoveProgress) -> None:
        if self._told is not None:
            self._told(progress)

    def _progress(self, phase: Literal["moving", "reading", "leaving", "done"], quiet: float) -> MoveProgress:
        passed = self._core.clock.monotonic() - self._start
        return MoveProgress(
            self._topic, self._here.broker, self._there.broker, phase, passed, quiet, self._quiet_seconds
        )

    async def until_read(self, *, force: bool) -> None:
        """Wait until nothing is sent to the old broker any more, and groups have all that is there. Raises Unfinished."""
        core, quiet = self._core, Quiet(self._start)
        now = self._progress("moving", 0.0)
        while True:
            began = core.clock.monotonic()
            try:
                now = await self._look(quiet)
                self._answered = core.clock.monotonic()
            except FAULTS as error:
                now = structs.replace(now, trouble=str(error))
            self._tell(now)
            if now.phase == "reading" and not now.trouble and (force or now.empty):
                return
            moment = core.clock.monotonic()
            if now.trouble and moment - self._answered > SILENT_SECONDS:
                raise Unfinished(f"topic {self._topic} has moved in part: {now.text()}. Move it again to go on")
            if self._timeout is not None and moment - self._start >= self._timeout:
                raise Unfinished(
                    f"topic {self._topic} has not left broker {self._here.broker} after {self._timeout:g} s: {now.text()}. What is sent goes "
                    f"to {self._there.broker}; move it again to go on"
                )
            await asyncio.sleep(max(PAUSE_SECONDS, 3 * (moment - began)))

    async def _look(self, quiet: Quiet) -> MoveProgress:
        core, address = self._core, self._here.master
        runtime = await core.ask(address, GetRuntime())
        stats = await stats_at(core, address, self._topic)
        announced = any((await announced_at(core, self._here.broker, [self._topic])).values())
        lags, unread = await _unconsumed(core, self._here, self._topic, stats)
        stored = sum(one.max_offset for one in stats.values())
        silence = quiet.seen(core.clock.monotonic(), stored, announced=announced)
        still = silence >= self._quiet_seconds
        first, end = await half_offsets(core, address)
        if self._owed is None and still:
            # What was given to the delays or begun as a transaction until now may be of this topic; what comes later is not.
            self._owed = {level: last for level, (_, last) in delays(runtime).items()}, end
        ends, halves = self._owed or ({}, 0)
        waiting = sum(max(0, ends.get(level, 0) - delivered) for level, (delivered, _) in delays(runtime).items())
        waiting += max(0, halves - first) + int(runtime.get("metaqStagedParts", "0"))
        now = self._progress("reading" if still else "moving", silence)
        return structs.replace(now, lags=lags, unread=unread, waiting=waiting)

    async def leave(self) -> bool:
        """Take the old broker's queues out of the routes, and delete the topic there. Returns False if it had to stay."""
        core, topic, here = self._core, self._topic, self._here
        servers = core.name_servers.addresses
        # Not asked who they are (30021): RocketMQ's name servers leave what they do not know without an answer.
        settings = await asyncio.gather(*(core.ask(address, GetNameServerSettings()) for address in servers))
        if not all(NAME_SERVER_OF_OURS in one for one in settings):
            self._tell(self._progress("done", self._quiet_seconds))
            return False
        await self._out_of_routes()
        start = core.clock.monotonic()
        # Consumers drop the queues with their next look at the route; pulls of a deleted topic would be refused.
        while (passed := core.clock.monotonic() - start) < self._quiet_seconds:
            self._tell(self._progress("leaving", passed))
            await asyncio.sleep(min(PAUSE_SECONDS, self._quiet_seconds))
        await core.ask(here.master, DeleteTopic(topic))
        await self._out_of_routes()  # the broker may have registered in between
        self._tell(self._progress("done", self._quiet_seconds))
        return True

    async def _out_of_routes(self) -> None:
        core, topic = self._core, self._topic
        await asyncio.gather(
            *(core.ask(address, DeleteTopicRoute(topic, self._here.broker)) for address in core.name_servers.addresses)
        )
        routes = await at_name_servers(core, lambda address: core.ask(address, GetRoute(topic)))
        lost = not all(route is not None and route.writable() for route in routes.values())
        # A name server of an earlier release has forgotten the other brokers' queues, too: the new one registers them again.
        if lost and (config := await _at(core, self._there, topic)) is not None:
            await core.ask(self._there.master, put_topic(config))
