"""What a Spark driver asks of name servers and brokers: routes, where queues begin and end, and progress reports."""

from __future__ import annotations

import fnmatch
import functools
import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TypeVar

from metaq.client.conversation.time_search import TimeSearch
from metaq.clock import SYSTEM
from metaq.errors import BrokerError, ConnectionFailed, MetaqError, NoRoute, RemoteProtocolError, RequestTimeout
from metaq.model.queue import MessageQueue
from metaq.model.route import Route
from metaq.model.topic import users_topics
from metaq.spark.link import Link
from metaq.spark.offsets import Positions
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.record import decode_record

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

TIMEOUT_SECONDS = 10.0
PAUSE_SECONDS = 0.2
PAUSE_SECONDS_MAX = 2.0
PIPELINE_MAX = 512
"""Requests under way on one connection: their answers must fit the peer's limit for unanswered bytes."""
PULLS_MAX = 8
"""The same for pulls of single messages, each of which may be as large as a message may be."""
PULL_CODES = frozenset(
    {
        ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)  # fmt: skip
"""Answers to a pull that have its reply header: there are messages, or it says where to go on."""

TRANSIENT = (ConnectionFailed, RequestTimeout, NoRoute, RemoteProtocolError)
BUSY_CODES = {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL}


def is_transient(fault: MetaqError) -> bool:
    """Whether asking again a little later can help: a restart, a network fault, an overloaded broker."""
    return isinstance(fault, TRANSIENT) or (isinstance(fault, BrokerError) and fault.code in BUSY_CODES)


class Patience:
    """How long one operation may go on failing: pauses that grow, up to a total."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Something worked: the next fault starts anew."""
        self._until = SYSTEM.monotonic() + self._seconds
        self._pause = PAUSE_SECONDS

    def wait(self, fault: MetaqError) -> None:
        """Pause before the next try. Raises `fault` when it is not transient, or when patience has run out."""
        if not is_transient(fault) or SYSTEM.monotonic() + self._pause > self._until:
            raise fault
        _LOG.warning("%s; trying again in %.1f s", fault, self._pause)
        threading.Event().wait(self._pause)
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)


