"""Topics: create, delete, list, describe."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from metaq.admin.brokers import BrokerNotFound, masters
from metaq.client.conversation.administration import CreateTopic, DeleteTopic, GetTopicStats
from metaq.client.conversation.routes import DeleteTopicRoute
from metaq.client.shared.core import ClientCore
from metaq.client.shared.names import checked
from metaq.errors import MetaqError, NoRoute
from metaq.model import MessageQueue, QueueStats, Route
from metaq.model.topics.topic import check_topic


class TopicNotFound(MetaqError):
    """No name server knows the topic."""


class TopicDetails(Struct, frozen=True):
    """A topic's route, and the offsets [min, max) of each of its queues."""

    route: Route
    queues: dict[MessageQueue, QueueStats]

    @property
    def messages(self) -> int:
        """Stored messages of all queues."""
        return sum(stats.max_offset - stats.min_offset for stats in self.queues.values())


async def create(
    core: ClientCore, name: str, *, queues: int, perm: int, order: bool, cluster: str | None, broker: str | None
) -> list[str]:
    """Create or change a topic. Returns the brokers that have it now."""
    checked(check_topic, name)
    targets = await masters(core, cluster=cluster, broker=broker)
    call = CreateTopic(name, queues, perm, order)
    await asyncio.gather(*(core.ask(address, call) for address in targets.values()))
    return list(targets)


async def delete(core: ClientCore, name: str) -> None:
    """Delete a topic at all brokers, then at all name servers."""
    if name not in await names(core, system=True):
        raise TopicNotFound(f"there is no topic {name} at name servers {core.name_servers}")
    try:
        targets = await masters(core)
    except BrokerNotFound:
        targets = {}  # Only a route to brokers that are gone is left: it is deleted at the name servers.
    await asyncio.gather(*(core.ask(address, DeleteTopic(name)) for address in targets.values()))
    deletions = [core.ask(address, DeleteTopicRoute(name)) for address in core.name_servers.addresses]
    for outcome in await asyncio.gather(
        *deletions, return_exceptions=True
    ):  # All are asked, even if one cannot be reached.
        if outcome is not None:
            raise outcome


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
