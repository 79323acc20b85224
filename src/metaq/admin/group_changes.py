"""Consumer groups: create, change, delete, copy, rename."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from metaq.admin import topics
from metaq.admin.brokers import masters
from metaq.admin.groups import GroupNotFound, MovedProgress, check_own, settings_at
from metaq.admin.several import at_each, at_several, check_brokers
from metaq.client.conversation.group_settings import CloneProgress, DeleteGroup, PutGroup
from metaq.client.conversation.groups import GetConnections, GetConsumeStats
from metaq.client.conversation.reading.offsets import SetPosition
from metaq.client.identity.names import checked
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError, MetaqError
from metaq.model import ConsumeStats, GroupConfig, MessageQueue
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_group


class GroupOnline(MetaqError):
    """A group has members, which would undo the change."""


class GroupInUse(MetaqError):
    """A group cannot take another's name, or cannot be left as it is."""


class GroupSettings(Struct, frozen=True):
    """What is to change of a group's settings; None: it stays, or is RocketMQ's default in a new group.

    `consume`: its members may pull. `broadcast`: they may broadcast. `retries`: deliveries of a message after its first one, before
    it is a dead letter. `retry_queues`: of its retry topic.
    """

    consume: bool | None = None
    broadcast: bool | None = None
    retries: int | None = None
    retry_queues: int | None = None

    def applied(self, config: GroupConfig) -> GroupConfig:
        """Return the settings with the changes."""
        changes = {
            "consume_enable": self.consume,
            "consume_broadcast_enable": self.broadcast,
            "retry_max": self.retries,
            "retry_queues": self.retry_queues,
        }
        return msgspec.structs.replace(config, **{key: one for key, one in changes.items() if one is not None})


async def put(
    core: ClientCore, name: str, settings: GroupSettings, *, cluster: str | None, broker: str | None
) -> dict[str, GroupConfig]:
    """Create or change a group. Returns broker → its settings there now. Raises NothingDone, HalfDone, BrokerNotFound."""
    checked(check_group, name)
    targets = await masters(core, cluster=cluster, broker=broker)
    await check_brokers(core, targets, f"group {name} is not created")
    known = await _settings(core, targets, name)
    wanted = {at: settings.applied(known.get(at, GroupConfig(name))) for at in targets}
    await at_several(core, f"group {name} is created", {(at, targets[at]): PutGroup(one) for at, one in wanted.items()})
    return wanted


async def delete(
    core: ClientCore, name: str, *, keep_progress: bool, dead_letters: bool, force: bool, dry_run: bool = False
) -> list[str]:
    """Delete a group at all brokers. Returns the topics that were deleted with it.

    With its progress and its retry topic, unless `keep_progress`; with `dead_letters`, with the topic of these too. With `dry_run`, only
    check whether that can be done, and return the topics that would be deleted.

    Raises GroupNotFound; GroupOnline: it has members, which would make it anew (not with `force`); NothingDone, HalfDone.
    """
    targets = await masters(core)
    await check_brokers(core, targets, f"group {name} is not deleted")
    await check_own(core, targets.values(), name, "is not deleted")
    if not await _settings(core, targets, name) and not await _progress(core, targets, name):
        raise GroupNotFound(f"no broker at name servers {core.name_servers} knows consumer group {name}")
    if not force:
        await _check_offline(core, targets, name, "is not deleted")
    if not dry_run:
        await at_each(core, f"group {name} is deleted", targets, DeleteGroup(name, not keep_progress))
    gone = []
    prefixes = [*([] if keep_progress else [RETRY_PREFIX]), *([DEAD_LETTER_PREFIX] if dead_letters else [])]
    for topic in (prefix + name for prefix in prefixes):
        with contextlib.suppress(topics.TopicNotFound):
            # `force`: whoever may delete a group with members has said so.
            await topics.delete(core, topic, force=True, dry_run=dry_run)
            gone.append(topic)
    return gone


async def clone(core: ClientCore, source: str, target: str, topic: str | None, *, dry_run: bool) -> list[MovedProgress]:
    """Give group `target` the progress that `source` has in a topic, or in all. Returns where it was and is.

    A group of MetaQ 1.x has its progress in ZooKeeper, where the broker looks it up: what that does not copy is written from here. A
    group with members has none there; what it does not subscribe to any more is left out on purpose.

    Raises ConfigError: both are one group; GroupNotFound: the source has none; GroupOnline: the target has members, which would
    overwrite it; NothingDone, HalfDone.
    """
    _check_two(source, target, "the progress of group {} cannot be copied to itself")
    targets = await masters(core)
    await check_brokers(core, targets, f"group {target} gets nothing")
    await _check_offline(core, targets, target, f"does not get the progress of group {source}")
    given = {
        queue: stats
        for queue, stats in (await _progress(core, targets, source)).items()
        if queue.topic == topic or (topic is None and not queue.topic.startswith(RETRY_PREFIX))
    }
    if not given:
        where = f"in topic {topic} " if topic else ""
        raise GroupNotFound(f"consumer group {source} has no progress {where}at any broker: there is nothing to copy")
    before = await _progress(core, targets, target)
    if not dry_run:
        await at_each(core, f"group {target} has the progress", targets, CloneProgress(source, target, topic))
        copied = await _progress(core, targets, target)
        left = {
            queue: stats.consumer_offset
            for queue, stats in given.items()
            if queue not in copied or stats.consumer_offset != _at(copied, queue) == _at(before, queue)
        }
        if left and not await _members(core, targets, source):
            await _set_progress(core, targets, target, left)
            copied = await _progress(core, targets, target)
        given = {queue: stats for queue, stats in copied.items() if queue in given}
    return [
        MovedProgress(queue, before[queue].consumer_offset if queue in before else 0, stats.consumer_offset, False)
        for queue, stats in sorted(given.items())
    ]


