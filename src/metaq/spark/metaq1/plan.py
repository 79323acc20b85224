"""Driver side: which partitions of MetaQ 1.x are read, where, and from which byte offset to which."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from metaq.errors import BrokerError, ConfigError, MessagesLost, MetaqError, NoRoute
from metaq.spark.cluster.client import Retries
from metaq.spark.metaq1.fetch import Range
from metaq.spark.metaq1.link import TextLink
from metaq.spark.metaq1.settings import EARLIEST, LATEST, STORED, Metaq1Options
from metaq.wire.metaq1.commands import Code

_LOG = logging.getLogger(__name__)

Offsets = dict[str, int]
"""Partition `B-n` → byte offset."""
_VERSION = 1


class Metaq1Planner:
    """One query's view of the cluster. Holds no connection."""

    def __init__(self, options: Metaq1Options) -> None:
        self._options = options

    def places(self) -> dict[str, tuple[str, ...]]:
        """Return partition → its servers, the master first. Raises NoRoute: nobody serves the topic; ConnectionFailed."""
        return self._places(None)[0]

    def _places(self, group: str | None) -> tuple[dict[str, tuple[str, ...]], Offsets]:
        tries = Retries(self._options.retry_seconds)
        while True:
            try:
                return self._looked(group)
            except MetaqError as fault:
                # A server's nodes are gone for a moment when it starts anew.
                tries.pause(fault)

    def _looked(self, group: str | None) -> tuple[dict[str, tuple[str, ...]], Offsets]:
        options = self._options
        if options.metaq1_server is not None:
            return {f"0-{number}": (options.metaq1_server,) for number in range(options.partitions or 0)}, {}
        # Only here: kazoo and asyncio are the driver's, and an executor goes without.
        try:
            from metaq.registry.zookeeper.snapshot import readable
        except ImportError as missing:
            raise ConfigError(f"zkConnect needs kazoo ({missing}): install pymetaq[zookeeper]") from missing
        assert options.zk_connect is not None
        told = readable(options.zk_connect, options.zk_root, options.topic, group, max(options.retry_seconds, 1.0))
        places = {
            f"{broker_id}-{number}": told.servers[broker_id]
            for broker_id, count in sorted(told.partitions.items())
            for number in range(count)
            if told.servers[broker_id]
        }
        if not places:
            raise NoRoute(
                f"ZooKeeper {options.zk_connect} names no server under {options.zk_root} that serves topic {options.topic}"
            )
        return places, {partition: node.position for partition, node in told.offsets.items()}

    def bounds(self, places: Mapping[str, tuple[str, ...]], *, last: bool) -> Offsets:
        """Return the partitions' ends, or their first offsets; without those that are closed.

        Raises ConnectionFailed, RequestTimeout: no server of a partition has answered within `retrySeconds`.
        """
        found: Offsets = {}
        links: dict[str, TextLink] = {}
        try:
            for partition, servers in places.items():
                bound = self._bound(links, partition, servers, last=last)
                if bound is not None:
                    found[partition] = bound
        finally:
            for link in links.values():
                link.close()
        return found

    def _bound(self, links: dict[str, TextLink], partition: str, servers: tuple[str, ...], *, last: bool) -> int | None:
        options, turn = self._options, 0
        tries = Retries(options.retry_seconds)
        while True:
            address = servers[turn % len(servers)]
            try:
                if address not in links:
                    links[address] = TextLink(address, max(options.retry_seconds, 1.0))
                number = int(partition.rpartition("-")[2])
                return links[address].bound(options.topic, options.group, number, last=last)
            except BrokerError as fault:
                if fault.code != Code.FORBIDDEN:
                    raise
                _LOG.warning("%s; it is left out for now", fault)
                return None
            except MetaqError as fault:
                turn += 1
                if (broken := links.pop(address, None)) is not None:
                    broken.close()
                tries.pause(fault)

    def start(self, default: str) -> Offsets:
        """Return where the query begins."""
        text = self._options.starting_offsets or default
        places, stored = self._places(self._options.group if text == STORED else None)
        if text == LATEST:
            return self.bounds(places, last=True)
        firsts = self.bounds(places, last=False)
        if text == EARLIEST:
            return firsts
        given = stored if text == STORED else self._options.given("starting_offsets")
        unknown = [] if text == STORED else sorted(set(given) - set(places))
        if unknown:
            raise ConfigError(f"startingOffsets names partitions that are not there: {', '.join(unknown[:10])}")
        return firsts | {partition: offset for partition, offset in given.items() if partition in places}

    def end(self) -> Offsets:
        """Return where a batch read ends."""
        text = self._options.ending_offsets or LATEST
        return self.bounds(self.places(), last=True) if text == LATEST else self._options.given("ending_offsets")

    def advance(self, start: Offsets, target: Offsets | None) -> Offsets:
        """Return the end of the next micro-batch: `target` or the ends now.

        A partition that is not in `start` begins at its first message, with the next batch: Spark logs only ends.
        Raises MessagesLost: a partition ends before `start`, and failOnDataLoss is set.
        """
        places = self.places()
        ends = target if target is not None else self.bounds(places, last=True)
        for partition in sorted(ends.keys() & start.keys()):
            # 0 also means a partition that the original has not loaded yet after its start: it answers 404 until a put.
            if target is None and 0 < ends[partition] < start[partition] and self._options.fail_on_data_loss:
                place = f"partition {partition} of {self._options.topic}"
                raise MessagesLost(
                    place, range(ends[partition], start[partition]), "It ends before what was read of it."
                )
        reached = {partition: max(ends.get(partition, offset), offset) for partition, offset in start.items()}
        fresh = {partition: servers for partition, servers in places.items() if partition not in start}
        return reached | (self.bounds(fresh, last=False) if fresh else {})

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return what is to be read between two offsets."""
        wanted = {partition: stop for partition, stop in end.items() if start.get(partition, stop) < stop}
        if not wanted:
            return []
        places = self.places()
        missing = sorted(set(wanted) - set(places))
        if missing:
            raise NoRoute(f"no server of partitions {', '.join(missing[:10])} of topic {self._options.topic} is up")
        return [
            Range(self._options.topic, partition, places[partition], start[partition], stop)
            for partition, stop in sorted(wanted.items())
        ]

    def to_json(self, found: Offsets) -> dict[str, object]:
        """Return offsets as a checkpoint has them, with what they are of."""
        return {"v": _VERSION, "metaq1": self._options.identity, "q": dict(sorted(found.items()))}

    def from_json(self, told: Mapping[str, object]) -> Offsets:
        """Return a checkpoint's offsets. Raises ConfigError: they are of another cluster or topic."""
        if told.get("v") != _VERSION or told.get("metaq1") != self._options.identity:
            raise ConfigError(
                f"the checkpoint's offsets are of {told.get('metaq1', 'another source')!r}, and the query reads "
                f"{self._options.identity!r}: begin with a new checkpoint"
            )
        found = told["q"]
        assert isinstance(found, dict)
        return {str(partition): int(offset) for partition, offset in found.items()}
