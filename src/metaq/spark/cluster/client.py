"""Blocking client for a Spark driver: routes, ends of queues, progress of groups."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from metaq.client.conversation.administration import GetSettings
from metaq.client.conversation.call import At, Call, Consultation
from metaq.client.conversation.driver import converse, converse_all
from metaq.client.conversation.groups import GetConnections, GetConsumeStats, LeaveGroup, SendHeartbeat
from metaq.client.conversation.name_servers import NameServers, parse_addresses
from metaq.client.conversation.reading.offsets import GetBeginning, GetMaxOffset, GetPosition, SetPosition, beginners
from metaq.client.conversation.reading.pulling import Pull
from metaq.client.conversation.reading.sizes import Sample, sample_sizes
from metaq.client.conversation.reading.time_search import first_at_or_after, store_time_from
from metaq.client.conversation.retry import Patience, Purpose
from metaq.client.identity.access import AS_ENVIRONMENT, Access
from metaq.clock import SYSTEM
from metaq.errors import BrokerError, ConfigError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.model.clients import ConsumerView, Heartbeat
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.offsets import Generations, Positions, Slice
from metaq.model.queue import MessageQueue
from metaq.model.topics.route import MASTER_ID, guessed
from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.model.transactions.staging import CHUNK_BYTES_MAX
from metaq.spark.cluster.link import Link
from metaq.spark.cluster.replicas import AUTO, Replicas
from metaq.wire.extensions import LARGE_CHUNKS_LEVEL

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
V = TypeVar("V")

TIMEOUT_SECONDS = 10.0
_LARGEST: Final = "maxMessageSize"
"""Setting of a broker: most bytes of a body."""
REST_SECONDS = 2.0
"""Pause between tries beyond the retry time."""
LOG_SECONDS = 60.0
"""Interval of log lines while something is waited for."""
MADE_QUEUES = 4
"""Queues per broker of a topic that a query's writes create."""
UNDER_WAY_MAX = 512
"""Calls under way on one connection: their answers must fit into the peer's limit of unsent bytes."""
PULLS_UNDER_WAY_MAX = 8
"""Pulls of single messages under way: fewer, because each answer may be as large as the largest message."""


def may_be_away(fault: MetaqError) -> bool:
    """Return whether a fault can mean that the broker is not up: starting, stopping or unreachable."""
    if isinstance(fault, BrokerError):
        return fault.retriable
    return isinstance(fault, ConnectionFailed | RequestTimeout | NoRoute)


class Capabilities(NamedTuple):
    """Capabilities of a broker: extension level (docs/formats/extensions.md; 0: a RocketMQ), and most bytes of a body."""

    level: int
    body_bytes: int


def refuse_members(group: str, members: Sequence[str]) -> None:
    """Raise ConfigError if there are members: stored progress is where consumers go on, so they would skip messages."""
    if members:
        raise ConfigError(
            f"the consumer group {group} has members ({', '.join(members[:3])}{', ...' if len(members) > 3 else ''}), which "
            "would skip messages if other progress were stored for it: name a group without consumers"
        )


