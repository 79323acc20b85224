"""What a slave takes over of its master that is not in the log: topics, groups, progress of groups and of delayed messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.tables.offsets import OffsetTable
from metaq.broker.transactions.progress import LOG_POSITION
from metaq.errors import Refused
from metaq.log import RateLimitedLog
from metaq.model import DelayProgress, GroupConfig, TopicConfig
from metaq.model.topics.topic import check_group, check_partition_topic
from metaq.saved import Saving
from metaq.saved_file import TextFile

log = logging.getLogger(__name__)


class FollowedTables:
    """The tables of a slave, as its master's are. Only on the thread that owns the broker.

    Args:
        delay: delayOffset.json, which is read when the slave begins to lead.
    """

    def __init__(
        self, environment: Environment, tables: Tables, deletions: Deletions, delay: TextFile[DelayProgress]
    ) -> None:
        self._store, self._tables, self._deletions, self._delay = environment.store, tables, deletions, delay
        self._offsets: OffsetTable = {}
        """The master's, as it was told last."""
        self._agreed: dict[tuple[str, str, int], int] = {}
        """(topic, group, queue id) → the offset here when the master's was taken over; a later one was committed here."""
        self._faults = RateLimitedLog(log, environment.clock)

    def take_topics(self, topics: Mapping[str, TopicConfig], asked_at: int) -> None:
        """Make, change and delete topics as the master has.

        Args: asked_at: where this log ended when the master was asked: a topic that it did not have then is gone with all records
              below.
        """
        own = self._tables.topics
        for name, config in topics.items():
            try:
                check_partition_topic(name)
            except Refused as error:  # a master's word makes no path
                self._faults.error(name, "a topic of the master is not taken over: %s", error)
                continue
            if name not in own.closing:
                own.saved.change(name, config)
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
            try:
                check_group(name)
            except Refused as error:
                self._faults.error(name, "a group of the master is not taken over: %s", error)
                continue
            own.saved.change(name, config)
        for name in [name for name in own.table if name not in groups]:
            own.saved.change(name, None)

    def take_offsets(self, offsets: OffsetTable) -> None:
        """Take over what has changed at the master, backwards too: a reset. What was only committed here stays."""
        own = self._tables.offsets
        for (topic, group), queues in offsets.items():
            before = self._offsets.get((topic, group), {})
            for queue_id, offset in queues.items():
                known, told = own.get(group, topic, queue_id), before.get(queue_id)
                if known is None or (offset != told if told is not None else offset > known):
                    own.put(group, topic, queue_id, offset)
                    self._agreed[topic, group, queue_id] = offset
                elif told is None:  # of a time before this broker's start: whether it is newer is not known
                    self._agreed[topic, group, queue_id] = known
        for topic, group in self._offsets.keys() - offsets.keys():
            own.drop(topic, group)
        self._offsets = offsets

    def ahead(self) -> list[tuple[str, str, int, int]]:
        """Return (group, topic, queue id, offset) of what groups have committed here beyond what the master has told last."""
        found = list[tuple[str, str, int, int]]()
        for (topic, group), queues in self._offsets.items():
            for queue_id, told in queues.items():
                offset = self._tables.offsets.get(group, topic, queue_id) or 0
                if offset > max(told, self._agreed.get((topic, group, queue_id), offset)):
                    found.append((group, topic, queue_id, offset))
        return found

    def take_delays(self, offsets: Mapping[int, int], asked_at: int) -> None:
        """Keep for the time when this broker leads how far the master has delivered.

        Args: asked_at: where this log ended when the master was asked: what was delivered since is found in the log behind it.
        """
        progress = DelayProgress(dict(offsets), asked_at)
        self._delay.file.save_soon(lambda: self._delay.format.text(progress), self._was_saved)

    def flush(self) -> None:
        """Wait until the progress of delayed messages is on the disk, or could not be put there. From any thread."""
        self._delay.file.flush()

    def log_was_cut(self) -> None:
        """Take progress back to where queues end now: what groups have consumed behind it is gone."""
        offsets, reader = self._tables.offsets, self._store.reader
        for (topic, group), queues in list(offsets.table.items()):
            for queue_id, offset in list(queues.items()):
                queue = reader.existing_queue(topic, queue_id)
                end = queue.max_offset if queue is not None else 0
                if topic == LOG_POSITION:  # a place in the log, and none in a queue
                    end = self._store.log.end
                if offset > end:
                    offsets.put(group, topic, queue_id, end)
                    self._agreed[topic, group, queue_id] = end

    def _was_saved(self, error: OSError | None) -> None:
        if error is not None:
            self._faults.error("delays", "the progress of delayed messages could not be saved: %s", error.strerror)
