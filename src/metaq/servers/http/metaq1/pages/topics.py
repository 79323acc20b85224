"""`/topics` and `/topics/T?group=G`; `POST /topics/T/groups/G/partitions/P/skip`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from metaq.broker.broker import Broker
from metaq.broker.metaq1.neighbours import GroupShare, Neighbours
from metaq.broker.metaq1.service import Metaq1Service
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model.access import Action
from metaq.model.metaq1.partition import PartitionFigures, Published
from metaq.model.topics.topic import check_group
from metaq.servers.http.answers import in_turns, json_answer
from metaq.servers.http.metaq1.pages.answers import ANY_JSON, HTML, Guarded, either, html_answer, wants_json
from metaq.servers.http.metaq1.pages.html import Inner, Markup, element, link, pairs, table, void
from metaq.servers.http.operations import JSON, TEXT, Content, Operation, query_of
from metaq.servers.http.requests import when_ready
from metaq.servers.metaq1_counters import Counted
from metaq.servers.metaq1_stats import StatsBodies

ROWS: Final = 100
"""Topics of one page for people; programs get all."""
END: Final = 2**63 - 1
UNKNOWN: Final = "N/A"
_HEAD: Final = ("Topic", "Partitions", "Messages", "Bytes", "Average size", "Accept publish", "Accept subscribe")
_SHARES: Final = (
    "Partition", "Partition owner", "Pending messages (estimated)", "Pending message bytes", "Consumed messages (estimated)",
    "Consumed message bytes", "Operations",
)  # fmt: skip


class ListQuery(Struct, frozen=True):
    """Parameters of the list."""

    page: Annotated[int, Meta(ge=1, description="Page of the HTML list, from 1 on.")] = 1
    search: Annotated[str, Meta(description="Part of the names of topics.")] = ""


class TopicQuery(Struct, frozen=True):
    """Parameters of a topic."""

    group: Annotated[str, Meta(description="Group whose partitions are told.")] = ""


class TopicPages:
    """The pages. Args: guarded: lets callers in. stats: have the counters."""

    def __init__(self, broker: Broker, metaq1: Metaq1Service, guarded: Guarded, stats: StatsBodies) -> None:
        self._broker, self._metaq1, self._guarded, self._counters = broker, metaq1, guarded, stats.counters

    def operations(self) -> list[Operation]:
        """Return the operations."""
        told = {200: Content(JSON, ANY_JSON)}
        return [
            Operation(
                name="metaq1Topics", method="GET", path="/topics", text="Tell the topics of MetaQ 1.x and what is in them.",
                run=self._guarded.page(self._list), query=ListQuery, answers=told,
            ),
            Operation(
                name="metaq1Topic", method="GET", path="/topics/{topic}", text="Tell about a topic, and how far a group is in it.",
                run=self._guarded.page(self._topic), query=TopicQuery, answers=told,
            ),
            Operation(
                name="metaq1Skip", method="POST", path="/topics/{topic}/groups/{group}/partitions/{partition:int}/skip",
                text="Have a group of MetaQ 1.x begin at the end of a partition that none of its consumers has.",
                run=self._guarded.page(self._skip, Action.ADMINISTER), answers={200: Content(TEXT)}, administers=True,
            ),
        ]  # fmt: skip

    # -------------------------------------------------------------- all topics

    async def _list(self, request: Request) -> Response:
        query = query_of(request, ListQuery)
        names = await in_turns(self._named(query.search))
        if wants_json(request):
            topics = await in_turns(self._rows(names))
            return json_answer({"topics": [msgspec.Raw(one) for one in topics]})
        first = (query.page - 1) * ROWS
        found = await in_turns(self._rows(names[first : first + ROWS]))
        return html_answer("Topics", *_list_page([msgspec.json.decode(one) for one in found], len(names), query))

    def _named(self, search: str) -> InPieces[list[str]]:
        names = []
        for count, name in enumerate(self._metaq1.partitions.names()):
            if search in name and self._metaq1.partitions.published_topic(name) is not None:
                names.append(name)
            if count % 100 == 0:
                yield
        names.sort()
        return names

    def _rows(self, names: Sequence[str]) -> InPieces[list[bytes]]:
        rows = []
        for count, name in enumerate(names):
            rows.append(msgspec.json.encode(self._shown(name)))
            if count % 20 == 0:
                yield
        return rows

    def _shown(self, name: str) -> dict[str, Any]:
        """Return a topic under the original's names. Raises Refused NO_TOPIC."""
        published, figures = self._metaq1.partitions.published_topic(name), list(self._metaq1.partitions.figures(name))
        if published is None:
            raise Refused(Reason.NO_TOPIC, f"The topic {name!r:.200} is not exists or doesn't have data right now.")
        messages, size = sum(one.messages for one in figures), _bytes(figures)
        return {
            "topic": name,
            "partitions": published.partitions,
            "messageCount": messages,
            "messageBytes": size,
            "avgMsgSize": str(round(size / messages)) if messages else UNKNOWN,
            "topicConfig": self._config(name, published),
        }

    def _config(self, name: str, published: Published) -> dict[str, Any]:
        settings = self._metaq1.settings.rules.settings(name)
        return {
            "topic": name,
            "numPartitions": published.partitions,
            "acceptPublish": published.publish,
            "acceptSubscribe": published.subscribe,
            "unflushThreshold": settings.unflush_threshold,
            "unflushInterval": settings.unflush_interval_ms,
            "dataPath": self._metaq1.settings.options.data_path,
            "deletePolicy": str(settings.delete_policy),
            "deleteWhen": settings.delete_when,
            "stat": settings.stat,
        }

    # -------------------------------------------------------------- one topic

    async def _topic(self, request: Request) -> Response:
        name, group = request.path_params["topic"], query_of(request, TopicQuery).group
        topic = self._shown(name)
        for what, counted in (
            ("puts", Counted.PUT), ("gets", Counted.GET), ("getMissed", Counted.GET_MISS), ("putFailed", Counted.PUT_FAILED),
        ):  # fmt: skip
            topic[what] = self._counters.text(counted, name)
        value: dict[str, Any] = {"topic": topic}
        if group:
            check_group(group)
            value["group"] = group
            value["group-filter"] = self._metaq1.partitions.filters.name_of(name, group) or "null"
            value["pending-stats"] = await self._pending(topic, group)
        return either(request, value, f"Topic {name}", lambda: _topic_page(value))

    async def _pending(self, topic: dict[str, Any], group: str) -> list[dict[str, Any]] | dict[str, str]:
        figures = {one.partition: one for one in self._metaq1.partitions.figures(topic["topic"])}
        shares = await self._neighbours().shares(group, topic["topic"], range(topic["partitions"]))
        if shares is None:
            return {"error": f"The consumer group '{group}' is not exists."}
        return [_share(one, figures.get(one.partition), topic["avgMsgSize"]) for one in shares]

    def _neighbours(self) -> Neighbours:
        if self._metaq1.neighbours is None:
            raise Refused(
                Reason.UNAVAILABLE,
                "this broker is not registered in ZooKeeper, where groups of MetaQ 1.x keep what they have consumed",
            )
        return self._metaq1.neighbours

    async def _skip(self, request: Request) -> Response:
        caller = self._guarded.callers.of(request)
        topic, group, partition = (request.path_params[name] for name in ("topic", "group", "partition"))
        check_group(group)
        self._broker.gatekeeper.check_administration(caller, f"the offsets of group {group}")
        if not partition < self._shown(topic)["partitions"]:
            raise Refused(Reason.NOT_FOUND, f"topic {topic} has no partition {partition} at this broker")
        end = await when_ready(lambda: self._metaq1.partitions.offset(topic, partition, END, caller))
        await self._neighbours().skip(group, topic, partition, end)
        if HTML in request.headers.get("accept", ""):
            return RedirectResponse(f"/topics/{quote(topic, safe='')}?group={quote(group, safe='')}", 303)
        return Response("success", media_type=TEXT)


