"""The store's facade: what a broker's services and servers call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from metaq.clock import Clock
from metaq.errors import StoreError, StoreFailed
from metaq.model.retention import Retentions
from metaq.options import StoreOptions
from metaq.store.disk import Disk, reserving
from metaq.store.folder import StoreFolder
from metaq.store.log.commit_log import CommitLog
from metaq.store.log.fast_path import FastPath
from metaq.store.log.flush import Flusher
from metaq.store.log.parts import Parts, State
from metaq.store.log.populate import Populator
from metaq.store.log.scan import LogScan
from metaq.store.log.writer import Writer
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.queues.dispatch import delays_of
from metaq.store.queues.index_file import Index
from metaq.store.queues.table import QueueKey, Queues
from metaq.store.reads.outline import Outline, outline
from metaq.store.reads.pull import Puller
from metaq.store.reads.repair import Repairs
from metaq.store.reads.search import offset_at
from metaq.store.recovery.recover import Recovery
from metaq.store.recovery.survey import look_at
from metaq.store.retention.expiry import Owed
from metaq.store.retention.floors import Ask, Holding
from metaq.store.retention.housekeeping import Housekeeper
from metaq.store.worker import Worker, is_no_room
from metaq.wire import hot

log = logging.getLogger(__name__)


class MessageStore:
    """One folder of messages, open for reading and writing.

    Appends may come from any thread, one at a time (a lock holds the others). Reads may run beside them. What appends and
    pulls is `Writer`'s and `Puller`'s own: they are called without a step in between.
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
    ) -> None:
        """Open the folder, recover it, start the threads.

        Args: store_host: 8 bytes (20 with IPv6) that every record carries. cluster: value of plain sends' CLUSTER.
              threads: False for a test that takes their steps itself, by `flush`, `populate` and `checkpoint`.
        Raises: StoreLocked, StoreForeign, StoreCorrupt: nothing was touched. StoreFull: no room to recover.
        """
        self.options, self.clock, self.disk = options, clock, disk or Disk()
        self.delays_ms = delays_of(options.message_delay_level)
        self.folder = StoreFolder(options, self.disk)
        self.folder.open()
        try:
            with reserving(self.folder.root):
                tail = hot.LogTail(store_host, cluster.encode(), options.max_message_size)
                self._open(tail)
        except BaseException:
            self.folder.close()
            raise
        if threads:
            for part in (self._flusher, self._populator, self._housekeeper, self._repairs.worker):
                part.start()

    def _open(self, tail: hot.LogTail) -> None:
        options, folder = self.options, self.folder
        state = self.state = State(folder.root)
        synced = options.flush_disk_type == "SYNC_FLUSH"
        size = options.mapped_file_size_commit_log
        self.log = CommitLog(folder.commit_log, size, self.disk, tail, state.fail, by_writes=synced)
        self.index = (
            Index(folder.index, options.max_hash_slot_num, options.max_index_num, self.disk)
            if options.message_index_enable
            else None
        )
        self._queues = Queues(folder, options, self.disk)
        self._helpers: list[Worker] = []
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
        self._flusher = Flusher(self.log, lambda: parts.options.flush_interval_commit_log, state)
        self._populator = Populator(self.log, self.clock, pages=not synced)
        writer = self._writer = Writer(parts, self._populator)
        fast_path = FastPath(parts, self._populator, writer)
        self._housekeeper = Housekeeper(parts, writer, self._flusher)
        self._repairs = Repairs(self.log, self.delays_ms, self._housekeeper.work)
        puller = self._puller = Puller(self.log, self._queues, options, self._repairs)
        self.put, self.append_raw = writer.put, writer.append_raw
        self.append_rows, self.append_parts = fast_path.append_rows, fast_path.append_parts
        self.append_puts, self.deliver, self.give_back = fast_path.append_puts, fast_path.deliver, fast_path.give_back
        self.expand, self.expand_all = fast_path.expand, fast_path.expand_all
        self.pull, self.in_memory = puller.pull, puller.is_recent
        self.pull_path, self.pulls_are_plain = puller.fast_path, puller.are_plain
        self.when_failed, self.fail = state.when_failed, state.fail
        self.queue, self.existing_queue = self._queues.made, self._queues.get
        for path in folder.moved_aside():
            self._housekeeper.remove(path)
        if untouched:
            self._housekeeper.start_as_found()
            folder.secure_config()
        else:
            folder.secure()
        self._checkpoint_at_start()

    def _recover(self) -> bool:
        """Make the files whole. Returns whether the last run ended in order and everything is as it left it."""
        facts = look_at(self.folder, self.log, self.index)
        check_crc = self.options.check_crc_on_recover
        recovery = Recovery(facts, self.log, self._queues.table, self.index, check_crc=check_crc)
        plan = self.recovered = recovery.plan()
        self.folder.mark_running()  # before anything is changed
        untouched = recovery.untouched(plan)
        if not untouched:
            self.folder.keep_hints()
        if meanwhile := recovery.checkpoint_meanwhile(plan):
            meanwhile.save(self.folder.checkpoint, self.disk)
        recovery.act(plan, self._queues.made, self.delays_ms, self.clock.now_ms())
        # A mark behind a shorter log would cover what comes there.
        self.deleted = {topic: min(place, self.log.end) for topic, place in facts.deleted.items()}
        """Topic → the log offset below which records of this name are of a topic that was deleted there."""
        return untouched

    def _checkpoint_at_start(self) -> None:
        """All that was recovered becomes durable before a message is taken or a hint says that it is."""
        try:
            self._housekeeper.checkpoint()
        except OSError as error:
            if not is_no_room(error):
                raise
            log.warning(
                "no room on the disk for %s: the store opens all the same, and the next start reads more of the log",
                self.folder.tails.path,
            )
        if self.failed is not None:
            raise StoreFailed(self.failed)

    def options_changed(self) -> None:
        """Some of `options` have other values now."""
        self._puller.take_options()
        self._flusher.worker.wake()  # it may be waiting for a longer interval

    def close(self) -> None:
        """Make everything durable, say so in the folder, and let others have it. May be called twice."""
        if not self.state.close():
            return
        self._repairs.worker.stop()
        self._populator.stop()
        self._flusher.stop()
        self._housekeeper.stop()
        in_order = self._checkpoint_at_end()
        self._writer.close()
        try:
            if in_order:
                self.folder.mark_stopped()
        finally:
            self.folder.close()

    def _checkpoint_at_end(self) -> bool:
        """Whether everything is durable and written down."""
        if self.failed is None:
            try:
                self._housekeeper.checkpoint(closing=True)
            except OSError as error:
                log.error(  # noqa: TRY400  the text says it all
                    "%s could not be written (%s): the next start treats the store as after a crash, and loses nothing",
                    self.folder.tails.path, error.strerror,
                )  # fmt: skip
                return False
        return self.failed is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ queues

    def prepare_queue(self, topic: str, queue_id: int) -> None:
        """Make the first file of a queue that nobody uses yet, from any thread: on a busy disk that takes milliseconds.

        If it cannot be made, the first message meets the reason again.
        """
        try:
            self.queue(topic, queue_id).prepare(1)
        except (StoreError, OSError, MemoryError) as error:
            log.debug("queue %d of topic %s cannot be prepared: %s", queue_id, topic, error)

    def queues(self) -> dict[QueueKey, ConsumeQueue]:
        """All queues that were asked for or have files, as they are now."""
        return self._queues.named()

    def delete_topic(self, topic: str, place: int | None = None) -> None:
        """Forget the topic's queues. Its records stay in the log until their time is up, and nobody finds them.

        The files are moved aside at once, so that the topic can be made again, and deleted by another thread.

        Args: place: the log offset below which all its records are gone with it, by default where the log ends now. The caller
              has written it to `metaqDeleted.json`; otherwise a later start finds them again.
        Raises OSError: the files are still there; a start that knows of the deletion removes them.
        """
        moved = self._writer.delete_topic(topic, place)
        if moved:
            self._housekeeper.remove(moved)

    def truncate(self, log_offset: int) -> None:
        """Cut the log: everything at and behind `log_offset` is gone from log, queues and index, and stays so.

        For a replica whose master knows nothing of it. Queue offsets go back with the log, and so do the places in
        `deleted`, which the caller keeps in `metaqDeleted.json`. Whoever was given records behind it has them still. It
        takes as long as syncs take: not for an event loop.

        Raises: StoreError: no record begins there; nothing has changed. StoreFailed: it could not be done wholly, and the
        store has stopped; a start finds the log cut there, or not as far.
        """
        with self._housekeeper.work:
            if not self.state.takes:
                raise self.state.refusal()
            left = self._writer.snapshot_below(log_offset)
            try:
                self._housekeeper.promise_only(left)
                self._housekeeper.floors.cut(log_offset)
                left = self._writer.truncate(log_offset)
                self._flusher.cut(log_offset)
                self._repairs.forget({(end.queue.topic, end.queue.queue_id): end.max_offset for end in left.queues})
                self._housekeeper.checkpoint(closing=True)
            except OSError as error:
                self.fail(f"the log could not be cut at {log_offset}: {error}")
            if self.failed is not None:
                raise StoreFailed(self.failed)
        log.warning("the log was cut at log offset %d", log_offset)

    # ------------------------------------------------------------------ durability

    @property
    def failed(self) -> str | None:
        """Why the store has stopped for good; None while it works."""
        return self.state.failed

    @property
    def writable(self) -> bool:
        """False while the disk is more than 90 percent full."""
        return self.state.writable

    @property
    def flushed(self) -> int:
        """LogOffset up to which the log is durable."""
        return self.state.flushed

    def when_flushed(self, log_end: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once the log is durable up to `log_end`, `done(False)` if it never will be.

        `done` runs in the flush thread, or where `watch_flushes` says: hand over to your own. At once if it is durable so far.
        """
        self._flusher.when_flushed(log_end, done)

    def watch_flushes(
        self, look_at: Callable[[int, Callable[[], None]], None], forget: Callable[[int], object]
    ) -> bool:
        """Let who waits in `when_flushed` be called by an event loop, by its `add_reader` and `remove_reader` (see `Flusher.watch`)."""
        return self._flusher.watch(look_at, forget)

    def flush(self) -> None:
        """Make the log durable up to here, and answer those who wait. The flush thread does it all the time."""
        self._flusher.flush()

    def checkpoint(self) -> None:
        """Make log, queues and what else a start relies on durable, and write down how far. Raises OSError."""
        self._housekeeper.checkpoint()

    def repair(self) -> None:
        """Mend what pulls have met and could not read."""
        self._repairs.step()

    def mend(self, queue: ConsumeQueue, offset: int) -> None:
        """Make the units from `offset` on anew as far as they do not lead to their messages. Not for an event loop."""
        self._repairs.repair(queue, offset)

    def populate(self) -> None:
        """Make pages, and the next log file when it is due, ahead of the writers."""
        self._populator.round()

    # ------------------------------------------------------------------ reading

    @property
    def log_end(self) -> int:
        """One past the newest record, a LogOffset."""
        return self.log.end

    @property
    def min_log(self) -> int:
        """Where the log begins, a LogOffset."""
        return self.log.min

    @property
    def settled_min_log(self) -> int:
        """The same, of what no power cut brings back."""
        return self.log.settled_min

    @property
    def earliest_ms(self) -> int:
        """Store time of the oldest record, milliseconds; -1 of an empty log."""
        return self.log.store_time(self.log.min) if self.log.end > self.log.min else -1

    @property
    def indexed_log(self) -> int:
        """LogOffset of the newest record in the index; 0 without one."""
        return self.index.end_log if self.index else 0

    @property
    def newest_ms(self) -> int:
        """Store time of the newest record, milliseconds."""
        return self.log.tail.store_ms

    @property
    def disk_ratio(self) -> float:
        """How full the log's file system is, 0..1."""
        return self.disk.used_percent(self.folder.commit_log) / 100

    def record_at(self, log_offset: int) -> bytes | None:
        """The record that begins at a LogOffset; None if none does."""
        return self.log.record(log_offset)

    def outline_at(self, log_offset: int) -> Outline | None:
        """The record that begins at a LogOffset, without its body; None if none does."""
        return outline(self.log, log_offset)

    def heads(self, log_offset: int) -> Iterator[hot.RecordHead]:
        """What the records from `log_offset` on are, up to the log's end or to the first thing that is no record.

        For a start: it takes a second for a million of them.
        """
        for heads in LogScan(self.log.run, max(log_offset, self.log.min), self.log.end, check_crc=False):
            yield from heads

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of the message at a queue offset; -1 if it is not there."""
        queue = self.existing_queue(topic, queue_id)
        units = queue.units(offset, 1) if queue else []
        return self.log.store_time(units[0].log_offset) if units else -1

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The queue offset for a time: see `metaq.store.reads.search.offset_at`. 0 for an unknown or empty queue."""
        queue = self.existing_queue(topic, queue_id)
        return offset_at(queue, self.log.store_time, timestamp_ms) if queue else 0

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Records of `topic` that may carry `key` (its hash), stored in [begin_ms, end_ms], oldest first.

        The newest ones if there are more than `count_max`, of which at most `maxMsgsNumBatch`. The caller compares keys.
        """
        if self.index is None:
            return []
        count_max = min(count_max, self.options.max_msgs_num_batch)
        offsets = self.index.query(f"{topic}#{key}".encode(), count_max, begin_ms, end_ms)
        # Records from before a deletion, or that a topic has let go of, stay in the index as long as in the log.
        alive = max(self.deleted.get(topic, 0), self.floor(topic))
        return [record for offset in offsets if offset >= alive and (record := self.log.record(offset))]

    # ------------------------------------------------------------------ housekeeping

    def tick(self, now_ms: int) -> None:
        """Look, every `cleanResourceInterval`, at what may be deleted. Returns at once; another thread does it."""
        self._housekeeper.tick(now_ms)

    def owes(self, owner: Owed) -> None:
        """From now on, ask `owner` what of the log is still needed before a log file goes."""
        self._housekeeper.owes(owner)

    def retain_by(self, retentions: Retentions | None) -> None:
        """From now on, keep each topic's messages as its own rule says; None: all by `fileReservedTime`.

        A topic's min offsets move when its time is up, to where a log file begins. Above 85 percent of the disk the oldest
        files go all the same.
        """
        self._housekeeper.floors.retentions = retentions

    def before_letting_go(self, ask: Ask) -> None:
        """From now on, ask `ask(topic, log_offset)` before a topic lets go of what lies below; False: ask again later."""
        self._housekeeper.floors.ask(ask)

    def floor(self, topic: str) -> int:
        """LogOffset below which the topic has let go of its messages, though they may lie in the log; 0: of none."""
        return self._housekeeper.floors.table.get(topic, 0)

    @property
    def kept(self) -> Mapping[str, int]:
        """Topic → LogOffset of its oldest message, when it was last looked at; empty while no topic has a rule of its own."""
        return self._housekeeper.floors.kept

    @property
    def holding(self) -> Holding | None:
        """Log files that are only kept for one topic with a long time; None: there are none, or no topic has its own."""
        return self._housekeeper.floors.holding

    def retain(self, now_ms: int, *, at_once: bool = False) -> int:
        """Delete what `tick` would, now and here; `at_once`: whatever the hour. Returns the number of log files."""
        return self._housekeeper.retain(now_ms, at_once=at_once)

    @property
    def trouble(self) -> str:
        """What fails in the background, and how often in a row; "" while all is well."""
        own = (self._flusher.worker, self._populator.worker, self._housekeeper.worker, self._repairs.worker)
        troubles = [*(worker.trouble for worker in (*own, *self._helpers)), self._repairs.trouble]
        return "; ".join(filter(None, troubles))

    def helped_by(self, worker: Worker) -> None:
        """From now on, `trouble` tells what fails in this worker, too."""
        self._helpers.append(worker)
