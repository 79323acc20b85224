"""The table of a store's consume queues: made when first asked for, moved away when their topic is deleted."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from metaq.errors import Reason, Refused, StoreCorrupt, StoreForeign
from metaq.model.topics.topic import check_partition_topic
from metaq.options import StoreOptions
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder
from metaq.store.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from metaq.wire import hot

log = logging.getLogger(__name__)
_THREADS: Final = 8
"""Threads of `loadQueuesInParallel`; they wait for the disk."""

QueueKey = tuple[str, int]
"""Topic and queue id."""


class Queues:
    """(topic, queue id) → queue.

    The event loop adds queues while other threads walk over all of them, so they walk over a copy (`all`, `named`). `table`
    is the live dictionary: for look-ups, and for a start, which is alone.
    """

    def __init__(self, folder: StoreFolder, options: StoreOptions, disk: Disk) -> None:
        """Find those that have files. Raises StoreCorrupt, StoreForeign as `FileRun.load`."""
        self._folder, self._disk = folder, disk
        self._file_bytes = queue_file_bytes(options)
        self._lock = threading.Lock()
        """Held while the table changes or is walked."""
        self._listed: tuple[tuple[ConsumeQueue, ...], list[hot.QueueTail]] | None = None
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
            with self._lock:  # another thread may have made it since: one queue must not have two tails
                found, self._listed = self.table.setdefault((topic, queue_id), found), None
        return found

    def all(self) -> list[ConsumeQueue]:
        """Return all queues, a copy."""
        with self._lock:
            return list(self.table.values())

    def listed(self) -> tuple[tuple[ConsumeQueue, ...], list[hot.QueueTail]]:
        """Return all queues and their tails, the same objects until a queue is made or removed. Both are not to be changed."""
        with self._lock:
            if self._listed is None:
                queues = tuple(self.table.values())
                self._listed = queues, [queue.tail for queue in queues]
            return self._listed

    def named(self) -> dict[QueueKey, ConsumeQueue]:
        """Return all queues by (topic, queue id), a copy."""
        with self._lock:
            return dict(self.table)

    def holds(self, queue: ConsumeQueue) -> bool:
        """Whether the queue is still the one of its name, and not one of a topic that was deleted."""
        return self.table.get((queue.topic, queue.queue_id)) is queue

    def remove(self, topic: str, place: int) -> Path | None:
        """Forget the topic's queues without records from the LogOffset `place` on, and move their files aside.

        Those with such records are of a topic of the name that was made anew: a slave may have them already.

        Returns where the files are now; None: there were none. Raises OSError: they are still there.
        """
        with self._lock:  # nobody may make a queue of that name between the look at the table and the rename
            self._listed = None
            keys = [key for key in self.table if key[0] == topic]
            gone = [key for key in keys if self.table[key].tail.log_end <= place]
            for key in gone:
                # Before the rename: who opens a file by its path afterwards must see the mark.
                self.table.pop(key).give_up()
        if len(gone) == len(keys):
            return self._folder.move_aside(topic)
        return self._folder.move_aside(topic, [queue_id for _, queue_id in gone]) if gone else None

    def close(self) -> None:
        for queue in self.all():
            queue.close()


def queue_file_bytes(options: StoreOptions) -> int:
    """Size of a consume-queue file: whole units."""
    return -(-options.mapped_file_size_consume_queue // UNIT_BYTES) * UNIT_BYTES


def find_queues(folder: StoreFolder, options: StoreOptions, disk: Disk) -> Iterator[ConsumeQueue]:
    """The queues that have files. Names that no topic can have are passed over.

    Raises StoreCorrupt, StoreForeign as FileRun.load.
    """
    topics = _folders(folder.consume_queues)
    if not options.load_queues_in_parallel:
        for topic in topics:
            yield from _queues_of(topic, folder, options, disk)
        return
    # Opening is waiting for the disk: with thousands of folders on a cold one it takes most of a start.
    with ThreadPoolExecutor(_THREADS, "metaq-load") as threads:
        for queues in threads.map(lambda topic: list(_queues_of(topic, folder, options, disk)), topics):
            yield from queues


def _queues_of(topic: str, folder: StoreFolder, options: StoreOptions, disk: Disk) -> Iterator[ConsumeQueue]:
    try:
        check_partition_topic(topic)
    except Refused:  # `NAME.deleted-N`, for one: moved aside by a deletion that a crash has cut short
        return
    for name in _folders(folder.consume_queues / topic):
        # `01` would be queue 1 a second time.
        if not (name.isascii() and name.isdecimal() and str(int(name)) == name):
            continue
        queue = ConsumeQueue(folder.consume_queues, topic, int(name), queue_file_bytes(options), disk)
        try:
            queue.run.load("mappedFileSizeConsumeQueue", derived=True)
        except StoreCorrupt as error:
            raise StoreCorrupt(
                f"{error}. A consume queue can also be deleted: it is rebuilt from the log at the next start"
            ) from None
        yield queue


def _folders(parent: Path) -> list[str]:
    """The names of the folders in it; anything else is no queue's, and is left where it is."""
    try:
        entries = sorted(os.scandir(parent), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise StoreForeign(f"{parent} is no folder: nothing was touched; move it away") from None
    for entry in entries:
        if not entry.is_dir():
            log.warning("%s is no folder of a queue: it is passed over", entry.path)
    return [entry.name for entry in entries if entry.is_dir()]
