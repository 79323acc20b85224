"""The store's facade: what a broker's services and doors call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from metaq.clock import Clock
from metaq.errors import MessageIllegal, Reason, Refused, StoreError, StoreFailed, StoreFull
from metaq.model.message import TRANSACTION_MASK, SysFlag
from metaq.model.properties import PAIR_END, PROPERTIES_BYTES_MAX
from metaq.model.system import SCHEDULE_TOPIC
from metaq.model.topic import check_topic
from metaq.options import StoreOptions
from metaq.store.commit_log import BLANK_BYTES, CommitLog
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.disk import Disk, reserving
from metaq.store.dispatch import delay_ladder, is_queued
from metaq.store.flush import Flusher
from metaq.store.folder import StoreFolder
from metaq.store.housekeeping import Housekeeper
from metaq.store.index_file import Index
from metaq.store.log_scan import LogScan
from metaq.store.populate import Populator
from metaq.store.pull import Pulled, Puller
from metaq.store.recovery import Recovery
from metaq.store.repair import Repairs
from metaq.store.search import offset_at
from metaq.store.survey import find_queues, look_at, queue_file_bytes
from metaq.store.worker import is_no_room
from metaq.wire import hot
from metaq.wire.record import RECORD_BYTES_MIN

log = logging.getLogger(__name__)
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()
_HOSTS_V6_MORE: Final = 24
_PAIR_END: Final = PAIR_END.encode()
_RECORD_BYTES_MORE: Final = 65_536
"""A record may be this much larger than `maxMessageSize`: its head, topic and properties (RocketMQ 4.9.8)."""


@dataclass(slots=True)
class PutRecord:
    """One message for `MessageStore.put`.

    `properties`: the text as stored. `tags_code`: what its unit holds: the tag's hash, or in the schedule topic when to
    deliver it. `keys`: whole `topic#key` texts to index. `born_host`: 8 or 20 bytes.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_offset: int = 0
    tags_code: int = 0
    keys: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Put:
    """Where messages were stored: offsets and time of the first, `log_end` behind the last."""

    log_offset: int
    log_end: int
    queue_offset: int
    store_ms: int


def end_properties(text: bytes) -> bytes:
    """Properties as they are stored: never ending in a NUL, which a start could not tell from what a power cut took.

    A value that does gets the separator behind it that older RocketMQ brokers put behind every property. In the fast
    lane the broker's own property is the last.
    """
    return text + _PAIR_END if text.endswith(b"\0") else text


