"""Byte positions of all queues that MetaQ 1.x clients have touched, and the thread that computes them.

A position that a client has seen never changes (docs/formats/positions.md). All is called from one thread, the event
loop's; the other one opens files, computes, and hands its results over.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from metaq.saved import at_once
from metaq.store.message_store import MessageStore
from metaq.store.metaq1.position_bases import Base
from metaq.store.metaq1.position_files import PositionFiles
from metaq.store.metaq1.queue_positions import QueuePositions
from metaq.store.queues.table import QueueKey
from metaq.store.worker import Worker

log = logging.getLogger(__name__)
_ASIDE: Final = ".deleted-"
_SYNCED_SINGLY_MAX: Final = 64
_SECONDS: Final = 60.0


class Positions:
    """The positions of all queues that a 1.x client has touched, and the thread that computes them."""

    def __init__(
        self,
        store: MessageStore,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
        when_rebased: Callable[[QueuePositions], None] = lambda _queue: None,
    ) -> None:
        """
        Args:
            call_soon: brings a call from the thread to the event loop; with `at_once` there is no thread, and `publish`
                does its work.
            when_rebased: called with a queue that needs a new base before a client may see a position of it.
        """
        self.store, self._when_rebased = store, when_rebased
        self.root = store.folder.positions
        self.table: dict[QueueKey, QueuePositions] = {}
        self._call_soon, self._threaded = call_soon, call_soon is not at_once
        self._jobs: deque[Callable[[], Callable[[], None]]] = deque()
        self._done: deque[Callable[[], None]] = deque()
        self._worker = Worker("positions", self._work, lambda: _SECONDS)
        self._started = self._closed = False

    def queue(self, topic: str, queue_id: int) -> QueuePositions | None:
        """Return the queue's positions; None: no 1.x client has touched it."""
        return self.table.get((topic, queue_id))

    def add(self, topic: str, queue_id: int, base: Base | None) -> QueuePositions:
        """Add a queue, whose positions begin with its base."""
        found = self.table[topic, queue_id] = QueuePositions(
            self, PositionFiles(self.root / topic / str(queue_id), self.store.disk), topic, queue_id, base
        )
        return found

    @property
    def stopping(self) -> bool:
        """See `Owner`."""
        return self._closed

    def rebased(self, queue: QueuePositions) -> None:
        """See `Owner`."""
        self._when_rebased(queue)

    def on_disk(self) -> list[QueueKey]:
        """Return the queues that have a folder of positions."""
        found = list[QueueKey]()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for topic in sorted(self.root.iterdir()):
                if _ASIDE in topic.name or not topic.is_dir():
                    continue
                found += [(topic.name, int(path.name)) for path in sorted(topic.iterdir()) if path.name.isdecimal()]
        return found

    def is_recent(self, log_offset: int) -> bool:
        """See `Owner`."""
        store = self.store
        return log_offset >= store.log.end - min(store.options.hot_bytes, store.log.file_bytes)

    def drop_topic(self, topic: str) -> None:
        """Forget a deleted topic's positions, and delete their files."""
        for key in [key for key in self.table if key[0] == topic]:
            self.table.pop(key).give_up()
        self.remove_folder(topic)

    def remove_folder(self, topic: str) -> None:
        """Move the folder of a topic aside at once, and have the thread delete it."""
        taken = 0
        while True:
            aside = self.root / f"{topic}{_ASIDE}{taken}"
            taken += 1
            try:
                (self.root / topic).rename(aside)
            except FileNotFoundError:
                return
            except OSError:
                if aside.exists():
                    continue
                log.exception("the byte positions of the deleted topic %s stay until the next start", topic)
                return
            self.ask(functools.partial(_delete, aside))
            return

    def remove_leftovers(self) -> None:
        """Delete folders that were renamed, and not deleted before a crash."""
        for path in self.root.glob(f"*{_ASIDE}*"):
            self.ask(functools.partial(_delete, path))

    # ------------------------------------------------------------------ the thread

    def ask(self, job: Callable[[], Callable[[], None]]) -> None:
        """Run `job` in the thread, and what it returns on the event loop afterwards."""
        self._jobs.append(job)
        if self._threaded and not self._closed:
            if not self._started:
                self._started = True
                self._worker.start()
            self._worker.wake()

    def _work(self) -> None:
        while self._jobs and not self._worker.stopping:
            self._done.append(self._jobs.popleft()())
            self._call_soon(self._publish)

    def _publish(self) -> None:
        self.publish()

    def publish(self) -> bool:
        """Run the results of finished jobs; without a thread, the jobs too. Returns whether there were any."""
        if not self._threaded:
            while self._jobs:
                self._done.append(self._jobs.popleft()())
        found = bool(self._done)
        while self._done:
            self._done.popleft()()
        return found

    def sync(self, ends: Sequence[tuple[QueuePositions, int]]) -> None:
        """Make units up to these durable; in the thread. Raises OSError."""
        if (
            len(ends) > _SYNCED_SINGLY_MAX
        ):  # one pass over the file system is cheaper than a sync of each of many small files
            descriptor = self.store.disk.open(self.root, os.O_RDONLY)
            try:
                self.store.disk.sync_all(descriptor)
            finally:
                os.close(descriptor)
            for queue, offset in ends:
                queue.mark_synced(offset)
            return
        for queue, offset in ends:
            if not queue.gone:
                with contextlib.suppress(FileNotFoundError):  # its topic was deleted meanwhile
                    queue.sync(offset)

    def stop(self) -> None:
        """End the thread after its current chunk, and run the results of finished jobs."""
        self._closed = True
        if self._started:
            self._worker.stop()
        self._jobs.clear()
        while self._done:
            self._done.popleft()()

    def close(self) -> None:
        """Let go of all files."""
        for queue in self.table.values():
            queue.close()


def _delete(folder: Path) -> Callable[[], None]:
    import shutil  # here and not above: it brings every kind of compression along, at each start

    shutil.rmtree(folder, ignore_errors=True)
    return lambda: None
