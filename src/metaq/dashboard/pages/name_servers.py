"""The name servers: whether each answers, and whether all know the same brokers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.client.conversation.routes import GetCluster
from metaq.client.shared.core import ClientCore
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error
from metaq.model import ClusterInfo

ANSWER_SECONDS: Final = 0.8
"""A name server that takes longer is shown as away: the others are shown with it, in time."""


class ServerRow(Struct, frozen=True):
    """`missing`: brokers that others know and this one does not; `error`: why it does not answer."""

    address: str
    error: str
    brokers: int
    clusters: list[str]
    missing: list[str]


class KnownBroker(Struct, frozen=True):
    cluster: str
    broker: str
    addresses: dict[str, str]
    known_to: int


class NameServers(Struct, frozen=True):
    servers: list[ServerRow]
    brokers: list[KnownBroker]


async def load(asked: Asked) -> NameServers:
    found, failed = await asked.ask(_ask(asked.cluster.core))
    everywhere = {
        (name, number): address
        for info in found.values()
        for name, data in info.brokers.items()
        for number, address in data.addresses.items()
    }
    servers = []
    for address in asked.cluster.name_servers:
        info = found.get(address)
        here = (
            {(name, number) for name, data in info.brokers.items() for number in data.addresses}
            if info is not None
            else set()
        )
        missing = sorted(everywhere.keys() - here) if info is not None else []
        servers.append(
            ServerRow(
                address, failed.get(address, ""), len(here), sorted(info.clusters) if info is not None else [],
                [f"{name}/{number}" if number else name for name, number in missing],
            )
        )  # fmt: skip
    return NameServers(servers, _brokers(found))


def _brokers(found: dict[str, ClusterInfo]) -> list[KnownBroker]:
    rows: dict[str, KnownBroker] = {}
    for info in found.values():
        for name, data in info.brokers.items():
            old = rows.get(name)
            addresses = {str(number): address for number, address in sorted(data.addresses.items())}
            rows[name] = KnownBroker(
                data.cluster,
                name,
                {**(old.addresses if old is not None else {}), **addresses},
                (old.known_to if old is not None else 0) + 1,
            )
    return [rows[name] for name in sorted(rows)]


async def _ask(core: ClientCore) -> tuple[dict[str, ClusterInfo], dict[str, str]]:
    return await each_or_error(
        (address, core.ask(address, GetCluster(), ANSWER_SECONDS)) for address in core.name_servers.addresses
    )


PAGE = Page(
    name="name_servers",
    path="/name-servers",
    title="Name servers",
    menu="Name servers",
    key="n",
    values=NameServers,
    load=load,
)
