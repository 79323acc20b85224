"""Who has consumed a message: where every group of its topic stands, in the words of mqadmin's queryMsgById."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from metaq.admin import traces
from metaq.admin.messages import answered, get
from metaq.admin.traces import TraceEvent, TraceNotFound
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import GetConnections, GetConsumeStats, GetGroups, GetMetaq1Groups
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError
from metaq.model import ConsumerView, ConsumeStats, MessageModel, MessageQueue, StoredMessage
from metaq.model.topics.system import TRACE_TOPIC

_AT_ONCE: Final = 16
"""Groups that are asked about at a time."""


class TrackState(enum.StrEnum):
    """What became of a message in a group."""

    CONSUMED = "CONSUMED"
    """The group's progress is past it."""
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The group is past it, and has not asked for its tag."""
    PULL = "PULL"
    """Its members pull by themselves, and decide what they have consumed."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    """The group's progress has not reached it."""
    NOT_ONLINE = "NOT_ONLINE"
    """No member is connected, or no broker has an offset of the group yet: see `detail`."""
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """Each member has its own offsets, which brokers do not know."""
    UNKNOWN = "UNKNOWN"
    """No broker could tell."""


class GroupTrack(Struct, frozen=True, kw_only=True):
    """What became of a message in one group.

    `offset`: the next one that the group consumes in the message's queue, None: unknown. `deliveries`: those that the group's
    clients have traced, in the order of time. `detail`: more, as text.
    """

    group: str
    """Name of the group."""
    state: TrackState
    """What became of the message."""
    offset: int | None = None
    detail: str = ""
    deliveries: tuple[TraceEvent, ...] = ()


class MessageTrack(Struct, frozen=True):
    """A message, and every group that subscribes to its topic or has an offset in it, by name; also of MetaQ 1.x. `silent`: brokers that could not be
    asked for groups, so that some may be missing."""

    message: StoredMessage
    """The message."""
    groups: tuple[GroupTrack, ...]
    """What became of it in each group."""
    silent: tuple[str, ...] = ()


async def track(
    core: ClientCore, message_id: str, topic: str | None, *, trace_topic: str = TRACE_TOPIC
) -> MessageTrack:
    """Return where all groups stand with a message. Raises as `messages.get`; the first broker's error if none answers."""
    return await track_of(core, await get(core, message_id, topic), trace_topic=trace_topic)


async def track_of(core: ClientCore, message: StoredMessage, *, trace_topic: str = TRACE_TOPIC) -> MessageTrack:
    """Return where all groups stand with a message that was found. Raises NoRoute; the first broker's error if none answers."""
    route = await core.routes.route(message.topic)
    # The message's own broker first: every member of a group is connected to it, and it knows the group's offset.
    addresses = {
        data.broker: data.any_address
        for data in sorted(route.brokers, key=lambda data: (data.broker != message.broker, data.broker))
        if data.any_address is not None
    }
    asked = [(broker, core.ask(address, GetGroups(message.topic))) for broker, address in addresses.items()]
    first = [(broker, core.ask(address, GetMetaq1Groups())) for broker, address in addresses.items()]
    (found, silent), (of_metaq1, _), deliveries = await asyncio.gather(
        answered(asked), answered(first), _deliveries(core, message, trace_topic)
    )
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(group: str) -> GroupTrack:
        async with turns:
            return await _of_group(core, group, message, addresses, deliveries.get(group, ()))

    async def other(group: str) -> GroupTrack | None:
        async with turns:
            return await _of_metaq1(core, group, message, addresses)

    groups = {group for some in found for group in some}
    others = {group for some in of_metaq1 for group in some} - groups
    tracks = await asyncio.gather(*map(one, groups), *map(other, others))
    shown = sorted((track for track in tracks if track is not None), key=lambda track: track.group)
    silent += [data.broker for data in route.brokers if data.any_address is None]
    return MessageTrack(message, tuple(shown), tuple(sorted(silent)))


