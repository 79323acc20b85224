"""The table of a store's consume queues: made when first asked for, moved away when their topic is deleted."""

from __future__ import annotations

import threading
from pathlib import Path

from metaq.errors import Reason, Refused
from metaq.model.topic import check_partition_topic
from metaq.options import StoreOptions
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder
from metaq.store.survey import find_queues, queue_file_bytes

QueueKey = tuple[str, int]
"""Topic and queue id."""


class Queues:
    """(topic, queue id) → queue.

    The event loop adds queues while other threads look at all of them. `table` is the live one: to look one up, or for
    a start, when nobody else is there yet.
    """

    def __init__(self, folder: StoreFolder, options: StoreOptions, disk: Disk) -> None:
        """Find those that have files. Raises StoreCorrupt, StoreForeign as `FileRun.load`."""
        self._folder, self._disk = folder, disk
        self._file_bytes = queue_file_bytes(options)
        self._lock = threading.Lock()
        """Held while the table changes or is walked."""
        self.table: dict[QueueKey, ConsumeQueue] = {
            (queue.topic, queue.queue_id): queue for queue in find_queues(folder, options, disk)
        }

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it was asked for before or has files."""
        return self.table.get((topic, queue_id))

    def made(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if there is none; the disk is touched at its first message. Raises Refused."""
        found = self.table.get((topic, queue_id))
        if found is None:
            check_partition_topic(topic)
            if queue_id < 0:
                raise Refused(Reason.INVALID, f"topic {topic} has no queue {queue_id}")
            found = ConsumeQueue(self._folder.consume_queues, topic, queue_id, self._file_bytes, self._disk)
            with self._lock:
                found = self.table.setdefault((topic, queue_id), found)
        return found

    def all(self) -> list[ConsumeQueue]:
        """Those that there are now."""
        with self._lock:
            return list(self.table.values())

    def named(self) -> dict[QueueKey, ConsumeQueue]:
        """The same with their names."""
        with self._lock:
            return dict(self.table)

    def holds(self, queue: ConsumeQueue) -> bool:
        """Whether the queue is still the one of its name, and not one of a topic that was deleted."""
        return self.table.get((queue.topic, queue.queue_id)) is queue

    def remove(self, topic: str) -> Path | None:
        """Forget the topic's queues and move their files aside; returns where to, None if there were none.

        Raises OSError: the files are still there.
        """
        with self._lock:
            for key in [key for key in self.table if key[0] == topic]:
                self.table.pop(key).give_up()
        return self._folder.move_aside(topic)

    def close(self) -> None:
        for queue in self.all():
            queue.close()
