"""Deletion of a topic (215) with its settings, queues and every group's offsets, in an order that survives a crash:

1. Flush the log to its end. Otherwise the mark of step 3 could point beyond a log that a power cut shortens, and cover
   records that are written there later.
2. Remove the topic from `topics.json`.
3. Save in `metaqDeleted.json` up to which LogOffset its records are dead. From here on the topic is deleted.
4. Delete the queues and the offsets; respond when the offsets are on the disk.

A crash before step 3 leaves queues without a topic, which restore it at the next start: nothing acknowledged is lost.
Meanwhile the topic takes no messages: they would be lost with it, or outlive it.
"""

from __future__ import annotations

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
        call_soon: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        self._store, self._topics, self._offsets, self._gates = store, topics, offsets, gates
        self._call_soon = call_soon
        version, saved = file.read(DataVersion())
        self.marks = SavedTable(file, saved, version, clock=clock, call_soon=call_soon)

    def open(self) -> None:
        """Adjust the marks to a log that a crash has shortened, and finish interrupted deletions."""
        deleted = self._store.deleted
        moved = {
            topic: deleted[topic] for topic, place in self.marks.table.items() if deleted.get(topic, place) != place
        }
        if moved:
            self.marks.start_with(moved)
        for topic in self.marks.table:
            if self._topics.get(topic) is None and not self._holds(topic):
                # The crash came between steps 3 and 4: the offsets would be valid for a topic of the same name.
                self._offsets.drop_topic(topic)

    def delete(self, name: str) -> Pending:
        """Start a deletion; queues without a topic are deleted too.

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
        place = self._store.log.end
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
        self._offsets.drop_topic(name)
        self._offsets.save(lambda: self._call_soon(lambda: self._topics.reopen(name)))

    def prune(self) -> None:
        """Drop marks of topics whose dead records have left the log and cannot return with a power cut."""
        log_min = self._store.log.settled_min
        for topic in [topic for topic, place in self.marks.table.items() if place <= log_min]:
            if topic not in self._topics.closing:
                self.marks.change(topic, None)
