"""One broker of a cluster as growth works with it: its addresses, its tables, and which of its topics are users'."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from msgspec import Struct, structs

from metaq.admin.brokers import BrokerNotFound
from metaq.client.conversation.administration import CreateTopic, GetRuntime
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.following import GROUP_OFFSETS, GROUPS, TOPICS, GetTable
from metaq.client.conversation.routes import GetRoute, ListBrokersOwnTopics, ListValues
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError, MetaqError
from metaq.in_pieces import finish
from metaq.model import GroupConfig, Route, TopicConfig
from metaq.model.topics.route import MASTER_ID, ORDER_NAMESPACE, OrderLayout
from metaq.model.topics.system import AUTO_CREATE_TOPIC, SYSTEM_PREFIX, SYSTEM_TOPIC_NAMES, is_system_group, reply_topic
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, Perm
from metaq.wire import bodies

AT_ONCE: Final = 32
"""Questions that are asked at once."""

T = TypeVar("T")
Item = TypeVar("Item")

Offsets = Mapping[tuple[str, str], dict[int, int]]
"""(topic, group) → queue id → offset."""


class Unfinished(MetaqError):
    """What was begun has not ended in time. Everything stays as it is then: the same call goes on with it."""


class Refusal(MetaqError):
    """It would lose messages, or have sends fail. Nothing was changed."""


class BrokerReplicas(Struct, frozen=True):
    """A broker name: its cluster, and number → address of its replicas. `ours`: no RocketMQ."""

    broker: str
    """Its name."""
    cluster: str
    """Name of its cluster."""
    addresses: dict[int, str]
    """brokerId → `host:port`, 0 is the master."""
    ours: bool
    draining: bool
    """Whether it is being drained (docs/growth.md)."""

    @property
    def master(self) -> str:
        """Return the address of the master."""
        return self.addresses[MASTER_ID]

    @property
    def slaves(self) -> dict[int, str]:
        """Return brokerId → address of the slaves."""
        return {number: address for number, address in self.addresses.items() if number != MASTER_ID}


class Tables(Struct, frozen=True):
    """The tables of a broker's users: no system topics, no dead letters."""

    topics: dict[str, TopicConfig]
    groups: dict[str, GroupConfig]
    retries: dict[str, TopicConfig]
    dead_letters: dict[str, TopicConfig]
    template: TopicConfig | None
    """TBW102, after which topics are made that are sent to."""


async def find(core: ClientCore, name: str) -> BrokerReplicas:
    """Return the broker of a name, or of `host:port`. Raises BrokerNotFound: none, or it has no master; ConfigError: a slave's address."""
    info = await core.consult(core.name_servers.cluster())
    if ":" in name:
        found = next((one for one in info.brokers.values() if name in one.addresses.values()), None)
        if found is not None and found.master is not None and found.master != name:
            raise ConfigError(
                f"the broker at {name} is a slave of {found.broker}, which takes no sends: name {found.broker}"
            )
    else:
        found = info.brokers.get(name)
    if found is None:
        known = ", ".join(sorted(info.brokers)) or "none"
        raise BrokerNotFound(f"no broker {name} is registered at name servers {core.name_servers}; registered: {known}")
    if found.master is None:
        raise BrokerNotFound(f"broker {found.broker} has no master at name servers {core.name_servers}, only slaves")
    runtime = await core.ask(found.master, GetRuntime())
    return BrokerReplicas(
        found.broker, found.cluster, dict(found.addresses), "METAQ" in runtime, runtime.get("metaqDraining") == "true"
    )


async def tables_of(core: ClientCore, address: str, cluster: str, broker: str) -> Tables:
    """Return the topics and groups of the broker at an address."""
    topic_table, group_table, own = await asyncio.gather(
        core.ask(address, GetTable(TOPICS)),
        core.ask(address, GetTable(GROUPS)),
        core.ask(address, ListBrokersOwnTopics()),
    )
    _, topics = finish(bodies.topic_table_of(topic_table))
    _, groups = bodies.group_table_of(group_table)
    hidden = {*own, broker, cluster, reply_topic(cluster)} | SYSTEM_TOPIC_NAMES
    users = {name: one for name, one in topics.items() if name not in hidden and not name.startswith(SYSTEM_PREFIX)}

    def of(prefix: str) -> dict[str, TopicConfig]:
        return {name: one for name, one in users.items() if name.startswith(prefix)}

    return Tables(
        {name: one for name, one in users.items() if not name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))},
        {name: one for name, one in groups.items() if not is_system_group(name)},
        of(RETRY_PREFIX),
        of(DEAD_LETTER_PREFIX),
        topics.get(AUTO_CREATE_TOPIC),
    )


async def each(items: Iterable[Item], work: Callable[[Item], Awaitable[T]]) -> dict[Item, T]:
    """Return item → outcome, some at a time. Raises the first error."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> T:
        async with places:
            return await work(item)

    wanted = list(items)
    return dict(zip(wanted, await asyncio.gather(*(one(item) for item in wanted)), strict=True))


async def orders(core: ClientCore) -> dict[str, OrderLayout]:
    """Return topic → fixed layout, of all that some name server keeps. Layouts that cannot be read are left out."""
    found: dict[str, OrderLayout] = {}
    for table in (await at_name_servers(core, lambda address: core.ask(address, ListValues(ORDER_NAMESPACE)))).values():
        for topic, text in table.items():
            with contextlib.suppress(ConfigError):
                found[topic] = OrderLayout.of(text)
    return found


async def at_name_servers(core: ClientCore, ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Return name server → outcome, of those that answer."""
    servers = core.name_servers.addresses
    outcomes = await asyncio.gather(*(ask(address) for address in servers), return_exceptions=True)
    found: dict[str, T] = {}
    for address, outcome in zip(servers, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            found[address] = outcome
        elif not isinstance(outcome, FAULTS):
            raise outcome
    return found


def writable_at(route: Route | None, broker: str) -> bool:
    """Return whether clients that have this route send to the broker."""
    return route is not None and any(queue.broker == broker for queue in route.writable())


def writable_elsewhere(route: Route | None, broker: str) -> bool:
    """Return whether clients that have this route have another broker to send to."""
    return route is not None and any(queue.broker != broker for queue in route.writable())


async def announced_at(core: ClientCore, broker: str, topics: Iterable[str]) -> dict[str, bool]:
    """Return name server → whether it announces one of the topics as writable at the broker, of those that answer."""
    asked = list(topics)

    async def one(address: str) -> bool:
        for topic in asked:
            if writable_at(await core.ask(address, GetRoute(topic)), broker):
                return True
        return False

    return await at_name_servers(core, one)


def without_write(config: TopicConfig) -> TopicConfig:
    """Return a topic without the permission to write."""
    return structs.replace(config, perm=config.perm & ~int(Perm.WRITE))


def put_topic(config: TopicConfig) -> CreateTopic:
    """Return the request that makes a topic, or changes it."""
    return CreateTopic(
        config.name, config.write_queues, config.perm, config.order,
        read_queues=config.read_queues, sys_flag=config.sys_flag,
    )  # fmt: skip


async def offsets_at(core: ClientCore, address: str) -> Offsets:
    """Return the offsets of all groups at one broker."""
    return bodies.group_offsets_of(await core.ask(address, GetTable(GROUP_OFFSETS)))
