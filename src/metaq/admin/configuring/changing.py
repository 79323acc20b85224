"""Options of running servers, changed: all that are named, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from metaq.admin.configuring.judgement import checked
from metaq.admin.configuring.reading import ServerOptions, find, read
from metaq.admin.several import at_several
from metaq.client.conversation.administration import ChangeOptions
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, ConfigError
from metaq.wire.codes import ResponseCode


class ChangedOption(Struct, frozen=True):
    """An option of one server, before and after a change."""

    server: str
    """Name of a broker, with `/` and its brokerId if that is not 0; or `name server` and its address."""
    key: str
    """The option, as RocketMQ spells it."""
    before: str | None
    """Its value before; None: it had none."""
    after: str | None
    """Its value now; None: it has none."""
    at_once: bool
    """It is in force. False: of a RocketMQ, which does not say whether it needs a restart for that."""


async def change_broker(core: ClientCore, broker: str, pairs: Mapping[str, str]) -> list[ChangedOption]:
    """Change options of a broker (a name, or `host:port`). Raises ConfigError, BrokerNotFound, BrokerError: it refuses."""
    return await _change(core, [await find(core, broker)], pairs, namesrv=False)


async def change_name_servers(core: ClientCore, at: str | None, pairs: Mapping[str, str]) -> list[ChangedOption]:
    """Change options of all name servers, or of the one at an address.

    Raises ConfigError: one of them would not take them, nothing was changed; HalfDone.
    """
    return await _change(core, name_servers(core, at), pairs, namesrv=True)


def name_servers(core: ClientCore, at: str | None) -> list[tuple[str, str]]:
    """Return name and address of all name servers, or of the one at an address."""
    addresses = core.name_servers.addresses if at is None else (at,)
    return [(f"name server {address}", address) for address in addresses]


async def _change(
    core: ClientCore, servers: list[tuple[str, str]], pairs: Mapping[str, str], *, namesrv: bool
) -> list[ChangedOption]:
    before = await asyncio.gather(*(read(core, name, address, namesrv=namesrv) for name, address in servers))
    wanted = [checked(server, pairs) for server in before]
    calls = {
        (one.server, one.address): ChangeOptions(texts, namesrv=namesrv, escaped=not one.is_ours)
        for one, texts in zip(before, wanted, strict=True)
    }
    try:
        await at_several(core, "options are changed", calls)
    except BrokerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        told = ", ".join(name for name, _ in servers)
        raise ConfigError(f"{told}: {error.remark}. Nothing was changed") from None  # all or none, at each of them
    after = await asyncio.gather(*(read(core, name, address, namesrv=namesrv) for name, address in servers))
    return [
        change for old, new, texts in zip(before, after, wanted, strict=True) for change in _outcome(old, new, texts)
    ]


def _outcome(before: ServerOptions, after: ServerOptions, wanted: Mapping[str, str]) -> list[ChangedOption]:
    """Raises ConfigError: a RocketMQ has passed over something."""
    old, new = before.by_key(), after.by_key()
    if not after.is_ours:
        lost = [f"{key} is {new[key].value if key in new else None}" for key, value in wanted.items()
                if key not in new or new[key].value != value]  # fmt: skip
        if lost:
            raise ConfigError(f"{after.server} has answered, but not taken everything: {', '.join(lost)}")
    return [
        ChangedOption(after.server, key, old[key].value, new[key].value, after.is_ours) for key in wanted if key in new
    ]
