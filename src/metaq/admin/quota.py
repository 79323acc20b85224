"""Quotas of brokers of ours: shown with what is taken, set and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from metaq.admin.brokers import masters
from metaq.admin.several import at_each, check_brokers
from metaq.client.conversation.administration import GetQuotas, SetQuota
from metaq.client.shared.core import ClientCore
from metaq.model.quota import QuotaUse, check_subject, parse_limits


async def show(core: ClientCore, broker: str | None) -> dict[str, list[QuotaUse]]:
    """Return broker → its quotas, those of options included, and what their subjects take. Raises BrokerNotFound, BrokerError."""
    servers = await _servers(core, broker)
    uses = await asyncio.gather(*(core.ask(address, GetQuotas()) for address in servers.values()))
    return dict(zip(servers, uses, strict=True))


async def put(core: ClientCore, broker: str | None, kind: str, name: str, limits: str | None) -> list[str]:
    """Set a quota, or remove it (`limits` None). Returns the names of the brokers.

    Raises ConfigError: the quota cannot be read; BrokerNotFound, NothingDone, HalfDone, BrokerError.
    """
    subject = check_subject(kind, name)
    if limits is not None:
        parse_limits(limits, subject[0])
    servers = await _servers(core, broker)
    what = f"the quota of the {kind} {name} is"
    await check_brokers(core, servers, f"{what} not changed")
    await at_each(core, f"{what} changed", servers, SetQuota(kind, name, limits))
    return list(servers)


async def _servers(core: ClientCore, broker: str | None) -> Mapping[str, str]:
    """Return name → address: of all masters, of one, or what is an address already."""
    if broker is not None and ":" in broker:
        return {broker: broker}
    return await masters(core, broker=broker)
