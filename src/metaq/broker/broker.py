"""The broker: its services, put together.

A door calls the services, sends the notices they return, and calls `tick` ten times a second; nothing here waits,
sleeps or writes to a socket. Files come in as `BrokerFiles`, time as a `Clock`, so a test owns both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from metaq.broker.acks import AckPolicy
from metaq.broker.admit import Gates
from metaq.broker.appender import Appender
from metaq.broker.delay import DelayLadder
from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.files import BrokerFiles
from metaq.broker.groups import Groups
from metaq.broker.hold import HeldPulls
from metaq.broker.lookup import Lookup
from metaq.broker.members import Channel, Members, Notice
from metaq.broker.offsets import Offsets
from metaq.broker.pull import PullService
from metaq.broker.reports import Reports
from metaq.broker.requests import OffsetCommit
from metaq.broker.retry import RetryService
from metaq.broker.send import SendService
from metaq.broker.stats import Stats
from metaq.broker.topics import Topics
from metaq.clock import Clock
from metaq.errors import Refused
from metaq.model import DataVersion, Heartbeat, TopicConfig
from metaq.model.access import Authorise, everybody
from metaq.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_group, check_topic
from metaq.options import BrokerOptions, Settings, StoreOptions
from metaq.saved import Pending, Saving, at_once
from metaq.store.message_store import MessageStore

log = logging.getLogger(__name__)

INTERNAL_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
EXPIRY_SECONDS = 10.0
"""Between two looks for clients that fell silent."""


class Broker:
    """One broker's decisions.

    Args: `name`: the broker's name, resolved. `store_host`: address and port that offset ids name, 8 or 20 bytes.
          `call_soon`: brings a call from another thread, one that has saved a file, to the thread that owns the broker.
    Raises: ConfigError: a configuration file cannot be read.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store_options: StoreOptions,
        store: MessageStore,
        clock: Clock,
        name: str,
        store_host: bytes,
        files: BrokerFiles,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
        authorise: Authorise = everybody,
    ) -> None:
        self.authorise = authorise
        self.options, self.store_options, self.store, self.clock, self.name = options, store_options, store, clock, name
        self.settings = Settings(options, store_options)
        self.settings.on_change.append(self._options_changed)
        environment = self.environment = Environment(options, store_options, clock, store, name, store_host)
        self.stats = Stats(clock)
        self.topics = Topics(
            options, clock, files.topics, name, len(store.ladder), call_soon, prepare=store.prepare_queue
        )
        self.groups = Groups(options, clock, files.groups, call_soon)
        self.offsets = Offsets(files.offsets)
        self.members = Members(clock)
        self.hold = HeldPulls(store, clock, options.held_pulls_max)
        self.acks = AckPolicy(environment)
        self.appender = Appender(environment, self.acks, self.stats, self.topics.closed)
        self.appender.when_grown(self.stats.grew)
        self.appender.when_grown(self.hold.grew)
        self.gates = Gates(environment, self.topics, self.hold, self.acks, authorise)
        self.ladder = DelayLadder(store, self.appender, self.gates.deliveries, clock, files.delay, store.ladder)
        store.owes(self.ladder)
        self.deletions = Deletions(clock, store, self.topics, self.offsets, self.gates, files.deleted, call_soon)
        self._look_for_lost_topics()
        tables = Tables(self.topics, self.groups, self.members, self.offsets)
        self.sends = SendService(environment, tables, self.appender, self.ladder)
        self.retries = RetryService(environment, tables, self.appender, self.ladder)
        self.pulls = PullService(environment, tables, self.hold, self.stats)
        self.lookup = Lookup(environment, tables)
        self.reports = Reports(
            environment, tables, self.hold, self.lookup, self.ladder, self.stats, unsaved=self._unsaved
        )
        self._call_soon, self._files = call_soon, files
        now = clock.monotonic()
        self._offsets_due = now + options.flush_consumer_offset_interval / 1000
        self._ladder_due = now + store_options.flush_delay_offset_interval / 1000
        self._expiry_due = now + EXPIRY_SECONDS

    def _options_changed(self, names: Collection[str]) -> None:
        if "max_message_size" in names:
            self.gates.close_all()
        self.store.options_changed()
        self.topics.options_changed(names)

    def _look_for_lost_topics(self) -> None:
        """Queues that hold messages and have no topic: their settings were lost with a file, the messages were not.

        Recovery has emptied the queues of deleted topics; what they hold came later.
        """
        lost: dict[str, list[int]] = {}
        least = self.options.default_topic_queue_nums
        for (topic, queue_id), queue in self.store.queues().items():
            if queue.min_offset < queue.max_offset and not (self.topics.get(topic) or self.topics.is_system(topic)):
                lost.setdefault(topic, []).append(queue_id)
        # Too many queues harm nobody; too few would refuse producers that know the topic as it was.
        counts = {
            topic: max(max(queues) + 1, 1 if topic.startswith(INTERNAL_PREFIXES) else least)
            for topic, queues in lost.items()
        }
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

    def tick(self) -> list[Notice]:
        """Let time pass: deliver what is due, expire who is silent, save what changed. Returns whom to notify."""
        now = self.clock.monotonic()
        self.stats.sample()
        self.ladder.tick()
        self.topics.saved.retry()
        self.groups.saved.retry()
        self.deletions.marks.retry()
        if now >= self._offsets_due:
            self._offsets_due = now + self.options.flush_consumer_offset_interval / 1000
            self.offsets.save()
        if now >= self._ladder_due:
            self._ladder_due = now + self.store_options.flush_delay_offset_interval / 1000
            self.ladder.positions.save()
        self.ladder.positions.settle()
        if now < self._expiry_due:
            return []
        self._expiry_due = now + EXPIRY_SECONDS
        self.deletions.prune()
        return self.members.expire()

    def close(self) -> None:
        """Save the positions, and wait for every save under way. The store is closed by whoever opened it, after this."""
        for table in (self.topics.saved, self.groups.saved, self.deletions.marks):
            table.close()
        self.offsets.close()
        self.ladder.positions.close()

    def _unsaved(self) -> dict[str, str]:
        failing = {
            self._files.topics.format.name: self.topics.saved.failing,
            self._files.groups.format.name: self.groups.saved.failing,
            self._files.offsets.format.name: self.offsets.failing,
            self._files.delay.format.name: self.ladder.positions.failing,
            self._files.deleted.format.name: self.deletions.marks.failing,
        }
        return {name: why for name, why in failing.items() if why}

    def registration(self, names: Collection[str] | None = None) -> tuple[dict[str, TopicConfig], DataVersion]:
        """What name servers are told: all topics, or those of `names` that there are."""
        return self.topics.announced(names), self.topics.version

    def beat(
        self, channel: Channel, language: str, version: int, beat: Heartbeat
    ) -> tuple[list[Notice], list[Pending]]:
        """Take a heartbeat; its consumer groups and their retry topics are made if they are new.

        Returns whom to notify, and what is being made: the groups that need it have not joined, so the heartbeat is to
        be taken again after that. Raises Refused if a group could not be made; the others have joined all the same.
        """
        refused: Refused | None = None
        joining, waiting = [], list[Pending]()
        for view in beat.consumers:
            try:
                config = self.groups.require(view.group)
                self.topics.ensure(check_topic(RETRY_PREFIX + view.group), max(1, config.retry_queues))
                joining.append(view)
            except Saving as saving:
                waiting += saving.pending
            except Refused as error:
                refused = error
        producers = tuple(check_group(group) for group in beat.producers)
        notices = self.members.beat(channel, language, version, Heartbeat(beat.client_id, tuple(joining), producers))
        if refused is not None:
            raise refused
        return notices, waiting

    def commit_offset(self, commit: OffsetCommit) -> None:
        """Take a group's position. Raises Refused for an unknown group, topic or queue, or a negative offset."""
        self.groups.require(commit.group)
        self.lookup.commit_offset(commit)

    def delete_topic(self, name: str) -> Pending:
        """Delete a topic, its messages and every group's positions in it. Raises Refused for a system topic, Saving."""
        return self.deletions.delete(name)

    def delete_group(self, name: str, *, with_offsets: bool) -> Pending:
        """Forget a group's settings, and with `with_offsets` how far it has come."""
        outcome = Pending()

        def gone(error: Refused | None) -> None:
            if error is not None or not with_offsets:
                outcome.finish(error)
                return
            self.offsets.drop_group(name)
            self.offsets.save(lambda: self._call_soon(outcome.finish))

        self.groups.delete(name).when_done(gone)
        return outcome
