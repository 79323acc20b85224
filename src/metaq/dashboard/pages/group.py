"""A consumer group: who is in it, what they subscribe to, who owns each queue, and how far behind it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.admin import groups, members, topics
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error, release
from metaq.dashboard.rendering.filters import count
from metaq.model import MessageQueue
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX

MEMBERS_ASKED: Final = 50
"""Members that are asked which queues they own: each answers by way of a broker."""
QUEUES_MAX: Final = 500
OWNERS_SECONDS: Final = 1.2
"""What finding out the owners may take of a page's time: a member that hangs answers nobody."""


class MemberRow(Struct, frozen=True):
    """`queues`: that it owns; None: it does not tell. `wants`: topic → filter, if members differ and the broker tells who wants what."""

    client: str
    address: str
    language: str
    release: str
    queues: int | None
    wants: dict[str, str] | None
    error: str


class GroupQueueRow(Struct, frozen=True):
    """`wait_seconds`: age of the oldest message that waits; None: none does, or it is not known. `owner`: "": nobody is known."""

    topic: str
    broker: str
    queue: int
    end: int
    consumed: int
    lag: int
    wait_seconds: float | None
    bytes: int | None
    owner: str


class OwnTopic(Struct, frozen=True):
    """The group's retry or dead-letter topic. `messages`: None: there is none."""

    topic: str
    what: str
    messages: int | None


class Group(Struct, frozen=True):
    """`lag_seconds`: age of the oldest message that waits; None: it is not known. `subscriptions`: topic → filter."""

    group: str
    model: str
    starts: str
    rate: float
    lag: int
    lag_seconds: float | None
    waiting_bytes: int | None
    points: list[float | None]
    differs: bool
    subscriptions: dict[str, str]
    members: list[MemberRow]
    queues: list[GroupQueueRow]
    queues_more: int
    unread: int
    own: list[OwnTopic]
    notes: list[str]


async def load(asked: Asked) -> Group:
    name, core = asked.path["group"], asked.cluster.core
    progress = await asked.ask(groups.progress(core, name))
    owners: dict[str, members.RunningMember] = {}
    failed: dict[str, str] = {}
    notes = list[str]()
    asked_for = [one.client_id for one in progress.members[:MEMBERS_ASKED]]
    if asked_for:
        try:
            owners, failed = await asked.ask(
                each_or_error((client, members.running_info(core, name, client)) for client in asked_for),
                OWNERS_SECONDS,
            )
        except FAULTS as error:
            notes.append(f"who owns the queues: {error}")
    if len(progress.members) > MEMBERS_ASKED:
        notes.append(f"only {MEMBERS_ASKED} of {count(len(progress.members))} members were asked which queues they own")
    try:
        own = await asked.ask(_own(core, name), OWNERS_SECONDS)
    except FAULTS as error:
        own = []
        notes.append(f"retry and dead-letter topic: {error}")
    owner_of = {queue: client for client, one in owners.items() for queue in one.state.queues}
    return _group(asked, progress, owners, failed, owner_of, own, notes)


def _group(
    asked: Asked,
    progress: groups.GroupProgress,
    owners: dict[str, members.RunningMember],
    failed: dict[str, str],
    owner_of: Mapping[MessageQueue, str],
    own: list[OwnTopic],
    notes: list[str],
) -> Group:
    rows = [
        GroupQueueRow(
            one.queue.topic, one.queue.broker, one.queue.queue_id, one.max_offset, one.consumed, one.lag,
            None if one.oldest_waiting_ms is None else max(0, progress.now_ms - one.oldest_waiting_ms) / 1000,
            one.waiting.bytes if one.waiting is not None else None, owner_of.get(one.queue, ""),
        )
        for one in sorted(progress.queues, key=lambda one: (-one.lag, one.queue))
    ]  # fmt: skip
    consumer = progress.consumer
    return Group(
        group=progress.group,
        model=consumer.model.value.lower() if consumer is not None else "",
        starts=consumer.consume_from.value.removeprefix("CONSUME_FROM_").replace("_", " ").lower() if consumer is not None else "",
        rate=progress.rate,
        lag=progress.lag,
        lag_seconds=progress.lag_seconds,
        waiting_bytes=progress.waiting.bytes if progress.waiting is not None else None,
        points=asked.cluster.sampler.groups.of(progress.group),
        differs=progress.differs,
        subscriptions=progress.subscriptions,
        members=[
            MemberRow(
                one.client_id, one.address, one.language, release(one.version),
                len(owners[one.client_id].state.queues) if one.client_id in owners else None,
                dict(one.wants) if one.wants is not None else None, failed.get(one.client_id, ""),
            )
            for one in progress.members
        ],
        queues=rows[:QUEUES_MAX],
        queues_more=max(0, len(rows) - QUEUES_MAX),
        unread=len(progress.unread),
        own=own,
        notes=notes,
    )  # fmt: skip


async def _own(core: ClientCore, group: str) -> list[OwnTopic]:
    found = list[OwnTopic]()
    for prefix, what in ((RETRY_PREFIX, "retry"), (DEAD_LETTER_PREFIX, "dead letters")):
        try:
            messages: int | None = (await topics.describe(core, prefix + group)).messages
        except topics.TopicNotFound:
            messages = None
        found.append(OwnTopic(prefix + group, what, messages))
    return found


PAGE = Page(name="group", path="/groups/{group}", title="{group}", under="groups", values=Group, load=load)
