"""Driver side: what ZooKeeper and the servers of a cluster of MetaQ 1.x tell of one topic. Keeps its connections."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from metaq.clock import SYSTEM
from metaq.errors import BrokerError, ConfigError, MetaqError, NoRoute
from metaq.log import RateLimitedLog
from metaq.spark.cluster.client import LOG_SECONDS, Retries
from metaq.spark.metaq1.link import TextLink
from metaq.spark.metaq1.settings import Metaq1Options
from metaq.wire.metaq1.commands import Answer, Code

if TYPE_CHECKING:
    from metaq.registry.zookeeper.blocking import BlockingRegistry

PLACES_SECONDS: Final = 2.0
"""How long what ZooKeeper has told is taken for true: a partition that is added is seen that much later."""
AWAY_SECONDS: Final = 10.0
"""Pause before a ZooKeeper that was away is asked again for what is known, or told the progress."""
SHORT_SECONDS: Final = 2.0
"""Time for a request to ZooKeeper that the query can do without."""

Offsets = dict[str, int]
"""Partition `B-n` → byte offset."""
T = TypeVar("T")


class Place(NamedTuple):
    """Where one partition can be read."""

    servers: tuple[str, ...]
    """`host:port`, the master first if there is one."""
    has_master: bool


class Bound(NamedTuple):
    """First offset of a partition, or the one behind its last message."""

    offset: int
    sure: bool
    """Whether its master says so: a slave may be behind."""


class Metaq1Cluster:
    """One topic of a cluster, for one query. Not thread-safe.

    Args: skip_closed: partitions that are closed have no bounds; else they are an error.
    """

    def __init__(self, options: Metaq1Options, *, skip_closed: bool = False) -> None:
        self._options, self._skip_closed = options, skip_closed
        self._registry: BlockingRegistry | None = None
        self._links: dict[str, TextLink] = {}
        self._places: dict[str, Place] = {}
        self._due = self._store_due = SYSTEM.monotonic()
        self._log = RateLimitedLog(logging.getLogger(__name__), seconds=LOG_SECONDS)

    def close(self) -> None:
        """Close all connections; the next call makes others."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    # ------------------------------------------------------------------ ZooKeeper
    def places(self) -> dict[str, Place]:
        """Return partition → its servers, as of `PLACES_SECONDS` ago at most; older while ZooKeeper is away.

        Raises NoRoute: nobody serves the topic; ConnectionFailed. After `retrySeconds`.
        """
        if not self._places or SYSTEM.monotonic() >= self._due:
            self._places = self._look() if self._places else self._patiently(lambda: self._looked(None))
            if self._due <= SYSTEM.monotonic():
                self._due = SYSTEM.monotonic() + PLACES_SECONDS
        return self._places

    def _look(self) -> dict[str, Place]:
        """Return what ZooKeeper tells now, or what is known: its servers may go on without it, and so can we."""
        try:
            return self._looked(SHORT_SECONDS)
        except NoRoute as fault:
            # A server that starts anew has no nodes for a moment; it may listen already.
            self._log.warning("route", "%s; asking those that served it", fault)
        except MetaqError as fault:
            self._due = SYSTEM.monotonic() + AWAY_SECONDS
            self._log.warning("zookeeper", "%s; going on with the servers that are known", fault)
        return self._places

    def _looked(self, seconds: float | None) -> dict[str, Place]:
        options = self._options
        if options.metaq1_server is not None:
            return {
                f"0-{number}": Place((options.metaq1_server,), has_master=True)
                for number in range(options.partitions or 0)
            }
        found = self.registry.places(options.topic, seconds)
        if not found:
            raise NoRoute(
                f"ZooKeeper {options.zk_connect} names no server under {options.zk_root} that serves topic {options.topic}"
            )
        return {partition: Place(*place) for partition, place in found.items()}

    @property
    def registry(self) -> BlockingRegistry:
        if self._registry is None:
            # Only here: kazoo and asyncio are the driver's, and an executor goes without.
            try:
                from metaq.registry.zookeeper.blocking import BlockingRegistry
            except ImportError as missing:
                raise ConfigError(f"zkConnect needs kazoo ({missing}): install pymetaq[zookeeper]") from missing
            options = self._options
            assert options.zk_connect is not None
            self._registry = BlockingRegistry(options.zk_connect, options.zk_root, max(options.retry_seconds, 1.0))
        return self._registry

    def reached(self, group: str) -> Offsets:
        """Return where a group has come, by its offsets in ZooKeeper. Raises ConnectionFailed."""
        found = self._patiently(lambda: self.registry.offsets(self._options.topic, group))
        return {partition: node.position for partition, node in found.items()}

    def members(self, group: str) -> list[str]:
        """Return a group's consumers. Raises ConnectionFailed."""
        return self._patiently(lambda: self.registry.members(group))

    def store(self, group: str, done: Mapping[str, int], refuse: Callable[[str, list[str]], None]) -> bool:
        """Store a group's offsets in ZooKeeper; none goes back. Returns False: not yet, as it was away a moment ago.

        Args: refuse: raises if the group has these members. Raises ConnectionFailed, and what `refuse` raises.
        """
        if SYSTEM.monotonic() < self._store_due:
            return False
        self._store_due = SYSTEM.monotonic() + AWAY_SECONDS
        refuse(group, self.registry.members(group, SHORT_SECONDS))
        self.registry.advance_offsets(self._options.topic, group, done, SHORT_SECONDS)
        self._store_due = SYSTEM.monotonic()
        return True

    # ------------------------------------------------------------------ servers
    def bounds(self, partitions: Iterable[str], *, last: bool) -> dict[str, Bound]:
        """Return the partitions' ends, or their first offsets; without those that have no server or nothing, or are skipped.

        Raises ConnectionFailed, RequestTimeout: no server of a partition has answered within `retrySeconds`; BrokerError: one refuses.
        """
        found: dict[str, Bound] = {}
        for partition in sorted(partitions):
            number = int(partition.rpartition("-")[2])
            try:
                bound, sure = self._ask(
                    partition,
                    lambda link: link.bound(self._options.topic, self._options.group, number, last=last),  # noqa: B023
                )
            except NoRoute:
                continue
            except BrokerError as fault:
                if fault.code != Code.FORBIDDEN or not self._skip_closed:
                    raise
                self._log.warning(partition, "%s; it is left out while that is so", fault)
                continue
            if bound is not None:
                found[partition] = Bound(bound, sure)
        return found

    def get(self, partition: str, offset: int, size: int) -> Answer:
        """Return the answer of a partition's server to a `get`. Raises as `bounds`."""
        options, number = self._options, int(partition.rpartition("-")[2])
        return self._ask(partition, lambda link: link.get(options.topic, options.group, number, offset, size))[0]

    def _ask(self, partition: str, question: Callable[[TextLink], T]) -> tuple[T, bool]:
        """Return the outcome of a question to one of a partition's servers, and whether it is the master."""
        tries, turn = Retries(self._options.retry_seconds), 0
        while True:
            # Again each time: after a change of masters ZooKeeper names another.
            place = self.places().get(partition)
            if place is None:
                raise NoRoute(f"no server of partition {partition} of topic {self._options.topic} is up")
            which = turn % len(place.servers)
            address = place.servers[which]
            try:
                if address not in self._links:
                    self._links[address] = TextLink(address, max(self._options.retry_seconds, 1.0))
                return question(self._links[address]), which == 0 and place.has_master
            except BrokerError:
                raise
            except MetaqError as fault:
                turn += 1
                if (broken := self._links.pop(address, None)) is not None:
                    broken.close()
                tries.pause(fault)

    def _patiently(self, work: Callable[[], T]) -> T:
        tries = Retries(self._options.retry_seconds)
        while True:
            try:
                return work()
            except MetaqError as fault:
                tries.pause(fault)
