"""Deletion of a topic (215) with its settings, queues and every group's offsets, in an order that survives a crash:

1. Flush the log to its end. Otherwise the mark of step 3 could point beyond a log that a power cut shortens, and cover
   records that are written there later.
2. Remove the topic from `topics.json`.
3. Save in `metaqDeleted.json` up to which LogOffset its records are dead. From here on the topic is deleted.
4. Delete the queues and the offsets; respond when the offsets are on the disk.

Who holds a position in the topic sees by its generation, the LogOffset of step 3, whether it is still the same topic.
`metaqGenerations.json` keeps that when the mark is no longer needed. Topics that were never deleted are of the generation of
their store, which is the moment when it was new: a broker whose folder was wiped has other messages at the same offsets.

A crash before step 3 leaves queues without a topic, which restore it at the next start: nothing acknowledged is lost.
Meanwhile the topic takes no messages: they would be lost with it, or outlive it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from metaq.broker.log.admit import Gates
from metaq.broker.part import BrokerPart
from metaq.broker.tables.offsets import Offsets
from metaq.broker.tables.topics import Topics
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import DataVersion, TopicConfig
from metaq.saved import Pending, SavedTable, Saving, at_once
from metaq.saved_file import TableFile
from metaq.store.message_store import MessageStore

log = logging.getLogger(__name__)

GENERATIONS_MAX = 10_000
"""Deleted topics, and groups with progress in them, that are kept though no topic has their name now; the newest."""
GROUP = "@"
"""Before a group's name, as in consumerOffset.json; no topic and no group has it in its name."""
STORE = GROUP
"""Key of the store's own generation."""


