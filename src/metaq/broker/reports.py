"""Read-only answers for administration tools: runtime info (28), settings, topic and consumer statistics (202, 208, 203)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from metaq.broker.delays.schedule import ScheduleService
from metaq.broker.environment import Environment, Tables
from metaq.broker.log.long_polling import HeldPulls
from metaq.broker.pulls.lookup import Lookup
from metaq.broker.replication.roles import Roles
from metaq.broker.replication.scrub import Scrub
from metaq.broker.statistics.sampling import Sampling
from metaq.broker.stats import Stats
from metaq.broker.tables.members import Member
from metaq.errors import Reason, Refused
from metaq.model import ClientConnection, ConsumerView, ConsumeStats, MessageQueue, QueueStats
from metaq.model.facts import BrokerFacts, BrokerSettings
from metaq.model.message import host_of
from metaq.store.queues.table import QueueKey

if TYPE_CHECKING:  # brokers without clients of MetaQ 1.x load none of its code
    from metaq.broker.metaq1.progress import PartitionProgress


class Reports:
    """Read-only views for tools."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        held_pulls: HeldPulls,
        lookup: Lookup,
        schedule: ScheduleService,
        stats: Stats,
        statistics: Sampling,
        roles: Roles,
        scrub: Scrub,
        *,
        metaq1: PartitionProgress | None,
        unsaved: Callable[[], Mapping[str, str]],
        held: Callable[[], tuple[int, int]],
        open_halves: Callable[[], int],
    ) -> None:
        """
        Args:
            metaq1: None: no clients of MetaQ 1.x are served.
            unsaved: returns the table files whose last save failed → reason.
            held: returns (parts, bytes) of open staged transactions.
            open_halves: returns the number of half messages whose transactions have not ended.
        """
        self._metaq1 = metaq1
        self._environment, self._tables, self._unsaved, self._held = environment, tables, unsaved, held
        self._open_halves = open_halves
        self._held_pulls, self._lookup, self._schedule, self._stats = held_pulls, lookup, schedule, stats
        self._statistics, self._roles, self._scrub = statistics, roles, scrub

    def unsaved(self) -> Mapping[str, str]:
        """Return the table files whose last save failed → reason."""
        return self._unsaved()

    def facts(self) -> BrokerFacts:
        """Return the broker's current figures."""
        stats, store = self._stats, self._environment.store
        staged_parts, staged_bytes = self._held()
        holding = store.keeper.holding
        return BrokerFacts(
            now_ms=self._environment.clock.now_ms(),
            started_ms=stats.started_ms,
            puts=stats.rates("puts"),
            gets=stats.rates("got"),
            get_hits=stats.rates("get_hits"),
            get_misses=stats.rates("get_misses"),
            put_messages=stats.put_messages,
            put_bytes=stats.put_bytes,
            put_failures=stats.put_failures,
            got_messages=stats.got_messages,
            put_mornings=stats.put_mornings,
            got_mornings=stats.got_mornings,
            log_min=store.log.min,
            log_end=store.log.end,
            log_flushed=store.state.flushed,
            earliest_ms=store.log.oldest_ms,
            disk_ratio=store.keeper.disk_ratio,
            disk_step=str(store.keeper.disk_step),
            disk_bytes=store.keeper.disk_bytes,
            log_folder=str(store.folder.commit_log),
            put_latencies=stats.put_latencies(),
            held_pulls=len(self._held_pulls),
            staged_parts=staged_parts,
            staged_bytes=staged_bytes,
            held_for=holding.topic if holding else "",
            held_bytes=holding.bytes if holding else 0,
            open_halves=self._open_halves(),
            draining=self._environment.options.draining,
            delay_levels=self._schedule.progress(),
            unsaved=self._unsaved(),
            replica=self._roles.state(),
            scrub=self._scrub.state,
            trouble="; ".join(filter(None, (store.keeper.trouble, self._schedule.trouble))),
        )

    def settings(self) -> BrokerSettings:
        """Return the broker's options, name and address."""
        environment = self._environment
        host, port = host_of(environment.store_host)
        folder = environment.store.folder
        return BrokerSettings(
            environment.options,
            environment.store_options,
            environment.name,
            host,
            port,
            environment.options.broker_ip2 or host,
            self._roles.state().ha_port,
            str(folder.root),
            str(folder.commit_log),
        )

    def topic_stats(self, topic: str) -> Iterator[tuple[MessageQueue, QueueStats]]:
        """Return offsets and newest store time of each queue of a topic, computed one by one: there may be 65 536.

        Raises Refused NO_TOPIC: at once, or on the way if the topic is deleted meanwhile.
        """
        config = self._tables.topics.require(topic)
        # Also queues that are not written any more, which RocketMQ leaves out: they may still have messages.
        queue_ids = range(max(config.read_queues, config.write_queues))
        return ((self._queue(topic, queue_id), self._stats_of(topic, queue_id)) for queue_id in queue_ids)

    def _stats_of(self, topic: str, queue_id: int) -> QueueStats:
        low, high = self._lookup.min_offset(topic, queue_id), self._lookup.max_offset(topic, queue_id)
        last = self._environment.store.reader.store_time(topic, queue_id, high - 1) if high > low else 0
        return QueueStats(low, high, max(0, last))

    def consume_stats(self, group: str, topic: str | None) -> Iterator[tuple[MessageQueue, ConsumeStats]]:
        """Return a group's offsets and lag per queue, in one topic or in all with offsets, computed one by one; also of a
        group of MetaQ 1.x.

        Raises Saving while the 1.x offsets are being read from ZooKeeper.
        """
        of_metaq1 = self._metaq1.of(group, topic) if self._metaq1 is not None else {}
        return self._consume_stats(group, topic, of_metaq1)

    def _consume_stats(
        self, group: str, topic: str | None, of_metaq1: Mapping[QueueKey, int]
    ) -> Iterator[tuple[MessageQueue, ConsumeStats]]:
        told = set[QueueKey]()
        for name in [topic] if topic else self._tables.offsets.topics_of(group):
            # Looked up when its turn comes: topics may have gone since.
            config = self._tables.topics.get(name)
            for queue_id in range(max(config.read_queues, config.write_queues) if config else 0):
                # As RocketMQ shows it: 0 where the group has no offset.
                at = max(0, self._tables.offsets.get(group, name, queue_id) or 0)
                told.add((name, queue_id))
                yield self._queue(name, queue_id), self._consumed(name, queue_id, at)
        for key, at in of_metaq1.items():
            if key not in told:
                yield self._queue(*key), self._consumed(*key, at)

    def _consumed(self, topic: str, queue_id: int, at: int) -> ConsumeStats:
        end = self._lookup.max_offset(topic, queue_id)
        # Store time of the last consumed message.
        last = self._environment.store.reader.store_time(topic, queue_id, at - 1) if 0 < at <= end else 0
        return ConsumeStats(end, at, max(0, last))

    def gets_per_second(self, group: str, topic: str | None) -> float:
        """Return the rate at which a group has got messages in the last minute, in one topic or in all with offsets."""
        return self._statistics.gets_per_second(group, [topic] if topic else self._tables.offsets.topics_of(group))

    def consumer(self, group: str) -> tuple[ConsumerView, list[ClientConnection]]:
        """Return an online consumer group and its members. Raises Refused OFFLINE."""
        online = self._tables.members.consumers.get(group)
        if online is None:
            raise Refused(Reason.OFFLINE, f"the consumer group[{group}] not online")
        differs = online.differs()
        return online.view(), [_connection(member, differs=differs) for member in online.members.values()]

    def producers(self, group: str) -> list[ClientConnection]:
        """Return the members of a producer group. Raises Refused: no producer of the group is connected."""
        members = self._tables.members.producers.get(group)
        if not members:
            raise Refused(Reason.INVALID, f"the producer group[{group}] not exist")
        return [_connection(member) for member in members.values()]

    def groups_of(self, topic: str) -> list[str]:
        """Return groups that subscribe to the topic now, or have offsets in it."""
        return sorted({*self._tables.members.subscribers(topic), *self._tables.offsets.groups_of(topic)})

    def metaq1_groups(self) -> list[str]:
        """Return the groups of MetaQ 1.x that ZooKeeper knows, of all brokers. Raises Saving while they are being read."""
        return self._metaq1.groups() if self._metaq1 is not None else []

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._environment.name, queue_id)


def _connection(member: Member, *, differs: bool = False) -> ClientConnection:
    """Args: differs: include its subscriptions, because the group's members do not agree."""
    wants = member.wants if differs else None
    return ClientConnection(member.client_id, member.channel.remote, member.language, member.version, wants)
