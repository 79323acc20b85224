"""The last lines of a broker's log."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from metaq.admin import log_lines
from metaq.dashboard.page import Asked, Page
from metaq.model.servers.log_line import LogLine

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


class BrokerLogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`level`: lines of at least this. `count`: so many at most."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    count: Annotated[int, Meta(ge=1, le=500)] = 100


class BrokerLog(Struct, frozen=True):
    """`lines`: the newest first; None: this broker does not tell."""

    address: str
    level: str
    lines: list[LogLine] | None


async def load(asked: Asked) -> BrokerLog:
    query: BrokerLogQuery = asked.query
    address = asked.path["address"]
    found = await asked.ask(log_lines.last(asked.cluster.core, address, count=query.count, level=query.level))
    return BrokerLog(address, query.level, found[::-1] if found is not None else None)


PAGE = Page(
    name="brokers/log", path="/brokers/{address}/log", title="Log of {address}", under="brokers", values=BrokerLog, load=load,
    query=BrokerLogQuery,
)  # fmt: skip