async def move(core: ClientCore, source: str, target: str, *, leave_retries: bool) -> list[MovedProgress]:
    """Let a group go on under another name: `target` gets its settings and progress, `source` is left stopped.

    What failed half way is repeated: the target then may have the source's progress already.

    Raises ConfigError: both are one group, which would be left stopped; GroupNotFound; GroupOnline: one of the two has members;
    GroupInUse: the target has progress of its own, or messages wait in the source's retry topic, which stay there (not with
    `leave_retries`); NothingDone, HalfDone.
    """
    _check_two(source, target, "group {} cannot be moved to itself")
    targets = await masters(core)
    await check_brokers(core, targets, f"group {source} is not moved")
    await check_own(core, targets.values(), source, f"is not moved to {target}: a copy of its progress can be made")
    for name in (source, target):
        await _check_offline(core, targets, name, f"so that group {source} is not moved to {target}")
    had, has = await _progress(core, targets, source), await _progress(core, targets, target)
    if strange := [one for one in has if has[one].consumer_offset not in (0, _at(had, one))]:
        raise GroupInUse(
            f"group {target} has progress of its own, such as {has[strange[0]].consumer_offset} in {strange[0]}: delete the group, or "
            f"overwrite it with a copy of group {source}'s, before group {source} is moved to it"
        )
    waiting = sum(
        max(0, one.broker_offset - one.consumer_offset)
        for queue, one in had.items()
        if queue.topic.startswith(RETRY_PREFIX)
    )
    if waiting and not leave_retries:
        raise GroupInUse(
            f"{waiting} messages wait in the retry topic of group {source}, and would stay there: let the group handle them first, or "
            "leave them"
        )
    known = await _settings(core, targets, source)
    old = {at: known.get(at, GroupConfig(source)) for at in targets}
    stop = {(at, targets[at]): PutGroup(msgspec.structs.replace(one, consume_enable=False)) for at, one in old.items()}
    # First, so that nobody consumes under the old name what counts under the new one.
    await at_several(core, f"group {source} is stopped", stop)
    moved = await clone(core, source, target, None, dry_run=False)
    new = {
        (at, targets[at]): PutGroup(msgspec.structs.replace(one, name=target, consume_enable=True))
        for at, one in old.items()
    }
    await at_several(core, f"group {target} is created", new)
    return moved


def _check_two(source: str, target: str, what: str) -> None:
    """Return if `target` is a legal name, and another one than `source`. Raises ConfigError, with `what` and the name in it."""
    checked(check_group, target)
    if target == source:
        raise ConfigError(f"{what.format(source)}: give the name of another group")


def _at(progress: Mapping[MessageQueue, ConsumeStats], queue: MessageQueue) -> int:
    return progress[queue].consumer_offset if queue in progress else 0


async def _members(core: ClientCore, targets: Mapping[str, str], name: str) -> list[str]:
    """Return the ids of a group's members. Those of a 1.x group are known to its ZooKeeper alone."""
    found = await asyncio.gather(*(core.ask(address, GetConnections(name)) for address in targets.values()))
    return sorted({member.client_id for one in found if one is not None for member in one[0]})


async def _check_offline(core: ClientCore, targets: Mapping[str, str], name: str, what: str) -> None:
    if members := await _members(core, targets, name):
        raise GroupOnline(f"group {name} has members, {what}; stop them first: {', '.join(members)}")


async def _set_progress(
    core: ClientCore, targets: Mapping[str, str], name: str, places: Mapping[MessageQueue, int]
) -> None:
    """Write where a group without members goes on. Raises the first error if all brokers fail; HalfDone if some do."""
    for queue, offset in sorted(places.items()):
        address = targets[queue.broker]
        what = f"group {name} has the progress in queue {queue.queue_id} of topic {queue.topic}"
        await at_several(core, what, {(queue.broker, address): SetPosition(name, queue, offset)})


async def _settings(core: ClientCore, targets: Mapping[str, str], name: str) -> dict[str, GroupConfig]:
    """Return broker → settings of a group, where there are any."""
    return {at: groups[name] for at, groups in (await settings_at(core, targets)).items() if name in groups}


async def _progress(core: ClientCore, targets: Mapping[str, str], name: str) -> dict[MessageQueue, ConsumeStats]:
    parts = await asyncio.gather(*(core.ask(address, GetConsumeStats(name)) for address in targets.values()))
    return {queue: stats for table, _ in parts for queue, stats in table.items()}
