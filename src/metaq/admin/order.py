"""The fixed layouts of strictly ordered topics, kept by every name server: show, set, delete."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from metaq.admin.several import at_each, check_name_servers
from metaq.admin.topics import TopicNotFound
from metaq.client.conversation.call import Order
from metaq.client.conversation.routes import DeleteValue, GetValue, PutValue
from metaq.client.identity.names import checked
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError, NoRoute
from metaq.model import Route
from metaq.model.topics.route import ORDER_NAMESPACE, OrderLayout
from metaq.model.topics.topic import check_topic


class TopicOrder(Struct, frozen=True):
    """A topic's fixed queues, as the name servers have them."""

    topic: str
    """Name of the topic."""
    layouts: dict[str, str | None]
    """Name server → `broker:queues;...`, as it is kept there; None: the topic has none there."""
    in_routes: bool
    """Whether routes carry the layout, as with `orderMessageEnable=true`. Our producers find it without; RocketMQ's
    need it."""

    @property
    def layout(self) -> str | None:
        """Layout that all name servers have; None if they differ, or have none."""
        first, *others = set(self.layouts.values())
        return None if others else first


async def show(core: ClientCore, topic: str) -> TopicOrder:
    """Return the layouts of a topic. Raises as asking a name server does: all must answer."""
    checked(check_topic, topic)
    servers = core.name_servers.addresses
    values = await asyncio.gather(*(core.ask(server, GetValue(ORDER_NAMESPACE, topic)) for server in servers))
    try:
        in_routes = (await _route(core, topic)).order is not None
    except TopicNotFound:
        in_routes = False
    return TopicOrder(topic, dict(zip(servers, values, strict=True)), in_routes)


async def put(core: ClientCore, topic: str, layout: str | None) -> str:
    """Set a topic's layout at every name server; None: the queues that it has now. Returns the layout.

    Raises TopicNotFound, NothingDone, HalfDone; ConfigError: it cannot be read, or names brokers or queues that the topic does not have.
    """
    checked(check_topic, topic)
    route = await _route(core, topic)
    counts = {data.broker: data.write_queues for data in route.queues}
    wanted = OrderLayout.of(layout) if layout is not None else OrderLayout.from_counts(counts.items())
    for broker, count in wanted.parts:
        if broker not in counts:
            raise ConfigError(f"topic {topic} has no queues at broker {broker}; it is at {', '.join(sorted(counts))}")
        if count > counts[broker]:
            raise ConfigError(f"topic {topic} has {counts[broker]} queues at broker {broker}, not {count}")
    await _at_name_servers(core, f"the order of topic {topic} is", "set", PutValue(ORDER_NAMESPACE, topic, str(wanted)))
    return str(wanted)


async def delete(core: ClientCore, topic: str) -> None:
    """Delete a topic's fixed layout at every name server. Raises NothingDone, HalfDone."""
    checked(check_topic, topic)
    await _at_name_servers(core, f"the order of topic {topic} is", "deleted", DeleteValue(ORDER_NAMESPACE, topic))


async def _at_name_servers(core: ClientCore, what: str, done: str, call: Order) -> None:
    """Ask every name server: they keep these values on disk, and do not have them from each other."""
    await check_name_servers(core, f"{what} not {done}", all_answer=True)
    servers = {f"name server {address}": address for address in core.name_servers.addresses}
    await at_each(core, f"{what} {done}", servers, call)


async def _route(core: ClientCore, topic: str) -> Route:
    try:
        return await core.consult(core.name_servers.route(topic))
    except NoRoute:
        raise TopicNotFound(f"there is no topic {topic} at name servers {core.name_servers}") from None
