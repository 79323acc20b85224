"""Topics: create, delete, list, describe."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from metaq.admin.brokers import BrokerNotFound, masters
from metaq.client.core import ClientCore
from metaq.errors import BrokerError, ClientError, MetaqError, NoRoute
from metaq.model import MessageQueue, Route
from metaq.model.topic import check_topic, users_topics
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode


class TopicNotFound(MetaqError):
    """No name server knows the topic."""


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic's route, and the offsets of each of its queues: [min, max) is kept."""

    route: Route
    queues: dict[MessageQueue, bodies.QueueStats]

    @property
    def messages(self) -> int:
        """Messages kept, all queues together."""
        return sum(stats.max_offset - stats.min_offset for stats in self.queues.values())


async def create(
    core: ClientCore, name: str, *, queues: int, perm: int, order: bool, cluster: str | None, broker: str | None
) -> list[str]:
    """Create or change a topic; returns the brokers that have it now."""
    check_topic(name)
    header = headers.CreateTopicHeader(topic=name, read_queues=queues, write_queues=queues, perm=perm, order=order)
    targets = await masters(core, cluster=cluster, broker=broker)
    action = f"create topic {name}"
    await asyncio.gather(
        *(core.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, action) for address in targets.values())
    )
    return list(targets)


async def delete(core: ClientCore, name: str) -> None:
    """Delete a topic at all brokers, then at all name servers."""
    if name not in await names(core, system=True):
        raise TopicNotFound(f"there is no topic {name} at name servers {core.name_servers}")
    header = headers.TopicHeader(topic=name)
    try:
        targets = await masters(core)
    except BrokerNotFound:
        targets = {}  # only the route of brokers that are gone is left
    await asyncio.gather(
        *(
            core.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header, f"delete topic {name}")
            for address in targets.values()
        )
    )
    answers = await core.name_servers.call_all(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteRouteHeader(topic=name)
    )
    for address, answer in answers.items():
        if isinstance(answer, ClientError):
            raise answer
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "", address, f"delete topic {name}")


async def names(core: ClientCore, *, system: bool) -> list[str]:
    """Names of all topics."""
    found = set(bodies.topic_list_of(await _ask_name_server(core, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)))
    if system:
        return sorted(found)
    own = set(bodies.topic_list_of(await _ask_name_server(core, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)))
    return users_topics(found, own)


async def _ask_name_server(core: ClientCore, code: int) -> bytes:
    answer = await core.name_servers.call(code)
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark or "", str(core.name_servers), "list the topics")
    return bytes(answer.body)


async def describe(core: ClientCore, name: str) -> TopicDetails:
    """Route and offsets of a topic."""
    try:
        route = await core.name_servers.route(name)
    except NoRoute:
        if not (await core.name_servers.cluster()).brokers:
            raise await core.name_servers.no_route(name) from None
        raise TopicNotFound(f"there is no topic {name} at name servers {core.name_servers}") from None
    header = headers.TopicHeader(topic=name)
    holders = {data.broker for data in route.queues}
    answers = await asyncio.gather(
        *(
            core.ask(data.any_address, RequestCode.GET_TOPIC_STATS_INFO, header, f"tell the offsets of {name}")
            for data in route.brokers
            if data.broker in holders and data.any_address is not None
        )
    )
    queues: dict[MessageQueue, bodies.QueueStats] = {}
    for answer in answers:
        queues |= bodies.topic_stats_of(answer.body)
    return TopicDetails(route, dict(sorted(queues.items())))
