"""Deleting a topic for good: its settings, its queues and every group's positions in it, in an order that a crash survives.

First the log is made durable up to where it ends: the memory of the deletion must not point behind a log that a power cut
shortens, or it would cover what comes there later. The topic leaves `topics.json`. Then `metaqDeleted.json` says up to where in the log its records are dead: from that
save on it is deleted, whatever happens. Then queues and positions go, and when the positions are on the disk too the
deletion is answered. A crash before the second save leaves a topic without settings, whose queues bring it back at the
next start; nothing that was acknowledged is lost. Meanwhile nothing may be put to the topic: that would be lost with it,
or outlive it.
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
    """Deletes topics, and remembers them as long as the log holds records from before. `marks`: topic → LogOffset."""

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
        """Have the marks follow a log that has become shorter, and finish deletions that a crash has cut."""
        deleted = self._store.deleted
        moved = {
            topic: deleted[topic] for topic, place in self.marks.table.items() if deleted.get(topic, place) != place
        }
        if moved:
            self.marks.start_with(moved)
        for topic in self.marks.table:
            if self._topics.get(topic) is None and not self._holds(topic):
                self._offsets.drop_topic(topic)

    def delete(self, name: str) -> Pending:
        """Begin; messages without a topic are deleted too. Raises Refused for a system topic, Saving while the topic is being made or changed."""
        if name in self._topics.closing:
            return self._topics.closing[name]
        pending = self._topics.saved.pending(name)
        if pending is not None:
            raise Saving(pending)
        config = self._topics.get(name)
        if self._topics.is_system(name) or (config is None and not self._holds(name)):
            return self._topics.delete(name)
        outcome = self._topics.close(name)
        self._gates.close(name)
        place = self._store.log_end
        if self._store.flushed >= place:
            self._remove(name, config, place, durable=True)
        else:
            self._store.when_flushed(
                place,
                lambda good: self._call_soon(lambda: self._remove(name, config, place, durable=good)),
            )
        return outcome

    def _holds(self, name: str) -> bool:
        """Whether there are messages under the name, which may be though no topic is."""
        return any(topic == name and queue.max_offset for (topic, _), queue in self._store.queues().items())

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
                self._topics.saved.put_back(name, config)
            self._topics.reopen(name, error)
            return
        try:
            self._store.delete_topic(name, place)
        except OSError as failed:
            log.error("the queues of the deleted topic %s stay until the next start: %s", name, failed)  # noqa: TRY400
        self._offsets.drop_topic(name)
        self._offsets.save(lambda: self._call_soon(lambda: self._topics.reopen(name)))

    def prune(self) -> None:
        """Forget the topics whose dead records have left the log, and do not come back with a power cut."""
        log_min = self._store.settled_min_log
        for topic in [topic for topic, place in self.marks.table.items() if place <= log_min]:
            if topic not in self._topics.closing:
                self.marks.change(topic, None)
