"""Topics: create, delete, list, describe."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from msgspec import Struct

from metaq.admin.brokers import BrokerNotFound, masters
from metaq.admin.several import at_each, at_several, check_brokers, check_name_servers
from metaq.client.conversation.administration import CreateTopic, DeleteTopic, GetTopicStats
from metaq.client.conversation.groups import GetConnections, GetConsumeStats, GetGroups, GetMetaq1Groups
from metaq.client.conversation.routes import DeleteTopicRoute, ListTopics
from metaq.client.identity.names import checked
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError, MetaqError, NoRoute, NotFound
from metaq.model import MessageQueue, QueueData, QueueStats, Route
from metaq.model.topics.topic import check_topic


class TopicNotFound(NotFound):
    """No name server knows the topic."""


class TopicInUse(MetaqError):
    """Members of a group read the topic."""


class TopicDetails(Struct, frozen=True):
    """A topic's route, and the offsets [min, max) of each of its queues."""

    route: Route
    """Its brokers and queues."""
    queues: dict[MessageQueue, QueueStats]
    """Queue → its offsets, and when its newest message was stored."""

    @property
    def messages(self) -> int:
        """Number of messages in all queues."""
        return sum(stats.max_offset - stats.min_offset for stats in self.queues.values())


async def create(
    core: ClientCore, name: str, *, queues: int, perm: int, order: bool, cluster: str | None, broker: str | None
) -> list[str]:
    """Create or change a topic. Returns the brokers that have it now. Raises NothingDone, HalfDone."""
    checked(check_topic, name)
    targets = await masters(core, cluster=cluster, broker=broker)
    await check_brokers(core, targets, f"topic {name} is not created")
    await at_each(core, f"topic {name} is created", targets, CreateTopic(name, queues, perm, order))
    return list(targets)


async def update(
    core: ClientCore,
    name: str,
    *,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    cluster: str | None,
    broker: str | None,
    force: bool,
) -> list[QueueData]:
    """Change a topic where it is. Returns its queues there now. What is None stays.

    Raises TopicNotFound; ConfigError: more queues would be written than read, or (not with `force`) a group has not consumed a queue
    that would not be read any more; NothingDone, HalfDone.
    """
    route = (await describe(core, name)).route
    targets = await masters(core, cluster=cluster, broker=broker)
    wanted = {
        data.broker: QueueData(
            data.broker,
            data.read_queues if read_queues is None else read_queues,
            data.write_queues if write_queues is None else write_queues,
            data.perm if perm is None else perm,
            data.sys_flag,
        )
        for data in route.queues
        if data.broker in targets
    }
    if not wanted:
        holders = ", ".join(data.broker for data in route.queues) or "no broker"
        raise TopicNotFound(f"topic {name} has no queues there; it is at {holders}")
    targets = {at: targets[at] for at in wanted}
    await check_brokers(core, targets, f"topic {name} is not changed")
    for data in wanted.values():
        if data.write_queues > data.read_queues:
            raise ConfigError(
                f"topic {name} would have {data.write_queues} queues to write and {data.read_queues} to read at {data.broker}: what is in "
                "the others reaches nobody"
            )
        if not force:
            await _check_consumed(core, name, targets[data.broker], data)
    await at_several(
        core,
        f"topic {name} is changed",
        {
            (at, targets[at]): CreateTopic(
                name, data.write_queues, data.perm, read_queues=data.read_queues, sys_flag=data.sys_flag
            )
            for at, data in wanted.items()
        },
    )
    return list(wanted.values())


async def _check_consumed(core: ClientCore, name: str, address: str, data: QueueData) -> None:
    """Raise ConfigError if messages wait for a group in queues that will not be read."""
    # Groups of MetaQ 1.x are not asked for by topic: the table of each says what it has read here.
    for group in (*await core.ask(address, GetGroups(name)), *await core.ask(address, GetMetaq1Groups())):
        table, _ = await core.ask(address, GetConsumeStats(group))
        for queue, stats in table.items():
            if (
                queue.topic == name
                and queue.queue_id >= data.read_queues
                and stats.broker_offset > stats.consumer_offset
            ):
                raise ConfigError(
                    f"{stats.broker_offset - stats.consumer_offset} messages wait for group {group} in queue {queue.queue_id} at "
                    f"{data.broker}, which nobody would read any more: have fewer queues written first, and fewer read when the groups "
                    "have consumed them"
                )


