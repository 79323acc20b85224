"""Cleaning by hand: what brokers may delete now, and messages of a topic that are to be unreadable from now on."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping, Sequence

from msgspec import Struct

from metaq.admin.brokers import masters
from metaq.admin.parts import AdminPart
from metaq.admin.replicas import Replica, replicas
from metaq.admin.several import NothingDone, at_several, check_brokers
from metaq.admin.topics import TopicNotFound, describe
from metaq.client.conversation.administration import (
    CleanExpiredFiles,
    CleanExpiredQueues,
    CleanUnusedTopics,
    PreviewCleaning,
    TrimTopic,
)
from metaq.client.conversation.call import Order
from metaq.client.identity.names import milliseconds
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, ConfigError
from metaq.model.upkeep.cleaning import Cleanable, TopicTrim, unread_by_group
from metaq.wire.codes import ResponseCode


class CleanedBroker(Struct, frozen=True):
    """What may go at one broker, or has gone; None: it is a RocketMQ, which does not tell."""

    broker: str
    """Name of the broker."""
    broker_id: int
    """0: the master; above: a slave."""
    address: str
    """`host:port`."""
    leads: bool
    """Whether it is the master, or the leader of its group."""
    found: Cleanable | None
    """What may go, or has gone."""


class UnreadMessages(ConfigError):
    """Groups have not read messages that a trim would make unreadable. Nothing was done.

    Args:
        topic: its name.
        trims: broker → what would go.
    """

    def __init__(self, topic: str, trims: Mapping[str, TopicTrim]) -> None:
        self.trims = dict(trims)
        self.groups = unread_by_group(trims.values())
        """Group → how many of the messages it has not read."""
        named = ", ".join(f"{group} ({messages} messages)" for group, messages in sorted(self.groups.items()))
        super().__init__(
            f"topic {topic} is not trimmed: groups have not read what would go: {named}. `--force` trims it all the same; they go on "
            "behind it"
        )


async def find(core: ClientCore, name: str) -> list[CleanedBroker]:
    """Return what may go at the replicas of a broker, or at the one at `host:port`. Raises BrokerNotFound; NothingDone."""
    found = await _replicas(core, name)
    previews = await asyncio.gather(*(core.ask(one.address, PreviewCleaning()) for one in found))
    return [
        CleanedBroker(one.broker, one.broker_id, one.address, one.leads, preview)
        for one, preview in zip(found, previews, strict=True)
    ]


async def clean(core: ClientCore, name: str, *, log_files: bool, queues: bool, topics: bool) -> list[CleanedBroker]:
    """Delete what may go at the replicas of a broker, see `Admin.clean_broker`."""
    wanted: list[Order] = []
    if log_files:
        wanted.append(CleanExpiredFiles())
    if queues:
        wanted.append(CleanExpiredQueues())
    if topics:
        wanted.append(CleanUnusedTopics())
    found = await find(core, name)
    for call in wanted:
        # Topics go by the master's word, which the slaves follow; files are each broker's own.
        of_masters = isinstance(call, CleanUnusedTopics)
        at = [one for one in found if one.leads or not of_masters]
        if at:
            await at_several(
                core, f"{name} is cleaned", {(f"{one.broker} ({one.address})", one.address): call for one in at}
            )
    return found


async def _replicas(core: ClientCore, name: str) -> list[Replica]:
    found = await replicas(core, name)
    for one in found:
        if one.error:
            raise NothingDone(f"{name} is not cleaned, nothing was changed: {one.address} does not answer: {one.error}")
    return found


async def trim(
    core: ClientCore,
    topic: str,
    *,
    before_ms: int | None,
    offset: int | None,
    queue_id: int | None,
    broker: str | None,
    dry_run: bool,
    force: bool,
) -> dict[str, TopicTrim]:
    """Make messages of a topic unreadable, see `Admin.trim_topic`."""
    if (before_ms is None) == (offset is None):
        raise ConfigError(f"a trim of topic {topic} needs a time or an offset, and not both")
    if queue_id is not None and offset is None:
        raise ConfigError(f"a trim of topic {topic} before a time is one of all its queues")
    holders = {data.broker for data in (await describe(core, topic)).route.queues}
    targets = {name: at for name, at in (await masters(core, broker=broker)).items() if name in holders}
    if not targets:
        raise TopicNotFound(f"topic {topic} has no queues there; it is at {', '.join(sorted(holders)) or 'no broker'}")
    if queue_id is not None and len(targets) > 1:
        raise ConfigError(f"topic {topic} has a queue {queue_id} at {', '.join(targets)}: name the broker")
    await check_brokers(core, targets, f"topic {topic} is not trimmed")
    call = TrimTopic(topic, before_ms, offset, queue_id, dry_run=True, force=force)
    plans = await _at_all(core, topic, targets, call)
    if dry_run:
        return plans
    if any(plan.unread for plan in plans.values()) and not force:
        raise UnreadMessages(topic, plans)
    carry_out = TrimTopic(topic, before_ms, offset, queue_id, dry_run=False, force=force)
    outcomes = await at_several(core, f"topic {topic} is trimmed", dict.fromkeys(targets.items(), carry_out))
    done = {name: outcomes[name, address] for name, address in targets.items()}
    if any(not trim.done for trim in done.values()):  # a group has come meanwhile
        raise UnreadMessages(topic, {name: trim for name, trim in done.items() if not trim.done})
    return done


async def _at_all(core: ClientCore, topic: str, targets: Mapping[str, str], call: TrimTopic) -> dict[str, TopicTrim]:
    found: Sequence[TopicTrim | BaseException] = await asyncio.gather(
        *(core.ask(address, call) for address in targets.values()), return_exceptions=True
    )
    plans: dict[str, TopicTrim] = {}
    for name, plan in zip(targets, found, strict=True):
        if isinstance(plan, BrokerError) and plan.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NothingDone(
                f"topic {topic} is not trimmed, nothing was changed: broker {name} is a RocketMQ, or an earlier MetaQ, and cannot do it"
            ) from plan
        if isinstance(plan, BaseException):
            raise plan
        plans[name] = plan
    return plans


class CleaningCalls(AdminPart):
    """Cleaning by hand, and trims of topics."""

    def find_cleanable(self, name: str) -> list[CleanedBroker]:
        """Return what cleaning would remove at the replicas of a broker, or at the one at `host:port`: `found` of each is None, or has
        `log_files`, `queue_files` and `topic_files`, each files and bytes, and `topics`, names.

        Raises also BrokerNotFound; NothingDone: one does not answer.
        """
        return self._run(find(self._open, name))

    def clean_broker(
        self, name: str, *, log_files: bool = True, queues: bool = True, topics: bool = True
    ) -> list[CleanedBroker]:
        """Delete at the replicas of a broker, or at the one at `host:port`, what they would delete in time. Returns what has gone.

        Args:
            name: of the broker.
            log_files: those whose time is up, at whatever hour.
            queues: files of consume queues that point to messages that are gone.
            topics: queues of topics that are in no table, with their messages; by the master.

        Raises also BrokerNotFound; NothingDone: one does not answer; HalfDone.
        """
        return self._run(clean(self._open, name, log_files=log_files, queues=queues, topics=topics))

    def trim_topic(
        self,
        name: str,
        *,
        before: float | dt.datetime | None = None,
        offset: int | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> dict[str, TopicTrim]:
        """Make messages of a topic unreadable for good, at every broker or at one. Returns broker → `queues`, what goes of
        each; `unread`, messages among it that a group has not read; `done`, whether it was done.

        The log's files are shared by all topics: they stay until their time is up.

        Args:
            name: of the topic.
            before: store time (a datetime, or seconds since the epoch) of the first message that stays.
            offset: or the queue offset of the first message that stays, in the queue `queue_id` or in each.
            dry_run: do nothing.
            force: also if groups have not read what goes.

        Raises also TopicNotFound; UnreadMessages; ConfigError: neither or both of `before` and `offset`; NothingDone: a broker does
        not answer, or is a RocketMQ; HalfDone.
        """
        return self._run(
            trim(
                self._open, name, before_ms=None if before is None else milliseconds(before), offset=offset,
                queue_id=queue_id, broker=broker, dry_run=dry_run, force=force,
            )
        )  # fmt: skip
