"""Quotas of brokers of ours: shown with what is taken, set and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from metaq.admin.brokers import masters
from metaq.admin.several import at_each, check_brokers
from metaq.client.conversation.administration import GetQuotas, SetQuota
from metaq.client.shared.core import ClientCore
from metaq.errors import NotFound
from metaq.model.quota import QuotaUse, check_subject, parse_limits


class QuotaNotFound(NotFound):
    """No broker that was asked has a quota of this name."""


async def show(core: ClientCore, broker: str | None) -> dict[str, list[QuotaUse]]:
    """Return broker → its quotas, those of options included, and what their subjects take. Raises BrokerNotFound, BrokerError."""
    servers = await _servers(core, broker)
    uses = await asyncio.gather(*(core.ask(address, GetQuotas()) for address in servers.values()))
    return dict(zip(servers, uses, strict=True))


async def put(core: ClientCore, broker: str | None, kind: str, name: str, limits: str) -> list[str]:
    """Set a quota. Returns the names of the brokers.

    Raises ConfigError: the quota cannot be read; BrokerNotFound, NothingDone, HalfDone, BrokerError.
    """
    parse_limits(limits, check_subject(kind, name)[0])
    servers = await _servers(core, broker)
    what = f"the quota of the {kind} {name} is"
    await check_brokers(core, servers, f"{what} not changed")
    await at_each(core, f"{what} changed", servers, SetQuota(kind, name, limits))
    return list(servers)


async def remove(core: ClientCore, broker: str | None, kind: str, name: str) -> list[str]:
    """Remove a quota from the brokers that have it. Returns their names.

    Raises ConfigError: no such kind; QuotaNotFound, BrokerNotFound, HalfDone, BrokerError.
    """
    check_subject(kind, name)
    servers, found = await _servers(core, broker), await show(core, broker)
    having = {
        server: servers[server]
        for server, uses in found.items()
        if any(use.own and (use.kind, use.name) == (kind, name) for use in uses)
    }
    if not having:
        raise QuotaNotFound(f"the {kind} {name} has no quota of its own at {', '.join(servers)}")
    await at_each(core, f"the quota of the {kind} {name} is removed", having, SetQuota(kind, name, None))
    return list(having)


async def _servers(core: ClientCore, broker: str | None) -> Mapping[str, str]:
    """Return name → address: of all masters, of one, or what is an address already."""
    if broker is not None and ":" in broker:
        return {broker: broker}
    return await masters(core, broker=broker)
