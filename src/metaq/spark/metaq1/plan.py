"""Driver side: which partitions of MetaQ 1.x are read, where, and from which byte offset to which."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from metaq.errors import ConfigError, NoRoute
from metaq.log import RateLimitedLog
from metaq.spark.cluster.client import LOG_SECONDS, Retries, refuse_members
from metaq.spark.metaq1 import limits
from metaq.spark.metaq1.cluster import Bound, Metaq1Cluster, Offsets
from metaq.spark.metaq1.fetch import BytesLost, Range
from metaq.spark.metaq1.settings import EARLIEST, LATEST, Metaq1Options

_LOG = logging.getLogger(__name__)

_VERSION = 1


class Metaq1Planner:
    """One query's view of the cluster.

    Args: stream: partitions that are closed wait until they are opened; else they are an error.
    """

    def __init__(self, options: Metaq1Options, *, stream: bool = False) -> None:
        self._options = options
        self.cluster = Metaq1Cluster(options, skip_closed=stream)
        self._log = RateLimitedLog(_LOG, seconds=LOG_SECONDS)
        self._turn = 0

    def close(self) -> None:
        """Close all connections."""
        self.cluster.close()

    def ends(self) -> dict[str, Bound]:
        """Return the ends of all partitions that have messages. Raises as `Metaq1Cluster.bounds`."""
        return self.cluster.bounds(self.cluster.places(), last=True)

    def start(self, default: str) -> Offsets:
        """Return where the query begins. A partition without messages is left out: it begins at its first one.

        Raises ConfigError: `startingOffsets` lies beyond what is stored, or the group has consumed nothing; BytesLost: the group's
        offset does, and failOnDataLoss is set; and as `Metaq1Cluster.bounds`.
        """
        options, places = self._options, self.cluster.places()
        text = options.starting_offsets or default
        if options.starting_group is None and text == LATEST:
            return _offsets(self.ends())
        firsts = _offsets(self.cluster.bounds(places, last=False))
        if options.starting_group is not None:
            return firsts | self._begun(options.starting_group, firsts)
        if text == EARLIEST:
            return firsts
        given = options.given("starting_offsets")
        unknown = sorted(set(given) - set(places))
        if unknown:
            raise ConfigError(f"startingOffsets names partitions that are not there: {', '.join(unknown[:10])}")
        ends = _offsets(self.cluster.bounds(given, last=True))
        beyond = [
            f"{one} ends at {ends.get(one, 0)}, {at} is given" for one, at in given.items() if at > ends.get(one, 0)
        ]
        if beyond:
            raise ConfigError(f"startingOffsets lies beyond what is stored: {'; '.join(beyond[:10])}")
        return firsts | given

    def _begun(self, group: str, firsts: Offsets) -> Offsets:
        """Return a group's offsets in those partitions that have messages."""
        stored = self.cluster.reached(group)
        if not stored:
            raise ConfigError(f"the consumer group {group} has consumed nothing of {self._options.topic}")
        reached = {partition: offset for partition, offset in stored.items() if partition in firsts}
        ends = self.cluster.bounds(reached, last=True)
        # An offset before the first message is moved there by the server, when it is read.
        return {partition: self._kept(partition, offset, ends.get(partition)) for partition, offset in reached.items()}

    def _kept(self, partition: str, offset: int, end: Bound | None) -> int:
        """Return where to go on: `offset`, or the partition's end if that lies before and failOnDataLoss is off."""
        if end is None:
            self._log.warning(
                partition,
                "partition %s of %s cannot be read now: no server of it is up, it is closed, or its server has nothing of it; the query goes "
                "on there at %d when that has changed",
                partition, self._options.topic, offset,
            )  # fmt: skip
            return offset
        if end.offset >= offset or not end.sure:
            return offset
        lost = BytesLost(
            f"partition {partition} of {self._options.topic}", range(end.offset, offset),
            "It ends before what was read of it. With failOnDataLoss=false the query goes on at its end.",
        )  # fmt: skip
        if self._options.fail_on_data_loss:
            raise lost
        _LOG.warning("%s", lost)
        return end.offset

    def end(self) -> Offsets:
        """Return where a batch read ends."""
        text = self._options.ending_offsets or LATEST
        return _offsets(self.ends()) if text == LATEST else self._options.given("ending_offsets")

    def advance(self, start: Offsets, target: Mapping[str, Bound] | None) -> Offsets:
        """Return the end of the next micro-batch, without a limit: `target` or the ends now.

        A partition that is not in `start` begins at its first message, with the next batch: Spark logs only ends. One that has no
        server stays where it is. Raises BytesLost: a partition ends before `start`, and failOnDataLoss is set.
        """
        ends = self.ends() if target is None else target
        reached = {}
        for partition, offset in start.items():
            kept = self._kept(partition, offset, ends.get(partition))
            reached[partition] = max(kept, ends[partition].offset) if partition in ends else kept
        fresh = [partition for partition in ends if partition not in start]
        return reached | (_offsets(self.cluster.bounds(fresh, last=False)) if fresh else {})

    def limited(self, start: Offsets, end: Offsets) -> Offsets:
        """Return `end` reduced to maxBytesPerTrigger. Raises as `Metaq1Cluster.bounds`."""
        most = self._options.max_bytes_per_trigger
        if most is None:
            return end
        self._turn += 1
        return limits.limited(start, end, most, self.cluster.get, self._turn)

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return what is to be read between two offsets. Raises NoRoute: a partition has had no server for `retrySeconds`."""
        wanted = {partition: stop for partition, stop in end.items() if start.get(partition, stop) < stop}
        tries = Retries(self._options.retry_seconds)
        while wanted:
            places = self.cluster.places()
            missing = sorted(set(wanted) - set(places))
            if not missing:
                break
            text = f"no server of partitions {', '.join(missing[:10])} of topic {self._options.topic} is up"
            tries.pause(NoRoute(text))
        return [
            Range(self._options.topic, partition, *places[partition], start[partition], stop)
            for partition, stop in sorted(wanted.items())
        ]

    # ------------------------------------------------------------------ progress of a group
    def check_progress_group(self) -> None:
        """Refuse a `progressGroup` that others use: whoever does would skip messages, or get them again.

        Raises ConfigError: it has members; or offsets in the topic, and is not `startingGroup`, which is to be taken over.
        """
        group = self._options.progress_group
        if group is None:
            return
        try:
            refuse_members(group, self.cluster.members(group))
        except ConfigError as fault:
            raise ConfigError(f"progressGroup: {fault}") from None
        if group != self._options.starting_group and self.cluster.reached(group):
            raise ConfigError(
                f"progressGroup: the consumer group {group} has offsets in {self._options.topic} that this query did not make. "
                f"Whoever did would skip messages, or get them again: name a group of this query's own, or take it over by "
                f"startingGroup={group}"
            )

    def report(self, done: Offsets) -> bool:
        """Store the query's progress for `progressGroup`, if set. Returns False if that is still due.

        Raises ConnectionFailed: ZooKeeper is away; ConfigError: the group has members.
        """
        group = self._options.progress_group
        return group is None or self.cluster.store(group, done, refuse_members)

    # ------------------------------------------------------------------ checkpoints
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


def _offsets(bounds: Mapping[str, Bound]) -> Offsets:
    return {partition: bound.offset for partition, bound in bounds.items()}