class Retries:
    """Retries of one operation: with growing pauses, for a limited time."""

    def __init__(self, seconds: float) -> None:
        """Args: seconds: how long, from the first fault."""
        self._patience = Patience(Purpose.SLICE, seconds, SYSTEM.monotonic())
        self._logged_at: float | None = None

    def renew(self) -> None:
        """Note a success: the next fault restarts the time."""
        self._patience.renew(SYSTEM.monotonic())

    def pause(self, fault: MetaqError) -> None:
        """Wait before the next try. Raises `fault` if a retry cannot help, or the time is over."""
        seconds = self._patience.pause(fault, SYSTEM.monotonic())
        _LOG.warning("%s; trying again in %.1f s", fault, seconds)
        threading.Event().wait(seconds)

    def rest(self, text: str) -> None:
        """Wait before a try beyond the time limit; logs this now and then."""
        now = SYSTEM.monotonic()
        if self._logged_at is None or now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            _LOG.warning("%s", text)
        threading.Event().wait(REST_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageLimits:
    """Limits of a message's size. Plain values: pickled and sent to the workers."""

    body_bytes: int
    """Most bytes of a body."""
    whole_bytes: int | None = None
    """Most bytes of body and properties together; None: each has its own limit only."""
    empty: bool = False
    """Whether a body may be empty."""
    retry_topics: bool = False
    """Whether a message may go to the retry topic of a group."""

    @property
    def words(self) -> str:
        """The limits in words, for errors."""
        least = 0 if self.empty else 1
        if self.whole_bytes is not None:
            return f"{least} to {self.whole_bytes} in all"
        return f"bodies of {least} to {self.body_bytes}"


BATCH_LIMITS: Final = MessageLimits(body_bytes=BODY_BYTES_MAX, whole_bytes=BODY_BYTES_MAX)
"""Limits of messages that are sent in batches, to any broker."""
OLDER_TRANSACTION_LIMITS: Final = MessageLimits(body_bytes=CHUNK_BYTES_MAX, whole_bytes=CHUNK_BYTES_MAX)
"""Limits of messages in a transaction at brokers below extension level 4, which take no chunk above 1 MiB."""


class ClusterClient:
    """Blocking client, with one connection per peer. Not thread-safe. Every method retries for `retry_seconds`.

    Raises, from every method: NoRoute, ConnectionFailed, RequestTimeout, RemoteProtocolError, BrokerError.
    """

    def __init__(
        self, name_servers: str, retry_seconds: float, read_from: str = AUTO, access: Access = AS_ENVIRONMENT
    ) -> None:
        """
        Args:
            name_servers: `host:port`, `;`-separated.
            retry_seconds: how long each method retries.
            read_from: one of `replicas.READ_FROM`.
            access: what requests are signed with, and the TLS of connections.

        Raises ConfigError: an address is malformed, or there is none; credentials or a file of TLS that cannot be used.
        """
        self._credentials = access.credentials()
        settings = access.tls_settings()
        self._tls = settings.open() if settings is not None else None
        self._name_servers = NameServers(parse_addresses(name_servers))
        self._retry_seconds = retry_seconds
        self._links: dict[str, Link] = {}
        self.generations: Generations = {}
        """Of the topics whose `starts` were asked for, as brokers told them last."""
        self.replicas = Replicas(read_from)
        self._introduced: set[tuple[str, str]] = set()
        """(group, broker) where the group's retry topic was asked for, see `_introduce`."""
        self._begun: dict[str, set[tuple[str, str]]] = {}
        """Group → (broker, topic) where its progress was stored."""

    # -------------------------------------------------------------- routes
    def topics(self, pattern: str) -> list[str]:
        """Return the topics that match the glob `pattern`. System, retry and dead-letter topics must be named whole."""
        found = self._tried(lambda: self._consult(self._name_servers.topics()))
        return [name for name in found if fnmatch.fnmatchcase(name, pattern)]

    def queues(self, topics: Iterable[str], seconds: float | None = None) -> list[MessageQueue]:
        """Return the readable queues of the topics. `seconds`: retry time instead of `retry_seconds`.

        Raises NoRoute: a topic has none.
        """
        found: list[MessageQueue] = []
        for topic in topics:
            queues = self._tried(functools.partial(self._readable, topic), seconds=seconds)
            if not queues:
                raise NoRoute(f"the topic {topic} has no readable queue at {self._name_servers}")
            found += queues
        return sorted(found)

    def writable(self, topic: str, seconds: float | None = None) -> list[MessageQueue]:
        """Return the topic's writable queues; of a topic that does not exist, those that its first send will create.

        `seconds` as in `queues`. Raises NoRoute: it does not exist, and brokers create none (autoCreateTopicEnable).
        """
        return self._tried(functools.partial(self._writable, topic), seconds=seconds)

    def _writable(self, topic: str) -> list[MessageQueue]:
        try:
            route = self._consult(self._name_servers.route(topic))
        except NoRoute:
            try:
                # Brokers that create topics register TBW102; RocketMQ's producers send by its route, too.
                route = guessed(topic, self._consult(self._name_servers.route(AUTO_CREATE_TOPIC)), MADE_QUEUES)
            except NoRoute:
                raise self._consult(self._name_servers.no_route(topic)) from None
        queues = route.writable()
        if not queues:
            raise NoRoute(f"the topic {topic} has no queue that can be sent to at {self._name_servers}")
        return queues

    def masters(self) -> dict[str, str]:
        """Return broker name → address of its master, for all masters."""
        found = self._tried(lambda: self._consult(self._name_servers.cluster())).brokers
        return {name: data.master for name, data in found.items() if data.master is not None}

    def capabilities(self, broker: str) -> Capabilities:
        """Return the capabilities of a broker's master. RocketMQ's default size where it refuses to report its settings."""
        return self._tried(functools.partial(self._capabilities, broker))

    def _capabilities(self, broker: str) -> Capabilities:
        data = self._consult(self._name_servers.cluster()).brokers.get(broker)
        if data is None or data.master is None:
            raise NoRoute(f"no master of the name {broker} is up")
        # A heartbeat without groups: its answer names the extension level, and nothing is registered.
        level = self._outcome(At(data.master, SendHeartbeat(Heartbeat(f"{SYSTEM.token()}@spark"))))
        try:
            said = self._outcome(At(data.master, GetSettings())).get(_LARGEST, "")
        except BrokerError:
            said = ""
        return Capabilities(level, int(said) if said.isdecimal() else BODY_BYTES_MAX)

    def _readable(self, topic: str) -> list[MessageQueue]:
        """Return the topic's readable queues; notes their brokers' addresses."""
        route = self._consult(self._name_servers.route(topic))
        self.replicas.learn(route)
        return route.readable()

    # -------------------------------------------------------------- positions
    def ends(self, queues: Iterable[MessageQueue], seconds: float | None = None) -> Positions:
        """Return each queue's max offset, one past the newest message. `seconds`: retry time instead of `retry_seconds`."""
        return self._ask({queue: GetMaxOffset(queue) for queue in queues}, seconds)

    def starts(self, queues: Iterable[MessageQueue], seconds: float | None = None) -> Positions:
        """Return each queue's min offset, that of the oldest stored message. `seconds` as in `ends`.

        `generations` has those of their topics afterwards, where they are told.
        """
        found = self._ask({queue: GetBeginning(queue) for queue in queues}, seconds)
        for queue, begin in found.items():
            if begin.generation is not None:
                self.generations[queue.topic, queue.broker] = begin.generation
        return {queue: begin.offset for queue, begin in found.items()}

    def at(self, queues: Iterable[MessageQueue], timestamp_ms: int, group: str) -> Positions:
        """Return each queue's first offset stored at `timestamp_ms` or later; its max offset if there is none yet.

        A binary search: some twenty rounds of one small pull per queue, made for `group`.
        """
        return converse_all({queue: first_at_or_after(queue, timestamp_ms, group) for queue in queues}, self._ask)

    def store_times(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Return the store time (ms since 1970) of each queue's first message at the position or later; None: none there."""
        asked = {queue: store_time_from(queue, offset) for queue, offset in positions.items()}
        return converse_all(asked, self._ask)

    def sizes(
        self, slices: Iterable[Slice], group: str, pulls_max: int, known: Mapping[MessageQueue, list[Sample]]
    ) -> dict[MessageQueue, list[Sample]]:
        """Sample message sizes of each slice, with at most `pulls_max` small pulls per queue, for `group`.

        Without retries: queues whose broker is away have no samples.
        """
        found: dict[MessageQueue, list[Sample]] = {}
        # Broker by broker: one that is away costs the others no sample.
        for broker, pieces in itertools.groupby(
            sorted(slices, key=lambda piece: (piece.queue.broker, piece)), lambda piece: piece.queue.broker
        ):
            looked_at = {
                one.queue: sample_sizes(
                    one.queue, one.start, one.end, group=group, pulls_max=pulls_max, known=known.get(one.queue, ())
                )
                for one in pieces
            }
            try:
                # Not retried: samples only make partitions even, and a replayed batch may be planned with a broker away.
                found |= converse_all(looked_at, functools.partial(self._ask, seconds=0.0))
            except MetaqError as fault:
                _LOG.warning("how large messages at the broker %s are is guessed: %s", broker, fault)
        return found

    def progress(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int | None]:
        """Return a consumer group's progress in each queue; None: it has none there."""
        return self._ask({queue: GetPosition(group, queue, exact=True) for queue in queues})

    def members(self, group: str) -> list[str]:
        """Return the client ids of a consumer group's members, sorted. All masters are asked: members connect to some."""
        found: set[str] = set()
        for connections in self._of_masters(GetConnections(group)):
            found |= {one.client_id for one in connections[0]} if connections is not None else set()
        return sorted(found)

    def consumed(self, group: str) -> dict[MessageQueue, int]:
        """Return a consumer group's progress in all queues of the topics in which it has any.

        Unlike `progress` at a RocketMQ, which answers 0 for an unknown group while a queue still has its first message.
        """
        found: dict[MessageQueue, int] = {}
        for stats, _ in self._of_masters(GetConsumeStats(group)):
            found |= {queue: one.consumer_offset for queue, one in stats.items()}
        return found

    def _of_masters(self, call: Call[T]) -> list[T]:
        return [self._tried(functools.partial(self._outcome, At(at, call))) for at in self.masters().values()]

    def report(self, group: str, positions: Mapping[MessageQueue, int], seconds: float | None = None) -> None:
        """Store `positions` as the consumer group's progress, where `metaq group show` and mqadmin look for it.

        Queues that no longer exist are left out. `seconds` as in `ends`.
        Raises ConfigError, too: consumers have joined the group. They would go on at these positions.
        """
        one_each = {queue.broker: queue for queue in positions}.values()
        asked = {queue: GetConnections(group) for queue in one_each}
        for connections in self.of_existing(asked, functools.partial(self._ask, seconds=seconds)).values():
            if connections is not None:
                refuse_members(group, sorted(one.client_id for one in connections[0]))
        calls = {queue: SetPosition(group, queue, offset) for queue, offset in positions.items()}
        begun = self._begun.setdefault(group, set())
        # One queue per broker and topic goes first: a RocketMQ makes the table of a group and topic with the first progress
        # that it is sent, without a lock, and of several tables that are made at once only the last stays.
        for some in ({queue: calls.pop(queue) for queue in beginners(calls, begun)}, calls):
            kept = self.of_existing(some, functools.partial(self._ask, seconds=seconds))
            begun |= {(queue.broker, queue.topic) for queue in kept}
        for broker, queue in {queue.broker: queue for queue in positions}.items():
            if (group, broker) not in self._introduced:
                # Before the try: once is enough, the progress itself is stored.
                self._introduced.add((group, broker))
                try:
                    self._introduce(group, queue)
                except MetaqError as fault:
                    _LOG.warning("RocketMQ's tools may not list the group %s at broker %s: %s", group, broker, fault)

    def of_existing(self, asked: Mapping[MessageQueue, T], ask: Callable[[Mapping[MessageQueue, T]], V]) -> V:
        """Call `ask` for all queues; if that fails, for those that still exist (a topic was deleted, or a queue removed).

        The checkpoint of a query by pattern keeps such queues for ever. Raises what `ask` does.
        """
        try:
            return ask(asked)
        except (NoRoute, BrokerError):
            left = self._left_of(asked)
            if len(left) == len(asked):
                raise
            return ask({queue: asked[queue] for queue in left})

    def _left_of(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the queues without those that no route names although their broker is up."""
        up = self.masters()
        left = []
        for topic, mine in itertools.groupby(sorted(queues), lambda queue: queue.topic):
            try:
                readable = set(self._readable(topic))
            except NoRoute:
                readable = set()
            left += [queue for queue in mine if queue in readable or queue.broker not in up]
        return left

    def _introduce(self, group: str, queue: MessageQueue) -> None:
        """Have the broker of `queue` create the group's retry topic: mqadmin finds groups by it.

        Brokers create it when a consumer joins, so this client joins and leaves, unless the topic is there.
        """
        try:
            route = self._consult(self._name_servers.route(RETRY_PREFIX + group))
        except NoRoute:
            pass
        else:
            if any(broker.broker == queue.broker for broker in route.brokers):
                return
        client_id = f"{SYSTEM.token()}@spark"
        view = ConsumerView(group, push=False)
        # It leaves at once: while it is a member, rebalancing gives it queues, which it would not read.
        for call in (SendHeartbeat(Heartbeat(client_id, (view,))), LeaveGroup(client_id, consumer_group=group)):
            try:
                self._ask_broker(queue, [call])
            except BrokerError:
                raise
            except MetaqError:
                self.forget(queue)
                raise

    def _ask(self, calls: Mapping[MessageQueue, Call[T]], seconds: float | None = None) -> dict[MessageQueue, T]:
        """Send each call to the broker that holds its queue, many at a time. `seconds` as in `queues`."""
        per_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(calls):
            per_broker.setdefault(queue.broker, []).append(queue)
        outcomes: dict[MessageQueue, T] = {}
        for mine in per_broker.values():
            under_way = PULLS_UNDER_WAY_MAX if any(isinstance(calls[q], Pull) for q in mine) else UNDER_WAY_MAX
            for first in range(0, len(mine), under_way):
                some = mine[first : first + under_way]
                ask = functools.partial(self._ask_broker, some[0], [calls[queue] for queue in some])
                outcomes.update(zip(some, self._tried(ask, some[0], seconds), strict=True))
        return outcomes

    def _ask_broker(self, queue: MessageQueue, calls: list[Call[T]]) -> list[T]:
        return self.link_to(queue).ask(calls)

    # -------------------------------------------------------------- connections
    def link_to(self, queue: MessageQueue) -> Link:
        """Return the connection to the replica that is asked for the queue's offsets, see `Replicas.offset_replica`."""
        self._find(queue)
        return self.link_at(queue, self.replicas.offset_replica(queue))

    def asks_master(self, queue: MessageQueue) -> bool:
        """Return whether the replica that is asked for the queue's offsets is the master."""
        self._find(queue)
        return self.replicas.offset_replica(queue) == MASTER_ID

    def usable(self, queue: MessageQueue) -> list[int]:
        """Return the broker ids of the replicas that messages of `queue` may be pulled from."""
        self._find(queue)
        return self.replicas.usable(queue)

    def link_at(self, queue: MessageQueue, broker_id: int) -> Link:
        """Return the connection to one replica of the queue's broker. Raises NoRoute: it is not up."""
        self._find(queue)
        address = self.replicas.address(queue.broker, broker_id)
        if not address:
            raise NoRoute(f"the {'slave' if broker_id else 'master'} of the broker {queue.broker} of {queue} is not up")
        return self.link(address)

    def _find(self, queue: MessageQueue) -> None:
        if not self.replicas.knows(queue.broker):
            self._readable(queue.topic)

    def forget(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> None:
        """Drop the connection to a replica of the queue's broker, and its addresses: they are looked up next time."""
        self.drop(self.replicas.address(queue.broker, broker_id))
        self.replicas.forget(queue.broker)

    def close(self) -> None:
        for address in list(self._links):
            self.drop(address)

    def _consult(self, consultation: Consultation[T]) -> T:
        return converse(consultation, self._outcome)

    def _outcome(self, step: At[T]) -> T:
        try:
            return self.link(step.address).ask([step.call])[0]
        except BrokerError:  # An answer: the connection is fine.
            raise
        except MetaqError:
            self.drop(step.address)
            raise

    def link(self, address: str) -> Link:
        """Return the connection to a peer, made if there is none."""
        if address not in self._links:
            self._links[address] = Link(address, TIMEOUT_SECONDS, self._credentials, self._tls)
        return self._links[address]

    def drop(self, address: str) -> None:
        """Close the connection to a peer, if there is one."""
        link = self._links.pop(address, None)
        if link is not None:
            link.close()

    def _tried(self, act: Callable[[], T], queue: MessageQueue | None = None, seconds: float | None = None) -> T:
        tries = Retries(self._retry_seconds if seconds is None else min(seconds, self._retry_seconds))
        while True:
            try:
                return act()
            except MetaqError as fault:
                if queue is not None:
                    self.forget(queue)  # A broker that restarts may have another address.
                tries.pause(fault)


@functools.lru_cache(maxsize=8)
def client_of(
    name_servers: str, retry_seconds: float, read_from: str = AUTO, access: Access = AS_ENVIRONMENT
) -> ClusterClient:
    """Return this process's client of a cluster. Cached: Spark reuses workers (spark.python.worker.reuse), and so sockets.

    After a failed or cancelled task Spark kills the worker: nothing but speed may depend on this cache.
    """
    return ClusterClient(name_servers, retry_seconds, read_from, access)


def transaction_limits(client: ClusterClient) -> MessageLimits:
    """Return the limits that every broker of a cluster accepts for a transaction's messages. Raises as `ClusterClient`."""
    found = [client.capabilities(broker) for broker in client.masters()]
    # The lowest level counts: a transaction's messages go to every broker that holds their topics.
    if not found or min(one.level for one in found) < LARGE_CHUNKS_LEVEL:
        return OLDER_TRANSACTION_LIMITS
    return MessageLimits(body_bytes=min(one.body_bytes for one in found), empty=True, retry_topics=True)
