"""Pipelines and Spark queries: what each does, and how far it is behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.admin import topics
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.beside.folders import SeenFolder, WatchedFolders
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error
from metaq.model import MessageQueue
from metaq.spark.source.progress import Lag

TOPICS_ASKED: Final = 100
"""Topics whose ends are asked for, for what queries have not read."""
ENDS_SECONDS: Final = 1.2


class PipelineRow(Struct, frozen=True):
    """`kind`: name of the pipeline; "query": of Spark, and none of our pipelines; "": it cannot be read. `state`: as
    `metaq pipeline status` has it; "": of a query it is not known. `slices`: of the batch under way; 0: not known. `behind`: messages.
    `rate`: messages a second. `seen`: ISO 8601."""

    folder: str
    name: str
    kind: str
    state: str
    doing: str
    slices: int
    slices_done: int
    batches: int
    behind: int | None
    behind_points: list[float | None]
    rate: float | None
    rate_points: list[float | None]
    seen: str
    fault: str


class Pipelines(Struct, frozen=True):
    """`places`: folders that the dashboard was started with; none: it was started without."""

    places: list[str]
    rows: list[PipelineRow]
    left: int
    notes: list[str]


async def load(asked: Asked) -> Pipelines:
    watched = asked.sources.folders if asked.sources is not None else None
    if watched is None:
        return Pipelines([], [], 0, [])
    folders = await watched.seen()
    lags = [one.query for one in folders if one.query is not None]
    ends, notes = await ends_of(asked, lags)
    rows = [row_of(watched, one, ends) for one in folders]
    order = {"failed": 0, "lost": 1, "running": 2}
    rows.sort(key=lambda row: (0 if row.fault else order.get(row.state, 3), row.folder))
    return Pipelines(watched.names, rows, watched.left, notes)


def row_of(watched: WatchedFolders, one: SeenFolder, ends: Mapping[MessageQueue, int]) -> PipelineRow:
    """Return a folder with its histories. Args: ends: queue → its max offset, of those that could be asked."""
    status, query = one.status, one.query
    name = one.path.rstrip("/").rpartition("/")[2]
    behind = status.behind if status is not None else None
    if behind is None and query is not None:
        behind = waiting(query, ends)
    rates = watched.rates.of(one.path)
    return PipelineRow(
        folder=one.path,
        name=name,
        kind=status.pipeline if status is not None else "query" if query is not None else "",
        state=status.state if status is not None else "",
        doing=status.doing if status is not None else "",
        slices=status.slices if status is not None else 0,
        slices_done=status.slices_done if status is not None else 0,
        batches=status.batches if status is not None else query.batch + 1 if query is not None else 0,
        behind=behind,
        behind_points=watched.behind.of(one.path),
        rate=rates[-1] if rates else None,
        rate_points=rates,
        seen=status.seen if status is not None else "",
        fault=one.error or (status.fault if status is not None else ""),
    )


def waiting(query: Lag, ends: Mapping[MessageQueue, int]) -> int | None:
    """Return the messages that a query has not read; None: of a queue it is not known."""
    if any(one.queue not in ends for one in query.queues):
        return None
    return sum(max(0, ends[one.queue] - one.position) for one in query.queues)


async def ends_of(asked: Asked, lags: list[Lag]) -> tuple[dict[MessageQueue, int], list[str]]:
    """Return the max offsets of the queues that queries read, and what could not be found out.

    A queue that is not there any more ends where the query is: nothing of it will be read.
    """
    wanted = sorted({one.topic for lag in lags for one in lag.queues})
    if not wanted:
        return {}, []
    try:
        found, gone, failed = await asked.ask(_describe(asked.cluster.core, wanted[:TOPICS_ASKED]), ENDS_SECONDS)
    except FAULTS as error:
        return {}, [f"ends of queues: {error}"]
    ends = {queue: stats.max_offset for details in found.values() for queue, stats in details.queues.items()}
    for lag in lags:
        for one in lag.queues:
            if one.queue not in ends and (one.topic in gone or one.topic in found):
                ends[one.queue] = one.position
    notes = [f"ends of the queues of {topic}: {error}" for topic, error in failed.items()]
    if len(wanted) > TOPICS_ASKED:
        notes.append(f"only {TOPICS_ASKED} of {len(wanted)} topics were asked where their queues end")
    return ends, notes


async def _describe(
    core: ClientCore, names: list[str]
) -> tuple[dict[str, topics.TopicDetails], set[str], dict[str, str]]:
    async def one(name: str) -> topics.TopicDetails | None:
        try:
            return await topics.describe(core, name)
        except topics.TopicNotFound:
            return None

    found, failed = await each_or_error((name, one(name)) for name in names)
    there = {name: details for name, details in found.items() if details is not None}
    return there, found.keys() - there.keys(), failed


PAGE = Page(
    name="pipelines",
    path="/pipelines",
    title="Pipelines",
    menu="Pipelines",
    key="p",
    values=Pipelines,
    load=load,
)
