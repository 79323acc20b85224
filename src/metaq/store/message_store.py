"""The store's facade: what a broker's services and servers call."""

from __future__ import annotations

import contextlib
import logging
from typing import Self

from metaq.clock import Clock
from metaq.errors import StoreFailed
from metaq.options import StoreOptions
from metaq.store.disk import Disk, reserving
from metaq.store.folder import StoreFolder
from metaq.store.log.commit_log import CommitLog
from metaq.store.log.flush import Flusher
from metaq.store.log.parts import Parts, State
from metaq.store.log.populate import Populator
from metaq.store.log.sums import SumsFolder
from metaq.store.log.writer import Writer
from metaq.store.message_reader import MessageReader
from metaq.store.message_writer import MessageWriter
from metaq.store.queues.dispatch import delays_of
from metaq.store.queues.index_file import Index
from metaq.store.queues.table import Queues
from metaq.store.reads.pull import Puller
from metaq.store.reads.repair import Repairs
from metaq.store.recovery import Recovery
from metaq.store.retention.housekeeping import Housekeeper
from metaq.store.start_progress import StartProgress
from metaq.store.store_keeper import StoreKeeper
from metaq.store.survey import survey
from metaq.store.worker import is_no_room
from metaq.wire import hot

log = logging.getLogger(__name__)