class MessageStore:
    """One folder of messages, open for reading and writing.

    Appends may come from any thread, one at a time (a lock holds the others). Reads may run beside them.
    """

    def __init__(
        self,
        options: StoreOptions,
        clock: Clock,
        store_host: bytes,
        cluster: str,
        *,
        disk: Disk | None = None,
        on_failure: Callable[[str], None] | None = None,
        threads: bool = True,
    ) -> None:
        """Open the folder, recover it, start the threads.

        Args: store_host: 8 bytes (20 with IPv6) that every record carries. cluster: value of plain sends' CLUSTER.
              on_failure: called once, from the flush thread, when durability is lost for good.
              threads: False for a test that takes their steps itself, by `flush`, `populate` and `checkpoint`.
        Raises: StoreLocked, StoreForeign, StoreCorrupt: nothing was touched. StoreFull: no room to recover.
        """
        self.options, self.clock, self.disk = options, clock, disk or Disk()
        self.failed: str | None = None
        """Why the store has stopped for good; None while it works."""
        self.on_failure = on_failure
        self.writable = True
        """False while the disk is more than 90 percent full."""
        self.ladder = delay_ladder(options.message_delay_level)
        self._append_lock = threading.Lock()
        self._queues_lock = threading.Lock()
        """Held while the table of queues changes or is walked: the event loop adds queues, other threads look at all."""
        self._fail_lock = threading.Lock()
        self._give_up: Callable[[], None] = lambda: None
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.deleted: dict[str, int] = {}
        """Topic → the log offset below which its records are dead, because it was deleted there."""
        self._closed = False
        self.folder = StoreFolder(options, self.disk)
        self.folder.open()
        try:
            with reserving(self.folder.root):
                tail = hot.LogTail(store_host, cluster.encode(), options.max_message_size)
                self.log = CommitLog(
                    self.folder.commit_log, options.mapped_file_size_commit_log, self.disk, tail, self.fail
                )
                self.index = (
                    Index(self.folder.index, options.max_hash_slot_num, options.max_index_num, self.disk)
                    if options.message_index_enable
                    else None
                )
                recovery = self._recovery()
                self.recovered = recovery.plan()
                self.folder.mark_running()  # before anything is changed
                untouched = recovery.untouched(self.recovered)
                if not untouched:
                    self.folder.keep_hints()
                if meanwhile := recovery.checkpoint_meanwhile(self.recovered):
                    meanwhile.save(self.folder.checkpoint, self.disk)
                recovery.act(self.recovered, self.queue, self.ladder, self.clock.now_ms())
                # A mark behind a shorter log would cover what comes there.
                self.deleted = {topic: min(place, self.log.end) for topic, place in self.deleted.items()}
                self._index_tail = self.index.tail if self.index else None
                self._sync = options.flush_disk_type == "SYNC_FLUSH"
                self._flusher = Flusher(self.log, lambda: self.options.flush_interval_commit_log, self.fail)
                self._give_up = self._flusher.give_up
                self._populator = Populator(self.log, clock)
                self._housekeeper = Housekeeper(self, self._flusher, self._append_lock)
                self._repairs = Repairs(self.log, self.ladder, self._housekeeper.work)
                self._puller = Puller(self.log, options, self._repairs)
                for path in self.folder.moved_aside():
                    self._housekeeper.remove(path)
                if untouched:
                    self._housekeeper.trust()
                    self.folder.secure_config()
                else:
                    self.folder.secure()
                self._checkpoint_at_start()
        except BaseException:
            self.folder.close()
            raise
        if threads:
            for part in (self._flusher, self._populator, self._housekeeper, self._repairs.worker):
                part.start()

    def _recovery(self) -> Recovery:
        self._queues = {
            (queue.topic, queue.queue_id): queue for queue in find_queues(self.folder, self.options, self.disk)
        }
        facts = look_at(self.folder, self.log, self.index)
        self.deleted = dict(facts.deleted)
        return Recovery(facts, self.log, self._queues, self.index, check_crc=self.options.check_crc_on_recover)

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

    def close(self) -> None:
        """Make everything durable, say so in the folder, and let others have it. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._repairs.worker.stop()
        self._populator.stop()
        self._flusher.stop()
        self._housekeeper.stop()
        in_order = self._checkpoint_at_end()
        with self._append_lock:
            self.log.detach()
            for queue in self._queues.values():
                queue.close()
            if self.index:
                self.index.close()
            self.log.run.close()
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

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if there is none; the disk is touched at its first message. Raises Refused."""
        found = self._queues.get((topic, queue_id))
        if found is None:
            check_topic(topic)
            if queue_id < 0:
                raise Refused(Reason.INVALID, f"topic {topic} has no queue {queue_id}")
            size = queue_file_bytes(self.options)
            found = ConsumeQueue(self.folder.consume_queues, topic, queue_id, size, self.disk)
            with self._queues_lock:
                found = self._queues.setdefault((topic, queue_id), found)
        return found

    def prepare_queue(self, topic: str, queue_id: int) -> None:
        """Make the first file of a queue that nobody uses yet, from any thread: on a busy disk that takes milliseconds.

        If it cannot be made, the first message meets the reason again.
        """
        try:
            self.queue(topic, queue_id).prepare(1)
        except (StoreError, OSError, MemoryError) as error:
            log.debug("queue %d of topic %s cannot be prepared: %s", queue_id, topic, error)

    def existing_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def queues(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        """All queues that were asked for or have files, as they are now."""
        with self._queues_lock:
            return dict(self._queues)

    def queue_list(self) -> list[ConsumeQueue]:
        """The same without their names."""
        with self._queues_lock:
            return list(self._queues.values())

    def delete_topic(self, topic: str, place: int | None = None) -> None:
        """Forget the topic's queues. Its records stay in the log until their time is up, and nobody finds them.

        The files are moved aside at once, so that the topic can be made again, and deleted by another thread.

        Args: place: the log offset below which all its records are dead, by default where the log ends now. The caller
              has written it to `metaqDeleted.json`; otherwise a later start finds them again.
        Raises OSError: the files are still there; a start that knows of the deletion removes them.
        """
        with self._append_lock:
            self.deleted[topic] = self.log.end if place is None else place
            with self._queues_lock:
                for key in [key for key in self._queues if key[0] == topic]:
                    self._queues.pop(key).tail.detach()
            moved = self.folder.move_aside(topic)
        if moved:
            self._housekeeper.remove(moved)

    # ------------------------------------------------------------------ writing

    def put(self, records: Sequence[PutRecord]) -> Put:
        """Append messages, all to one queue, back to back in queue and log file.

        Raises: MessageIllegal: one of them can never be stored. StoreFull: there is no room now. StoreFailed. Nothing
        was written in any of these cases.
        """
        first = records[0]
        for record in records:
            record.properties = end_properties(record.properties)
        bytes_in_log = sum(self._check(record) for record in records)
        if bytes_in_log + BLANK_BYTES > self.log.file_bytes:
            raise MessageIllegal(
                f"{len(records)} messages for topic {first.topic} take {bytes_in_log} bytes, and a log file has "
                f"{self.log.file_bytes} (mappedFileSizeCommitLog)"
            )
        now_ms = self.clock.now_ms()
        with self._append_lock:
            self._check_writable()
            queue = self.queue(first.topic, first.queue_id) if is_queued(first.sys_flag) else None
            if queue:
                queue.prepare(len(records))
            keys = sum(len(record.keys) for record in records)
            if self.index and keys > self.index.tail.room():
                self.index.grow(keys, now_ms)
            if bytes_in_log + BLANK_BYTES > self.log.tail.room():
                self._roll()
            queue_offset = queue.max_offset if queue else 0
            log_offset = self.log.end
            for record in records:
                self._append(record, queue, now_ms)
            put = Put(log_offset, self.log.end, queue_offset, self.log.tail.store_ms)
        if put.log_end > self._populator.due_at:
            self._populator.wake()
        return put

    def _check(self, record: PutRecord) -> int:
        """Bytes that the record takes at most. Raises MessageIllegal."""
        try:
            check_topic(record.topic)
        except Refused as error:
            raise MessageIllegal(str(error)) from None
        if record.queue_id < 0:
            raise MessageIllegal(f"topic {record.topic} has no queue {record.queue_id}")
        if len(record.body) > self.options.max_message_size:
            raise MessageIllegal(
                f"the body for topic {record.topic} has {len(record.body)} bytes, allowed are "
                f"{self.options.max_message_size} (maxMessageSize)"
            )
        if len(record.properties) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"the properties for topic {record.topic} have {len(record.properties)} bytes, allowed are "
                f"{PROPERTIES_BYTES_MAX}"
            )
        return RECORD_BYTES_MIN + _HOSTS_V6_MORE + len(record.body) + len(record.topic) + len(record.properties)

    def _append(self, record: PutRecord, queue: ConsumeQueue | None, now_ms: int) -> None:
        while True:
            offset = hot.append_record(
                self.log.tail,
                queue.tail if queue else None,
                None,
                topic=record.topic.encode(),
                queue_id=record.queue_id,
                queue_offset=0,
                flag=record.flag,
                sys_flag=record.sys_flag,
                born_ms=record.born_ms,
                born_host=record.born_host,
                store_ms=now_ms,
                reconsume_times=record.reconsume_times,
                prepared_offset=record.prepared_offset,
                body=record.body,
                properties=record.properties,
                tags_code=record.tags_code,
                keys=(),
            )
            if offset >= 0:
                break
            assert queue is not None, "the log had room for all records"
            queue.advance()
        if self.index and record.sys_flag & TRANSACTION_MASK != SysFlag.ROLLED_BACK:
            for key in record.keys:
                self.index.put(key, offset, self.log.tail.store_ms, now_ms)

    def append_rows(
        self,
        table: hot.FrameTable,
        row: int,
        end: int,
        gates: Mapping[bytes, hot.TopicGate],
        born_host: bytes,
        replies: hot.Replies,
        outcome: hot.AppendOutcome,
    ) -> None:
        """Append the plain rows of [row, end) of a frame table, until STOP_END or STOP_SLOW (see `hot.append`).

        Raises: StoreFull, StoreFailed: `outcome.row` is the first row not appended; those before it are stored and
        answered in `replies`. `outcome.touched`, `.messages`, `.size` cover the whole run also then.
        """
        now_ms, log, index = self.clock.now_ms(), self.log.tail, self._index_tail
        with self._append_lock:
            outcome.row, outcome.touched, outcome.messages, outcome.size = row, [], 0, 0
            self._check_writable()
            hot.append(table, row, end, gates, log, index, now_ms, born_host, replies, outcome, self._sync)
            if outcome.stop > hot.STOP_SLOW:
                run = self._rows_from(table, end, gates, now_ms, born_host, replies, outcome)
                self._append_rest(run, now_ms, outcome)
        if log.end > self._populator.due_at:
            self._populator.wake()

    def _rows_from(
        self,
        table: hot.FrameTable,
        end: int,
        gates: Mapping[bytes, hot.TopicGate],
        now_ms: int,
        born_host: bytes,
        replies: hot.Replies,
        outcome: hot.AppendOutcome,
    ) -> Callable[[int], None]:
        log, index = self.log.tail, self._index_tail
        return lambda row: hot.append(
            table, row, end, gates, log, index, now_ms, born_host, replies, outcome, self._sync
        )

    def deliver(
        self,
        records: bytes | memoryview,
        units: bytes,
        row: int,
        end: int,
        level_queue: int,
        gates: Mapping[bytes, hot.TopicGate],
        outcome: hot.AppendOutcome,
    ) -> None:
        """Append copies of delayed records where they belong, until STOP_END or STOP_SLOW (see `hot.deliver`).

        Raises as `append_rows` does, and `outcome` says the same.
        """
        now_ms, log = self.clock.now_ms(), self.log.tail

        def run(row: int) -> None:
            hot.deliver(records, units, row, end, _SCHEDULE, level_queue, gates, log, self._index_tail, now_ms, outcome)

        with self._append_lock:
            outcome.row, outcome.touched, outcome.messages, outcome.size = row, [], 0, 0
            self._check_writable()
            run(row)
            if outcome.stop > hot.STOP_SLOW:
                self._append_rest(run, now_ms, outcome)
        if log.end > self._populator.due_at:
            self._populator.wake()

    def _append_rest(self, run: Callable[[int], None], now_ms: int, outcome: hot.AppendOutcome) -> None:
        """Go on where a file was full, as often as one is; `outcome` then covers all of it."""
        touched, messages, size = outcome.touched, outcome.messages, outcome.size
        try:
            while outcome.stop > hot.STOP_SLOW:
                if not self._make_room(outcome, now_ms):
                    outcome.stop = hot.STOP_SLOW
                    return
                run(outcome.row)
                messages += outcome.messages
                size += outcome.size
                touched += [queue for queue in outcome.touched if queue not in touched]
        finally:
            outcome.touched, outcome.messages, outcome.size = touched, messages, size

    def _make_room(self, outcome: hot.AppendOutcome, now_ms: int) -> bool:
        """Give the stopped row the room that it needs; False if only the slow lane can. Raises StoreFull."""
        if outcome.stop == hot.STOP_LOG_FULL:
            if outcome.needed > self.log.file_bytes:
                return False
            self._roll()
            return True
        if outcome.stop == hot.STOP_INDEX_FULL:
            assert self.index is not None, "only an index can be full"
            return self.index.grow(outcome.needed, now_ms)
        assert outcome.queue is not None, "STOP_QUEUE_FULL names its queue"
        queue = self._queues.get((outcome.queue.topic.decode(), outcome.queue.queue_id))
        return queue is not None and queue.tail is outcome.queue and queue.grow(outcome.needed)

    def _roll(self) -> None:
        self.log.roll()
        self.log.release_before(self.log.end - self.options.hot_bytes)
        self._populator.wake()

    def _check_writable(self) -> None:
        if self.failed is not None:
            raise StoreFailed(self.failed)
        if self._closed:
            raise StoreFailed("the store is closed")
        if not self.writable:
            raise StoreFull(
                f"the disk of {self.folder.root} is more than 90 percent full: no message is taken until there is room"
            )

    # ------------------------------------------------------------------ durability

    @property
    def flushed(self) -> int:
        """LogOffset up to which the log is durable."""
        return self._flusher.flushed

    def when_flushed(self, log_end: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once the log is durable up to `log_end`, `done(False)` if it never will be.

        `done` runs in the flush thread: hand over to your own.
        """
        self._flusher.when_flushed(log_end, done)

    def flush(self) -> None:
        """Make the log durable up to here, and answer those who wait. The flush thread does it all the time."""
        self._flusher.flush()

    def checkpoint(self) -> None:
        """Make log, queues and what else a start relies on durable, and write down how far. Raises OSError."""
        self._housekeeper.checkpoint()

    def repair(self) -> None:
        """Mend what pulls have met and could not read."""
        self._repairs.step()

    def populate(self) -> None:
        """Make pages, and the next log file when it is due, ahead of the writers."""
        self._populator.round()

    def fail(self, why: str) -> None:
        """Stop for good: nothing is taken or acknowledged any more. The first reason stands. From any thread."""
        with self._fail_lock:
            if self.failed is not None:
                return
            self.failed = (
                f"{why}: what is durable is unknown, nothing is acknowledged any more; check the disk and restart"
            )
        log.critical("the store %s has failed: %s", self.folder.root, self.failed)
        self._give_up()
        if self.on_failure:
            self.on_failure(self.failed)

    # ------------------------------------------------------------------ reading

    @property
    def log_end(self) -> int:
        """One past the newest record, a LogOffset."""
        return self.log.end

    max_log = log_end

    @property
    def min_log(self) -> int:
        """Where the log begins, a LogOffset."""
        return self.log.min

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

    def in_memory(self, log_offset: int) -> bool:
        """Whether a record counts as recent: it lies within `accessMessageInMemoryMaxRatio` of the log's end."""
        return self._puller.is_recent(log_offset)

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int | None = None,
        tag_hashes: frozenset[int] | None = None,
        *,
        in_pieces: bool = False,
    ) -> Pulled:
        """Records of a queue from `offset` on (see `Puller.pull`). Status COLD: run `job` in a thread, use its result."""
        queue = self.existing_queue(topic, queue_id)
        return self._puller.pull(queue, offset, count_max, bytes_max, tag_hashes, in_pieces=in_pieces)

    def record_at(self, log_offset: int) -> bytes | None:
        """The record that begins at a LogOffset; None if none does."""
        return self.log.record(log_offset)

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
        """The queue offset for a time: see `metaq.store.search.offset_at`. 0 for an unknown or empty queue."""
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
        alive = self.deleted.get(topic, 0)  # records from before a deletion stay in the index as long as in the log
        return [record for offset in offsets if offset >= alive and (record := self.log.record(offset))]

    # ------------------------------------------------------------------ housekeeping

    def tick(self, now_ms: int) -> None:
        """Look, every `cleanResourceInterval`, at what may be deleted. Returns at once; another thread does it."""
        self._housekeeper.tick(now_ms)

    def retain(self, now_ms: int, *, at_once: bool = False) -> int:
        """Delete what `tick` would, now and here; `at_once`: whatever the hour. Returns the number of log files."""
        return self._housekeeper.retain(now_ms, at_once=at_once)

    def describe(self) -> dict[str, Any]:
        """Where the store stands, for runtime information."""
        return {
            "min_log": self.min_log,
            "max_log": self.max_log,
            "flushed": self.flushed,
            "queues": len(self._queues),
            "writable": self.writable,
            "failed": self.failed,
            "populates": self._populator.works,
            "trouble": self.trouble,
        }

    @property
    def trouble(self) -> str:
        """What fails in the background, and how often in a row; "" while all is well."""
        workers = (self._flusher.worker, self._populator.worker, self._housekeeper.worker, self._repairs.worker)
        return "; ".join(part.trouble for part in (*workers, self._repairs) if part.trouble)