class Cluster:
    """Blocking questions, with one connection per peer. Not thread-safe. Every method tries again for `retry_seconds`.

    Raises, from every method: NoRoute, ConnectionFailed, RequestTimeout, BrokerError.
    """

    def __init__(self, name_servers: str, retry_seconds: float) -> None:
        self._name_servers = [address for part in name_servers.split(";") for address in part.split(",") if address]
        self._retry_seconds = retry_seconds
        self._links: dict[str, Link] = {}
        self._addresses: dict[str, str] = {}

    # -------------------------------------------------------------- routes
    def topics(self, pattern: str) -> list[str]:
        """Topics whose name matches the glob `pattern`. System, retry and dead-letter topics must be named whole."""
        found = self._names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        own = self._names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        return [name for name in users_topics(found, own) if fnmatch.fnmatchcase(name, pattern)]

    def queues(self, topics: Iterable[str], seconds: float | None = None) -> list[MessageQueue]:
        """The readable queues of the topics; `seconds` to try, if not `retry_seconds`.

        Raises NoRoute: one of them has none.
        """
        found: list[MessageQueue] = []
        for topic in topics:
            queues = self._tried(functools.partial(self._route, topic), seconds=seconds).readable()
            if not queues:
                raise NoRoute(f"the topic {topic} has no readable queue at {', '.join(self._name_servers)}")
            found += queues
        return sorted(found)

    def _names(self, code: RequestCode) -> list[str]:
        answer = self._tried(lambda: self._ask_name_servers(request(code)))
        return bodies.topic_list_of(bytes(answer.body))

    def _route(self, topic: str) -> Route:
        header = headers.RouteHeader(topic=topic, accept_standard_json_only=True)
        try:
            answer = self._ask_name_servers(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
        except BrokerError as fault:
            if fault.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise NoRoute(
                f"no route for topic {topic} at name servers {', '.join(self._name_servers)}: "
                f"create it with `metaq topic create {topic}`, or send to it once"
            ) from None
        route = bodies.route_of(topic, bytes(answer.body))
        for broker in route.brokers:
            if broker.any_address:
                self._addresses[broker.broker] = broker.any_address
        return route

    def _ask_name_servers(self, command: Command) -> Command:
        last: MetaqError = NoRoute("no name server was named")
        for address in self._name_servers:
            try:
                return self._link(address).ask([command], f"be told by {address}")[0]
            except TRANSIENT as fault:
                self._drop(address)
                last = fault
        raise last

    # -------------------------------------------------------------- positions
    def ends(self, queues: Iterable[MessageQueue]) -> Positions:
        """The max offset of each queue: one past the newest message."""
        return self._offsets(queues, RequestCode.GET_MAX_OFFSET, _queue_header)

    def starts(self, queues: Iterable[MessageQueue]) -> Positions:
        """The min offset of each queue: the oldest message that is kept."""
        return self._offsets(queues, RequestCode.GET_MIN_OFFSET, _queue_header)

    def at(self, queues: Iterable[MessageQueue], timestamp_ms: int, group: str) -> Positions:
        """Of each queue, the first message stored at `timestamp_ms` or later; the end if there is none yet.

        Some twenty rounds of one small pull per queue, for `group`.
        """
        wanted = list(queues)
        starts, ends = self.starts(wanted), self.ends(wanted)
        searches = {queue: TimeSearch(starts[queue], ends[queue], timestamp_ms) for queue in wanted}
        while probes := {queue: at for queue, search in searches.items() if (at := search.probe) is not None}:
            for queue, answer in self._messages(probes, group).items():
                if answer.code == ResponseCode.SUCCESS and len(answer.body):
                    message = decode_record(answer.body)
                    searches[queue].stored(message.queue_offset, message.store_ms)
                else:
                    header = headers.PullReplyHeader.from_ext(answer.ext)
                    searches[queue].gone(header.min_offset, header.next_offset)
        return {queue: search.low for queue, search in searches.items()}

    def _messages(self, offsets: Mapping[MessageQueue, int], group: str) -> dict[MessageQueue, Command]:
        """The answer to a pull of one message per queue."""

        def commands(queues: list[MessageQueue]) -> list[Command]:
            return [
                request(RequestCode.PULL_MESSAGE, headers.PullHeader(
                    group=group, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offsets[queue], max_messages=1,
                    sys_flag=headers.PullHeader.SUBSCRIPTION, subscription="*", expression_type="TAG", max_msg_bytes=1,
                ))
                for queue in queues
            ]  # fmt: skip

        return self._at_brokers(offsets, commands, "pull single messages", PULL_CODES, PULLS_MAX)

    def report(self, group: str, positions: Mapping[MessageQueue, int]) -> None:
        """Store `positions` as the consumer group's progress, where `metaq group show` and mqadmin look for it."""

        def commands(queues: list[MessageQueue]) -> list[Command]:
            return [
                request(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    headers.UpdateOffsetHeader(
                        group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=positions[queue]
                    ),
                )
                for queue in queues
            ]

        self._at_brokers(positions, commands, f"store the progress of group {group}")

    def _offsets(
        self, queues: Iterable[MessageQueue], code: RequestCode, header: Callable[[MessageQueue], headers.Header]
    ) -> Positions:
        answers = self._at_brokers(
            queues, lambda asked: [request(code, header(queue)) for queue in asked], code.name.lower().replace("_", " ")
        )
        return {queue: headers.OffsetReplyHeader.from_ext(answer.ext).offset for queue, answer in answers.items()}

    def _at_brokers(
        self,
        queues: Iterable[MessageQueue],
        commands: Callable[[list[MessageQueue]], list[Command]],
        action: str,
        fine: Container[int] = (0,),
        under_way: int = PIPELINE_MAX,
    ) -> dict[MessageQueue, Command]:
        per_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            per_broker.setdefault(queue.broker, []).append(queue)
        answers: dict[MessageQueue, Command] = {}
        for mine in per_broker.values():
            for first in range(0, len(mine), under_way):
                some = mine[first : first + under_way]
                answers.update(zip(some, self._ask_broker(some, commands(some), action, fine), strict=True))
        return answers

    def _ask_broker(
        self, queues: list[MessageQueue], commands: list[Command], action: str, fine: Container[int]
    ) -> list[Command]:
        return self._tried(lambda: self.link_to(queues[0]).ask(commands, action, fine), queues[0])

    # -------------------------------------------------------------- connections
    def link_to(self, queue: MessageQueue) -> Link:
        """The connection to the broker that holds `queue`."""
        if queue.broker not in self._addresses:
            self._route(queue.topic)
        if queue.broker not in self._addresses:
            raise NoRoute(f"the broker {queue.broker} of {queue} is not up")
        return self._link(self._addresses[queue.broker])

    def forget(self, queue: MessageQueue) -> None:
        """Drop the connection to the queue's broker, and ask for its address anew next time."""
        self._drop(self._addresses.pop(queue.broker, ""))

    def close(self) -> None:
        for address in list(self._links):
            self._drop(address)

    def _link(self, address: str) -> Link:
        if address not in self._links:
            self._links[address] = Link(address, TIMEOUT_SECONDS)
        return self._links[address]

    def _drop(self, address: str) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.close()

    def _tried(self, act: Callable[[], _T], queue: MessageQueue | None = None, seconds: float | None = None) -> _T:
        patience = Patience(self._retry_seconds if seconds is None else min(seconds, self._retry_seconds))
        while True:
            try:
                return act()
            except MetaqError as fault:
                if queue is not None:
                    self.forget(queue)
                patience.wait(fault)


def _queue_header(queue: MessageQueue) -> headers.Header:
    return headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)


@functools.lru_cache(maxsize=8)
def cluster_of(name_servers: str, retry_seconds: float) -> Cluster:
    """This process's connections to a cluster: Spark's workers live longer than a task, and so may their sockets."""
    return Cluster(name_servers, retry_seconds)
