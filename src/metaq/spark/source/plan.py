"""Driver side of the source: which queues are read, from which offset to which, in which Spark partitions.

`ClusterClient` asks brokers, `metaq.spark.source.slicing` computes; this module joins the two for batch and stream readers.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping

from metaq.client.conversation.reading.sizes import SAMPLE_MESSAGES
from metaq.errors import ConfigError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.model import offsets
from metaq.model.offsets import Generations, Positions, Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import ClusterClient, Retries, client_of, may_be_away, refuse_members
from metaq.spark.source import slicing
from metaq.spark.source.fetch import report_loss, report_made_anew, report_short_queue
from metaq.spark.source.pushdown import Pushed
from metaq.spark.source.sampling import Sampler
from metaq.spark.source.settings import EARLIEST, LATEST, SourceOptions
from metaq.spark.source.watch import FIRST_SECONDS, Availability, Watch, away_text

FIRST_ROUTE_SECONDS = 2.0
"""Retry time for routes at the start: a misspelt topic should fail while the user still looks. A running query retries for
`retrySeconds`."""


class Planner:
    """One query's view of the cluster.

    Made where it is used and never pickled: sockets do not travel, and Spark hands an executor a pickled copy of a reader,
    not the instance that planned.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Args: options: the query's, validated."""
        self._options = options
        self._sampler = Sampler(options.fetch.group)

    @property
    def client(self) -> ClusterClient:
        options = self._options
        return client_of(options.name_servers, options.retry_seconds, options.read_from, options.access)

    def queues(self, seconds: float | None = None, pushed: Pushed | None = None) -> list[MessageQueue]:
        """Return the queues that the query reads now.

        Args:
            seconds: time to look for routes; None: `retrySeconds`.
            pushed: restricts a pattern's topics, unless an option names offsets, times or a group that must be checked
                against all of them.

        Raises: NoRoute, ConfigError.
        """
        options = self._options
        if options.subscribe_pattern:
            topics = self.client.topics(options.subscribe_pattern)
            # Before routes are asked for: a pattern over a thousand topics costs as many requests.
            if pushed is not None and options.has_default_bounds:
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
        """Return the query's start: by `startingTimestamp`, `startingGroup`, `startingOffsets`, or else `default`.

        `pushed` as in `queues`.
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
        # A queue that the offsets do not name did not exist when they were written down: read it from its first message.
        return self.client.starts(queue for queue in queues if queue not in given) | given

    def end(self, queues: list[MessageQueue]) -> Positions:
        """Return the end of a batch read: by `endingTimestamp`, `endingGroup`, `endingOffsets`, or else the newest message."""
        if (moments := self._options.moments("ending_timestamp")) is not None:
            return self._at(queues, moments, "endingTimestamp")
        if self._options.ending_group is not None:
            return self._reached(queues, self._options.ending_group, self.client.starts(queues))
        text = self._options.ending_offsets or LATEST
        if text == LATEST:
            return self.client.ends(queues)
        return self._given(text, "endingOffsets", queues)

    def advance(
        self,
        start: Mapping[MessageQueue, int],
        target: Mapping[MessageQueue, int] | None,
        watch: Watch | None = None,
        begun: Generations | None = None,
    ) -> Positions:
        """Return the furthest end of the next micro-batch, limits aside: the queues' ends now, or `target` if given.

        A queue that is not in `start` is pinned at its first message: this batch reads nothing of it, the next begins
        there. Spark logs only the ends of batches, so this is how its start gets into the checkpoint.
        So is a queue whose topic was made anew since `start`. `begun`: generations that `start` is of; brought up to date.
        The queues of a broker that is away stay at `start`.
        Raises: MessagesLost: messages from `start` on have left the log, or their topic was made anew, and failOnDataLoss is set. OffsetOutOfRange: a
            queue ends before `start`, and failOnDataLoss is set. ConnectionFailed: a broker has been away for retrySeconds,
            and brokerAway is fail.
        """
        seen = self._seen(start, target, watch or self.watch())
        anew = self._made_anew([queue for queue in seen.starts if queue in start], start, begun)
        known = [queue for queue in seen.starts if queue in start and queue not in anew]
        ends = seen.ends if target is None else self._at_least(start, target, known)
        reached: Positions = {}
        for queue in known:
            if self.client.asks_master(queue):
                self._check_kept(queue, start[queue], seen.starts[queue], ends[queue])
                reached[queue] = ends[queue]
            else:  # A slave may lack what its master has had.
                reached[queue] = max(start[queue], ends[queue])
        fresh = {
            queue: kept
            for queue, kept in seen.starts.items()
            if (queue not in start or queue in anew) and self.client.asks_master(queue)
        }
        if begun is not None:
            begun.update(self.generations(seen.starts))
        # With all of `start`: queues that the options no longer name stay in the checkpoint with their offsets.
        return dict(start) | reached | fresh

    def generations(self, queues: Iterable[MessageQueue]) -> Generations:
        """Return the generations of the queues' topics, as far as masters have told them with their starts."""
        places = {(queue.topic, queue.broker) for queue in queues if self.client.asks_master(queue)}
        return {place: told for place in places if (told := self.client.generations.get(place)) is not None}

    def generations_now(self, queues: Iterable[MessageQueue]) -> Generations:
        """As `generations`, asked now: one queue of each topic and broker is enough."""
        one = {(queue.topic, queue.broker): queue for queue in queues}
        self.client.starts(one.values())
        return self.generations(one.values())

    def _made_anew(
        self,
        queues: Iterable[MessageQueue],
        start: Mapping[MessageQueue, int],
        begun: Mapping[tuple[str, str], int] | None,
    ) -> set[MessageQueue]:
        """Return those of the queues whose topic was made anew since `start`. Raises MessagesLost: failOnDataLoss is set."""
        if begun is None:
            return set()
        now = self.generations(queues)
        anew = {queue for queue in queues if differ(now, begun, queue)}
        for queue in sorted(anew):
            report_made_anew(queue, start[queue], fail=self._options.fail_on_data_loss)
        return anew

    def _at_least(
        self, start: Mapping[MessageQueue, int], target: Mapping[MessageQueue, int], known: list[MessageQueue]
    ) -> Positions:
        """Raise `target` to `start` for queues that do reach `start`.

        A target lies before the start if a slave that lags behind its master gave it (readFrom=slave), or if the query
        went on meanwhile. A batch that goes back to it would read messages twice.
        """
        behind = [queue for queue in known if target[queue] < start[queue] and self.client.asks_master(queue)]
        if not behind:
            return dict(target)
        try:
            ends = self.client.ends(behind, 0.0)
        except MetaqError as fault:
            if not may_be_away(fault):
                raise
            # The end is not known now: read nothing of these queues.
            ends = {queue: start[queue] for queue in behind}
        return dict(target) | {queue: min(start[queue], end) for queue, end in ends.items()}

    def watch(self) -> Watch:
        """Return the record of broker availability for one streaming query; the reader keeps it from batch to batch."""
        return Watch(self._options.broker_away, self._options.retry_seconds)

    def target(self, watch: Watch) -> Positions:
        """Return the queues' ends now, for `trigger(availableNow=True)`. Raises ConnectionFailed as `advance` does.

        With brokerAway=wait, brokers that do not answer are left out, and so are topics without a route, whose brokers may
        be away. `completed` adds those of them that are in the checkpoint, once its offsets are known.
        """
        return self._seen(None, None, watch, patiently=True).ends

    def completed(self, target: Positions, start: Mapping[MessageQueue, int], watch: Watch) -> Positions:
        """Add to `target` the queues of `start` whose broker was away when it was made, if it answers now.

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
    ) -> Availability:
        """Ask the brokers that are up for starts and ends. `start`: None before the first offset is known.

        Raises ConnectionFailed: a broker is away, and brokerAway is fail.
        """
        begin = dict(start or {})
        tries = Retries(self._options.retry_seconds)
        while True:
            # With a target the queues are fixed: routes are not asked for, and new queues are for the next run.
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
        """Return the query's queues that have a route, and broker → fault for queues of `start` that have none.

        If no name server answers and brokerAway is wait: the queues of `start`, as other RocketMQ clients go on with the
        routes that they know. Raises NoRoute: a topic has no route though its brokers are up (it was deleted); the fault of
        the name servers.
        """
        seconds, began = watch.seconds_for_names(), watch.now()
        # A query that was restarted with fewer topics must not wait for brokers that only hold the others.
        known = sorted(self._named(start or {}))
        wanted = {*known, *self._options.assigned}
        if seconds is None:
            return known, {}
        tries = Retries(seconds)
        while True:
            now: list[MessageQueue] = []
            try:
                now, unrouted = self._routed_now()
                left = wanted - set(now)
                # Name servers drop a broker as soon as its process ends, so a missing route means either a broker that is
                # away or a deleted topic: the list of masters that are up tells which.
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
                    # Before the first offset is known: the topic's brokers may be away, and `completed` adds them.
                    if not watch.waits or start is not None:
                        raise
                    return now, {}
            else:
                watch.note_names(None, began)
                watch.note_left([queue for queue in wanted.union(start or ()) - set(now) if queue.broker not in gone])
                return now, {broker: NoRoute("no name server knows where it is") for broker in gone}

    def _named(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Return those queues that the options still name: the checkpoint may be of a query that read more topics."""
        options = self._options
        if options.assign:
            return set(queues).intersection(options.assigned)
        if (pattern := options.subscribe_pattern) is not None:
            return {queue for queue in queues if fnmatch.fnmatchcase(queue.topic, pattern)}
        topics = set(options.topics)
        return {queue for queue in queues if queue.topic in topics}

    def _routed_now(self) -> tuple[list[MessageQueue], NoRoute | None]:
        """Return the queues that have a route, and the NoRoute of a topic that has none."""
        unrouted: NoRoute | None = None
        now: list[MessageQueue] = []
        # Topic by topic: one without a route must not hide the others.
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
        """Return `end` reduced to maxBytesPerTrigger and maxOffsetsPerTrigger."""
        if self._options.max_bytes_per_trigger is not None and (slices := slicing.slices_between(start, end)):
            end = end | self._sampler.limited(self.client, slices, self._options.max_bytes_per_trigger)
        if self._options.max_offsets_per_trigger is not None:
            end = slicing.limit(start, end, self._options.max_offsets_per_trigger)
        return end

    def cut(self, slices: list[Slice]) -> list[Slice]:
        """Cut the slices into Spark partitions. A replayed batch may be cut elsewhere; its rows are the same."""
        options = self._options
        by_bytes, messages = options.max_bytes_per_partition, sum(piece.messages for piece in slices)
        # A backlog that a few pulls would read is not worth sampling for its size.
        several = len(slices) < options.min_partitions <= messages // SAMPLE_MESSAGES
        profiles = self._sampler.profiles(self.client, slices) if several or (by_bytes is not None and slices) else None
        return slicing.cut(slices, options.min_partitions, options.max_offsets_per_partition, by_bytes, profiles)

    def narrowed(self, slices: list[Slice], pushed: Pushed) -> list[Slice]:
        """Restrict slices by the pushed-down conditions; times are looked up at the brokers."""
        # First by what needs no request, so that fewer queues are searched for a time.
        left = pushed.narrowed(slices)
        at: list[Positions | None] = [None, None]
        for place, moment in enumerate((pushed.since_ms, pushed.until_ms)):
            if moment is not None and left:
                at[place] = self.client.at([piece.queue for piece in left], moment, self._options.fetch.group)
        return pushed.narrowed(left, *at)

    def check_progress_group(self, *, own: bool) -> None:
        """Refuse a `progressGroup` that others use: storing this query's progress would make them skip messages.

        Args: own: whether earlier runs of this query stored progress for the group.
        Raises ConfigError: it has members; or progress in the topics that are read, and is neither `own` nor `startingGroup`,
            which is to be taken over.
        """
        group = self._options.progress_group
        if not group:
            return
        try:
            refuse_members(group, self.client.members(group))
        except ConfigError as fault:
            raise ConfigError(f"progressGroup: {fault}") from None
        if own or group == self._options.starting_group:
            return
        topics = {queue.topic for queue in self.client.consumed(group)}.intersection(self._topics())
        if topics:
            raise ConfigError(
                f"progressGroup: the consumer group {group} has progress in {', '.join(sorted(topics)[:3])} that this query did "
                "not make. Whoever did would skip messages, or get them again: name a group of this query's own"
            )

    def report(self, done: Mapping[MessageQueue, int], watch: Watch | None = None) -> bool:
        """Store the query's progress for `progressGroup`, if set. Returns False if a broker was away and is still due.

        Raises MetaqError: the first fault, after all brokers were tried.
        """
        if not self._options.progress_group:
            return True
        named = self._named(done)
        there = {queue: done[queue] for queue in named if watch is None or not watch.is_away(queue.broker)}
        seconds = FIRST_SECONDS if watch is not None and watch.waits else None
        faults: list[MetaqError] = []
        # One by one: a broker that refuses delays no other.
        for broker in sorted({queue.broker for queue in there}):
            mine = {queue: offset for queue, offset in there.items() if queue.broker == broker}
            try:
                self.client.report(self._options.progress_group, mine, seconds)
            except MetaqError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return len(there) == len(named)

    def _at(self, queues: list[MessageQueue], moments: dict[str, int] | int, what: str) -> Positions:
        """Return each queue's first offset stored at the given time (or its topic's) or later. `what`: the option's name."""
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
        """Return a group's progress in each queue; its first message (`kept`) where the group has none.

        Raises ConfigError: the group has none in any of the queues.
        """
        found = self.client.progress(group, queues)
        if not any(offset is not None for offset in found.values()):
            raise ConfigError(f"the consumer group {group} has consumed nothing of what is read")
        return {
            queue: max(found[queue] or 0, kept[queue]) if found[queue] is not None else kept[queue] for queue in queues
        }

    def _begun(self, queues: list[MessageQueue], group: str) -> Positions:
        """Return the start by `startingGroup`: a group's progress, checked against what the queues have.

        Raises MessagesLost, OffsetOutOfRange: progress outside a queue's offsets, and failOnDataLoss is set.
        """
        kept = self.client.starts(queues)
        reached = self._reached(queues, group, kept)
        ends = self.client.ends(queues)
        for queue in queues:
            self._check_kept(queue, reached[queue], kept[queue], ends[queue])
        # Progress beyond the end, with failOnDataLoss=false: the topic was made anew, so go on at its end.
        return {queue: min(offset, ends[queue]) for queue, offset in reached.items()}

    def _given(self, text: str, what: str, queues: list[MessageQueue]) -> Positions:
        if not text.lstrip().startswith("{"):
            words = "earliest, latest" if what == "startingOffsets" else "latest"
            raise ConfigError(f"{what}={text!r}: need {words}, or offsets as JSON")
        # Offsets beyond a queue's end are always an error: a user has written them, not a query's past.
        given = offsets.from_json(text, what)
        not_read = [str(queue) for queue in given if queue not in queues]
        if not_read:
            raise ConfigError(f"{what} names queues that are not read: {', '.join(not_read[:10])}")
        kept, of = self.client.starts(given), offsets.generations_of(text, what)
        of_known = [queue for queue in given if (queue.topic, queue.broker) in of]
        for queue in self._made_anew(of_known, given, of):
            given[queue] = kept[queue]
        ends = self.client.ends(given)
        beyond = [f"{queue} ends at {ends[queue]}, {at} is given" for queue, at in given.items() if at > ends[queue]]
        if beyond:
            raise ConfigError(f"{what} lies beyond what is stored: {'; '.join(beyond[:10])}")
        return given

    def _check_kept(self, queue: MessageQueue, start: int, kept: int, end: int) -> None:
        if start < kept:
            report_loss(queue, range(start, kept), fail=self._options.fail_on_data_loss)
        elif start > end:
            report_short_queue(queue, start, range(kept, end), fail=self._options.fail_on_data_loss)


def differ(now: Mapping[tuple[str, str], int], then: Mapping[tuple[str, str], int], queue: MessageQueue) -> bool:
    """Return whether a queue's topic has another generation now than then; not if it is not told now."""
    place = queue.topic, queue.broker
    return place in now and offsets.is_another(now[place], then.get(place, 0))


@functools.lru_cache(maxsize=8)
def planner_of(options: SourceOptions) -> Planner:
    """Return this process's planner of a query. Cached, so that its size samples last from batch to batch."""
    return Planner(options)
