"""Driver side of the source: which queues, from where to where, in which Spark partitions.

`ClusterClient` asks, `metaq.spark.source.slicing` decides, this module joins the two for the batch and the stream reader.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping

from metaq.client.conversation.reading.sizes import SAMPLE_MESSAGES
from metaq.errors import ConfigError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.model import offsets
from metaq.model.offsets import Positions, Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import ClusterClient, Tries, client_of, says_away
from metaq.spark.source import slicing
from metaq.spark.source.fetch import tell_loss, tell_short
from metaq.spark.source.pushdown import Pushed
from metaq.spark.source.sampling import Sampler
from metaq.spark.source.settings import EARLIEST, LATEST, SourceOptions
from metaq.spark.source.watch import FIRST_SECONDS, Look, Watch, away_text

FIRST_ROUTE_SECONDS = 2.0
"""Retry time for routes at the start: a misspelt topic should fail while the user still looks. A running query is more patient."""


class Planner:
    """One query's view of the cluster. Made lazily in whatever process needs it; never pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._sampler = Sampler(options.fetch.group)

    @property
    def client(self) -> ClusterClient:
        return client_of(self._options.name_servers, self._options.retry_seconds, self._options.read_from)

    def queues(self, seconds: float | None = None, pushed: Pushed | None = None) -> list[MessageQueue]:
        """The queues that the query reads now; `seconds` to look for their routes. Raises NoRoute, ConfigError.

        Of a pattern's topics, only those that `pushed` takes, if nothing in the options is to be compared with all of them.
        """
        options = self._options
        if options.subscribe_pattern:
            topics = self.client.topics(options.subscribe_pattern)
            if pushed is not None and options.names_no_place:
                topics = [topic for topic in topics if pushed.takes_topic(topic)]
            return self.client.queues(topics, seconds)
        if options.assign:
            assigned = options.assigned
            there = set(self.client.queues(sorted({queue.topic for queue in assigned}), seconds))
            missing = [str(queue) for queue in assigned if queue not in there]
            if missing:
                raise NoRoute(f"assign names queues that are not there: {', '.join(missing[:10])}")
            return assigned
        return self.client.queues(options.topics, seconds)

    def start(self, default: str, pushed: Pushed | None = None) -> Positions:
        """Where the query begins: `startingTimestamp`, `startingGroup`, `startingOffsets`, or else `default`. `pushed` as in
        `queues`.
        """
        queues = self.queues(FIRST_ROUTE_SECONDS, pushed)
        if (moments := self._options.moments("starting_timestamp")) is not None:
            return self._at(queues, moments, "startingTimestamp")
        if self._options.starting_group is not None:
            return self._begun(queues, self._options.starting_group)
        text = self._options.starting_offsets or default
        if text in {EARLIEST, LATEST}:
            return self.client.starts(queues) if text == EARLIEST else self.client.ends(queues)
        given = self._given(text, "startingOffsets", queues)
        # A queue that was not named is new to whoever wrote the offsets down: all of it is to be read.
        return self.client.starts(queue for queue in queues if queue not in given) | given

    def end(self, queues: list[MessageQueue]) -> Positions:
        """Where a batch read ends."""
        if (moments := self._options.moments("ending_timestamp")) is not None:
            return self._at(queues, moments, "endingTimestamp")
        if self._options.ending_group is not None:
            return self._reached(queues, self._options.ending_group, self.client.starts(queues))
        text = self._options.ending_offsets or LATEST
        if text == LATEST:
            return self.client.ends(queues)
        return self._given(text, "endingOffsets", queues)

    def advance(
        self, start: Mapping[MessageQueue, int], target: Mapping[MessageQueue, int] | None, watch: Watch | None = None
    ) -> Positions:
        """Where the next micro-batch may end, limits aside: the queues' ends now, or `target` where it is set.

        A queue that is not in `start` is pinned at its first message: this batch reads nothing of it, the next all.
        The queues of a broker that is away stay where they are.
        Raises: MessagesLost: messages behind `start` have left the log, and failOnDataLoss is set. OffsetOutOfRange: a
            queue ends before `start`, and failOnDataLoss is set. ConnectionFailed: a broker has been away for retrySeconds,
            and brokerAway is fail.
        """
        seen = self._seen(start, target, watch or self.watch())
        known = [queue for queue in seen.starts if queue in start]
        ends = seen.ends if target is None else self._at_least(start, target, known)
        reached: Positions = {}
        for queue in known:
            if self.client.is_told_by_master(queue):
                self._check_kept(queue, start[queue], seen.starts[queue], ends[queue])
                reached[queue] = ends[queue]
            else:  # A slave may lack what its master has had.
                reached[queue] = max(start[queue], ends[queue])
        fresh = {
            queue: kept
            for queue, kept in seen.starts.items()
            if queue not in start and self.client.is_told_by_master(queue)
        }
        return dict(start) | reached | fresh

    def _at_least(
        self, start: Mapping[MessageQueue, int], target: Mapping[MessageQueue, int], known: list[MessageQueue]
    ) -> Positions:
        """`target`, but no less than `start` where a queue does not end before that.

        A target lies before the start if a slave told it that is behind its master, or the query went on meanwhile. To go
        back there would read messages twice.
        """
        behind = [queue for queue in known if target[queue] < start[queue] and self.client.is_told_by_master(queue)]
        if not behind:
            return dict(target)
        try:
            ends = self.client.ends(behind, 0.0)
        except MetaqError as fault:
            if not says_away(fault):
                raise
            ends = {queue: start[queue] for queue in behind}  # Not known now: nothing is read.
        return dict(target) | {queue: min(start[queue], end) for queue, end in ends.items()}

    def watch(self) -> Watch:
        """For the brokers of one streaming query, to be kept by it."""
        return Watch(self._options.broker_away, self._options.retry_seconds)

    def target(self, watch: Watch) -> Positions:
        """Where the queues end now, of brokers that answer. Raises ConnectionFailed as `advance` does.

        Without topics that no name server knows, if the query waits: their brokers may be away. `completed` finds out.
        """
        return self._seen(None, None, watch, patiently=True).ends

    def completed(self, target: Positions, start: Mapping[MessageQueue, int], watch: Watch) -> Positions:
        """`target`, and the queues of `start` whose broker was not there when that was made, if it is now.

        Raises: ConnectionFailed as `advance` does. NoRoute: a topic is gone, though its brokers are up.
        """
        missing = self._named(start) - set(target)
        if not missing:
            return target
        ends = self._seen(start, None, watch, patiently=True).ends
        return target | {queue: ends[queue] for queue in missing & set(ends)}

    def _seen(
        self,
        start: Mapping[MessageQueue, int] | None,
        target: Mapping[MessageQueue, int] | None,
        watch: Watch,
        *,
        patiently: bool = False,
    ) -> Look:
        """Ask the brokers that are up. `start` is None if it is not known yet.

        Raises ConnectionFailed: one is not, and the query does not wait for it.
        """
        begin = dict(start or {})
        tries = Tries(self._options.retry_seconds)
        while True:
            now, away = self._routed(start, watch) if target is None else (sorted(target), {})
            given = target is not None
            seen = watch.look(self.client, now, patiently=patiently or given, ends=not given)
            seen.away.update(away)
            if watch.waits:
                watch.note(seen, begin)
            if watch.waits or not seen.away:
                return seen
            texts = [away_text(broker, fault, begin) for broker, fault in sorted(seen.away.items())]
            ways = "From its checkpoint the query goes on when it is back; with brokerAway=wait it goes on without it"
            tries.pause(ConnectionFailed(f"{'; '.join(texts)}. {ways}"))

    def _routed(
        self, start: Mapping[MessageQueue, int] | None, watch: Watch
    ) -> tuple[list[MessageQueue], dict[str, MetaqError]]:
        """The queues that the query reads and that have a route, and the brokers of those in `start` that have none.

        Those in `start` if no name server answers, and the query waits for whoever is away. Raises NoRoute: a topic has
        none, though the brokers are up that held it. What asking name servers raises.
        """
        seconds, began = watch.seconds_for_names(), watch.now()
        known = sorted(self._named(start or {}))
        wanted = {*known, *self._options.assigned}
        if seconds is None:
            return known, {}
        tries = Tries(seconds)
        while True:
            now: list[MessageQueue] = []
            try:
                now, unrouted = self._routed_now()
                left = wanted - set(now)
                gone = {queue.broker for queue in left} - {queue.broker for queue in now}
                if gone:
                    gone -= set(self.client.masters())
                if unrouted is not None and not gone:
                    raise unrouted
            except MetaqError as fault:
                try:
                    tries.pause(fault)
                except (ConnectionFailed, RequestTimeout):
                    if not watch.waits or not start:
                        raise
                    watch.note_names(fault, began)
                    return known, {}
                except NoRoute:
                    if not watch.waits or start is not None:
                        raise
                    return now, {}
            else:
                watch.note_names(None, began)
                watch.note_left([queue for queue in wanted.union(start or ()) - set(now) if queue.broker not in gone])
                return now, {broker: NoRoute("no name server knows where it is") for broker in gone}

    def _named(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Those that the options name: the query may go on from a checkpoint of one that read more."""
        options = self._options
        if options.assign:
            return set(queues).intersection(options.assigned)
        if (pattern := options.subscribe_pattern) is not None:
            return {queue for queue in queues if fnmatch.fnmatchcase(queue.topic, pattern)}
        topics = set(options.topics)
        return {queue for queue in queues if queue.topic in topics}

    def _routed_now(self) -> tuple[list[MessageQueue], NoRoute | None]:
        """The queues that have a route; if a topic has none, that."""
        unrouted: NoRoute | None = None
        now: list[MessageQueue] = []
        for topic in self._topics():
            try:
                now += self.client.queues([topic], 0.0)
            except NoRoute as fault:
                unrouted = fault
        if self._options.assign:
            now = sorted(set(now).intersection(self._options.assigned))
        return now, unrouted

    def _topics(self) -> list[str]:
        options = self._options
        if options.subscribe_pattern:
            return self.client.topics(options.subscribe_pattern)
        return sorted({queue.topic for queue in options.assigned}) if options.assign else options.topics

    def limited(self, start: Mapping[MessageQueue, int], end: Positions) -> Positions:
        """`end`, drawn back to the limits of one micro-batch."""
        if self._options.max_bytes_per_trigger is not None and (slices := slicing.slices_between(start, end)):
            end = end | self._sampler.limited(self.client, slices, self._options.max_bytes_per_trigger)
        if self._options.max_offsets_per_trigger is not None:
            end = slicing.limit(start, end, self._options.max_offsets_per_trigger)
        return end

    def cut(self, slices: list[Slice]) -> list[Slice]:
        """Cut the slices into Spark partitions. A replay may be cut in other places."""
        options = self._options
        by_bytes, messages = options.max_bytes_per_partition, sum(piece.messages for piece in slices)
        # What a few pulls would bring is not worth the question how large it is.
        several = len(slices) < options.min_partitions <= messages // SAMPLE_MESSAGES
        profiles = self._sampler.profiles(self.client, slices) if several or (by_bytes is not None and slices) else None
        return slicing.cut(slices, options.min_partitions, options.max_offsets_per_partition, by_bytes, profiles)

    def narrowed(self, slices: list[Slice], pushed: Pushed) -> list[Slice]:
        """Slices restricted by the pushed-down conditions."""
        left = pushed.narrowed(slices)
        at: list[Positions | None] = [None, None]
        for place, moment in enumerate((pushed.since_ms, pushed.until_ms)):
            if moment is not None and left:
                at[place] = self.client.at([piece.queue for piece in left], moment, self._options.fetch.group)
        return pushed.narrowed(left, *at)

    def report(self, done: Mapping[MessageQueue, int], watch: Watch | None = None) -> bool:
        """Tell the brokers how far the query has come, if it has a group to tell it for. Returns whether all were told: one
        that is away is not.
        """
        if not self._options.progress_group:
            return True
        named = self._named(done)
        there = {queue: done[queue] for queue in named if watch is None or not watch.is_away(queue.broker)}
        seconds = FIRST_SECONDS if watch is not None and watch.waits else None
        faults: list[MetaqError] = []
        for broker in sorted({queue.broker for queue in there}):  # One that refuses keeps no other's back.
            mine = {queue: offset for queue, offset in there.items() if queue.broker == broker}
            try:
                self.client.report(self._options.progress_group, mine, seconds)
            except MetaqError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return len(there) == len(named)

    def _at(self, queues: list[MessageQueue], moments: dict[str, int] | int, what: str) -> Positions:
        """The first message of each queue stored at the given time, or its topic's, or later."""
        if isinstance(moments, int):
            return self.client.at(queues, moments, self._options.fetch.group)
        without = sorted({queue.topic for queue in queues} - set(moments))
        if without:
            raise ConfigError(f"{what} has no time for topic {', '.join(without[:10])}")
        found: Positions = {}
        for topic, moment in sorted(moments.items()):
            found |= self.client.at(
                [queue for queue in queues if queue.topic == topic], moment, self._options.fetch.group
            )
        return found

    def _reached(self, queues: list[MessageQueue], group: str, kept: Positions) -> Positions:
        """Where a group has come in each queue; where it has not been, what is kept begins."""
        found = self.client.progress(group, queues)
        if not any(offset is not None for offset in found.values()):
            raise ConfigError(f"the consumer group {group} has consumed nothing of what is read")
        return {
            queue: max(found[queue] or 0, kept[queue]) if found[queue] is not None else kept[queue] for queue in queues
        }

    def _begun(self, queues: list[MessageQueue], group: str) -> Positions:
        """Where a group has come. Raises OffsetOutOfRange: beyond the end of a queue, and failOnDataLoss is set."""
        kept = self.client.starts(queues)
        reached = self._reached(queues, group, kept)
        ends = self.client.ends(queues)
        for queue in queues:
            self._check_kept(queue, reached[queue], kept[queue], ends[queue])
        return {queue: min(offset, ends[queue]) for queue, offset in reached.items()}

    def _given(self, text: str, what: str, queues: list[MessageQueue]) -> Positions:
        given = offsets.from_json(text, what)
        not_read = [str(queue) for queue in given if queue not in queues]
        if not_read:
            raise ConfigError(f"{what} names queues that are not read: {', '.join(not_read[:10])}")
        ends = self.client.ends(given)
        beyond = [f"{queue} ends at {ends[queue]}, {at} is given" for queue, at in given.items() if at > ends[queue]]
        if beyond:
            raise ConfigError(f"{what} lies beyond what is stored: {'; '.join(beyond[:10])}")
        return given

    def _check_kept(self, queue: MessageQueue, start: int, kept: int, end: int) -> None:
        if start < kept:
            tell_loss(queue, range(start, kept), fail=self._options.fail_on_data_loss)
        elif start > end:
            tell_short(queue, start, range(kept, end), fail=self._options.fail_on_data_loss)


@functools.lru_cache(maxsize=8)
def planner_of(options: SourceOptions) -> Planner:
    """The planner of a query in this process: what it has learnt about sizes is kept from batch to batch."""
    return Planner(options)
