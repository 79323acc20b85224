"""What a slave takes over of its master that is not in the log: whole tables of a RocketMQ, changes of a master of ours.

Each is saved before it is shown, as a change by a client is. What counts records of the log waits until they are here: a slave
that leads next must neither deliver a delayed message never, because its copy was not copied, nor take its own new records for
those of a topic that the master had deleted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.pulls.filters import Filters
from metaq.broker.replication.deletions import FollowedDeletions
from metaq.broker.replication.needed import NeededThere
from metaq.broker.replication.progress import Ahead, FollowedProgress
from metaq.broker.replication.with_the_log import WithTheLog
from metaq.broker.tables.groups import check_settings
from metaq.broker.tables.topics import check_numbers
from metaq.errors import ConfigError, Reason, Refused, RemoteProtocolError
from metaq.in_pieces import InPieces
from metaq.log import RateLimitedLog
from metaq.model import DelayProgress, GroupConfig, TopicConfig
from metaq.model.table_changes import TableChanges
from metaq.model.topics.system import SCHEDULE_TOPIC, TRANSACTION_GROUP
from metaq.model.topics.topic import check_group, check_partition_topic
from metaq.model.upkeep.floors import topic_of
from metaq.saved import Pending, Saving, over
from metaq.saved_file import TextFile

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0
"""Time after a failed save until the master is asked for everything again."""
UNSAVED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of the log that a start of this broker as a leader reads for delayed messages that were delivered, at most."""
_OF_A_PIECE: Final = 50
_OFFSETS_OF_A_PIECE: Final = 500


