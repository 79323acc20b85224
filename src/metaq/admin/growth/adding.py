"""A new broker gets the topics and groups of its cluster, so that clients spread onto it with their next look at routes.

Not copied are accounts (nobody gives out their secrets), quotas and options, messages, dead letters, and fixed layouts of strictly
ordered topics, whose keys would move.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec import Struct

from metaq.admin.brokers import BrokerNotFound, masters
from metaq.admin.growth.places import (
    BrokerReplicas,
    Offsets,
    Refusal,
    Tables,
    each,
    find,
    offsets_at,
    orders,
    put_topic,
    tables_of,
    without_write,
)
from metaq.client.conversation.group_settings import PutGroup
from metaq.client.conversation.reading.offsets import SetPosition
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError
from metaq.model import GroupConfig, MessageQueue, TopicConfig
from metaq.model.topics.topic import RETRY_PREFIX


class AddedBroker(Struct, frozen=True):
    """What a broker got, or would get.

    `like`: the brokers that were looked at. `topics`, `groups`: names of those made or changed. `different`: topics that were there
    with other queues or permissions, and were left as they are. `fixed`: strictly ordered topics, which are not sent to there before
    their layout is changed.
    """

    broker: str
    """Name of the broker."""
    like: tuple[str, ...]
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    different: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


async def add(core: ClientCore, name: str, *, like: str | None = None, dry_run: bool = False) -> AddedBroker:
    """Give a broker the topics and groups of broker `like`, or of all in its cluster. It may be repeated.

    Groups begin at the first message there, also those without members now. Raises BrokerNotFound, ConfigError; Refusal: it is being
    drained; FAULTS: a broker does not do it, repeat it then.
    """
    place = await find(core, name)
    if place.draining:
        raise Refusal(
            f"broker {place.broker} is drained, and nobody would send to it: `metaq broker drain {place.broker} --undo` first"
        )
    sources = await _sources(core, place, like)
    own = await tables_of(core, place.master, place.cluster, place.broker)
    theirs = [await tables_of(core, one.master, one.cluster, one.broker) for one in sources]
    groups, topics = _wanted(theirs)
    missing = {key: one for key, one in topics.items() if key not in own.topics and key not in own.retries}
    changed = {key: one for key, one in groups.items() if own.groups.get(key) != one}
    different = [
        key for key, one in topics.items() if (there := own.topics.get(key)) is not None and not _same(one, there)
    ]
    fixed = sorted((await orders(core)).keys() & topics.keys())
    if not dry_run:
        await each(changed.values(), lambda one: core.ask(place.master, PutGroup(one)))
        progress = [await offsets_at(core, one.master) for one in sources]
        readers = readers_of(progress, groups)
        here = await offsets_at(core, place.master)
        # One after the other: each is registered at the name servers before its answer comes.
        for topic in missing.values():
            await make(core, place, topic, readers.get(topic.name, ()), here)
    return AddedBroker(
        place.broker, tuple(one.broker for one in sources), tuple(sorted(missing)), tuple(sorted(changed)),
        tuple(sorted(different)), tuple(fixed),
    )  # fmt: skip


async def _sources(core: ClientCore, place: BrokerReplicas, like: str | None) -> list[BrokerReplicas]:
    if like is not None:
        one = await find(core, like)
        if one.broker == place.broker:
            raise ConfigError(f"broker {place.broker} cannot be made like itself: name another one")
        return [one]
    try:
        names = [name for name in await masters(core, cluster=place.cluster) if name != place.broker]
    except BrokerNotFound:
        names = []
    if not names:
        raise ConfigError(
            f"broker {place.broker} is alone in cluster {place.cluster}: name the broker that it is to be like (--like)"
        )
    return [await find(core, name) for name in names]


def _wanted(tables: Iterable[Tables]) -> tuple[dict[str, GroupConfig], dict[str, TopicConfig]]:
    """Return the groups and topics of brokers. Where brokers differ, that with the most queues counts."""
    groups: dict[str, GroupConfig] = {}
    topics: dict[str, TopicConfig] = {}
    for one in tables:
        for name, group in one.groups.items():
            groups.setdefault(name, group)
        retries = {name: topic for name, topic in one.retries.items() if name.removeprefix(RETRY_PREFIX) in one.groups}
        for name, topic in {**one.topics, **retries}.items():
            known = topics.get(name)
            if known is None or topic.write_queues > known.write_queues:
                topics[name] = topic
    return groups, topics


def _same(one: TopicConfig, other: TopicConfig) -> bool:
    return (one.read_queues, one.write_queues, one.perm) == (other.read_queues, other.write_queues, other.perm)


def readers_of(progress: Iterable[Offsets], groups: Container[str]) -> dict[str, list[str]]:
    """Return topic → those of the groups that have progress in it at some broker."""
    readers: dict[str, set[str]] = {}
    for one in progress:
        for topic, group in one:
            if group not in groups:  # a broker's own, or one that was deleted and left its progress
                continue
            readers.setdefault(topic, set()).add(group)
    return {topic: sorted(groups) for topic, groups in readers.items()}


async def make(
    core: ClientCore, place: BrokerReplicas, topic: TopicConfig, readers: Iterable[str], here: Offsets
) -> None:
    """Make a topic at a broker, whose readers begin at its first message there.

    Not writable before they do: a group without progress would begin behind what has come before its next member.
    """
    if not topic.name.startswith(RETRY_PREFIX):
        await core.ask(place.master, put_topic(without_write(topic)))
        for group in readers:
            known = here.get((topic.name, group), {})
            for queue_id in range(topic.read_queues):
                if queue_id not in known:
                    await core.ask(
                        place.master, SetPosition(group, MessageQueue(topic.name, place.broker, queue_id), 0)
                    )
    await core.ask(place.master, put_topic(topic))
