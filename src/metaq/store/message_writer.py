"""What changes the messages of a store: appends, the deletion of a topic, the cut of a replica's log, the repair of damaged records."""

from __future__ import annotations

import logging
from pathlib import Path

from metaq.errors import StoreError, StoreFailed
from metaq.store.log.aside import CutOff, keep_aside, keep_piece, messages_behind
from metaq.store.log.fast_path import FastPath
from metaq.store.log.flush import Flusher
from metaq.store.log.mend import heads_of, overwrite
from metaq.store.log.parts import Parts
from metaq.store.log.populate import Populator
from metaq.store.log.writer import Writer
from metaq.store.queues.dispatch import is_queued, topic_of
from metaq.store.reads.repair import Repairs
from metaq.store.retention.housekeeping import Housekeeper
from metaq.wire import hot

log = logging.getLogger(__name__)


class MessageWriter:
    """`MessageStore.writer`. From any thread, one append at a time (a lock holds the others).

    The appends are bound methods of `Writer` (one by one) and `FastPath` (runs of them), so that they cost no call more.
    """

    def __init__(
        self,
        parts: Parts,
        writer: Writer,
        populator: Populator,
        *,
        flusher: Flusher,
        housekeeper: Housekeeper,
        repairs: Repairs,
    ) -> None:
        self._parts, self._state, self._queues, self._writer = parts, parts.state, parts.queues, writer
        self._flusher, self._housekeeper, self._repairs = flusher, housekeeper, repairs
        fast_path = FastPath(parts, populator, writer)
        self.put, self.append_raw = writer.put, writer.append_raw
        self.append_rows, self.append_parts = fast_path.append_rows, fast_path.append_parts
        self.append_puts, self.deliver, self.give_back = fast_path.append_puts, fast_path.deliver, fast_path.give_back
        self.expand, self.expand_all = fast_path.expand, fast_path.expand_all
        self.populate = populator.round

    def prepare_queue(self, topic: str, queue_id: int) -> None:
        """Make the first file of a queue that nobody uses yet, from any thread: on a busy disk that takes milliseconds.

        If it cannot be made, the first message meets the reason again.
        """
        try:
            self._queues.made(topic, queue_id).prepare(1)
        except (StoreError, OSError, MemoryError) as error:
            log.debug("queue %d of topic %s cannot be prepared: %s", queue_id, topic, error)

    def delete_topic(self, topic: str, place: int | None = None) -> None:
        """Forget the topic's queues. Its records stay in the log until their time is up, and nobody finds them.

        The files are moved aside at once, so that the topic can be made again, and deleted by another thread.

        Args: place: the log offset below which all its records are gone with it, by default where the log ends now. The caller
              has written it to `metaqDeleted.json`; otherwise a later start finds them again. Queues that have records behind
              it stay.
        Raises OSError: the files are still there; a start that knows of the deletion removes them.
        """
        # Renamed under the writer's lock, deleted by the thread: thousands of files would hold up every append.
        moved = self._writer.delete_topic(topic, place)
        if moved:
            self._housekeeper.remove(moved)

    def keep_behind(self, log_offset: int) -> CutOff:
        """Keep aside, durably, what `truncate` will take: nobody appends until then.

        Raises: StoreError: no record begins there. StoreFull, OSError: it could not be kept. Nothing has changed.
        """
        log = self._parts.log
        self._writer.snapshot_below(log_offset)  # refuses a wrong place before anything is copied
        records, queues = messages_behind(log.run, log_offset, log.end)
        kept = keep_aside(log.run, log_offset, self._parts.folder.root, self._parts.disk)
        return CutOff(kept, records, queues)

    def truncate(self, log_offset: int) -> None:
        """Cut the log: everything at and behind `log_offset` is gone from log, queues and index, and stays so.

        For a replica whose master knows nothing of it. Queue offsets go back with the log, and so do the places in
        `MessageStore.deleted`, which the caller keeps in `metaqDeleted.json`. Whoever was given records behind it has
        them still. It takes as long as syncs take: not for an event loop.

        Raises: StoreError: no record begins there; nothing has changed. StoreFailed: it could not be done wholly, and the
        store has stopped; a start finds the log cut there, or not as far.
        """
        # No checkpoint may be under way: it would promise records that are being cut.
        with self._housekeeper.work:
            if not self._state.copies:
                raise self._state.refusal(copied=True)
            # Refuses a wrong place before anything has changed.
            left = self._writer.snapshot_below(log_offset)
            try:
                # First: a crash in the middle must not find tails that promise more.
                self._housekeeper.promise_only(left)
                # A floor behind the new end would hide what comes there.
                self._housekeeper.floors.cut(log_offset)
                self._housekeeper.sums.cut(log_offset)
                left = self._writer.truncate(log_offset)
                self._flusher.cut(log_offset)
                self._repairs.forget({(queue.topic, queue.queue_id): end for queue, end in left.filled()})
                self._housekeeper.checkpoint(closing=True)
            except OSError as error:
                self._state.fail(f"the log could not be cut at {log_offset}: {error}")
            if self._state.failed is not None:
                raise StoreFailed(self._state.failed)
        log.warning("the log was cut at log offset %d", log_offset)

    def mend(self, log_offset: int, good: bytes) -> Path:
        """Replace damaged records by the same ones of another replica, durably. Messages that were passed over are read again.

        Where they lay is kept aside first, in the folder that is returned. It takes as long as syncs take: not for an event loop.

        Raises: StoreError: these are not whole and right records at that place, or it is not in the durable part of the log (any
        more). StoreFull, OSError: what is there could not be kept. Nothing has changed then. StoreFailed: the store has stopped.
        """
        commit_log, state = self._parts.log, self._state
        # No file may be deleted, and no checkpoint be made of units that are being changed.
        with self._housekeeper.work:
            if state.failed is not None or state.closed:
                raise state.refusal(copied=True)
            end, file = log_offset + len(good), commit_log.run.find(log_offset)
            if file is None or not commit_log.min <= log_offset < end <= state.flushed:
                raise StoreError(
                    f"log offsets {log_offset} to {end} are not in the part of the log that is on the disk: it goes from "
                    f"{commit_log.min} to {state.flushed}"
                )
            heads = heads_of(good, log_offset, file)
            # First: a flip that they do not know is found by a record's own checksum, one that they know wrongly by none.
            self._housekeeper.sums.changing(file)
            kept = keep_piece(file, log_offset, end, self._parts.folder.root, self._parts.disk)
            try:
                overwrite(file, log_offset, good, self._parts.disk)
            except OSError as error:
                state.fail(f"{file.path} could not be repaired at log offset {log_offset}: {error.strerror or error}")
                raise StoreFailed(state.failed or "") from error
            self._housekeeper.sums.changing(file)
            for head in heads:
                self._restore(head)
        log.warning(
            "%s was repaired at byte %d (log offset %d, %d bytes); what was there is kept in %s",
            file.path, log_offset - file.start, log_offset, len(good), kept,
        )  # fmt: skip
        return kept

    def _restore(self, head: hot.RecordHead) -> None:
        topic = topic_of(head)
        if topic is None or not is_queued(head.sys_flag) or head.log_offset < self._parts.deleted.get(topic, 0):
            return
        if (queue := self._queues.get(topic, head.queue_id)) is not None:
            self._repairs.restored(queue, head)
