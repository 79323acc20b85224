"""Running members of consumer groups: their state, their positions, and messages that they are to consume at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from metaq.address import join_address
from metaq.admin.brokers import masters
from metaq.admin.groups import GroupNotFound
from metaq.admin.messages import MessageNotFound
from metaq.admin.traces import look_up
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import GetConnections
from metaq.client.conversation.questions import ConsumeDirectly, GetMemberPositions, GetMemberState
from metaq.client.shared.core import ClientCore
from metaq.errors import BadRequest, ConfigError, NoRoute, NotFound
from metaq.model import MessageQueue
from metaq.model.inspection import ConsumedDirectly, MemberState
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.wire.record import offset_id, parse_offset_id

ID_CHARS = (32, 56)


class MemberNotFound(NotFound):
    """The group has no member of that client id, or none that the broker of the message is connected to."""


class RunningMember(Struct, frozen=True):
    """A member's state, and the broker that it was asked through."""

    group: str
    """The consumer group."""
    client_id: str
    """The member."""
    broker: str
    """Name of the broker."""
    state: MemberState
    """What the member tells of itself."""


class DirectConsumption(Struct, frozen=True):
    """How a member consumed a message at an administrator's wish."""

    group: str
    """The consumer group."""
    client_id: str
    """The member."""
    topic: str | None
    """None: the message was named by its place."""
    offset_id: str
    """Where it is: a broker's address, and its offset in the log there."""
    broker: str
    """Name of the broker that it was asked through."""
    outcome: ConsumedDirectly
    """What the member answered."""


class _Online(Struct, frozen=True):
    """Who is in a group, as one broker knows it."""

    broker: str
    address: str
    client_ids: tuple[str, ...]
    topics: tuple[str, ...]


async def running_info(core: ClientCore, group: str, client_id: str, *, stacks: bool = False) -> RunningMember:
    """Return the state of a member. Raises GroupNotFound, MemberNotFound; BrokerError: it did not answer, or refused."""
    online = _with_member(group, await _online(core, group), client_id)[0]
    state = await core.ask(online.address, GetMemberState(group, client_id, stacks))
    return RunningMember(group, client_id, online.broker, state)


async def positions(
    core: ClientCore, group: str, topic: str, client_id: str | None = None
) -> dict[str, dict[MessageQueue, int]]:
    """Return client id → the offsets that it would commit now, of the members that answer. Raises GroupNotFound, BrokerError."""
    online = await _online(core, group)
    if client_id is not None:
        online = _with_member(group, online, client_id)
    return await core.ask(online[0].address, GetMemberPositions(group, topic, client_id))


async def consume(
    core: ClientCore, group: str, message_id: str, *, client_id: str | None = None, topic: str | None = None
) -> DirectConsumption:
    """Have a member consume a message, and return how that went.

    Raises: GroupNotFound, MemberNotFound, MessageNotFound. ConfigError: no message id. BrokerError: the member did not
    answer in ten seconds, or has no handler.
    """
    if len(message_id) not in ID_CHARS:
        raise ConfigError(f"{message_id[:60]!r} is no message id: those have 32 or 56 hex characters")
    addresses = await masters(core)
    online = await _online(core, group)
    broker = _named_broker(message_id, addresses)
    place, of_topic = message_id, None
    if broker is None:
        topics = (topic,) if topic else tuple(dict.fromkeys(name for one in online for name in one.topics))
        broker, place, of_topic = await _place_of(core, message_id, topics)
    there = [one for one in online if one.broker == broker]
    if not there:
        raise MemberNotFound(f"no member of group {group} is connected to broker {broker}, which has the message")
    chosen = _with_member(group, there, client_id)[0] if client_id else there[0]
    member = client_id or chosen.client_ids[0]
    outcome = await core.ask(chosen.address, ConsumeDirectly(group, member, place, broker))
    return DirectConsumption(group, member, of_topic, place, broker, outcome)


async def _online(core: ClientCore, group: str) -> list[_Online]:
    """Return the brokers that the group is connected to. Raises GroupNotFound: none is."""
    addresses = await masters(core)
    call = GetConnections(group)
    found = await asyncio.gather(*(core.ask(address, call) for address in addresses.values()))
    online = [
        _Online(
            broker, address, tuple(sorted(one.client_id for one in known[0])),
            tuple(topic for topic in sorted(known[1].subscriptions) if not topic.startswith(RETRY_PREFIX)),
        )
        for (broker, address), known in zip(addresses.items(), found, strict=True)
        if known is not None and known[0]
    ]  # fmt: skip
    if not online:
        raise GroupNotFound(f"consumer group {group} has no online members at name servers {core.name_servers}")
    return online


def _with_member(group: str, online: Iterable[_Online], client_id: str) -> list[_Online]:
    """Return the brokers that the member is connected to. Raises MemberNotFound: none is."""
    online = list(online)
    if found := [one for one in online if client_id in one.client_ids]:
        return found
    others = sorted({name for one in online for name in one.client_ids})
    raise MemberNotFound(f"group {group} has no member {client_id[:255]}; online are {', '.join(others[:20])}")


def _named_broker(message_id: str, addresses: dict[str, str]) -> str | None:
    """Return the broker whose address an id names; None: it is an id that its sender gave."""
    try:
        host, port, _ = parse_offset_id(message_id)
    except BadRequest as error:
        raise ConfigError(f"{message_id!r} is no message id: {error}") from None
    return next((broker for broker, address in addresses.items() if address == join_address(host, port)), None)


async def _place_of(core: ClientCore, message_id: str, topics: Iterable[str]) -> tuple[str, str, str]:
    """Return broker, offset id and topic of the message with a unique id. Raises MessageNotFound."""
    topics, silent = tuple(topics), list[str]()
    for topic in topics:
        try:
            found, unasked = await look_up(core, topic, message_id, unique=True)
        except NoRoute:
            continue
        except FAULTS as error:
            silent.append(f"those of topic {topic} ({error})")
            continue
        silent += unasked
        if found:
            # The newest: an id may be sent twice, and the group has had the older one.
            message = found[-1]
            return message.broker, offset_id(message.store_host_raw, message.log_offset), topic
    missing = f"; brokers that could not be asked: {', '.join(silent)}" if silent else ""
    raise MessageNotFound(
        f"no message {message_id} is stored in {', '.join(topics) or 'any topic'}, where it was looked for; --topic names another{missing}"
    )
