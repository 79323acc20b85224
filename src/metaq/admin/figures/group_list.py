"""All consumer groups with their members and lag."""

from __future__ import annotations

import asyncio
from typing import Final

from metaq.admin.brokers import masters
from metaq.admin.groups import (
    GroupProgress,
    groups_with_offsets,
    metaq1_groups,
    progress_at,
    settings_at,
    stopped_at,
)
from metaq.client.shared.core import ClientCore
from metaq.model.topics.system import is_system_group

_AT_ONCE: Final = 16
"""Groups that are asked about at once."""


async def names(core: ClientCore, *, system: bool) -> list[str]:
    """Return the names of the groups that a broker has settings of: each group that was created, or had a member since."""
    addresses = await masters(core)
    settings = await settings_at(core, addresses)
    return _shown({name for groups in settings.values() for name in groups}, system=system)


def _shown(found: set[str], *, system: bool) -> list[str]:
    return sorted(one for one in found if system or not is_system_group(one))


async def all_groups(core: ClientCore, *, system: bool) -> list[GroupProgress]:
    """Return the progress of every group that a broker has settings or progress of, by name: also of groups of MetaQ 1.x.

    `system`: also of brokers' own.
    """
    addresses = await masters(core)
    settings, consuming = await asyncio.gather(
        settings_at(core, addresses), groups_with_offsets(core, addresses.values())
    )
    found = {name for groups in settings.values() for name in groups} | consuming
    # ZooKeeper knows groups of other brokers, too: of these, there is nothing here.
    guests = await metaq1_groups(core, addresses.values()) - found
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> GroupProgress:
        async with places:
            return await progress_at(core, addresses, name, stopped_at(settings, name))

    groups = await asyncio.gather(*(one(name) for name in _shown(found | guests, system=system)))
    return [group for group in groups if group.group not in guests or group.queues or group.members]