class Deletions(BrokerPart):
    """Deletes topics, and keeps a mark of each as long as the log holds older records of it. `marks`: topic → LogOffset."""

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        gates: Gates,
        file: TableFile[str, int, DataVersion],
        generations: TableFile[str, int, DataVersion],
        call_soon: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        self._store, self._topics, self._offsets, self._gates = store, topics, offsets, gates
        self._clock, self._call_soon = clock, call_soon
        self._watchers: list[Callable[[str], None]] = []
        version, saved = file.read(DataVersion())
        self.marks = SavedTable(file, saved, version, clock=clock, call_soon=call_soon, shown=self._changed)
        version, saved = generations.read(DataVersion())
        self.generations = SavedTable(
            generations, saved, version, clock=clock, call_soon=call_soon, shown=self._changed
        )
        """Topic, or `topic@group`: groups that had progress in the topic when it was deleted."""
        for topic in {*self.generations.table, *self.marks.table}:
            if GROUP not in topic:
                self.is_anew(topic)

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` with the key of each generation that changes from now on: a topic, `topic@group`, or `STORE`."""
        self._watchers.append(watcher)

    def _changed(self, key: str) -> None:
        for watcher in self._watchers:
            watcher(key)

    def generation(self, topic: str) -> int:
        """Return what tells a topic from those of its name before it: the LogOffset of the last deletion.

        Without one, the time when the store was new, ms, below 0; 0: a RocketMQ, or an earlier release, has made the store.
        """
        table = self.generations.table
        return self.marks.table.get(topic) or table.get(topic) or table.get(STORE, 0)

    def returns(self, group: str, topic: str) -> bool:
        """Return whether a group without progress in a topic had some when the topic was deleted.

        It begins at the first message then: "latest" is for groups that are new.
        """
        return f"{topic}{GROUP}{group}" in self.generations.table

    def drop_group(self, group: str) -> None:
        """Forget where a deleted group had progress."""
        for key in [key for key in self.generations.table if key.endswith(f"{GROUP}{group}")]:
            self.generations.change(key, None)

    @property
    def failing(self) -> str:
        """Why the last save of a generation failed; "" if it did not."""
        return self.generations.failing

    def is_anew(self, topic: str) -> None:
        """From now on, take no progress beyond the ends of the topic's queues: it may be of the topic before."""
        self._offsets.made_anew[topic] = lambda queue_id: self._end(topic, queue_id)

    def _end(self, topic: str, queue_id: int) -> int:
        queue = self._store.reader.existing_queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def open(self) -> None:
        """Adjust the marks to a log that a crash has shortened, finish interrupted deletions, and date a new store."""
        if not (self._store.log.end or self.generations.table or self.marks.table):
            self.generations.start_with({STORE: -self._clock.now_ms()})
        if moved := self._moved():
            self.marks.start_with(moved)
        for topic in self.marks.table:
            if self._topics.get(topic) is None and not self._holds(topic):
                # The crash came between steps 3 and 4: the offsets would be valid for a topic of the same name.
                self._offsets.drop_topic(topic)

    def log_was_cut(self) -> list[Pending]:
        """Take marks back to the end of a log that was cut. Returns the saves of that."""
        return [self.marks.change(topic, place) for topic, place in self._moved().items()]

    def _moved(self) -> dict[str, int]:
        """Return topic → the place in the log that its mark has there, where the saved one is another."""
        deleted = self._store.deleted
        return {
            topic: deleted[topic] for topic, place in self.marks.table.items() if deleted.get(topic, place) != place
        }

    def delete(self, name: str, place: int | None = None) -> Pending:
        """Start a deletion; queues without a topic are deleted too.

        `place`: LogOffset below which all its records are gone, by default where the log ends. A slave's log may have gone on.

        Raises Refused: a system topic; Saving: the topic is being created or changed.
        """
        if name in self._topics.closing:
            # Repeated requests get the outcome of the first.
            return self._topics.closing[name]
        pending = self._topics.saved.pending(name)
        if pending is not None:
            raise Saving(pending)
        config = self._topics.get(name)
        # Nothing to delete, or not allowed: answered as an ordinary change of the table, which refuses system topics.
        if self._topics.is_system(name) or (config is None and not self._holds(name)):
            return self._topics.delete(name)
        outcome = self._topics.close(name)
        # From here on neither the slow path nor the fast path (without its gate) appends to the topic: the log's end is final.
        self._gates.close(name)
        place = self._store.log.end if place is None else place
        if self._store.state.flushed >= place:
            self._remove(name, config, place, durable=True)
        else:
            self._store.flusher.when_flushed(
                place,
                lambda good: self._call_soon(lambda: self._remove(name, config, place, durable=good)),
            )
        return outcome

    def _holds(self, name: str) -> bool:
        """Return whether queues of this name hold or held messages, with or without a topic."""
        return any(topic == name and queue.max_offset for (topic, _), queue in self._store.reader.queues().items())

    def _remove(self, name: str, config: TopicConfig | None, place: int, *, durable: bool) -> None:
        if durable:
            self._topics.delete(name).when_done(lambda error: self._mark(name, config, place, error))
        else:
            text = f"the topic {name} was not deleted: the log could not be made durable"
            self._topics.reopen(name, Refused(Reason.UNAVAILABLE, text))

    def _mark(self, name: str, config: TopicConfig | None, place: int, error: Refused | None) -> None:
        if error is not None:
            self._topics.reopen(name, error)
            return
        self.marks.change(name, place).when_done(lambda error: self._drop(name, config, place, error))

    def _drop(self, name: str, config: TopicConfig | None, place: int, error: Refused | None) -> None:
        if error is not None:
            if config is not None:
                # Step 3 failed: the topic is not deleted, so its settings return.
                self._topics.saved.put_back(name, config)
            self._topics.reopen(name, error)
            return
        try:
            self._store.writer.delete_topic(name, place)
        except OSError as failed:
            # The mark is saved: recovery empties these queues at the next start.
            log.error("the queues of the deleted topic %s stay until the next start: %s", name, failed)  # noqa: TRY400
        self.is_anew(name)
        for group in self._offsets.groups_of(name):
            self.generations.change(f"{name}{GROUP}{group}", place)
        self._offsets.drop_topic(name)
        self._offsets.save(lambda: self._call_soon(lambda: self._topics.reopen(name)))

    def prune(self) -> None:
        """Drop marks of topics whose dead records have left the log and cannot return with a power cut."""
        log_min = self._store.log.settled_min
        for topic in [topic for topic, place in self.marks.table.items() if place <= log_min]:
            if topic not in self._topics.closing:
                # First: without the mark, the generation is there alone.
                kept = self.generations.change(topic, self.marks.table[topic])
                kept.when_done(functools.partial(self._forget, topic, self.marks.table[topic]))

    def _forget(self, topic: str, place: int, error: Refused | None) -> None:
        if error is not None or self.marks.coming(topic) != place:  # another deletion is being saved
            return
        self.marks.change(topic, None)
        table = self.generations.table
        if len(table) <= GENERATIONS_MAX:
            return
        gone = [key for key in table if key != STORE and self._topics.get(key.partition(GROUP)[0]) is None]
        for key in sorted(gone, key=table.__getitem__)[:-GENERATIONS_MAX]:
            self.generations.change(key, None)
            self._offsets.made_anew.pop(key, None)