async def _of_group(
    core: ClientCore,
    group: str,
    message: StoredMessage,
    addresses: Mapping[str, str],
    deliveries: tuple[TraceEvent, ...],
) -> GroupTrack:
    view, no_members = await _members(core, group, addresses.values())
    stats, no_stats = await _stats(core, group, addresses.values())
    place = stats.get(message.queue) if stats is not None else None
    offset = place.consumer_offset if place is not None else None
    if view is None and no_members:
        state, detail = TrackState.UNKNOWN, no_members
    else:
        state, detail = judge(message, view, offset, has_offsets=None if stats is None else bool(stats))
        detail = detail or (no_stats if state is TrackState.UNKNOWN else "")
    return GroupTrack(group=group, state=state, offset=offset, detail=detail, deliveries=deliveries)


async def _of_metaq1(
    core: ClientCore, group: str, message: StoredMessage, addresses: Mapping[str, str]
) -> GroupTrack | None:
    """Return where a group of MetaQ 1.x stands: brokers know its offsets, and not its members. None: it does not read the queue."""
    stats, _ = await _stats(core, group, addresses.values())
    place = stats.get(message.queue) if stats is not None else None
    if place is None:
        return None
    past = place.consumer_offset > message.queue_offset
    state = TrackState.CONSUMED if past else TrackState.NOT_CONSUME_YET
    return GroupTrack(group=group, state=state, offset=place.consumer_offset, detail="of MetaQ 1.x")


def judge(
    message: StoredMessage, view: ConsumerView | None, offset: int | None, *, has_offsets: bool | None
) -> tuple[TrackState, str]:
    """Return state and detail.

    Args:
        view: what the group's members say of it; None: nobody is connected.
        offset: the group's in the message's queue; None: it has none.
        has_offsets: whether it has one in any queue of any topic; None: no broker could tell.
    """
    if view is None:
        if offset is None or not has_offsets:
            return TrackState.NOT_ONLINE, "no member is connected"
        passed = "past" if offset > message.queue_offset else "not past"
        return TrackState.NOT_ONLINE, f"no member is connected; its offset is {passed} the message"
    if not view.push:
        return TrackState.PULL, ""
    if view.model is MessageModel.BROADCASTING:
        return TrackState.CONSUME_BROADCASTING, ""
    if has_offsets is None:
        return TrackState.UNKNOWN, ""
    if not has_offsets:  # mqadmin's word for it
        return TrackState.NOT_ONLINE, "members are connected, and have not committed an offset yet"
    if offset is None or offset <= message.queue_offset:
        return TrackState.NOT_CONSUME_YET, ""
    subscription = view.subscriptions.get(message.topic)
    if subscription is not None and subscription.tags and not {message.tag, "*"} & subscription.tags:
        return TrackState.CONSUMED_BUT_FILTERED, f"it has asked for {subscription.spelling}"
    return TrackState.CONSUMED, ""


async def _members(core: ClientCore, group: str, addresses: Collection[str]) -> tuple[ConsumerView | None, str]:
    """Return what a group's members say of it; None: nobody is in it, or with the reason why it is unknown."""
    reason = ""
    for address in addresses:
        try:
            online = await core.ask(address, GetConnections(group))
        except FAULTS as error:
            reason = str(error)
            continue
        if online is not None:
            return online[1], ""
    return None, reason


async def _stats(
    core: ClientCore, group: str, addresses: Collection[str]
) -> tuple[dict[MessageQueue, ConsumeStats] | None, str]:
    """Return a group's offsets at the first broker that has some, empty if none has; None and the reason: nobody could tell."""
    found: dict[MessageQueue, ConsumeStats] | None = None
    reason = ""
    for address in addresses:
        try:
            table, _ = await core.ask(address, GetConsumeStats(group))
        except FAULTS as error:
            reason = str(error)
            continue
        if table:
            return table, ""
        found = {}
    return found, reason


async def _deliveries(core: ClientCore, message: StoredMessage, trace_topic: str) -> dict[str, tuple[TraceEvent, ...]]:
    """Return group → its traced deliveries of the message. Few clients trace, so nothing of it is an error."""
    try:
        events = (await traces.trace(core, message.message_id, trace_topic=trace_topic)).events
    except (TraceNotFound, ConfigError, *FAULTS):
        return {}
    found: dict[str, tuple[TraceEvent, ...]] = {}
    for event in events:
        if event.what == "delivered":
            found[event.group] = (*found.get(event.group, ()), event)
    return found
