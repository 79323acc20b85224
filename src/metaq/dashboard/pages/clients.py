"""Clients that consume: of which language and release, where, and in which groups."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

from metaq.admin import brokers
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import GetConnections
from metaq.client.shared.core import ClientCore
from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error, release, seen
from metaq.dashboard.rendering.filters import count
from metaq.model import ClientConnection

GROUPS_ASKED: Final = 200
"""Groups whose members are asked for, those first that have the most."""


class ClientRow(Struct, frozen=True):
    """A client by its id. `groups`: in which it is."""

    client: str
    address: str
    language: str
    release: str
    groups: list[str]


class ReleaseCount(Struct, frozen=True):
    language: str
    release: str
    clients: int


class Clients(Struct, frozen=True):
    """`releases`: how many clients there are of each."""

    rows: Listing[ClientRow]
    releases: list[ReleaseCount]
    notes: list[str]


KEYS: Final[dict[str, Key]] = {
    "client": lambda row: row.client,
    "address": lambda row: row.address,
    "language": lambda row: row.language,
    "release": lambda row: row.release,
    "groups": lambda row: len(row.groups),
}


async def load(asked: Asked) -> Clients:
    groups = sorted((one for one in seen(asked).groups if one.members != 0), key=lambda one: -(one.members or 0))
    notes, found = list[str](), dict[str, list[ClientConnection]]()
    if len(groups) > GROUPS_ASKED:
        notes.append(f"only {GROUPS_ASKED} of {count(len(groups))} groups were asked who is in them")
    try:
        names = [one.group for one in groups[:GROUPS_ASKED]]
        found, failed = await asked.ask(_members(asked.cluster.core, names))
        notes += [f"members of {group}: {error}" for group, error in failed.items()]
    except FAULTS as error:
        notes.append(f"members of groups: {error}")
    rows = _rows(found)
    numbers: dict[tuple[str, str], int] = {}
    for row in rows:
        numbers[row.language, row.release] = numbers.get((row.language, row.release), 0) + 1
    releases = [
        ReleaseCount(*key, number) for key, number in sorted(numbers.items(), key=lambda one: (-one[1], one[0]))
    ]
    shown = listing(rows, asked.query, KEYS, "client", lambda row: f"{row.client} {row.address} {' '.join(row.groups)}")
    return Clients(shown, releases, notes)


async def _members(core: ClientCore, names: list[str]) -> tuple[dict[str, list[ClientConnection]], dict[str, str]]:
    addresses = list((await brokers.masters(core)).values())

    async def one(group: str) -> list[ClientConnection]:
        told = await asyncio.gather(*(core.ask(address, GetConnections(group)) for address in addresses))
        return [member for online in told if online is not None for member in online[0]]

    return await each_or_error((name, one(name)) for name in names)


def _rows(found: dict[str, list[ClientConnection]]) -> list[ClientRow]:
    rows: dict[str, ClientRow] = {}
    for group, members in found.items():
        for one in members:
            row = rows.setdefault(
                one.client_id, ClientRow(one.client_id, one.address, one.language, release(one.version), [])
            )
            if group not in row.groups:
                row.groups.append(group)
    return list(rows.values())


PAGE = Page(
    name="clients",
    path="/clients",
    title="Clients",
    menu="Clients",
    key="c",
    values=Clients,
    load=load,
    query=ListQuery,
)
