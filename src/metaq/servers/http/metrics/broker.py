"""A broker's figures as samples."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from metaq.broker.broker import Broker
from metaq.broker.statistics.counts import KeyedCounts
from metaq.in_pieces import InPieces
from metaq.metrics import table
from metaq.metrics.metric import Metric, Sample
from metaq.metrics.top import OTHERS, Others, Top
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC
from metaq.servers.http.metrics.groups import Pair
from metaq.servers.http.metrics.process import ProcessFigures
from metaq.store.retention.expiry import DiskStep

K = TypeVar("K", bound=Hashable)


class BrokerMetrics:
    """Collects. The names of topics and groups are bounded: see `metaq.metrics.top`.

    Args:
        broker: the broker.
        process: figures of the process.
        most: topics, groups and pairs of them that have values of their own; 0: all.
    """

    def __init__(self, broker: Broker, process: ProcessFigures, most: int) -> None:
        self._broker, self._process, self._most = broker, process, most
        self._halves, self._ends = Since(broker, HALF_TOPIC), Since(broker, OP_TOPIC)
        self._topics, self._pairs = Top[str](most), Top[Pair](most)
        self._puts, self._put_bytes = Others[str](), Others[str]()
        self._gets, self._get_bytes, self._sent_back = Others[Pair](), Others[Pair](), Others[Pair]()

    def samples(self) -> InPieces[list[Sample]]:
        """Return the samples of this moment, but for those of groups, which may have to wait for the disk."""
        found = [*self._process.samples(self._broker.stats.started_ms)]
        yield
        found += [*self._of_broker(), *self._of_times(), *self._of_replication()]
        yield
        yield from self._broker.statistics.count_now()
        stats = self._broker.stats
        yield from self._topics.look(_counts(stats.topic_puts, size=False))
        yield from self._pairs.look(_counts(stats.group_gets, size=False))
        for metric, keyed, others, bytes_too in (
            (table.MESSAGES_PUT, stats.topic_puts, self._puts, False),
            (table.BYTES_PUT, stats.topic_puts, self._put_bytes, True),
        ):
            yield from _named(
                found, metric, _counts(keyed, size=bytes_too), self._topics.named, others, lambda key: (key,)
            )
        for of_pair, counts, rest, bytes_too in (
            (table.MESSAGES_GOT, stats.group_gets, self._gets, False),
            (table.BYTES_GOT, stats.group_gets, self._get_bytes, True),
            (table.MESSAGES_SENT_BACK, stats.sent_back, self._sent_back, False),
        ):
            yield from _named(found, of_pair, _counts(counts, size=bytes_too), self._pairs.named, rest, lambda key: key)
        return found

    # ------------------------------------------------------------------ the parts

    def _of_broker(self) -> Iterator[Sample]:
        broker, stats = self._broker, self._broker.stats
        facts = broker.reports.facts()
        yield Sample(table.PUT_FAILURES, stats.put_failures)
        yield Sample(table.PULLS, stats.get_hits, ("hit",))
        yield Sample(table.PULLS, stats.get_misses, ("miss",))
        yield Sample(table.HELD_PULLS, facts.held_pulls)
        yield Sample(table.LOG_BYTES, facts.log_end - facts.log_min)
        yield Sample(table.LOG_UNFLUSHED, max(0, facts.log_end - facts.log_flushed))
        yield Sample(table.LOG_OLDEST, facts.earliest_ms / 1000)
        size, free = facts.disk_bytes
        yield Sample(table.DISK_SIZE, size)
        yield Sample(table.DISK_FREE, free)
        for step in DiskStep:
            yield Sample(table.DISK_STEP, int(str(step) == facts.disk_step), (str(step),))
        yield Sample(table.STORE_TROUBLE, int(bool(facts.trouble)))
        yield Sample(table.UNSAVED_TABLES, len(facts.unsaved))
        yield Sample(table.TOPICS, len(broker.topics.table))
        yield Sample(table.QUEUES, len(broker.store.reader.listed_queues()[0]))
        for level, progress in facts.delay_levels.items():
            yield Sample(table.DELAYED, progress.end - progress.delivered, (str(level),))
        yield Sample(table.HALF_MESSAGES, facts.open_halves)
        checks = broker.transactions.checks
        yield Sample(table.HALVES_PUT, max(0, self._halves.count() - checks.rewritten))
        yield Sample(table.TRANSACTIONS_ENDED, self._ends.count())
        yield Sample(table.TRANSACTION_CHECKS, checks.asked)
        yield Sample(table.TRANSACTIONS_GIVEN_UP, checks.given_up)
        yield Sample(table.STAGED_PARTS, facts.staged_parts)
        yield Sample(table.STAGED_BYTES, facts.staged_bytes)

    def _of_times(self) -> Iterator[Sample]:
        broker = self._broker
        times, flusher, predicates = broker.stats.times, broker.store.flusher, broker.predicates
        for metric, measured in (
            (table.PUT_SECONDS, times.put),
            (table.BORN_TO_STORED, times.to_store),
            (table.STORED_TO_GIVEN, times.to_consumer),
            (table.PULL_SECONDS, times.pull),
            (table.HELD_SECONDS, times.held),
            (table.PREDICATE_SECONDS, predicates.seconds),
            (table.FLUSH_SECONDS, flusher.seconds),
            (table.FLUSH_BYTES, flusher.sizes),
            (table.DELAY_LATE, broker.schedule.late),
        ):
            yield Sample(metric, measured.value())
        for outcome, count in predicates.outcomes.items():
            yield Sample(table.PREDICATE_MESSAGES, count, (outcome,))
        for kind, count in broker.quotas.refused().items():
            yield Sample(table.QUOTA_REFUSALS, count, (kind.value,))

    def _of_replication(self) -> Iterator[Sample]:
        broker = self._broker
        yield Sample(table.LEADS, int(broker.leads))
        yield Sample(table.SLAVES, len(broker.replicas.connected))
        end, now = broker.store.log.end, broker.clock.monotonic()
        for address, copied in broker.replicas.reported().items():
            yield Sample(table.REPLICA_LAG, max(0, end - copied), (address,))
            yield Sample(table.REPLICA_LAG_SECONDS, broker.replicas.behind_ms(copied, now) / 1000, (address,))
        yield from of_group(broker)


def of_group(broker: Broker) -> Iterator[Sample]:
    """Yield the samples of a broker's part in a group with failover; none: it has no failover."""
    role = broker.replicas.group_role
    if role is None:
        return
    group = (broker.options.broker_cluster_name, broker.environment.name)
    leads = bool(role.in_sync)
    yield Sample(table.FAILOVER_LEADS, int(leads), group)
    yield Sample(table.FAILOVER_EPOCH, broker.roles.kept.epoch, group)
    yield Sample(table.FAILOVER_DOUBT, int(bool(role.doubt)), group)
    yield Sample(table.FAILOVER_IN_SYNC, len(role.in_sync), group)
    yield Sample(table.FAILOVER_MINIMUM, role.minimum, group)
    yield Sample(table.FAILOVER_LEASE, role.lease_ms / 1000, group)
    for member, copied in role.copied.items():
        labels = (*group, str(member))
        yield Sample(table.FAILOVER_LAG, max(0, broker.store.log.end - copied), labels)
        yield Sample(table.FAILOVER_LAG_SECONDS, role.behind_ms.get(member, 0) / 1000, labels)


class Since:
    """How many messages a topic of the system has got since this was made, in its only queue."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._reader, self._topic = broker.store.reader, topic
        self._first = self._end()

    def _end(self) -> int:
        queue = self._reader.existing_queue(self._topic, 0)
        return queue.max_offset if queue is not None else 0

    def count(self) -> int:
        """Return how many."""
        return max(0, self._end() - self._first)


def _counts(keyed: KeyedCounts[K], *, size: bool) -> Iterator[tuple[K, int]]:
    """Yield the counts. Made one by one, and not kept: see `metaq.servers.http.metrics.groups`."""
    for key in list(keyed.table):
        if (one := keyed.table.get(key)) is not None:
            yield key, one.size if size else one.messages


def _named(
    found: list[Sample],
    metric: Metric,
    counts: Iterable[tuple[K, int]],
    named: set[K],
    others: Others[K],
    labels: Callable[[K], tuple[str, ...]],
) -> Iterator[None]:
    """Add the samples of the named keys, and one of the others."""
    for entry in others.split(counts, named):
        if entry is None:
            yield
        else:
            found.append(Sample(metric, entry[1], labels(entry[0])))
    if others.total:
        found.append(Sample(metric, others.total, (OTHERS,) * len(metric.labels)))
