"""All brokers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin.brokers import BrokerStatus, behind
from metaq.admin.figures.activity import Activity
from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.attention import called
from metaq.dashboard.pages.common import seen
from metaq.model.topics.route import MASTER_ID


class BrokerRow(Struct, frozen=True):
    """`state`: "up", "down", "unregistered", "draining". What only brokers of ours tell is None of others."""

    name: str
    address: str
    cluster: str
    role: str
    state: str
    error: str
    version: str
    stored: float | None
    stored_points: list[float | None]
    delivered: float | None
    delivered_points: list[float | None]
    put_p99_ms: float | None
    connections: int | None
    disk: float | None
    behind: int | None
    started_ms: int | None


class Brokers(Struct, frozen=True):
    rows: Listing[BrokerRow]


KEYS: Final[dict[str, Key]] = {
    "name": lambda row: row.name,
    "cluster": lambda row: row.cluster,
    "state": lambda row: row.state,
    "stored": lambda row: row.stored,
    "delivered": lambda row: row.delivered,
    "p99": lambda row: row.put_p99_ms,
    "connections": lambda row: row.connections,
    "disk": lambda row: row.disk,
    "behind": lambda row: row.behind,
}


def state_of(one: BrokerStatus) -> str:
    """Return the state of a broker process in a word."""
    if one.error:
        return "down"
    if not one.registered:
        return "unregistered"
    return "draining" if one.draining else "up"


def broker_row(asked: Asked, look: Activity, one: BrokerStatus) -> BrokerRow:
    """Return a broker process with its histories."""
    sampler, key, up = asked.cluster.sampler, (one.broker, one.broker_id), not one.error
    return BrokerRow(
        name=called(one.broker, one.broker_id),
        address=one.address,
        cluster=one.cluster,
        role="master" if one.broker_id == MASTER_ID else "slave",
        state=state_of(one),
        error=one.error,
        version=one.version,
        stored=one.put_rate if up else None,
        stored_points=sampler.stored.of(key),
        delivered=one.get_rate if up else None,
        delivered_points=sampler.delivered.of(key),
        put_p99_ms=one.put_p99_ms,
        connections=one.connections,
        disk=one.disk_used,
        behind=behind(look.brokers, one),
        started_ms=one.started_ms or None,
    )


async def load(asked: Asked) -> Brokers:
    look = seen(asked)
    rows = [broker_row(asked, look, one) for one in look.brokers]
    return Brokers(listing(rows, asked.query, KEYS, "name", lambda row: row.name))


PAGE = Page(
    name="brokers",
    path="/brokers",
    title="Brokers",
    menu="Brokers",
    key="b",
    values=Brokers,
    load=load,
    query=ListQuery,
)
