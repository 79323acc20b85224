"""What administrators read of a broker by HTTP: topics, groups and their progress, figures and options. Nothing here changes anything.

Who may is who may observe, as for `/metrics`. Answers are pages: `next` of one is where the following one begins.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model.access import Action
from metaq.model.clients import GroupConfig
from metaq.model.servers.option_state import OptionState
from metaq.model.topics.topic import TopicConfig
from metaq.servers.http.answers import in_turns, json_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.operations import JSON, Content, NoQuery, Operation, query_of
from metaq.servers.http.requests import when_ready
from metaq.servers.option_states import option_states

T = TypeVar("T")

PAGE_MAX: Final = 1000
NAMES_OF_A_PIECE: Final = 1000
MEMBERS_MAX: Final = 1000
"""Members and subscriptions of a group that are told, and groups of a topic."""


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a list of names."""

    after: Annotated[str, Meta(description="Name behind which the page begins: `next` of the page before.")] = ""
    count: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Names at most.")] = 100


class QueuesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a list of queues."""

    first: Annotated[
        int, Meta(ge=0, le=2**31 - 1, description="Queues that are passed over: `next` of the page before.")
    ] = 0
    count: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Queues at most.")] = 100


class ProgressQuery(QueuesQuery, frozen=True, forbid_unknown_fields=True):
    """Parameters of a group's progress."""

    topic: Annotated[str, Meta(description="Of this topic alone.")] = ""


class TopicSummary(Struct, frozen=True, rename="camel"):
    """A topic. `permission`: 2: may be written, 4: read, 6: both."""

    name: str
    permission: int
    read_queues: int
    write_queues: int
    ordered: bool


class TopicList(Struct, frozen=True):
    """Topics, by their names. `next`: begins the following page; "": there is none."""

    topics: list[TopicSummary]
    next: str = ""


class QueueState(Struct, frozen=True, rename="camel"):
    """A queue has the offsets [start, end). `last_store_time`: of its newest message, ms since 1970; 0: it is empty."""

    queue: int
    start: int
    end: int
    last_store_time: int


class TopicState(Struct, frozen=True):
    """A topic, the groups that read it, and its queues. `next`: as `first` of the following page; -1: there is none."""

    topic: TopicSummary
    groups: list[str]
    queues: list[QueueState]
    next: int = -1


class GroupSummary(Struct, frozen=True, rename="camel"):
    """A group. `members`: connections that consume for it now."""

    name: str
    consumes: bool
    retries_max: int
    members: int


class GroupList(Struct, frozen=True):
    """Groups, by their names. `next`: as of `TopicList`."""

    groups: list[GroupSummary]
    next: str = ""


class Subscription(Struct, frozen=True, rename="camel"):
    """What a group that is online wants of a topic."""

    topic: str
    filter: str
    filter_type: str


class GroupMember(Struct, frozen=True, rename="camel"):
    """A connection that consumes for a group."""

    client: str
    address: str
    language: str
    version: int
    subscriptions: dict[str, str]
    """Topic → filter."""


class GroupState(Struct, frozen=True):
    """A group, and who is online in it."""

    group: GroupSummary
    subscriptions: list[Subscription]
    members: list[GroupMember]


class QueueProgress(Struct, frozen=True, rename="camel"):
    """How far a group is in a queue. `lag`: messages before it. `consumed_time`: store time of the newest message that it has
    consumed, ms since 1970; 0: none."""

    topic: str
    queue: int
    offset: int
    end: int
    lag: int
    consumed_time: int


class GroupProgressPage(Struct, frozen=True):
    """A group's progress, queue by queue. `lag`: of the queues of this page. `next`: as of `TopicState`."""

    group: str
    lag: int
    queues: list[QueueProgress]
    next: int = -1


class BrokerState(Struct, frozen=True, rename="camel"):
    """A broker: its figures, and its options without secrets. Rates are of the last minute, times in ms since 1970."""

    name: str
    cluster: str
    role: str
    version: str
    started: int
    topics: int
    groups: int
    messages_put: int
    messages_got: int
    puts_per_second: float
    gets_per_second: float
    disk_ratio: float
    log_start: int
    log_end: int
    log_flushed: int
    held_pulls: int
    trouble: str
    options: list[OptionState]


