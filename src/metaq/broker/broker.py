"""Composition of a broker's services.

Servers call the services. The process that runs the broker calls `tick` ten times a second and `deliver` as often as it asks.
Nothing here waits, sleeps or writes to a socket: notices to clients go through their channels. Files come in as `BrokerFiles`,
time as a `Clock`, so a test owns both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from metaq.broker.channel import Channel
from metaq.broker.cleaning import Cleaning
from metaq.broker.consumer_questions import ConsumerQuestions
from metaq.broker.delays.retry import RetryService
from metaq.broker.delays.schedule import ScheduleService
from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, ReadCold, Tables, read_at_once
from metaq.broker.files import BrokerFiles
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.inspection import Inspection
from metaq.broker.log.acks import AckPolicy
from metaq.broker.log.admit import Gates
from metaq.broker.log.appender import Appender
from metaq.broker.log.closing import ClosedQueues
from metaq.broker.log.long_polling import HeldPulls
from metaq.broker.lost_topics import LostTopics
from metaq.broker.membership import Membership
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.metaq1.unserved import UnservedBases
from metaq.broker.part import BrokerPart, PartList
from metaq.broker.process.reloading import Reloading
from metaq.broker.process.restarting import Restarting
from metaq.broker.process.stopping import Stopping
from metaq.broker.pulls.filters import Filters
from metaq.broker.pulls.locks import Locks
from metaq.broker.pulls.lookup import Lookup
from metaq.broker.pulls.predicates import MakeHelper, Predicates
from metaq.broker.pulls.pull import PullService
from metaq.broker.pulls.redirect import Redirect
from metaq.broker.pulls.resets import OffsetResets
from metaq.broker.quota.service import Quotas, defaults_of
from metaq.broker.replication.admission import SlaveAdmission
from metaq.broker.replication.feed import TableFeed
from metaq.broker.replication.mending import RepairRequests
from metaq.broker.replication.ranges import LogRanges
from metaq.broker.replication.replicas import Replicas
from metaq.broker.replication.roles import Roles
from metaq.broker.replication.scrub import Scrub
from metaq.broker.replication.tables import FollowedTables
from metaq.broker.replies import ReplyService
from metaq.broker.reports import Reports
from metaq.broker.requests import OffsetCommit
from metaq.broker.saving import TableSaving
from metaq.broker.send import SendService
from metaq.broker.staged.peers import ALONE, Peers
from metaq.broker.staged.service import StagingService
from metaq.broker.statistics.sampling import Sampling
from metaq.broker.stats import Stats
from metaq.broker.tables.closed_partitions import ClosedPartitions
from metaq.broker.tables.groups import Groups
from metaq.broker.tables.members import Members
from metaq.broker.tables.offsets import Offsets
from metaq.broker.tables.topics import Topics
from metaq.broker.transactions.service import TransactionService
from metaq.broker.trimming import Trimming
from metaq.changed_options import ChangedOptions
from metaq.errors import Refused
from metaq.in_pieces import InPieces
from metaq.model import DataVersion, MessageQueue, TopicConfig
from metaq.model.access import Caller, administered_locally, everybody
from metaq.model.acl.changes import patterns_of
from metaq.model.failover import ZOOKEEPER
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.options import Applied, Settings
from metaq.saved import Pending, PendingOutcome, at_once
from metaq.wire.hot import DelayGate

if TYPE_CHECKING:
    from metaq.broker.failover.in_sync import InSyncReplicas
    from metaq.broker.failover.table_acks import TableAcks
    from metaq.broker.metaq1.filters import MakeFilterHelper
    from metaq.broker.metaq1.position_bases import Bases
    from metaq.broker.metaq1.service import Metaq1Service

log = logging.getLogger(__name__)


class Broker:
    """A broker without its servers.

    The constructor reads the tables' files, and nothing of the log; `lead` opens all parts, `follow` those of a slave.

    Args:
        call_soon: runs a callback of another thread (one that has saved a file) on the thread that owns the broker.
        gatekeeper: access control; None allows everybody everything.
        read_cold: reads delayed and staged messages that are no longer in memory.
        peers: connection to the other brokers that hold parts of staged transactions.
        make_helper: starts a process that evaluates predicates; None: subscriptions by predicate are refused.
        make_filter_helper: starts a process that evaluates filters of MetaQ 1.x; None: there are no such filters.
        metaq1: settings for clients of MetaQ 1.x; None: none are served.

    Raises ConfigError: a configuration file cannot be read.
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
        metaq1: Metaq1Settings | None = None,
    ) -> None:
        options, store_options = environment.options, environment.store_options
        store, clock = environment.store, environment.clock
        self.environment = environment
        administration = everybody if options.remote_administration_enable else administered_locally
        self.gatekeeper = gatekeeper = gatekeeper or Gatekeeper(administration=administration)
        self.reloading = Reloading(gatekeeper, self.saves)
        self.stopping = Stopping(gatekeeper)
        self.restarting = Restarting(gatekeeper)
        self.options, self.store_options, self.store, self.clock = options, store_options, store, clock
        self.settings = Settings(options, store_options)
        # First: what is made below reads the options as they are then.
        self.changed_options = ChangedOptions(self.settings, files.options, call_soon)
        self.all_settings = [self.settings] if metaq1 is None else [self.settings, metaq1.settings]
        """The option tables that this process obeys; who runs it adds those that the broker does not know."""
        self.stats = Stats(clock)
        self.quotas = Quotas(clock, defaults_of(options), options.quota_wait_max / 1000, files.quotas, call_soon)
        self.topics = Topics(
            options,
            clock,
            files.topics,
            environment.name,
            len(store.delays_ms),
            call_soon,
            prepare=store.writer.prepare_queue,
            may_make=self.quotas.may_make,
        )
        self.groups = Groups(options, clock, files.groups, call_soon, self.quotas.may_make)
        self.offsets = Offsets(files.offsets)
        self.members = Members(clock)
        self.filters = Filters(options, clock, files.filters)
        self.held_pulls = HeldPulls(store.reader, clock, options.held_pulls_max)
        self.quotas.watch(self._quotas_changed)
        self.in_sync = _in_sync(environment)
        """The in-sync set of a group with failover; None: leaders are not changed by themselves."""
        self.replicas = self.in_sync or Replicas(environment)
        self.acks = AckPolicy(environment, self.replicas)
        self.stats.times_appends = not self.acks.promises
        closed_queues = ClosedQueues()
        # One appender for all services: it is the only place that writes to the log.
        self.appender = Appender(environment, self.acks, self.stats, self.topics.closed, closed_queues)
        self.appender.when_grown(self.stats.grew)
        # Growth of watched queues only, so that appends to queues at which no pull waits cost no call.
        self.appender.when_grown(self.held_pulls.grew, watched_only=True)
        self.closed_partitions = ClosedPartitions()
        self.topics.refusal = metaq1.follows if metaq1 is not None else None
        tables = Tables(self.topics, self.groups, self.members, self.offsets, self.closed_partitions)
        self.transactions = TransactionService(environment, tables, self.appender, read_cold, gatekeeper)
        delays = DelayGate(SCHEDULE_TOPIC.encode(), len(store.delays_ms))
        self.gates = Gates(
            environment, self.topics, self.held_pulls, self.acks, self.transactions.gate, closed_queues, gatekeeper,
            closed_partitions=self.closed_partitions, delays=delays, groups=self.groups,
        )  # fmt: skip
        self.schedule = ScheduleService(
            environment, self.appender, self.gates.deliveries, files.delay, read_cold, delays
        )
        self.deletions = Deletions(
            clock, store, self.topics, self.offsets, self.gates, files.deleted, files.generations, call_soon
        )
        self.feed = TableFeed(
            environment, tables, self.deletions, self.filters, lambda: self.schedule.positions.offsets
        )
        """Of a master: tells its slaves what has changed in its tables."""
        self.table_acks = _table_acks(environment, self.in_sync, self.feed)
        """Which changes the in-sync set has; None: nobody waits for that."""
        self.followed = FollowedTables(environment, tables, self.deletions, self.filters, files.delay, call_soon)
        """Of a slave: takes over its master's tables."""
        self.appender.when_restarted(self.followed.queue_began_anew)
        self.slave_admission = SlaveAdmission(gatekeeper, patterns_of(options.ha_allowed_addresses), clock)
        self.roles = Roles(environment, files.leadership, self.replicas, gatekeeper, call_soon)
        self.log_ranges = LogRanges(environment, call_soon)
        self.scrub = Scrub(environment)
        """Of a slave: when it compares its log with its master's, and what it has found."""
        self.repair_requests = RepairRequests(gatekeeper)
        self.staging = StagingService(
            environment, tables, self.appender, self.gates.expansions, read_cold, peers, gatekeeper=gatekeeper
        )
        self.sends = SendService(environment, tables, self.appender, self.schedule, self.transactions)
        self.replies = ReplyService(environment, tables, self.sends, self.appender, self._append_soon)
        self.retries = RetryService(environment, tables, self.appender, self.schedule, self.stats)
        self.predicates = Predicates(options, clock, make_helper)
        self.pulls = PullService(
            environment,
            tables,
            self.held_pulls,
            self.stats,
            gatekeeper,
            filters=self.filters,
            predicates=self.predicates,
            redirect=Redirect(environment, self.replicas.is_copied),
            in_doubt=lambda: self.replicas.in_doubt,
        )
        self.answer_pulls = self.pulls.answer_grown
        """Answers the held pulls whose queues grew. Servers call it when they have appended."""
        self.replicas.when_readable(self._read_on)
        self.metaq1: Metaq1Service | None = None
        """What serves clients of MetaQ 1.x; None: none are served."""
        self._bases: Bases | UnservedBases
        metaq1_parts: Sequence[BrokerPart] = ()
        if metaq1 is not None:
            from metaq.broker.metaq1.service import Metaq1Service

            self.metaq1 = Metaq1Service(
                environment, tables, self.appender, self.acks, self.held_pulls, self.staging, gatekeeper, self.replicas,
                settings=metaq1, options=self.settings, make_filter_helper=make_filter_helper, call_soon=call_soon,
            )  # fmt: skip
            self._bases, metaq1_parts = self.metaq1.bases, self.metaq1.parts
            self.stats.times_appends = not self.acks.promises  # the master of a pair promises more than its options say
        else:
            self._bases = UnservedBases(environment, self.appender, self.topics.closed, call_soon)
        self.locks = Locks(environment, tables, gatekeeper)
        membership = Membership(environment, tables, self.filters, self.locks, self.deletions, gatekeeper)
        self.beat, self.beat_in_pieces = membership.beat, membership.beat_in_pieces
        self.unregister, self._notify, self.tell_members = (
            membership.unregister, membership.notify, membership.tell_all,
        )  # fmt: skip
        self.lookup = Lookup(environment, tables, self.deletions)
        self.resets = OffsetResets(environment, tables, self.lookup)
        self.statistics = Sampling(
            clock, self.stats, self.topics, self.groups, options.broker_cluster_name,
            queues=lambda: store.reader.listed_queues()[0], follows=lambda: store.state.follows is not None,
        )  # fmt: skip
        progress = self.metaq1.progress if self.metaq1 is not None else None
        self.reports = Reports(
            environment,
            tables,
            self.held_pulls,
            self.lookup,
            self.schedule,
            self.stats,
            self.statistics,
            self.roles,
            self.scrub,
            metaq1=progress,
            unsaved=self._unsaved,
            held=lambda: self.staging.held,
            open_halves=lambda: self.transactions.progress.open_halves if self.leads else 0,
        )
        self.consumer_questions = ConsumerQuestions(tables)
        self.cleaning = Cleaning(environment, tables, self.deletions, call_soon)
        archives = self.metaq1.archives if self.metaq1 is not None else None
        self.trimming = Trimming(environment, tables, self.lookup, call_soon, archives, progress)
        self.inspection = Inspection(environment, tables, self.lookup, self.reports, self.filters)
        self._call_soon, self._files = call_soon, files
        self.settings.watch(self.gates.options_changed)
        self.settings.watch(lambda _names: store.options_changed())
        # The order in which they are opened and tick; they are closed the other way round. Tables are saved last, when all
        # who change them have ended: half messages hand over positions. The schedule is closed behind all that appends:
        # its file says where the log ends, and a start reads the log from there.
        self._parts = PartList(
            (
                self.stats,
                self.statistics,
                self.quotas,
                self.appender,
                TableSaving(environment, tables, self.deletions),
                self.filters,
                self.schedule,
                self.transactions,
                self.deletions,
                LostTopics(environment, self.topics, metaq1),  # behind deletions: what is deleted is not lost
                self.replies,
                self.staging,
                self._bases,
                self.retries,  # behind the schedule, which has read what was given back
                *metaq1_parts,
                self.predicates,
                self.log_ranges,
                membership,
                self.replicas,
                self.pulls,  # last: in each tick the others have appended what held pulls wait for
            )
        )
        self.settings.watch(self._parts.options_changed)

    def _quotas_changed(self, active: bool) -> None:
        self.held_pulls.holders = self.quotas.holders if active else None

    @property
    def leads(self) -> bool:
        """Whether this broker is a master; its slaves follow."""
        return self.roles.leads

    def follow(self, *, for_now: bool = False) -> None:
        """Open the parts of a slave: tables are saved and pulls answered; nothing is appended but what its master has appended.

        Args: for_now: the log is to be mended, and then this broker leads.
        """
        self._take_role(
            f"{self.environment.name} takes no messages here: this broker is a slave (brokerId {self.options.broker_id})"
        )
        self.roles.has_led = False
        self.feed.end()
        self.followed.begin(for_now=for_now)
        self._parts.open(leading=False)

    def step_down(self, why: str | None) -> None:
        """Take no messages and changes any more, for this reason, with all parts still open; None: take them again.

        What a leader does by itself stops with it: nothing is delivered, no transaction is asked about.
        """
        self._take_role(why)
        self._parts.halt_leading(halted=why is not None)
        self.roles.has_led = self.roles.stepped_down = why is not None

    def follow_successor(self) -> None:
        """Follow the broker that leads since this one has stepped down, with clients connected, as `follow` does at a start.

        The log is durable up to its end, no acknowledgement is held, and `options` have the role of a slave. What only a leader
        runs has ended for good: to lead again, the broker has to be made anew.
        """
        self._parts.retire_leading()
        self.follow()
        self.replicas.history += 1  # whoever copies this log has to ask who leads

    def _take_role(self, follows: str | None) -> None:
        """Args: follows: why no message is taken; None: this broker leads."""
        self.roles.leads = follows is None
        self.store.state.follow(follows)
        self.replicas.take_role()
        self.acks.take_role()
        self.gates.close_all()  # they know what acknowledgements promise

    def lead(self) -> None:
        """Open all parts: at a start, or when a slave becomes master.

        Reads the log from where files and checkpoints say.

        Raises ConfigError: a file cannot be read, or MetaQ 1.x's settings contradict each other. The broker cannot be used then.
        """
        assert not self.roles.stepped_down, "what a leader needs has ended in this process"
        self.followed.settle()
        self._take_role(None)
        self._parts.open(leading=True)
        self.followed.end()

    def saves(self) -> list[Pending]:
        """Return the changes of topics, groups and deletions that have not ended: they are being saved."""
        saved = self.topics.saved, self.groups.saved, self.deletions.marks, self.deletions.generations
        return [change for table in saved for change in table.under_way()]

    def log_was_cut(self) -> list[Pending]:
        """Adjust tables to a slave's log that was cut, see `MessageWriter.truncate`.

        Returns the saves of that. Before they have ended, nothing may come behind the cut: a start would count it as what was there.
        """
        self.replicas.log_was_cut()
        self._bases.log_was_cut()
        return [*self.deletions.log_was_cut(), *self.followed.log_was_cut()]

    def tick(self) -> None:
        """Run periodic work: deliver what is due, answer overdue pulls, expire silent clients, save what changed."""
        self._parts.tick()

    def deliver(self) -> float:
        """Deliver due delayed messages and committed staged ones, and check transactions, for a bounded time.

        Returns the seconds until the next call; 0: as soon as possible.
        """
        pause = self._parts.step()
        self.answer_pulls()
        return pause

    def _read_on(self) -> None:
        """Answer held pulls when slaves have what they wait for, or are not waited for any more."""
        self.held_pulls.read_on()
        self.answer_pulls()

    def _append_soon(self, work: Callable[[], object]) -> None:
        """Append in another iteration of the event loop, after the responses of this one are written."""

        def append() -> None:
            work()
            self.answer_pulls()

        # A later turn of the loop: the response that the client waits for is written first.
        self._call_soon(append)

    def reset_offsets(
        self, group: str, topic: str, time_ms: int, *, force: bool, exact: bool
    ) -> InPieces[dict[MessageQueue, int]]:
        """Reset a group's offsets through its members (code 222). Raises Refused, see `OffsetResets.reset`."""
        offsets, effects = yield from self.resets.reset(group, topic, time_ms, force=force, exact=exact)
        for effect in effects:
            self._notify([effect])
            yield
        return offsets

    def clone_offsets(self, source: str, target: str, topic: str | None, *, offline: bool) -> InPieces[Pending]:
        """Give a group the offsets of another (code 314). Raises Refused, see `OffsetResets.clone`."""
        yield from self.resets.clone(source, target, topic, offline=offline)
        outcome = Pending()
        self.offsets.save(lambda: self._call_soon(outcome.finish))
        return outcome

    def close(self) -> None:
        """Save offsets, and wait for every save under way. The store is closed later, by its owner."""
        self._parts.close()

    def _unsaved(self) -> dict[str, str]:
        failing = {
            self._files.topics.format.name: self.topics.saved.failing,
            self._files.groups.format.name: self.groups.saved.failing,
            self._files.offsets.format.name: self.offsets.failing,
            self._files.delay.format.name: self.schedule.positions.failing,
            self._files.filters.format.name: self.filters.failing,
            self._files.deleted.format.name: self.deletions.marks.failing,
            self._files.generations.format.name: self.deletions.failing,
            self._files.quotas.format.name: self.quotas.failing,
            self._files.options.format.name: self.changed_options.failing,
        }
        return {name: why for name, why in failing.items() if why}

    def change_options(self, caller: Caller, pairs: Mapping[str, str]) -> PendingOutcome[Applied]:
        """Change options while the broker runs (code 25). Raises Refused: the caller may not, or see `ChangedOptions.change`."""
        # `check_administration`, not `check`: without ACL rules, only callers on this machine may.
        self.gatekeeper.check_administration(caller, "the configuration")
        return self.changed_options.change(pairs)

    def registration(self, names: Collection[str] | None = None) -> tuple[dict[str, TopicConfig], DataVersion]:
        """Return the body of a registration with name servers: all topics, or the existing ones of `names`, and their version."""
        return self.topics.announced(names), self.topics.version

    def closed(self, channel: Channel) -> None:
        """Drop what a closed connection waits for, and its memberships."""
        # RocketMQ's Go client never sends UNREGISTER_CLIENT: the end of its connection alone must rebalance its group.
        self._parts.closed(channel)

    def commit_offset(self, commit: OffsetCommit) -> None:
        """Store a group's offset. Raises Refused: unknown group, topic or queue, or a negative offset."""
        self.groups.require(commit.group, commit.client)
        if commit.generation is not None and commit.generation != self.deletions.generation(commit.topic):
            # Of a topic that was deleted meanwhile: the member will see it.
            return
        self.lookup.commit_offset(commit)

    def delete_topic(self, name: str) -> Pending:
        """Delete a topic, its messages and every group's offsets. Raises Refused: a system topic; Saving: it is being changed."""
        outcome = self.deletions.delete(name)
        outcome.when_done(lambda error: self._dropped(name) if error is None else None)
        return outcome

    def _dropped(self, topic: str) -> None:
        self.filters.drop_topic(topic)
        self._bases.drop_topic(topic)

    def delete_group(self, name: str, *, with_offsets: bool) -> Pending:
        """Delete a group's settings, and with `with_offsets` its offsets."""
        outcome = Pending()

        def gone(error: Refused | None) -> None:
            if error is None:
                self.filters.drop_group(name)
            if error is not None or not with_offsets:
                outcome.finish(error)
                return
            # Answered after the offsets are on the disk: a group created again must not find them after a crash.
            self.offsets.drop_group(name)
            self.deletions.drop_group(name)
            self.offsets.save(lambda: self._call_soon(outcome.finish))

        self.groups.delete(name).when_done(gone)
        return outcome


def _in_sync(environment: Environment) -> InSyncReplicas | None:
    if environment.options.failover != ZOOKEEPER:
        return None
    from metaq.broker.failover.in_sync import InSyncReplicas  # only where there is failover

    return InSyncReplicas(environment)


def _table_acks(environment: Environment, in_sync: InSyncReplicas | None, feed: TableFeed) -> TableAcks | None:
    if in_sync is None:
        return None
    from metaq.broker.failover.table_acks import TableAcks  # only where there is failover

    return TableAcks(environment, in_sync, feed)