async def delete(core: ClientCore, name: str, *, force: bool, dry_run: bool = False) -> None:
    """Delete a topic at all brokers, then at all name servers; with `dry_run`, only check whether that can be done.

    Raises TopicNotFound; TopicInUse: a group has members that read it (not with `force`); NothingDone, HalfDone.
    """
    servers = {f"name server {address}": address for address in core.name_servers.addresses}
    if not await _known_anywhere(core, servers, name):
        raise TopicNotFound(f"there is no topic {name} at name servers {core.name_servers}")
    try:
        targets = await masters(core)
    except BrokerNotFound:
        targets = {}  # Only a route to brokers that are gone is left: it is deleted at the name servers.
    await check_name_servers(core, f"topic {name} is not deleted", all_answer=False)
    await check_brokers(core, targets, f"topic {name} is not deleted")
    if not force:
        await _check_unread(core, name, targets.values())
    if dry_run:
        return
    if targets:
        await at_each(core, f"topic {name} is deleted", targets, DeleteTopic(name))
    routes = {pair: DeleteTopicRoute(name) for pair in servers.items()}
    await at_several(core, f"topic {name} is deleted", routes, done=targets)


async def _check_unread(core: ClientCore, name: str, addresses: Collection[str]) -> None:
    """Raise TopicInUse if a group has members that subscribe to a topic."""
    found, _ = await readers(core, name, addresses)
    if found:
        several = "groups" if len(found) > 1 else "group"
        raise TopicInUse(
            f"topic {name} is not deleted: {several} {', '.join(found)} {'have' if len(found) > 1 else 'has'} members that read it; stop "
            "them first, or delete it by force"
        )


async def readers(core: ClientCore, name: str, addresses: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the groups with members that subscribe to a topic, and those that only have progress in it."""
    told = await asyncio.gather(*(core.ask(address, GetGroups(name)) for address in addresses))
    known, found = sorted({group for groups in told for group in groups}), []
    for group in known:
        online = await asyncio.gather(*(core.ask(address, GetConnections(group)) for address in addresses))
        if any(name in one[1].subscriptions for one in online if one is not None):
            found.append(group)
    return found, [group for group in known if group not in found]


async def _known_anywhere(core: ClientCore, servers: Mapping[str, str], name: str) -> bool:
    """Return whether a name server has a route to a topic. After half a deletion it may be another than the one in use."""
    if name in await names(core, system=True):
        return True
    others = await asyncio.gather(
        *(core.ask(address, ListTopics()) for address in servers.values()), return_exceptions=True
    )
    return any(name in found for found in others if not isinstance(found, BaseException))


async def names(core: ClientCore, *, system: bool) -> list[str]:
    """Return the names of all topics."""
    return await core.consult(core.name_servers.topics(system=system))


async def describe(core: ClientCore, name: str) -> TopicDetails:
    """Return route and offsets of a topic."""
    try:
        route = await core.consult(core.name_servers.route(name))
    except NoRoute:
        if not (await core.consult(core.name_servers.cluster())).brokers:
            raise await core.consult(core.name_servers.no_route(name)) from None
        raise TopicNotFound(f"there is no topic {name} at name servers {core.name_servers}") from None
    holders = {data.broker for data in route.queues}
    tables = await asyncio.gather(
        *(
            core.ask(data.any_address, GetTopicStats(name))
            for data in route.brokers
            if data.broker in holders and data.any_address is not None
        )
    )
    queues: dict[MessageQueue, QueueStats] = {}
    for table in tables:
        queues |= table
    return TopicDetails(route, dict(sorted(queues.items())))