class Inspecting:
    """The pages. Args: version: of this software."""

    def __init__(self, broker: Broker, callers: Callers, version: str) -> None:
        self._broker, self._callers, self._version = broker, callers, version

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="listTopics", method="GET", path="/admin/topics", text="List topics, by their names.", run=self._topics, query=PageQuery,
                answers={200: Content(JSON, TopicList)},
            ),
            Operation(
                name="getTopic", method="GET", path="/admin/topics/{topic}", text="Tell a topic's settings, groups and queues.",
                run=self._topic, query=QueuesQuery, answers={200: Content(JSON, TopicState)},
            ),
            Operation(
                name="listGroups", method="GET", path="/admin/groups", text="List groups, by their names.", run=self._groups, query=PageQuery,
                answers={200: Content(JSON, GroupList)},
            ),
            Operation(
                name="getGroup", method="GET", path="/admin/groups/{group}", text="Tell a group's settings, subscriptions and members.",
                run=self._group, answers={200: Content(JSON, GroupState)},
            ),
            Operation(
                name="getProgress", method="GET", path="/admin/groups/{group}/progress", text="Tell how far a group is in its queues.",
                run=self._progress, query=ProgressQuery, answers={200: Content(JSON, GroupProgressPage)},
            ),
            Operation(
                name="getBroker", method="GET", path="/admin/broker", text="Tell the broker's figures and options.", run=self._state,
                answers={200: Content(JSON, BrokerState)},
            ),
        ]  # fmt: skip

    def _check(self, request: Request) -> None:
        self._broker.gatekeeper.check(self._callers.of(request), Action.OBSERVE, "")

    async def _topics(self, request: Request) -> Response:
        self._check(request)
        query, table = query_of(request, PageQuery), self._broker.topics.table
        names, following = await in_turns(page_of(table, query.after, query.count))
        return json_answer(TopicList([_topic(table[name]) for name in names if name in table], following))

    async def _topic(self, request: Request) -> Response:
        self._check(request)
        query, name = query_of(request, QueuesQuery), request.path_params["topic"]
        config = self._broker.topics.require(name)
        rows = self._broker.reports.topic_stats(name)
        found, following = await in_turns(_rows(rows, query.first, query.count))
        queues = [QueueState(queue.queue_id, one.min_offset, one.max_offset, one.last_ms) for queue, one in found]
        groups = self._broker.reports.groups_of(name)[:MEMBERS_MAX]
        return json_answer(TopicState(_topic(config), groups, queues, following))

    async def _groups(self, request: Request) -> Response:
        self._check(request)
        query, table = query_of(request, PageQuery), self._broker.groups.table
        names, following = await in_turns(page_of(table, query.after, query.count))
        return json_answer(GroupList([self._summary(table[name]) for name in names if name in table], following))

    async def _group(self, request: Request) -> Response:
        self._check(request)
        query_of(request, NoQuery)
        config = self._existing(request.path_params["group"])
        online = self._broker.members.consumers.get(config.name)
        if online is None:
            return json_answer(GroupState(self._summary(config), [], []))
        wanted = islice(online.subscriptions.values(), MEMBERS_MAX)
        subscriptions = [Subscription(one.topic, one.expression, one.expression_type) for one in wanted]
        members = [
            GroupMember(one.client_id, one.channel.remote, one.language, one.version, dict(one.wants))
            for one in islice(online.members.values(), MEMBERS_MAX)
        ]
        return json_answer(GroupState(self._summary(config), subscriptions, members))

    async def _progress(self, request: Request) -> Response:
        self._check(request)
        query, broker = query_of(request, ProgressQuery), self._broker
        group = self._existing(request.path_params["group"]).name
        if query.topic:
            broker.topics.require(query.topic)
        rows = await when_ready(lambda: broker.reports.consume_stats(group, query.topic or None))
        found, following = await in_turns(_rows(rows, query.first, query.count))
        queues = [
            QueueProgress(
                queue.topic, queue.queue_id, one.consumer_offset, one.broker_offset,
                max(0, one.broker_offset - one.consumer_offset), one.last_ms,
            )
            for queue, one in found
        ]  # fmt: skip
        return json_answer(GroupProgressPage(group, sum(one.lag for one in queues), queues, following))

    async def _state(self, request: Request) -> Response:
        self._check(request)
        query_of(request, NoQuery)
        broker, facts = self._broker, self._broker.reports.facts()
        options = broker.options
        return json_answer(
            BrokerState(
                broker.environment.name, options.broker_cluster_name, options.broker_role, self._version, facts.started_ms,
                len(broker.topics.table), len(broker.groups.table), facts.put_messages, facts.got_messages, facts.puts.minute,
                facts.gets.minute, facts.disk_ratio, facts.log_min, facts.log_end, facts.log_flushed, facts.held_pulls,
                facts.trouble, option_states(broker.all_settings, {}),
            )
        )  # fmt: skip

    def _existing(self, name: str) -> GroupConfig:
        config = self._broker.groups.get(name)
        if config is None:
            raise Refused(Reason.NO_GROUP, f"there is no group {name:.200} at this broker")
        return config

    def _summary(self, config: GroupConfig) -> GroupSummary:
        online = self._broker.members.consumers.get(config.name)
        return GroupSummary(
            config.name, config.consume_enable, config.retry_max, len(online.members) if online is not None else 0
        )


def _topic(config: TopicConfig) -> TopicSummary:
    return TopicSummary(config.name, config.perm, config.read_queues, config.write_queues, config.order)


def page_of(names: Iterable[str], after: str, count: int) -> InPieces[tuple[list[str], str]]:
    """Return the first names behind another, in their order, and behind which the next page begins; "": there is none."""
    found, rest = list[str](), iter(list(names))
    while piece := list(islice(rest, NAMES_OF_A_PIECE)):
        found = heapq.nsmallest(count + 1, [*found, *(name for name in piece if name > after)])
        yield
    page = found[:count]
    return page, page[-1] if len(found) > count else ""


def _rows(rows: Iterable[T], first: int, count: int) -> InPieces[tuple[list[T], int]]:
    """Return rows behind the first ones, and how many are before the next page; -1: there is none."""
    found = list[T]()
    for number, row in enumerate(rows):
        if number >= first + count:
            return found, number
        if number >= first:
            found.append(row)
        yield
    return found, -1
