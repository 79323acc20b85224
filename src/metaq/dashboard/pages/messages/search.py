"""Messages of a topic: the newest, those with a key, of a time, of a queue from an offset on; or one by its id."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from metaq.admin.messages import MessageNotFound, Wanted, find
from metaq.admin.queues import browsing
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.messages.rows import MessageRow, number_of, rows_of, time_of
from metaq.errors import BadRequest, ConfigError, NoRoute
from metaq.model import MessageQueue, StoredMessage

ROWS_MAX: Final = 200
ROWS_DEFAULT: Final = 50


class SearchQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`queue`: BROKER:NUMBER. `start`, `end`: ISO 8601, UTC. `before` (ms) and `skip`: where older ones begin, as a page before has said."""

    topic: str = ""
    id: str = ""
    key: str = ""
    start: str = ""
    end: str = ""
    queue: str = ""
    offset: str = ""
    before: Annotated[int, Meta(ge=0)] | None = None
    skip: Annotated[int, Meta(ge=0, le=browsing.CROWD_MAX)] = 0
    rows: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = ROWS_DEFAULT


class Search(Struct, frozen=True):
    """What was asked for, and what was found. `problem`: why nothing could be looked for; "": all is well.

    `rows`: the newest first; of a queue in its order. `low`, `high`: offsets of the queue; None: no queue was asked for. `older`, `newer`:
    parameters of the pages beside this one; None: there is none. `silent`: brokers that could not be asked.
    """

    topic: str
    id: str
    key: str
    start: str
    end: str
    queue: str
    offset: str
    asked: bool
    rows: list[MessageRow]
    queues: list[str]
    low: int | None
    high: int | None
    older: dict[str, str] | None
    newer: dict[str, str] | None
    silent: list[str]
    problem: str


class _Hits(Struct, frozen=True):
    messages: tuple[StoredMessage, ...] = ()
    older: dict[str, str] | None = None
    newer: dict[str, str] | None = None
    low: int | None = None
    high: int | None = None
    silent: tuple[str, ...] = ()


async def load(asked: Asked) -> Search:
    query: SearchQuery = asked.query
    found, problem, queues = _Hits(), "", list[str]()
    given = any((query.topic, query.id))
    try:
        if given:
            found = await asked.ask(_find(asked.cluster.core, query))
        elif query.key or query.queue or query.start or query.end:
            problem = "name the topic: brokers look for keys, times and queues in one topic"
    except (BadRequest, ConfigError, MessageNotFound, NoRoute) as error:
        problem = str(error)
    if query.topic and not query.id:
        try:
            queues = await asked.ask(_queues(asked.cluster.core, query.topic))
        except (NoRoute, ConfigError, *FAULTS):
            queues = []
    return Search(
        topic=query.topic, id=query.id, key=query.key, start=query.start, end=query.end, queue=query.queue, offset=query.offset,
        asked=given, rows=rows_of(found.messages), queues=queues, low=found.low, high=found.high, older=found.older, newer=found.newer,
        silent=list(found.silent), problem=problem,
    )  # fmt: skip


async def _find(core: ClientCore, query: SearchQuery) -> _Hits:
    topic = query.topic.strip() or None
    if query.id.strip():
        one = await find(core, Wanted(topic=topic, message_id=query.id.strip()))
        return _Hits(one.messages[::-1], silent=one.silent)
    assert topic is not None, "one of the two is given"
    if query.queue:
        return await _of_queue(core, browsing.queue_of(topic, query.queue), query)
    wanted = Wanted(
        topic=topic, key=query.key.strip() or None, start_ms=time_of(query.start, "from"), end_ms=time_of(query.end, "to"),
        limit=query.rows,
    )  # fmt: skip
    cursor = browsing.Cursor(query.before, query.skip) if query.before is not None else None
    page = await browsing.newest(core, wanted, cursor)
    following = page.following
    older = {"before": str(following.before_ms), "skip": str(following.skip)} if following is not None else None
    newer = {"before": "", "skip": ""} if cursor is not None else None
    return _Hits(page.messages, older, newer, silent=page.silent)


async def _of_queue(core: ClientCore, queue: MessageQueue, query: SearchQuery) -> _Hits:
    start = number_of(query.offset, "the offset")
    page = await browsing.of_queue(core, queue, start, query.rows)
    newer = {"offset": str(page.start + query.rows)} if page.start + query.rows < page.high else None
    older = {"offset": str(max(page.low, page.start - query.rows))} if page.start > page.low else None
    return _Hits(page.messages, older, newer, page.low, page.high)


async def _queues(core: ClientCore, topic: str) -> list[str]:
    route = await core.routes.route(topic)
    return [f"{one.broker}:{one.queue_id}" for one in route.readable()][:500]


PAGE: Final[Page] = Page(
    name="messages/search", path="/messages", title="Messages", menu="Messages", key="m", values=Search, load=load, query=SearchQuery,
    follows=False,
)  # fmt: skip
