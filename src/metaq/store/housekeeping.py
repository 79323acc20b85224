"""The slow thread: flushes consume queues and index, writes the checkpoint, deletes what may go."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaq.store.checkpoint import Checkpoint, IndexMark, Tails
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.flush import Flusher
from metaq.store.index_file import Index
from metaq.store.retention import FileAge, Verdict, decide
from metaq.store.worker import Worker, is_no_room

if TYPE_CHECKING:
    from metaq.store.message_store import MessageStore

log = logging.getLogger(__name__)
_SHARE_OF_TIME: Final = 0.05
"""A round that took long is followed by a pause 20 times as long: 10 000 queues must not keep the disk busy."""

_SYNCED_SINGLY_MAX: Final = 64
_INDEX_SECONDS: Final = 10.0
"""The index is synced so often: slots are written all over, so each time costs up to 20 MB, and what came since is
indexed again after a crash."""
_End = tuple[ConsumeQueue, int, int]
"""A queue, its max offset, and where its newest record ends in the log."""


class Housekeeper:
    """One thread, so that syncing, deleting and writing the checkpoint never meet each other half way."""

    def __init__(self, store: MessageStore, flusher: Flusher, append_lock: threading.Lock) -> None:
        self._store, self._flusher, self._append_lock = store, flusher, append_lock
        self.work = threading.RLock()
        """Held while anything is synced, written down or deleted."""
        self._tick_ms = -1
        self._retain_at: int | None = None
        self._saved: tuple[int, int, int] | None = None
        self._tails_at = -1
        """LogOffset of the newest record that the tails on the disk know."""
        self._removals: deque[Path] = deque()
        self._index_at = -_INDEX_SECONDS
        self._pause = 0.0
        self.worker = Worker("housekeeping", self._round, self._seconds, store.fail)

    def start(self) -> None:
        self.worker.start()

    def stop(self) -> None:
        self.worker.stop()

    def tick(self, now_ms: int) -> None:
        """Have the thread look at retention if it is time. Cheap."""
        if self._tick_ms < 0 or abs(now_ms - self._tick_ms) >= self._store.options.clean_resource_interval:
            self._tick_ms = self._retain_at = now_ms
            self.worker.wake()

    def _seconds(self) -> float:
        return max(self._pause, self._store.options.flush_interval_consume_queue / 1000)

    def _round(self) -> None:
        clock = self._store.clock
        began = clock.monotonic()
        try:
            if (now_ms := self._retain_at) is not None:
                self.retain(now_ms)
                if self._retain_at == now_ms:  # kept when it failed, and when the next one is due already
                    self._retain_at = None
            self.checkpoint()
        finally:
            self._pause = (clock.monotonic() - began) / _SHARE_OF_TIME

    # ------------------------------------------------------------------ checkpoint

    def checkpoint(self, *, closing: bool = False) -> None:
        """Make log and queues durable up to here, and write down where "here" is.

        `closing`: the index too, which costs more; else it is done every ten seconds.
        Raises OSError: it could not be written down. A sync that failed is told to the store, and is final.
        """
        with self.work:
            store = self._store
            queued = store.queue_list()
            with self._append_lock:  # between two appends: everything below `log_end` has its unit and entries
                log_end, log_ms = store.log.end, store.log.tail.store_ms
                queues = [(q, q.max_offset, q.tail.log_end) for q in queued if q.max_offset]
                mark = store.index.mark(log_end) if store.index else None
            state = (log_end, store.log.min, len(queues))
            removals = len(self._removals)
            if (state == self._saved and not closing and not removals) or store.failed is not None:
                return
            if self._flusher.flushed < log_end:
                self._flusher.flush()
                if store.failed is not None:
                    return
            try:
                self._sync_queues([queue for queue, _, _ in queues if not queue.is_synced])
                if store.index and mark:
                    self._sync_index(store.index, mark, closing=closing)
            except OSError as error:
                # Final as for the log: the kernel takes the pages for written now, and a second try would say so too.
                store.fail(f"consume queues and index could not be made durable: {os.strerror(error.errno or 0)}")
                return
            self._write(log_end, log_ms, queues)
            self._saved = state
            for _ in range(removals):  # after the tails: they would call what is gone damaged, and bring it back
                path = self._removals.popleft()
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _sync_index(self, index: Index, mark: IndexMark, *, closing: bool) -> None:
        now = self._store.clock.monotonic()
        last = closing or index.durable is None or now - self._index_at >= _INDEX_SECONDS
        index.sync(mark, last=last)
        if last:
            self._index_at = now

    def trust(self) -> None:
        """All that was found is durable, and the tails say so: there is nothing to write down yet."""
        store = self._store
        self._tails_at = store.log.end
        self._saved = (store.log.end, store.log.min, sum(1 for queue in store.queue_list() if queue.max_offset))

    def _sync_queues(self, dirty: list[ConsumeQueue]) -> None:
        if len(dirty) <= _SYNCED_SINGLY_MAX:
            for queue in dirty:
                self._sync_queue(queue)
            return
        ends = [queue.max_offset for queue in dirty]
        for queue in dirty:
            queue.run.unsynced = False  # first: a file that is made meanwhile is due again
        descriptor = self._store.disk.open(self._store.folder.consume_queues, os.O_RDONLY)
        try:
            self._store.disk.sync_all(descriptor)
        finally:
            os.close(descriptor)
        for queue, end in zip(dirty, ends, strict=True):
            queue.synced = end

    def _sync_queue(self, queue: ConsumeQueue) -> None:
        try:
            queue.sync()
        except FileNotFoundError:
            if self._store.existing_queue(queue.topic, queue.queue_id) is queue:
                raise  # else its topic was deleted meanwhile

    def _write(self, log_end: int, log_ms: int, queues: list[_End]) -> None:
        store = self._store
        index = store.index.durable if store.index else None
        ends: dict[str, dict[int, int]] = {}
        for queue, end, _ in queues:
            ends.setdefault(queue.topic, {})[queue.queue_id] = end
        newest = max(queues, key=lambda found: found[2], default=None)
        unit = newest[0].unit(newest[1] - 1) if newest else None
        last_record = unit.log_offset if unit and not unit.is_fill else -1
        tails = Tails(
            log_end=unit.log_end if unit else log_end,
            last_record=last_record,
            last_store_ms=store.log.store_time(last_record, written=True),
            queues=ends,
            index=index,
        )
        tails.save(store.folder.tails)
        self._tails_at = last_record
        Checkpoint(log_ms, log_ms, index.header[1] if index else 0).save(store.folder.checkpoint, store.disk)

    # ------------------------------------------------------------------ retention

    def retain(self, now_ms: int, *, at_once: bool = False) -> int:
        """Delete log files whose time is up, and what points into them only. Returns the number of log files."""
        with self.work:
            store = self._store
            files = store.log.run.files
            ages = [
                FileAge(file.start, file.end, store.log.store_time(after.start))
                for file, after in itertools.pairwise(files)
                if after.start < store.log.end
            ]
            used = store.disk.used_percent(store.folder.commit_log)
            verdict = decide(ages, used_percent=used, now_ms=now_ms, options=store.options, at_once=at_once)
            store.writable = verdict.writable
            if verdict.files:
                self._drop(verdict)
            return verdict.files

    def _drop(self, verdict: Verdict) -> None:
        store = self._store
        if self._flusher.flushed < verdict.drop_before:  # a power cut may bring deleted files back: not with holes
            self._flusher.flush()
            if store.failed is not None:
                return
        self._write_down_before(verdict.drop_before)
        store.log.run.drop_before(verdict.drop_before)
        log.info("%d log files deleted, %s: the log begins at %d now", verdict.files, verdict.why, verdict.drop_before)
        for queue in store.queue_list():
            try:
                queue.correct_min(verdict.drop_before)
            except FileNotFoundError:
                if store.existing_queue(queue.topic, queue.queue_id) is queue:
                    raise  # else its topic was deleted meanwhile
        if store.index:
            with self._append_lock:
                self._removals.extend(store.index.drop_below(verdict.drop_before))

    def _write_down_before(self, place: int) -> None:
        """Tails whose newest record goes would say nothing any more: a crash would find the index without a witness."""
        if self._tails_at >= place:
            return
        try:
            self.checkpoint()
        except OSError as error:
            if not is_no_room(error):  # which the deletion makes
                raise

    def remove(self, folder: Path) -> None:
        """Have the thread delete a folder that was moved aside, and write tails that know nothing of it. Cheap."""
        self._removals.append(folder)
        self.worker.wake()
