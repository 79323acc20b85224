"""How brokers differ in their options."""

from __future__ import annotations

from msgspec import Struct

from metaq.admin.configuring import reading
from metaq.client.shared.core import ClientCore
from metaq.dashboard.page import Asked, Page


class DifferencesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`cluster`: "": all. `own`: also options in which brokers are meant to differ, such as ports."""

    cluster: str = ""
    own: bool = False


class Difference(Struct, frozen=True):
    """`values`: in the order of the servers; None: it does not know the option, or has no value."""

    key: str
    own: bool
    values: list[str | None]


class Differences(Struct, frozen=True):
    servers: list[str]
    rows: list[Difference]
    failed: dict[str, str]
    own: bool


async def load(asked: Asked) -> Differences:
    query: DifferencesQuery = asked.query
    found = await asked.ask(_compare(asked.cluster.core, query.cluster or None))
    kinds = [(found.different, False), *([(found.own, True)] if query.own else [])]
    rows = [
        Difference(key, own, [values.get(server) for server in found.servers])
        for table, own in kinds
        for key, values in table.items()
    ]
    return Differences(found.servers, rows, found.failed, query.own)


async def _compare(core: ClientCore, cluster: str | None) -> reading.OptionDifferences:
    return await reading.compare(core, await reading.all_brokers(core, cluster))


PAGE = Page(
    name="differences", path="/brokers/differences", title="Options that differ", under="brokers", values=Differences, load=load,
    query=DifferencesQuery,
)  # fmt: skip
