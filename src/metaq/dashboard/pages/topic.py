"""A topic: where it is, its queues, and who reads it."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

from metaq.admin import topics
from metaq.client.conversation.groups import GetConsumeStats
from metaq.client.shared.core import ClientCore
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error
from metaq.model import Route
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, Perm

GROUPS_MAX: Final = 100
"""Groups whose lag is asked for."""
QUEUES_MAX: Final = 500


class PlaceRow(Struct, frozen=True):
    """The topic at a broker. `master`: its address; "": it is away. `perm`: "read and write", …"""

    broker: str
    cluster: str
    master: str
    slaves: int
    read_queues: int
    write_queues: int
    perm: str


class QueueRow(Struct, frozen=True):
    """A queue with its offsets [first, end). `newest_ms`: store time of its newest message; None: it has none."""

    broker: str
    queue: int
    first: int
    end: int
    messages: int
    newest_ms: int | None


class ReaderRow(Struct, frozen=True):
    """A group that reads the topic, or has. `lag`: None: no broker tells."""

    group: str
    online: bool
    lag: int | None
    points: list[float | None]


class Topic(Struct, frozen=True):
    """`kind`: "", or "retry" or "dead letters" of `group`. `order`: its fixed queues; None: it has none. Rates: None: not asked about yet."""

    topic: str
    kind: str
    group: str
    messages: int
    stored: float | None
    stored_bytes: float | None
    delivered: float | None
    points: list[float | None]
    order: str | None
    places: list[PlaceRow]
    queues: list[QueueRow]
    queues_more: int
    readers: list[ReaderRow]
    notes: list[str]


class _Found(Struct, frozen=True):
    details: topics.TopicDetails
    reading: list[str]
    stopped: list[str]
    lags: dict[str, int]
    notes: list[str]


async def load(asked: Asked) -> Topic:
    name = asked.path["topic"]
    found = await asked.ask(_find(asked.cluster.core, name))
    look = asked.cluster.sampler.look
    activity = next((one for one in look.topics if one.topic == name), None) if look is not None else None
    kind, group = kind_of(name)
    queues = [
        QueueRow(queue.broker, queue.queue_id, stats.min_offset, stats.max_offset, stats.max_offset - stats.min_offset, stats.last_ms or None)
        for queue, stats in found.details.queues.items()
    ]  # fmt: skip
    histories = asked.cluster.sampler.groups
    readers = [ReaderRow(one, True, found.lags.get(one), histories.of(one)) for one in found.reading]
    readers += [ReaderRow(one, False, found.lags.get(one), histories.of(one)) for one in found.stopped]
    return Topic(
        topic=name,
        kind=kind,
        group=group,
        messages=found.details.messages,
        stored=activity.stored if activity is not None else None,
        stored_bytes=activity.stored_bytes if activity is not None else None,
        delivered=activity.delivered if activity is not None else None,
        points=asked.cluster.sampler.topics.of(name),
        order=found.details.route.order,
        places=places(found.details.route),
        queues=queues[:QUEUES_MAX],
        queues_more=max(0, len(queues) - QUEUES_MAX),
        readers=readers,
        notes=found.notes,
    )


def kind_of(topic: str) -> tuple[str, str]:
    """Return what a topic is for, and for which group: of a group's own topics."""
    if topic.startswith(RETRY_PREFIX):
        return "retry", topic.removeprefix(RETRY_PREFIX)
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead letters", topic.removeprefix(DEAD_LETTER_PREFIX)
    return "", ""


def places(route: Route) -> list[PlaceRow]:
    """Return where a topic is."""
    return [
        PlaceRow(
            data.broker, broker.cluster if broker else "", (broker.master or "") if broker else "",
            len(broker.addresses) - bool(broker.master) if broker else 0, data.read_queues, data.write_queues, perm_text(data.perm),
        )
        for data in route.queues
        for broker in [route.broker(data.broker)]
    ]  # fmt: skip


def perm_text(perm: int) -> str:
    """Return a permission in words."""
    can = [word for bit, word in ((Perm.READ, "read"), (Perm.WRITE, "write")) if perm & bit]
    return " and ".join(can) or "none"


async def _find(core: ClientCore, name: str) -> _Found:
    details = await topics.describe(core, name)
    holders = {data.broker for data in details.route.queues}
    addresses = [
        address
        for data in details.route.brokers
        if data.broker in holders and (address := data.any_address) is not None
    ]
    reading, stopped = await topics.readers(core, name, addresses)
    lags, failed = await each_or_error(
        (group, _lag(core, group, name, addresses)) for group in (*reading, *stopped)[:GROUPS_MAX]
    )
    notes = [f"lag of group {group}: {error}" for group, error in failed.items()]
    return _Found(details, reading, stopped, lags, notes)


async def _lag(core: ClientCore, group: str, topic: str, addresses: list[str]) -> int:
    tables = await asyncio.gather(*(core.ask(address, GetConsumeStats(group)) for address in addresses))
    return sum(
        max(0, stats.broker_offset - stats.consumer_offset)
        for table, _ in tables
        for queue, stats in table.items()
        if queue.topic == topic
    )


PAGE = Page(name="topic", path="/topics/{topic:path}", title="{topic}", under="topics", values=Topic, load=load)
