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

from metaq.store.checkpoint import Checkpoint, Tails
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.flush import Flusher
from metaq.store.folder import boot_id
from metaq.store.retention import FileAge, Verdict, decide

if TYPE_CHECKING:
    from metaq.store.message_store import MessageStore

log = logging.getLogger(__name__)
_SHARE_OF_TIME: Final = 0.05
"""A round that took long is followed by a pause 20 times as long: 10 000 queues must not keep the disk busy."""

_SYNCED_SINGLY_MAX: Final = 64
_End = tuple[ConsumeQueue, int, int]
"""A queue, its max offset, and where its newest record ends in the log."""


class Housekeeper:
    """One thread, so that syncing, deleting and writing the checkpoint never meet each other half way."""

    def __init__(self, store: MessageStore, flusher: Flusher, append_lock: threading.Lock) -> None:
        self._store, self._flusher, self._append_lock = store, flusher, append_lock
        self._work = threading.RLock()
        self._wake = threading.Event()
        self._stopping = False
        self._tick_ms = -1
        self._retain_at: int | None = None
        self._saved: tuple[int, int, int] | None = None
        self._removals: deque[Path] = deque()
        self._boot = boot_id()
        self._thread = threading.Thread(target=self._run, name="metaq-housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def tick(self, now_ms: int) -> None:
        """Have the thread look at retention if it is time. Cheap."""
        if self._tick_ms < 0 or abs(now_ms - self._tick_ms) >= self._store.options.clean_resource_interval:
            self._tick_ms = self._retain_at = now_ms
            self._wake.set()

    def _run(self) -> None:
        clock, pause = self._store.clock, 0.0
        while not self._stopping:
            self._wake.wait(max(pause, self._store.options.flush_interval_consume_queue / 1000))
            self._wake.clear()
            if self._stopping:
                return
            began = clock.monotonic()
            try:
                if (now_ms := self._retain_at) is not None:
                    self._retain_at = None
                    self.retain(now_ms)
                self.checkpoint()
            except OSError:
                log.exception("housekeeping of the store %s failed; it is tried again", self._store.folder.root)
            pause = (clock.monotonic() - began) / _SHARE_OF_TIME

    # ------------------------------------------------------------------ checkpoint

    def checkpoint(self, *, closing: bool = False) -> None:
        """Make log and queues durable up to here, and write down where "here" is. Raises OSError.

        `closing`: the index too, which costs more and is only worth it when nothing is written any more.
        """
        with self._work:
            store = self._store
            with self._append_lock:  # between two appends: everything below `log_end` has its unit and entries
                log_end, log_ms = store.log.end, store.log.tail.store_ms
                queues = [(q, q.max_offset, q.tail.log_end) for q in store.queues().values() if q.max_offset]
            state = (log_end, store.log.min, len(queues))
            removals = len(self._removals)
            if (state == self._saved and not closing and not removals) or store.failed is not None:
                return
            if self._flusher.flushed < log_end:
                self._flusher.flush()
                if store.failed is not None:
                    return
            self._sync_queues([queue for queue, end, _ in queues if queue.synced < end])
            index_ms = store.index.sync(last=closing) if store.index else 0
            self._write(log_end, log_ms, index_ms, queues)
            self._saved = state
            for _ in range(removals):  # after the tails: they would call the queues damaged, and bring them back
                shutil.rmtree(self._removals.popleft(), ignore_errors=True)

    def _sync_queues(self, dirty: list[ConsumeQueue]) -> None:
        if len(dirty) <= _SYNCED_SINGLY_MAX:
            for queue in dirty:
                queue.sync()
            return
        ends = [queue.max_offset for queue in dirty]
        descriptor = self._store.disk.open(self._store.folder.consume_queues, os.O_RDONLY)
        try:
            self._store.disk.sync_all(descriptor)
        finally:
            os.close(descriptor)
        for queue, end in zip(dirty, ends, strict=True):
            queue.synced = end

    def _write(self, log_end: int, log_ms: int, index_ms: int, queues: list[_End]) -> None:
        store = self._store
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
            index_files=tuple(file.name for file in store.index.files) if store.index else (),
            boot_id=self._boot,
        )
        tails.save(store.folder.tails)
        Checkpoint(log_ms, log_ms, index_ms).save(store.folder.checkpoint, store.disk)

    # ------------------------------------------------------------------ retention

    def retain(self, now_ms: int, *, at_once: bool = False) -> int:
        """Delete log files whose time is up, and what points into them only. Returns the number of log files."""
        with self._work:
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
        store.log.run.drop_before(verdict.drop_before)
        log.info("%d log files deleted, %s: the log begins at %d now", verdict.files, verdict.why, verdict.drop_before)
        for queue in list(store.queues().values()):
            queue.correct_min(verdict.drop_before)
        if store.index:
            store.index.drop_below(verdict.drop_before)

    def remove(self, folder: Path) -> None:
        """Have the thread delete a folder that was moved aside, and write tails that know nothing of it. Cheap."""
        self._removals.append(folder)
        self._wake.set()
