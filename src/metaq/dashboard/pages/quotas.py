"""Quotas of brokers of ours, with what their subjects take now."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin import brokers, quota
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error
from metaq.errors import BrokerError, MetaqError
from metaq.model.quota import QuotaUse

_NOT_SUPPORTED: Final = 3


class QuotaRow(Struct, frozen=True):
    """`limits`: those in force, as `metaq quota` writes them; "": none. Counts since the subject was first seen."""

    broker: str
    kind: str
    name: str
    limits: str
    own: bool
    connections: int
    held_pulls: int
    requests: int
    bytes_in: int
    bytes_out: int
    delayed: int
    refused: int
    wait_ms: int


class Quotas(Struct, frozen=True):
    """`untold`: brokers that know no quotas, as RocketMQ's."""

    rows: Listing[QuotaRow]
    untold: list[str]
    notes: list[str]


KEYS: Final[dict[str, Key]] = {
    "name": lambda row: row.name,
    "broker": lambda row: row.broker,
    "kind": lambda row: row.kind,
    "connections": lambda row: row.connections,
    "requests": lambda row: row.requests,
    "in": lambda row: row.bytes_in,
    "out": lambda row: row.bytes_out,
    "delayed": lambda row: row.delayed,
    "refused": lambda row: row.refused,
}


async def load(asked: Asked) -> Quotas:
    untold, notes, found = list[str](), list[str](), dict[str, list[QuotaUse] | None]()
    try:
        found, failed = await asked.ask(_ask(asked.cluster.core))
        notes += [f"quotas of {broker}: {error}" for broker, error in failed.items()]
    except (MetaqError, *FAULTS) as error:
        notes.append(f"quotas: {error}")
    rows = list[QuotaRow]()
    for broker, uses in found.items():
        if uses is None:
            untold.append(broker)
            continue
        rows += [
            QuotaRow(
                broker, one.kind, one.name, str(one.limits), one.own, one.connections, one.held_pulls, one.requests, one.bytes_in,
                one.bytes_out, one.delayed, one.refused, one.wait_ms,
            )
            for one in uses
        ]  # fmt: skip
    shown = listing(rows, asked.query, KEYS, "-refused", lambda row: f"{row.kind} {row.name} {row.broker}")
    return Quotas(shown, untold, notes)


async def _ask(core: ClientCore) -> tuple[dict[str, list[QuotaUse] | None], dict[str, str]]:
    async def one(address: str) -> list[QuotaUse] | None:
        try:
            return (await quota.show(core, address))[address]
        except BrokerError as error:
            if error.code == _NOT_SUPPORTED:
                return None
            raise

    return await each_or_error((name, one(address)) for name, address in (await brokers.masters(core)).items())


PAGE = Page(
    name="quotas", path="/quotas", title="Quotas", menu="Quotas", key="q", values=Quotas, load=load, query=ListQuery
)