class FollowedTables:
    """The tables of a slave, as its master's are. Only on the thread that owns the broker.

    Args:
        delay: delayOffset.json, which is read when the slave begins to lead.
        call_soon: brings a call from another thread to this one.
    """

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        deletions: Deletions,
        filters: Filters,
        delay: TextFile[DelayProgress],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store, self._clock, self._tables = environment.store, environment.clock, tables
        self._deletions, self._filters, self._delay, self._call_soon = deletions, filters, delay, call_soon
        self._progress = FollowedProgress(tables.offsets)
        self._marks = FollowedDeletions(
            environment, tables.topics, deletions, self._progress.drop_own, self._ended, call_soon
        )
        self.take_offsets = self._progress.take_all
        self.queue_began_anew = self._progress.queue_began_anew
        self._follows = False
        self._place = 0, 0
        """Feed of the master, and number of its last change that was taken over."""
        self._told: dict[str, set[str]] | None = None
        """Table → names that the master has told since it began anew; None: it has told all."""
        self._again_at: float | None = None
        self._delays = WithTheLog[Mapping[int, int]]()
        self._delivered: DelayProgress | None = None
        """The newest of these that holds for this log."""
        self._saved_delays: DelayProgress | None = None
        self._transactions = WithTheLog[dict[str, dict[int, int]]]()
        self._needed = NeededThere()
        self._is_asked = False
        """Whether retention asks what the master needs."""
        self._faults = RateLimitedLog(log, environment.clock)

    # -- the role
    def begin(self, *, for_now: bool = False) -> None:
        """Begin to follow: nothing is known of the master.

        Args: for_now: the log is to be mended before this broker leads, and its tables go with what comes back.
        """
        self._follows, self._place, self._told, self._again_at = True, (0, 0), None, None
        self._needed.begin()
        if not self._is_asked:
            self._store.keeper.owes(self._needed)
            self._is_asked = True
        self._progress.begin()
        if not for_now:  # the process may have been killed just behind a cut
            self._take_back(was_cut=False)

    def _take_back(self, *, was_cut: bool) -> Pending:
        """Count nothing that lies behind the log's end: other records will come there. Returns the save of delayed messages'."""
        end = self._store.log.end
        self._progress.take_back(self._end_of, end, was_cut=was_cut)
        found = self._known_delivered()
        if found is None or not (was_cut if found.log_offset is None else found.log_offset > end):
            return over()
        # Until the master tells: whoever leads by then finds in the log what was delivered.
        self._delivered = None
        return self._save_delays(DelayProgress({}, self._store.log.min))

    def _known_delivered(self) -> DelayProgress | None:
        """What the master has told, or the file says from before; None: nothing, or nothing that can be read."""
        with contextlib.suppress(ConfigError):  # said when the schedule reads it, if this broker is to lead
            return self._delivered or self._delay.read()
        return None

    def settle(self) -> None:
        """Before this broker leads: what was told holds as far as this log goes, and what lies beyond its end is forgotten."""
        if not self._follows:
            return
        self._follows, self._filters.followed = False, False
        self._advance()
        self._marks.settle()
        self._store.keeper.follow_floors(None)
        self._delays, self._transactions = WithTheLog(), WithTheLog()
        self._progress.end(self._end_of)
        self._pass_what_is_not_needed()
        if self._delivered is not None and self._delivered != self._saved_delays:
            self._save_delays(self._delivered)
        self._delivered = self._saved_delays = None
        self._delay.file.flush()
        self._tables.offsets.flush()  # the master has saved them: who leads may be killed in a moment

    def lacks(self) -> int | None:
        """Return the LogOffset from which the master needs messages, where this log begins behind it: they would be lost if this
        broker led. 0: the master has not said yet. None: all that it needs is here, as far as that is known."""
        told = self._needed.told
        return told if told is not None and told < self._store.log.min else None

    def _pass_what_is_not_needed(self) -> None:
        """Count as delivered what lies below where the master needs anything.

        It may have let go of a log file, and of what it knew of the queues whose messages were all in it. Here they are still.
        """
        if not (needed := self._needed.oldest()):
            return
        found = self._known_delivered()
        offsets = dict(found.offsets) if found is not None else {}
        for (topic, queue_id), queue in self._store.reader.queues().items():
            if topic == SCHEDULE_TOPIC and (first := queue.first_at(needed)) > offsets.get(queue_id + 1, 0):
                offsets[queue_id + 1] = first
        # Copies in front of that place are of messages that lie in front of it as well.
        place = found.log_offset if found is not None else 0
        self._delivered = DelayProgress(offsets, max(place or 0, needed))

    def end(self) -> None:
        """This broker leads, and all its parts are open: they know what is needed of the log."""
        self._needed.end()

    def _end_of(self, topic: str, queue_id: int) -> int:
        queue = self._store.reader.existing_queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def tick(self) -> None:
        """Take over what the log has reached. Called ten times a second."""
        self._faults.tick()
        self._advance()

    def _advance(self) -> None:
        self._marks.advance()
        # Durable: after a power cut the copies that they count would be missing.
        flushed = self._store.state.flushed
        self._needed.advance(flushed)
        if (delays := self._delays.due(flushed)) is not None:
            self.take_delays(delays[1], delays[0])
        if (transactions := self._transactions.due(flushed)) is not None:
            for topic, queues in transactions[1].items():
                for queue_id, offset in queues.items():
                    self._tables.offsets.take(TRANSACTION_GROUP, topic, queue_id, offset)

    # -- of a master of ours
    @property
    def place(self) -> tuple[int, int]:
        """Feed of the master, and number of its last change that is here; both 0: everything is wanted."""
        if self._again_at is not None and self._clock.monotonic() >= self._again_at:
            self._place = 0, 0
        return self._place

    def end_of_changes(self) -> None:
        """The master does not tell changes any more: another program is at its address now."""
        self._place, self._filters.followed = (0, 0), False
        self._needed.end()

    def take(self, changes: TableChanges) -> InPieces[None]:
        """Take over what has changed at a master of ours; nothing more of it from the moment on when this broker leads.

        Raises RemoteProtocolError: it does not go on with what was told before.
        """
        for _ in self._take(changes):
            yield
            if not self._follows:
                return

    def _take(self, changes: TableChanges) -> InPieces[None]:
        self._filters.followed = True
        if not changes.since:
            self._begin_anew()
        elif (changes.feed, changes.since) != self._place:
            raise RemoteProtocolError(
                f"the master tells what has changed since {changes.since} of {changes.feed}; it was asked since "
                f"{self._place[1]} of {self._place[0]}"
            )
        if changes.position < changes.since:
            raise RemoteProtocolError(f"the master goes back from change {changes.since} to {changes.position}")
        yield from self._take_named(changes)
        yield from self._take_progress(changes)
        yield from self._marks.take(changes.generations)
        for topic, numbers in changes.closed_partitions.items():
            self._tables.closed_partitions.put(topic, numbers)
        if changes.floors:
            self._store.keeper.follow_floors(self._floors(changes.floors))
        if changes.delays is not None:
            self._delays.put(changes.log_end, changes.delays)
        self._needed.tell(changes.needed_from, changes.log_end)
        self._advance()
        if changes.complete and self._told is not None:
            yield from self._drop_others(self._told)
            self._told = None
        self._place = changes.feed, changes.position

    def _begin_anew(self) -> None:
        self._again_at = None
        self._told = {table: set[str]() for table in ("topics", "groups", "generations", "filters", "closed")}
        self._progress.begin_anew()
        # Of a log that may have lost its end since: its places are those of other records now.
        self._delays, self._transactions = WithTheLog(), WithTheLog()

    def _note(self, table: str, names: Mapping[str, object]) -> None:
        if self._told is not None:
            self._told[table].update(names)

    def _take_named(self, changes: TableChanges) -> InPieces[None]:
        self._note("topics", changes.topics)
        for number, (name, topic) in enumerate(changes.topics.items(), 1):
            if topic is not None:
                self._put_topic(name, topic)
            elif not self._tables.topics.is_system(name):
                self._tables.topics.saved.change(name, None).when_done(self._ended)
            if not number % _OF_A_PIECE:
                yield
        self._note("groups", changes.groups)
        for number, (name, group) in enumerate(changes.groups.items(), 1):
            if group is not None:
                self._put_group(name, group)
            else:
                self._tables.groups.saved.change(name, None).when_done(self._ended)
            if not number % _OF_A_PIECE:
                yield
        self._note("generations", changes.generations)
        self._note("closed", changes.closed_partitions)
        for topic_name, groups in changes.filters.items():
            self._note("filters", {f"{topic_name}@{name}": None for name in groups})
            for name, one in groups.items():
                try:
                    self._filters.take(topic_name, name, one)
                except Refused as error:
                    self._faults.error("filter", "a filter of the master is not taken over: %s", error)
                yield

    def _take_progress(self, changes: TableChanges) -> InPieces[None]:
        transactions = dict[str, dict[int, int]]()
        number = 0
        for topic, groups in changes.offsets.items():
            for group, queues in groups.items():
                if group == TRANSACTION_GROUP:
                    transactions[topic] = {queue_id: place for queue_id, place in queues.items() if place is not None}
                    continue
                if not _is_row(topic, group):
                    self._faults.error("offset", "progress of the group %.80r in %.80r is not taken over", group, topic)
                    continue
                for queue_id, offset in queues.items():
                    self._progress.take(topic, group, queue_id, offset)
                    number += 1
                    if not number % _OFFSETS_OF_A_PIECE:
                        yield
        if transactions:
            self._transactions.put(changes.log_end, transactions)

    def _floors(self, told: Mapping[str, int]) -> dict[str, int]:
        found = dict[str, int]()
        for key, floor in told.items():
            try:
                check_partition_topic(topic_of(key))
                if key != topic_of(key) and not key.removeprefix(topic_of(key) + "@").isdecimal():
                    raise Refused(Reason.INVALID, f"{key[:80]!r} names no queue")  # noqa: TRY301  told below
                found[key] = floor
            except Refused as error:
                self._faults.error("floor", "a floor of the master is not taken over: %s", error)
        return found

    def _drop_others(self, told: Mapping[str, set[str]]) -> InPieces[None]:
        """Drop what the master has not: it has told everything that it has."""
        topics, groups, closed = self._tables.topics, self._tables.groups, self._tables.closed_partitions
        yield from self._progress.complete()
        # With what is still being saved: it would be there for ever.
        for name in topics.saved.coming_keys():
            if name not in told["topics"] and not topics.is_system(name):
                topics.saved.change(name, None).when_done(self._ended)
                yield
        for name in [name for name in groups.saved.coming_keys() if name not in told["groups"]]:
            groups.saved.change(name, None).when_done(self._ended)
            yield
        yield from self._marks.take(
            {key: None for key in self._marks.keys() if key not in told["generations"]}  # noqa: SIM118  no mapping
        )
        for topic, group in [row for row in self._filters.table if "@".join(row) not in told["filters"]]:
            self._filters.take(topic, group, None)
            yield
        for topic in [topic for topic in closed.topics() if topic not in told["closed"]]:
            closed.put(topic, ())

    def _ended(self, error: Refused | None) -> None:
        """Note the end of a change. A failed one is taken over when everything is told again."""
        if error is not None and self._again_at is None:
            self._faults.warning("save", "what the master has told is not taken over yet: %s", error)
            self._again_at = self._clock.monotonic() + AGAIN_SECONDS

    def ahead(self) -> list[Ahead]:
        """Return what groups have committed here beyond what the master has told last."""
        return self._progress.ahead(self._marks.waiting)

    # -- of any master
    def _put_topic(self, name: str, config: TopicConfig) -> None:
        own = self._tables.topics
        try:
            if name not in own.table:
                check_partition_topic(name)
            _check_name(name, config.name)
            check_numbers(config)
        except Refused as error:  # a master's word makes no path
            self._faults.error(name, "a topic of the master is not taken over: %s", error)
            return
        if name in own.closing:  # it was made anew there, and the one before is still on its way out
            own.closing[name].when_done(lambda _error: self._put_topic(name, config))
        else:
            own.saved.change(name, config).when_done(self._ended)

    def _put_group(self, name: str, config: GroupConfig) -> None:
        try:
            _check_name(name, config.name)
            check_settings(config)
        except Refused as error:
            self._faults.error(name, "a group of the master is not taken over: %s", error)
            return
        self._tables.groups.saved.change(name, config).when_done(self._ended)

    # -- of a RocketMQ
    def take_topics(self, topics: Mapping[str, TopicConfig], asked_at: int) -> None:
        """Make, change and delete topics as the master has.

        Args: asked_at: where this log ended when the master was asked: a topic that it did not have then is gone with all records
              below.
        """
        own = self._tables.topics
        for name, config in topics.items():
            self._put_topic(name, config)
        for name in [name for name in own.table if name not in topics and not own.is_system(name)]:
            if not self._has_since(name, asked_at):
                try:
                    self._deletions.delete(name, asked_at)
                except (Refused, Saving) as error:  # the next time
                    self._faults.warning(
                        name, "the topic %s, which the master has deleted, stays for now: %s", name, error
                    )

    def _has_since(self, topic: str, place: int) -> bool:
        """Return whether the topic has a record behind a place: then it was made anew since the master was asked."""
        for (name, _), queue in self._store.reader.queues().items():
            if name == topic and queue.max_offset:
                unit = queue.unit(queue.max_offset - 1)
                if unit is not None and unit.log_offset >= place:
                    return True
        return False

    def take_groups(self, groups: Mapping[str, GroupConfig]) -> None:
        """Make, change and delete groups as the master has."""
        own = self._tables.groups
        for name, config in groups.items():
            self._put_group(name, config)
        for name in [name for name in own.table if name not in groups]:
            own.saved.change(name, None)

    def take_delays(self, offsets: Mapping[int, int], log_offset: int) -> None:
        """Keep for the time when this broker leads how far the master has delivered.

        Args: log_offset: where the log ended then, or before: what was delivered since is found in the log behind it.
        """
        self._delivered = progress = DelayProgress(dict(offsets), log_offset)
        saved = self._saved_delays
        # It holds for ever more of the log, of which a start reads the rest: not each step of that is worth a write.
        if saved is None or saved.offsets != progress.offsets or log_offset - (saved.log_offset or 0) >= UNSAVED_BYTES:
            self._save_delays(progress)

    def _save_delays(self, progress: DelayProgress) -> Pending:
        self._saved_delays, pending = progress, Pending()

        def saved(error: OSError | None) -> None:
            if error is not None:
                self._saved_delays = None
                self._faults.error(
                    "delays", "the progress of delayed messages could not be saved: %s", error.strerror or error
                )
            pending.finish(
                _not_saved("of delayed messages", error.strerror or str(error)) if error is not None else None
            )

        self._delay.file.save_soon(
            lambda: self._delay.format.text(progress), lambda error: self._call_soon(lambda: saved(error))
        )
        return pending

    def log_was_cut(self) -> list[Pending]:
        """Take progress back to where queues end now: what groups have consumed behind it is gone, and what was delivered there.

        Returns the saves of that. The master is asked for everything again: what it told last was held against what is gone.
        """
        self._again_at = self._clock.monotonic()
        delays, positions, offsets = self._take_back(was_cut=True), Pending(), self._tables.offsets

        def saved() -> None:
            positions.finish(_not_saved("of groups", offsets.failing) if offsets.failing else None)

        offsets.save(lambda: self._call_soon(saved))
        return [delays, positions]


def _not_saved(whose: str, why: str) -> Refused:
    return Refused(Reason.NOT_STORED, f"progress {whose} could not be saved: {why}")


def _is_row(topic: str, group: str) -> bool:
    try:
        check_partition_topic(topic)
        check_group(group)
    except Refused:
        return False
    return True


def _check_name(name: str, own: str) -> None:
    """Raises Refused: the settings are of another one."""
    if name != own:
        raise Refused(Reason.INVALID, f"{name:.127} has the settings of {own:.127}")