def _bytes(figures: Iterable[PartitionFigures]) -> int:
    return sum((one.max_position or 0) - (one.min_position or 0) for one in figures)


def _share(share: GroupShare, figures: PartitionFigures | None, average: str) -> dict[str, Any]:
    """Return a partition's row. One that nobody has and that holds nothing has its number alone, as in the original."""
    if figures is None and not share.owner:
        return {"partition": share.partition}
    least, most = (figures.min_position or 0, figures.max_position or 0) if figures is not None else (0, 0)
    at = share.position or 0
    pending, consumed = most - at, at - least
    size = int(average) if average != UNKNOWN else 0
    return {
        "partition": share.partition,
        "owner": share.owner or None,
        "pending-bytes": pending,
        "pending-messages": round(pending / size) if size else UNKNOWN,
        "consumed-bytes": consumed,
        "consumed-messages": round(consumed / size) if size else UNKNOWN,
    }


def _list_page(found: Sequence[dict[str, Any]], total: int, query: ListQuery) -> tuple[Inner, ...]:
    rows = [
        (
            link(one["topic"], f"/topics/{quote(one['topic'], safe='')}"), one["partitions"], one["messageCount"], one["messageBytes"],
            one["avgMsgSize"], _word(one["topicConfig"]["acceptPublish"]), _word(one["topicConfig"]["acceptSubscribe"]),
        )
        for one in found
    ]  # fmt: skip
    last = max(1, -(-total // ROWS))

    def to(page: int, text: str) -> Markup | str:
        search = f"&search={quote(query.search, safe='')}" if query.search else ""
        return link(text, f"/topics?page={page}{search}") if 1 <= page <= last and page != query.page else text

    pages = element(
        "p",
        f"{total} topics, page {query.page} of {last}: ",
        to(query.page - 1, "before"),
        " ",
        to(query.page + 1, "next"),
    )
    box = element("label", "Part of the name ", void("input", name="search", value=query.search))
    return (element("form", box, " ", element("button", "Search"), action="/topics"), pages, table(_HEAD, rows))


def _topic_page(value: dict[str, Any]) -> tuple[Inner, ...]:
    topic, group = value["topic"], value.get("group", "")
    config = {name: _word(one) if isinstance(one, bool) else one for name, one in topic["topicConfig"].items()}
    figures = {name: one for name, one in topic.items() if name != "topicConfig"}
    box = element("label", "Group ", void("input", name="group", value=group))
    parts: list[Inner] = [element("form", box, " ", element("button", "Query"))]
    if group:
        parts += _group_part(topic["topic"], group, value)
    return (
        *parts,
        element("h2", "Figures"),
        pairs(list(figures.items())),
        element("h2", "Settings"),
        pairs(list(config.items())),
    )


def _group_part(topic: str, group: str, value: dict[str, Any]) -> list[Inner]:
    pending = value["pending-stats"]
    if isinstance(pending, dict):
        return [element("p", pending["error"])]
    names = ("partition", "owner", "pending-messages", "pending-bytes", "consumed-messages", "consumed-bytes")
    path = f"/topics/{quote(topic, safe='')}/groups/{quote(group, safe='')}/partitions"

    def button(partition: int) -> Markup:
        return element(
            "form", element("button", "Skip pending messages"), method="post", action=f"{path}/{partition}/skip"
        )

    rows = [(*(one.get(name) for name in names), button(one["partition"])) for one in pending]
    return [
        element("h2", f"Group {group}"), element("p", f"Group filter: {value['group-filter']}"), table(_SHARES, rows),
    ]  # fmt: skip


def _word(value: object) -> str:
    return str(value).lower()
