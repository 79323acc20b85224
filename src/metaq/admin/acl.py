"""Accounts: list, make, delete, give and take rights, and why a request is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from metaq.admin.brokers import BrokerNotFound
from metaq.admin.several import at_each, at_several, check_brokers
from metaq.client.conversation.accounts import DeleteAccount, Explain, GetAccounts, SetAccount
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError, NotFound
from metaq.model.access import Action
from metaq.model.acl.accounts import AccountView, AclView
from metaq.model.acl.judgement import AccessExplanation
from metaq.model.topics.topic import RETRY_PREFIX

TOPIC, GROUP = "topic", "group"
ACTIONS: Final[Mapping[str, Action]] = {one.name.lower(): one for one in Action}


class AccountNotFound(NotFound):
    """No server that was asked has the account."""


async def servers(core: ClientCore, at: str | None) -> dict[str, str]:
    """Return name → address of the server at an address, or of all brokers, slaves too: each has files of its own.

    Raises BrokerNotFound: none is registered.
    """
    if at is not None:
        return {at: at}
    info = await core.consult(core.name_servers.cluster())
    found = {
        f"{data.broker}:{number}" if number else data.broker: address
        for data in info.brokers.values()
        for number, address in data.addresses.items()
    }
    if not found:
        raise BrokerNotFound(f"no broker is registered at name servers {core.name_servers}")
    return found


async def views(core: ClientCore, at: str | None) -> dict[str, AclView]:
    """Return server name → its accounts and white lists, without secrets."""
    asked = await servers(core, at)
    found = await asyncio.gather(*(core.ask(address, GetAccounts()) for address in asked.values()))
    return dict(zip(asked, found, strict=True))


async def make(core: ClientCore, account: SetAccount, at: str | None) -> list[str]:
    """Make an account, or change it. Returns the names of the servers. Raises NothingDone, HalfDone."""
    asked = await servers(core, at)
    await check_brokers(core, asked, f"the account {account.name} is not set")
    await at_each(core, f"the account {account.name} is set", asked, account)
    return list(asked)


async def delete(core: ClientCore, name: str, at: str | None) -> list[str]:
    """Delete an account wherever it is. Raises AccountNotFound, NothingDone, HalfDone."""
    having = await _having(core, name, at)
    await at_each(
        core,
        f"the account {name} is deleted",
        {key: address for key, (address, _) in having.items()},
        DeleteAccount(name),
    )
    return list(having)


async def give(core: ClientCore, name: str, resource: str, right: str | None, at: str | None) -> list[str]:
    """Set an account's right to a resource, `topic:NAME` or `group:NAME`; None takes its entry away, so that the default counts.

    Each server's other entries stay. Raises AccountNotFound, NothingDone, HalfDone; ConfigError: no such kind of resource.
    """
    kind, named = split_resource(resource)
    having = await _having(core, name, at)
    calls = {(key, address): _with_entry(view, kind, named, right) for key, (address, view) in having.items()}
    await at_several(core, f"the rights of {name} are changed", calls)
    return list(having)


def _with_entry(view: AccountView, kind: str, named: str, right: str | None) -> SetAccount:
    entries = view.topics if kind == TOPIC else view.groups
    kept = tuple(entry for entry in entries if entry.partition("=")[0] != named)
    made = kept if right is None else (*kept, f"{named}={right}")
    return SetAccount(
        view.access_key, view.admin, topics=made if kind == TOPIC else None, groups=made if kind == GROUP else None
    )


async def _having(core: ClientCore, name: str, at: str | None) -> dict[str, tuple[str, AccountView]]:
    """Return server name → (address, the account there), of the servers that have it."""
    asked = await servers(core, at)
    found = await views(core, at)
    having = {
        key: (asked[key], account)
        for key, view in found.items()
        for account in view.accounts
        if account.access_key == name
    }
    if not having:
        raise AccountNotFound(f"there is no account {name} at {', '.join(asked)}")
    return having


async def explain(
    core: ClientCore, name: str, action: str, resource: str, address: str, at: str | None, *, signed: bool = True
) -> dict[str, AccessExplanation]:
    """Return server name → whether a request would be allowed there, and by which rule.

    Args:
        name: the account's; "": the request names none.
        action: one of `ACTIONS`.
        resource: `topic:NAME`, `group:NAME`, or "".
        address: from which it comes.
        signed: whether its signature is right.
    """
    if action not in ACTIONS:
        raise ConfigError(f"{action!r} is no action: there are {', '.join(ACTIONS)}")
    if resource:
        kind, named = split_resource(resource)
        resource = RETRY_PREFIX + named if kind == GROUP else named
    asked = await servers(core, at)
    call = Explain(name, action, resource, address, signed)
    found = await asyncio.gather(*(core.ask(server, call) for server in asked.values()))
    return dict(zip(asked, found, strict=True))


def split_resource(resource: str) -> tuple[str, str]:
    """Return kind and name. Raises ConfigError."""
    kind, _, named = resource.partition(":")
    if kind not in {TOPIC, GROUP} or not named:
        raise ConfigError(f"{resource!r} is no resource: write topic:NAME or group:NAME")
    return kind, named