class MessageStore:
    """One folder of messages, open for reading and writing.

    What is done with it has a handle each: `writer` appends and deletes, `reader` reads, `keeper` does what keeps the
    folder in order, `flusher` says when what was appended is durable. Whoever needs one of them is given that one.
    """

    def __init__(
        self,
        options: StoreOptions,
        clock: Clock,
        store_host: bytes,
        cluster: str,
        *,
        disk: Disk | None = None,
        threads: bool = True,
        progress: StartProgress | None = None,
    ) -> None:
        """Open the folder, recover it, start the threads.

        Args:
            store_host: 8 bytes (20 with IPv6) that every record carries.
            cluster: value of plain sends' CLUSTER.
            threads: False for a test that takes their steps itself.
            progress: is told how far the recovery is, and may stop it.

        Raises: StartStopped: by `progress`. StoreLocked, StoreForeign, StoreCorrupt: nothing was touched. StoreFull: no room to recover.
        """
        self.options, self.clock, self.disk = options, clock, disk or Disk()
        self.delays_ms = delays_of(options.message_delay_level)
        self.folder = StoreFolder(options, self.disk)
        self._progress = progress or StartProgress(clock)
        # The lock comes first: nothing may be looked at while another broker has the folder.
        self.folder.open()
        # Undone in the end of a failed start: a program with a broker in it goes on.
        with contextlib.ExitStack() as opened:
            opened.callback(self.folder.close)
            with reserving(self.folder.root):
                tail = hot.LogTail(store_host, cluster.encode(), options.max_message_size)
                self._open(tail, opened)
            opened.pop_all()
        if threads:
            # Threads start last: until here an error closes the folder, and no thread works on half-open parts.
            for part in (self.flusher, self._populator, self._housekeeper, self._repairs.worker):
                part.start()

    def _open(self, tail: hot.LogTail, opened: contextlib.ExitStack) -> None:
        options, folder = self.options, self.folder
        state = self.state = State(folder.root)
        # Then records go through a descriptor: no pages to populate, and cheaper syncs.
        synced = options.flush_disk_type == "SYNC_FLUSH"
        size = options.mapped_file_size_commit_log
        self.log = CommitLog(folder.commit_log, size, self.disk, tail, state.fail, by_writes=synced)
        opened.callback(self.log.let_go)
        self.index = (
            Index(folder.index, options.max_hash_slot_num, options.max_index_num, self.disk)
            if options.message_index_enable
            else None
        )
        # Before the recovery, which compares the queues found with the log.
        self._queues = Queues(folder, options, self.disk)
        untouched = self._recover()
        parts = Parts(
            options,
            self.clock,
            self.disk,
            folder,
            self.log,
            index=self.index,
            queues=self._queues,
            state=state,
            delays_ms=self.delays_ms,
            deleted=self.deleted,
        )
        flusher = self.flusher = Flusher(self.log, lambda: parts.options.flush_interval_commit_log, state)
        populator = self._populator = Populator(self.log, self.clock, pages=not synced)
        writer = self._writer = Writer(parts, populator)
        housekeeper = self._housekeeper = Housekeeper(parts, writer, flusher)
        repairs = self._repairs = Repairs(self.log, self.delays_ms, housekeeper.work)
        puller = self._puller = Puller(self.log, self._queues, options, repairs)
        workers = flusher.worker, populator.worker, housekeeper.worker, repairs.worker
        self.writer = MessageWriter(parts, writer, populator, flusher=flusher, housekeeper=housekeeper, repairs=repairs)
        self.reader = MessageReader(parts, puller, repairs, housekeeper.floors)
        self.keeper = StoreKeeper(parts, housekeeper, repairs, workers)
        for path in folder.moved_aside():  # deletions of topics that a crash has cut short
            self._housekeeper.remove(path)
        if untouched:
            self._housekeeper.start_as_found()
            folder.secure_config()
        else:
            folder.secure()
        self._checkpoint_at_start()

    def _recover(self) -> bool:
        """Recover log, queues and index. Returns whether the last run ended in order and everything is as it left it."""
        facts = survey(self.folder, self.log, self.index)
        options = self.options
        recovery = Recovery(
            facts,
            self.log,
            self._queues.table,
            self.index,
            check_crc=options.check_crc_on_recover,
            refuse_damage=options.refuse_damaged_log,
            progress=self._progress,
        )
        plan = self.recovered = recovery.plan()
        self.folder.mark_running()  # before anything is changed
        self.folder.make_way_for_hints()
        untouched = recovery.untouched(plan)
        if not untouched:
            self.folder.keep_hints()
            # Another broker may have changed any file, and this start changes the last ones.
            known_end = plan.log_end if facts.tails is not None else 0
            SumsFolder(self.folder.root, self.disk).drop(known_end - options.mapped_file_size_commit_log + 1, 1 << 63)
        if meanwhile := recovery.checkpoint_meanwhile(plan):
            meanwhile.save(self.folder.checkpoint, self.disk)
        recovery.act(plan, self._queues.made, self.delays_ms, self.clock.now_ms(), self.folder.root)
        # A mark behind a shorter log would cover what comes there.
        self.deleted = {topic: min(place, self.log.end) for topic, place in facts.deleted.items()}
        """Topic → the log offset below which records of this name are of a topic that was deleted there."""
        return untouched

    def _checkpoint_at_start(self) -> None:
        """Make all that was recovered durable, before a message is taken. Raises OSError, StoreFailed."""
        try:
            self._housekeeper.checkpoint()
        except OSError as error:
            if not is_no_room(error):
                raise
            log.warning(
                "no room on the disk for %s: the store opens all the same, and the next start reads more of the log",
                self.folder.tails.path,
            )
        if self.state.failed is not None:
            raise StoreFailed(self.state.failed)

    def options_changed(self) -> None:
        """Take over options that were changed in place."""
        self._puller.take_options()
        self.flusher.worker.wake()  # it may be waiting for a longer interval

    def close(self) -> None:
        """Make everything durable, mark the end as orderly, and unlock the folder. May be called twice."""
        if not self.state.close():
            return
        # Threads first, so that nothing changes behind the last checkpoint; the flusher's last flush answers who still waits.
        # The repair thread first: it marks units as not durable, which only a later checkpoint would write.
        self._repairs.worker.stop()
        self._populator.stop()
        self.flusher.stop()
        self._housekeeper.stop()
        in_order = self._checkpoint_at_end()
        # Also after a failed checkpoint: mappings and descriptors go, the abort file stays.
        self._writer.close()
        try:
            if in_order:
                self.folder.mark_stopped()
        finally:
            self.folder.close()

    def _checkpoint_at_end(self) -> bool:
        """Make the last checkpoint. Returns False if it failed: the next start then recovers as after a crash."""
        if self.state.failed is None:
            try:
                self._housekeeper.checkpoint(closing=True)
            except OSError as error:
                log.error(  # noqa: TRY400  the text says it all
                    "%s could not be written (%s): the next start treats the store as after a crash, and loses nothing",
                    self.folder.tails.path, error.strerror,
                )  # fmt: skip
                return False
        return self.state.failed is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
