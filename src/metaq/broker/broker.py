"""The broker: its services, put together.

Servers call the services, and whoever runs the broker calls `tick` ten times a second and `deliver` as often as it says;
nothing here waits, sleeps or writes to a socket: what clients are to be told goes to their channels. Files come in as
`BrokerFiles`, time as a `Clock`, so a test owns both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from metaq.broker.channel import Channel, Effect, Told, carry_out
from metaq.broker.delays.retry import RetryService
from metaq.broker.delays.schedule import ReadCold, ScheduleService, read_at_once
from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.files import BrokerFiles
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.acks import AckPolicy
from metaq.broker.log.admit import Gates
from metaq.broker.log.appender import Appender
from metaq.broker.log.closing import ClosedQueues
from metaq.broker.log.long_polling import HeldPulls
from metaq.broker.metaq1.fast_path import PartitionFastPath
from metaq.broker.metaq1.filters import MakeFilterHelper
from metaq.broker.metaq1.partitions import Partitions
from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.metaq1.progress import PartitionProgress
from metaq.broker.metaq1.retention import keep_as_configured
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.metaq1.transactions import Branches
from metaq.broker.pulls.filters import Filters
from metaq.broker.pulls.locks import Locks
from metaq.broker.pulls.lookup import Lookup
from metaq.broker.pulls.predicates import MakeHelper, Predicates
from metaq.broker.pulls.pull import PullService
from metaq.broker.pulls.resets import OffsetResets
from metaq.broker.reloading import Reloading
from metaq.broker.replies import ReplyService
from metaq.broker.reports import Reports
from metaq.broker.requests import OffsetCommit
from metaq.broker.send import SendService
from metaq.broker.staged.peers import ALONE, Peers
from metaq.broker.staged.service import StagingService
from metaq.broker.stats import Stats
from metaq.broker.tables.closed_partitions import ClosedPartitions
from metaq.broker.tables.groups import Groups
from metaq.broker.tables.members import Members
from metaq.broker.tables.offsets import Offsets
from metaq.broker.tables.topics import Topics
from metaq.broker.transactions.service import TransactionService
from metaq.errors import Refused
from metaq.model import DataVersion, Heartbeat, MessageQueue, TopicConfig
from metaq.model.access import Caller
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, UNIT_SUBSCRIBED, check_group, check_topic
from metaq.options import Settings
from metaq.saved import Pending, Saving, at_once
from metaq.wire.hot import DelayGate

log = logging.getLogger(__name__)

INTERNAL_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
EXPIRY_SECONDS = 10.0
"""Between two looks for clients that fell silent."""


class Broker:
    """One broker's decisions.

    Args: `call_soon`: brings a call from another thread, one that has saved a file, to the thread that owns the broker.
          `gatekeeper`: says who may what; None: everybody may everything. `read_cold`: how delayed and staged messages are read that are no longer in memory.
          `peers`: the way to the other brokers that staged transactions have parts at. `make_helper`: starts a process in
          which predicates are called; None: there is none, and nobody gets messages by a predicate. `make_filter_helper`: the
          same of filters of MetaQ 1.x. `text`: what it runs
          with for clients of MetaQ 1.x; None: it serves none.
    Raises: ConfigError: a configuration file cannot be read.
    """

    def __init__(
        self,
        environment: Environment,
        files: BrokerFiles,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
        *,
        gatekeeper: Gatekeeper | None = None,
        read_cold: ReadCold = read_at_once,
        peers: Peers = ALONE,
        make_helper: MakeHelper | None = None,
        make_filter_helper: MakeFilterHelper | None = None,
        text: Metaq1Settings | None = None,
    ) -> None:
        options, store_options = environment.options, environment.store_options
        store, clock = environment.store, environment.clock
        self.environment = environment
        self.gatekeeper = gatekeeper = gatekeeper or Gatekeeper()
        self.text, self.reloading = text, Reloading(gatekeeper)
        self.options, self.store_options, self.store, self.clock = options, store_options, store, clock
        self.settings = Settings(options, store_options)
        self.settings.watch(self._options_changed)
        self.stats = Stats(clock)
        self.topics = Topics(
            options, clock, files.topics, environment.name, len(store.delays_ms), call_soon, prepare=store.prepare_queue
        )
        self.groups = Groups(options, clock, files.groups, call_soon)
        self.offsets = Offsets(files.offsets)
        self.members = Members(clock)
        self.filters = Filters(options, clock, files.filters)
        self.hold = HeldPulls(store, clock, options.held_pulls_max)
        self.acks = AckPolicy(environment)
        closed_queues = ClosedQueues()
        self.appender = Appender(environment, self.acks, self.stats, self.topics.closed, closed_queues)
        self.appender.when_grown(self.stats.grew)
        self.appender.when_grown(self.hold.grew, watched_only=True)
        self.closed_partitions = ClosedPartitions()
        tables = Tables(self.topics, self.groups, self.members, self.offsets, self.closed_partitions)
        self.transactions = TransactionService(environment, tables, self.appender, read_cold, gatekeeper)
        store.owes(self.transactions)
        delays = DelayGate(SCHEDULE_TOPIC.encode(), len(store.delays_ms))
        self.gates = Gates(
            environment, self.topics, self.hold, self.acks, self.transactions.gate, closed_queues, gatekeeper,
            closed_partitions=self.closed_partitions, delays=delays, groups=self.groups,
        )  # fmt: skip
        self.schedule = ScheduleService(
            environment, self.appender, self.gates.deliveries, files.delay, read_cold, delays
        )
        store.owes(self.schedule)
        self.deletions = Deletions(clock, store, self.topics, self.offsets, self.gates, files.deleted, call_soon)
        self._look_for_lost_topics()
        self.staging = StagingService(
            environment, tables, self.appender, self.gates.expansions, read_cold, peers, gatekeeper=gatekeeper
        )
        store.owes(self.staging)
        self.bases = Bases(environment, self.appender, self.topics.closed, call_soon)
        store.owes(self.bases)
        self.sends = SendService(environment, tables, self.appender, self.schedule, self.transactions)
        self.replies = ReplyService(environment, tables, self.sends, self.appender, self._append_soon)
        self.retries = RetryService(environment, tables, self.appender, self.schedule)
        self.predicates = Predicates(options, clock, make_helper)
        self.pulls = PullService(
            environment, tables, self.hold, self.stats, gatekeeper, filters=self.filters, predicates=self.predicates
        )
        self.partitions = (
            Partitions(
                environment,
                tables,
                self.appender,
                self.acks,
                self.bases,
                text,
                gatekeeper,
                make_filter_helper=make_filter_helper,
            )
            if text
            else None
        )
        self._archiver = keep_as_configured(store, text, self.bases, call_soon) if text else None
        self.partition_fast_path: PartitionFastPath | None = None
        if text and self.partitions:
            fast_path = PartitionFastPath(environment, text, self.appender, self.hold, self.bases, self.partitions)
            self.topics.watch(fast_path.close)
            self.closed_partitions.when_changed(fast_path.close)
            self.partition_fast_path = fast_path
        self.branches = (
            Branches(environment, self.staging, self.acks, self.partitions, self.partitions.acks.stored, text)
            if text is not None and self.partitions is not None
            else None
        )
        self.locks = Locks(environment, tables, gatekeeper)
        self.lookup = Lookup(environment, tables)
        self.resets = OffsetResets(environment, tables, self.lookup)
        self.partition_progress = PartitionProgress(clock, self.topics, self.bases)
        self.reports = Reports(
            environment,
            tables,
            self.hold,
            self.lookup,
            self.schedule,
            self.stats,
            partition_progress=self.partition_progress,
            unsaved=self._unsaved,
            held=lambda: self.staging.held,
        )
        self._call_soon, self._files = call_soon, files
        now = clock.monotonic()
        self._offsets_due = now + options.flush_consumer_offset_interval / 1000
        self._schedule_due = now + store_options.flush_delay_offset_interval / 1000
        self._expiry_due = now + EXPIRY_SECONDS

    def _options_changed(self, names: Collection[str]) -> None:
        if {"max_message_size", "broker_permission"} & set(names):
            self.gates.close_all()
            if self.partition_fast_path is not None:
                self.partition_fast_path.close_all()
        self.transactions.options_changed()
        self.retries.options_changed()
        self.filters.options_changed()
        self.store.options_changed()
        self.topics.options_changed(names)
        self.pulls.fast_paths.close()

    def _least_queues(self, topic: str) -> int:
        """Of a topic of which nobody knows how many it had."""
        if topic.startswith(INTERNAL_PREFIXES):
            return 1
        if self.text is not None and self.text.rules.sections and self.text.rules.accepts(topic):
            return self.text.rules.settings(topic).num_partitions
        return self.options.default_topic_queue_nums

    def _look_for_lost_topics(self) -> None:
        """Queues that hold messages and have no topic: their settings were lost with a file, the messages were not.

        Recovery has emptied the queues of deleted topics; what they hold came later.
        """
        lost: dict[str, list[int]] = {}
        for (topic, queue_id), queue in self.store.queues().items():
            if queue.min_offset < queue.max_offset and not (self.topics.get(topic) or self.topics.is_system(topic)):
                lost.setdefault(topic, []).append(queue_id)
        # Too many queues harm nobody; too few would refuse producers that know the topic as it was.
        counts = {topic: max(max(queues) + 1, self._least_queues(topic)) for topic, queues in lost.items()}
        for topic, queues in lost.items():
            log.warning(
                "the topic %s is not in topics.json, and its queues %s hold messages: %s",
                topic,
                ", ".join(map(str, sorted(queues))),
                f"it is there again, with {counts[topic]} queues; change it if it had other settings"
                if self.options.restore_lost_topics
                else "nobody can read them until the topic is created",
            )
        if lost and self.options.restore_lost_topics:
            self.topics.restore(counts)

    def tick(self) -> None:
        """Let time pass: deliver what is due, answer who has waited long enough, expire who is silent, save what changed."""
        now = self.clock.monotonic()
        self.stats.sample()
        self.appender.tick()
        self.schedule.tick()
        self.transactions.tick()
        self.replies.tick()
        self.staging.tick()
        if self.branches is not None:
            self.branches.tick()
        self.predicates.tick()
        if self.partitions is not None:
            self.partitions.filters.tick()
        self.topics.saved.tick()
        self.groups.saved.tick()
        self.deletions.marks.tick()
        if now >= self._offsets_due:
            self._offsets_due = now + self.options.flush_consumer_offset_interval / 1000
            self.offsets.save()
        if now >= self._schedule_due:
            self._schedule_due = now + self.store_options.flush_delay_offset_interval / 1000
            self.schedule.positions.save()
        self.schedule.positions.settle()
        if now >= self._expiry_due:
            self._expiry_due = now + EXPIRY_SECONDS
            self.deletions.prune()
            self._carry_out(self.members.expire())
            self.locks.expire()
            self.filters.expire(self.members.consumers)
            self.filters.save()
        self._carry_out(self.members.give_up_kept())
        self.answer_pulls()
        for pull, answer in self.pulls.overdue():
            pull.channel.answer_pull(pull, answer)

    def deliver(self) -> float:
        """Deliver delayed messages that are due and staged ones that are committed, and ask what became of transactions,
        for a bounded time.

        Returns the seconds until the next call, 0: soon.
        """
        pause = self.schedule.deliver()
        asked, check_pause = self.transactions.checks.step()
        carry_out(asked)
        staging_pause = self.staging.step()
        bases_pause = self.bases.step()
        self.answer_pulls()
        return min(pause, check_pause, staging_pause, bases_pause)

    def answer_pulls(self) -> None:
        """Answer the held pulls whose queues grew. Servers call it when they have appended."""
        if self.hold.grown:
            self.pulls.answer_plain()
            for pull, answer in self.pulls.woken():
                pull.channel.answer_pull(pull, answer)

    def _append_soon(self, work: Callable[[], object]) -> None:
        """Call what appends in another turn of the loop, when what this one has written is out."""

        def append() -> None:
            work()
            self.answer_pulls()

        self._call_soon(append)

    def reset_offsets(self, group: str, topic: str, time_ms: int, *, force: bool) -> dict[MessageQueue, int]:
        """Tell the members of a group where to go on. Raises Refused, see `OffsetResets.reset`."""
        offsets, effects = self.resets.reset(group, topic, time_ms, force=force)
        self._carry_out(effects)
        return offsets

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Tell those who want to hear it that the members of their group have changed."""
        if self.options.notify_consumer_ids_changed_enable:
            carry_out(effect for effect in effects if self._wants(effect.what))

    def _wants(self, what: Told) -> bool:
        """Whether a group has members to be told of changes."""
        config = self.groups.get(what.group)
        return config is None or config.notify_changed

    def close(self) -> None:
        """Save the positions, and wait for every save under way. The store is closed by whoever opened it, after this."""
        self.predicates.close()
        if self.partitions is not None:
            self.partitions.filters.close()
        if self._archiver is not None:
            self._archiver.stop()
        self.bases.close()
        for table in (self.topics.saved, self.groups.saved, self.deletions.marks):
            table.close()
        self.transactions.close()
        self.staging.close()
        self.offsets.close()
        self.filters.expire(self.members.consumers)
        self.filters.close()
        self.schedule.positions.close()

    def _unsaved(self) -> dict[str, str]:
        failing = {
            self._files.topics.format.name: self.topics.saved.failing,
            self._files.groups.format.name: self.groups.saved.failing,
            self._files.offsets.format.name: self.offsets.failing,
            self._files.delay.format.name: self.schedule.positions.failing,
            self._files.filters.format.name: self.filters.failing,
            self._files.deleted.format.name: self.deletions.marks.failing,
        }
        return {name: why for name, why in failing.items() if why}

    def registration(self, names: Collection[str] | None = None) -> tuple[dict[str, TopicConfig], DataVersion]:
        """What name servers are told: all topics, or those of `names` that there are."""
        return self.topics.announced(names), self.topics.version

    def beat(
        self, channel: Channel, language: str, version: int, beat: Heartbeat, caller: Caller | None = None
    ) -> None:
        """Take a heartbeat; its consumer groups and their retry topics are made if they are new. `caller`: as `Members.beat`.

        Raises Saving if some are being made: those groups have not joined, so the heartbeat is to be taken again after
        that; Refused if a group could not be made. The others have joined all the same.
        """
        refused: Refused | None = None
        joining, waiting = [], list[Pending]()
        for view in beat.consumers:
            try:
                self.filters.check_amount(view.group, view.subscriptions)
                config = self.groups.require(view.group)
                unit = UNIT_SUBSCRIBED if view.unit_mode else 0
                self.topics.ensure(check_topic(RETRY_PREFIX + view.group), max(1, config.retry_queues), unit)
                joining.append(view)
            except Saving as saving:
                waiting += saving.pending
            except Refused as error:
                refused = error
        producers = tuple(check_group(group) for group in beat.producers)
        taken = Heartbeat(beat.client_id, tuple(joining), producers)
        effects = self.members.beat(channel, language, version, taken, caller)
        for view in joining:
            self.filters.register(view.group, view.subscriptions, channel.caller.address)
        self._carry_out(effects)
        if refused is not None:
            raise refused
        if waiting:
            raise Saving(*waiting)

    def unregister(self, channel: Channel, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves a group."""
        self._carry_out(self.members.unregister(channel, producer_group, consumer_group))

    def closed(self, channel: Channel) -> None:
        """A connection has ended: forget what it waits for, and what it was a member of."""
        self.hold.closed(channel)
        self.predicates.closed(channel)
        if self.partitions is not None:
            self.partitions.filters.closed(channel)
        if self.branches is not None:
            self.branches.closed(channel)
        self.staging.closed(channel)
        self._carry_out(self.members.closed(channel))

    def commit_offset(self, commit: OffsetCommit) -> None:
        """Take a group's position. Raises Refused for an unknown group, topic or queue, or a negative offset."""
        self.groups.require(commit.group)
        self.lookup.commit_offset(commit)

    def delete_topic(self, name: str) -> Pending:
        """Delete a topic, its messages and every group's positions in it. Raises Refused for a system topic, Saving."""
        outcome = self.deletions.delete(name)
        outcome.when_done(lambda error: self._dropped(name) if error is None else None)
        return outcome

    def _dropped(self, topic: str) -> None:
        self.filters.drop_topic(topic)
        self.bases.drop_topic(topic)

    def delete_group(self, name: str, *, with_offsets: bool) -> Pending:
        """Forget a group's settings, and with `with_offsets` how far it has come."""
        outcome = Pending()

        def gone(error: Refused | None) -> None:
            if error is None:
                self.filters.drop_group(name)
            if error is not None or not with_offsets:
                outcome.finish(error)
                return
            self.offsets.drop_group(name)
            self.offsets.save(lambda: self._call_soon(outcome.finish))

        self.groups.delete(name).when_done(gone)
        return outcome
