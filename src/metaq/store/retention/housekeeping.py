"""The housekeeping thread: syncs consume queues and index, writes checkpoint and tails, deletes expired log files."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from metaq.log import RateLimitedLog
from metaq.model.upkeep.cleaning import CleanableFiles
from metaq.store.checkpoint import Checkpoint, IndexMark, Tails
from metaq.store.disk import SyncNotBegun
from metaq.store.log.broken import next_record
from metaq.store.log.flush import Flusher
from metaq.store.log.parts import Parts
from metaq.store.log.writer import Snapshot, Writer
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.queues.index_file import Index
from metaq.store.retention.expiry import Debt, DiskStep, Expired, FileAge, Owed, decide, disk_step, oldest_debt
from metaq.store.retention.floors import Floors
from metaq.store.retention.sums_maker import SumsMaker
from metaq.store.worker import Worker, giving_way, is_no_room

log = logging.getLogger(__name__)
_SHARE_OF_TIME: Final = 0.05
"""Share of the time that rounds may take: syncs of 10 000 queues must not keep the disk busy."""
_SYNCED_SINGLY_MAX: Final = 64
"""Dirty queues up to which each is synced by itself; more are synced with their whole file system (`Disk.sync_all`)."""
_CARRY_ROUNDS: Final = 6
"""Looks at retention in which owners are asked to write the same record anew, before that counts as hopeless."""
_TOLD_SECONDS: Final = 600.0
_STEPS: Final = {
    DiskStep.OK: (logging.INFO, "there is room again"),
    DiskStep.WARN: (logging.WARNING, "expired log files go at whatever hour (diskMaxUsedSpaceRatio)"),
    DiskStep.CLEAN: (
        logging.WARNING,
        "the oldest log files go though their time is not up (diskSpaceCleanForciblyRatio, cleanFileForciblyEnable)",
    ),
    DiskStep.REFUSE: (
        logging.ERROR,
        "messages are refused until there is room again (diskSpaceWarningLevelRatio); free some space, or lower fileReservedTime",
    ),
}
"""What the log says when a full disk has come to a step, and how loudly."""
_TRIM_SECONDS: Final = 60.0
"""Longest time that a trim waits for those who still need what goes: an archive is being written, say."""
_ROUNDS_BY_HAND: Final = 20
"""Looks at retention when it is asked for, of ten log files each: RocketMQ's number."""
_INDEX_SECONDS: Final = 10.0
"""Pause between syncs of the index. Slots are written all over, so a sync costs up to 20 MB; what came since is indexed again
after a crash."""


class Housekeeper:
    """Syncs, writes checkpoints and deletes, in one thread and under one lock, so that none of these sees another half done.

    Messages are appended, log files rolled and topics deleted meanwhile. So a checkpoint is made of a `Snapshot`, and queues
    that a deletion has taken out of the table are left alone.
    """

    def __init__(self, parts: Parts, writer: Writer, flusher: Flusher) -> None:
        self._parts, self._writer, self._flusher = parts, writer, flusher
        self.floors = Floors(parts, flusher.flush)
        # Before anybody reads: recovery has put all min offsets to the log's begin.
        self.floors.apply()
        # Reentrant: retention makes a checkpoint while it holds it.
        self.work = threading.RLock()
        """Held while anything is synced, written down or deleted."""
        self.sums = SumsMaker(parts)
        self._tick_ms = -1
        self._retain_at: int | None = None
        self._saved: tuple[int, int, int] | None = None
        self._before: Snapshot | None = None
        """The last snapshot. With thousands of queues, what follows from it is kept, and only what changes is made anew."""
        self._ends: dict[str, dict[int, int]] = {}
        """Topic → queue id → max offset, of that snapshot: as tails have it."""
        self._dirty: dict[ConsumeQueue, None] = {}
        """Queues that have grown since their last sync; an ordered set."""
        self._tails_at = -1
        """LogOffset of the newest record that the tails on the disk know."""
        self._removals: deque[Path] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._index_at = -_INDEX_SECONDS
        self._pause = 0.0
        self._owners: tuple[Owed, ...] = ()
        self._carried = -1, 0
        """LogOffset of the oldest record that was needed at the last look, and how often its owner was asked to write it anew."""
        self.needed_from = 0
        """LogOffset below which no owner needed a record at the last look."""
        self.disk_step = DiskStep.OK
        """What a full disk had come to at the last look."""
        self._told = RateLimitedLog(log, parts.clock, _TOLD_SECONDS)
        self.worker = Worker("housekeeping", self._round, self._seconds, parts.state.fail)

    def start(self) -> None:
        self.worker.start()

    def stop(self) -> None:
        self.worker.stop()

    def tick(self, now_ms: int) -> None:
        """Have the thread look at retention, every `cleanResourceInterval`. Returns at once."""
        # abs: a clock that was set back must not stop retention.
        if self._tick_ms < 0 or abs(now_ms - self._tick_ms) >= self._parts.options.clean_resource_interval:
            self._tick_ms = self._retain_at = now_ms
            self.worker.wake()

    def delete_expired(self, done: Callable[[int | None], None]) -> None:
        """Have the thread delete expired log files, at whatever hour. Returns at once.

        `done` is called in the thread with the number of files, or None if that has failed.
        """
        self._have_done(self._delete_expired, done)

    def correct_queues(self, done: Callable[[int | None], None]) -> None:
        """Have the thread delete the units, and files of them, that point below the log's begin. As `delete_expired`; `done` gets
        the number of files."""
        self._have_done(self._correct_queues, done)

    def preview(
        self,
        topics: Sequence[str],
        done: Callable[[tuple[CleanableFiles, CleanableFiles, CleanableFiles] | None], None],
    ) -> None:
        """Have the thread find what `delete_expired` and `correct_queues` would delete, and the files of these topics' queues.

        Returns at once. `done` is called in the thread: with log files, queue files and the topics' files; None: it has failed.
        """

        def job() -> None:
            try:
                with self.work:
                    found = (
                        self._expired_now(),
                        self._below_floors(frozenset(topics)),
                        self._files_of(frozenset(topics)),
                    )
            except BaseException:
                done(None)
                raise
            done(found)

        self._jobs.append(job)
        self.worker.wake()

    def _expired_now(self) -> CleanableFiles:
        parts, now_ms = self._parts, self._tick_ms if self._tick_ms >= 0 else self._parts.clock.now_ms()
        ages = self._ages()
        used = parts.disk.used_percent(parts.folder.commit_log)
        debt = oldest_debt(self._owners)
        kept_from = self.floors.kept_after_look(now_ms, ages)
        gone = 0
        for _ in range(_ROUNDS_BY_HAND):
            expired = decide(
                ages[gone:], used_percent=used, now_ms=now_ms, options=parts.options, at_once=True,
                owed=debt.log_offset if debt else None, carrying=True, kept_from=kept_from,
            )  # fmt: skip
            gone += expired.files
            if not expired.files or expired.held is not None:
                break
        return CleanableFiles(gone, sum(age.end - age.start for age in ages[:gone]))

    def _below_floors(self, others: frozenset[str]) -> CleanableFiles:
        log_min, sizes = self._parts.log.min, list[int]()
        for queue in giving_way(self._parts.queues.all()):
            with contextlib.suppress(FileNotFoundError):  # its topic was deleted meanwhile
                if queue.topic not in others:
                    sizes += queue.files_below(max(log_min, self.floors.of(queue)))
        return CleanableFiles(len(sizes), sum(sizes))

    def _files_of(self, topics: frozenset[str]) -> CleanableFiles:
        queues = (queue for queue in self._parts.queues.all() if topics and queue.topic in topics)
        sizes = [file.size for queue in queues for file in queue.run.files]
        return CleanableFiles(len(sizes), sum(sizes))

    def trim(self, floors: Mapping[str, int], done: Callable[[bool | None], None]) -> None:
        """Have the thread move floors up (`Floors.trim`). Returns at once.

        `done` is called in the thread: True: durably moved; False: what is below is needed, also after `_TRIM_SECONDS`; None: it has
        failed.
        """
        until = self._parts.clock.monotonic() + _TRIM_SECONDS

        def job() -> None:
            try:
                with self.work:
                    moved = self.floors.trim(floors)
            except BaseException:
                done(None)
                raise
            if moved and self._parts.state.failed is not None:
                done(None)
            elif moved or self._parts.clock.monotonic() >= until:
                done(moved)
            else:
                self._jobs.append(job)

        self._jobs.append(job)
        self.worker.wake()

    def _have_done(self, work: Callable[[], int], done: Callable[[int | None], None]) -> None:
        def job() -> None:
            try:
                found = work()
            except BaseException:
                done(None)
                raise
            done(found)

        self._jobs.append(job)
        self.worker.wake()

    def _delete_expired(self) -> int:
        # Files age by the time that `tick` is given, which no change of the clock moves.
        now_ms, deleted = self._tick_ms if self._tick_ms >= 0 else self._parts.clock.now_ms(), 0
        for _ in range(_ROUNDS_BY_HAND):
            files = self.retain(now_ms, at_once=True)
            if not files:
                break
            deleted += files
        return deleted

    def _correct_queues(self) -> int:
        with self.work:
            return self._correct_minima(self._parts.log.min)

    def _correct_minima(self, log_min: int) -> int:
        """Raise the min offsets of all queues to what is in the log from `log_min` on. Returns the number of files that went."""
        deleted, queues = 0, self._parts.queues
        for queue in queues.all():
            try:
                deleted += queue.correct_min(max(log_min, self.floors.of(queue)))
            except FileNotFoundError:
                if queues.holds(queue):
                    raise  # else its topic was deleted meanwhile
        return deleted

    def _seconds(self) -> float:
        return max(self._pause, self._parts.options.flush_interval_consume_queue / 1000)

    def _round(self) -> None:
        clock = self._parts.clock
        began = clock.monotonic()
        try:
            for _ in range(len(self._jobs)):  # one that waits for somebody comes again in the next round
                self._jobs.popleft()()
            if (now_ms := self._retain_at) is not None:
                self.retain(now_ms)
                if self._retain_at == now_ms:  # kept after a failure, and when the next look is due already
                    self._retain_at = None
            self._keep_up()
            self.checkpoint()
            with self.work:
                self.sums.step()
        finally:
            self._pause = (clock.monotonic() - began) / _SHARE_OF_TIME

    # ------------------------------------------------------------------ checkpoint

    def checkpoint(self, *, closing: bool = False) -> None:
        """Make log and queues durable, and then save checkpoint and tails that say up to where.

        `closing`: the index too, which otherwise has its turn every ten seconds.
        Raises OSError: the two could not be saved. A sync that failed stops the store instead.
        """
        with self.work:
            parts = self._parts
            # First: what is appended during the syncs is not promised.
            snapshot = self._take_over(self._writer.snapshot(self._before))
            saved = (snapshot.log_end, parts.log.min, len(snapshot.queues))
            removals = len(self._removals)  # those that the tails written below leave out; more may come meanwhile
            if (saved == self._saved and not closing and not removals) or parts.state.failed is not None:
                return
            if parts.state.flushed < snapshot.log_end:  # log before queues: no unit must outlive its record
                self._flusher.flush()
                if parts.state.failed is not None:
                    return
            try:
                self._sync_queues(self._unsynced(snapshot))
                if parts.index and snapshot.index:
                    self._sync_index(parts.index, snapshot.index, closing=closing)
            except SyncNotBegun:  # no descriptor was free: nothing is lost, and the next round tries again
                raise
            except OSError as error:
                # Final as for the log: the kernel takes the pages for written now, and a second try would say so too.
                parts.state.fail(f"consume queues and index could not be made durable: {os.strerror(error.errno or 0)}")
                return
            self._write(snapshot, parts.index.durable if parts.index else None, self._ends)
            self._saved = saved
            # After the tails: older ones name the queues, and a crash in between would have them rebuilt as damaged.
            for _ in range(removals):
                path = self._removals.popleft()
                if path.is_dir():
                    import shutil  # here and not above: it brings every kind of compression along, at each start

                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _take_over(self, snapshot: Snapshot) -> Snapshot:
        """Bring what is kept of the last snapshot up to this one. Returns it."""
        before, self._before = self._before, snapshot
        if before is None or before.queues is not snapshot.queues:
            self._ends = {}  # and all that are not empty count as changed
        for place in giving_way(snapshot.changed):
            queue, end = snapshot.queues[place], snapshot.max_offset(place)
            if end:
                self._ends.setdefault(queue.topic, {})[queue.queue_id] = end
            else:  # the log was cut
                self._ends[queue.topic].pop(queue.queue_id, None)
            self._dirty[queue] = None
        return snapshot

    def _unsynced(self, snapshot: Snapshot) -> list[ConsumeQueue]:
        """Return the queues with units or names of files that are not durable."""
        # Retention removes files of queues that do not grow.
        self._dirty |= dict.fromkeys(queue for queue in giving_way(snapshot.queues) if queue.run.unsynced)
        holds = self._parts.queues.holds
        # An empty one may have no folder: a start has removed it with its topic.
        self._dirty = {
            queue: None
            for queue in giving_way(self._dirty)
            if queue.max_offset and not queue.is_synced and holds(queue)
        }
        return list(self._dirty)

    def _sync_index(self, index: Index, mark: IndexMark, *, closing: bool) -> None:
        now = self._parts.clock.monotonic()
        last = closing or index.durable is None or now - self._index_at >= _INDEX_SECONDS
        index.sync(mark, last=last)
        if last:
            self._index_at = now

    def promise_only(self, left: Snapshot) -> None:
        """Save tails that promise no more than `left`, before the log is cut to that. Raises OSError."""
        self.checkpoint()  # what is left has to be durable before the tails say so
        self._write(
            left, None, _ends_of(left)
        )  # no word of the index: after a crash in the middle of the cut it is made anew
        self._saved = None

    def start_as_found(self) -> None:
        """Take the state after a stop in order as saved: all of it is durable, and the tails on the disk say so."""
        snapshot, commit_log = self._writer.snapshot(), self._parts.log
        self._tails_at = snapshot.log_end
        self._saved = (snapshot.log_end, commit_log.min, len(snapshot.queues))

    def _sync_queues(self, dirty: list[ConsumeQueue]) -> None:
        if len(dirty) <= _SYNCED_SINGLY_MAX:
            for queue in dirty:
                self._sync_queue(queue)
            return
        # Before the sync: units that come meanwhile may miss it.
        ends = [queue.max_offset for queue in giving_way(dirty)]
        for queue in giving_way(dirty):
            queue.run.unsynced = False  # first: a file that is made meanwhile is due again
        # syncfs wants any descriptor of the file system.
        descriptor = self._parts.disk.open(self._parts.folder.consume_queues, os.O_RDONLY)
        try:
            self._parts.disk.sync_all(descriptor)
        finally:
            os.close(descriptor)
        for queue, end in giving_way(zip(dirty, ends, strict=True)):
            queue.synced = end

    def _sync_queue(self, queue: ConsumeQueue) -> None:
        try:
            queue.sync()
        except FileNotFoundError:
            if self._parts.queues.holds(queue):
                raise  # else its topic was deleted meanwhile

    def _write(self, snapshot: Snapshot, index: IndexMark | None, ends: dict[str, dict[int, int]]) -> None:
        parts, unit = self._parts, snapshot.newest
        last_record = unit.log_offset if unit and not unit.is_fill else -1
        tails = Tails(
            log_end=unit.log_end if unit else snapshot.log_end,
            last_record=last_record,
            last_store_ms=parts.log.store_time(last_record, written=True),
            queues=ends,
            index=index,
            boot=parts.disk.boot(),
        )
        tails.save(parts.folder.tails)
        self._tails_at = last_record
        newest_ms = snapshot.store_ms
        # The index may still get entries of this millisecond: a start without tails must not take those for durable.
        index_ms = max(0, min(index.header[1], newest_ms - 1)) if index else 0
        Checkpoint(newest_ms, newest_ms, index_ms).save(parts.folder.checkpoint, parts.disk)

    # ------------------------------------------------------------------ retention

    def retain(self, now_ms: int, *, at_once: bool = False) -> int:
        """Delete expired log files, and queue and index files that only point into them. Returns the number of log files."""
        with self.work:
            parts = self._parts
            ages = self._ages()
            used = parts.disk.used_percent(parts.folder.commit_log)
            self._take_step(disk_step(used, parts.options), used)
            kept_from = None
            if self.floors.retentions is not None:
                self._let_go(now_ms, ages, at_once=at_once or used > parts.options.disk_max_used_space_ratio)
                kept_from = self.floors.kept_from()
            log_end = parts.log.end  # first: what comes meanwhile may be needed
            debt = oldest_debt(self._owners)
            self.needed_from = debt.log_offset if debt else log_end
            expired = decide(
                ages, used_percent=used, now_ms=now_ms, options=parts.options, at_once=at_once,
                owed=debt.log_offset if debt else None, carrying=self._is_carried(debt),
                kept_from=kept_from,
            )  # fmt: skip
            parts.state.set_writable(expired.writable, 100 * parts.options.disk_space_warning_level_ratio)
            if debt:
                self._have_carried(expired)
                self._tell_of(debt, expired, used)
            if expired.files:
                self._drop(expired)
            return expired.files

    def _ages(self) -> list[FileAge]:
        """Return all log files but the newest, oldest first."""
        # A file's newest record is about as old as the first of the next file, which is one read and not a walk.
        return [
            FileAge(file.start, file.end, self._first_ms(after.start))
            for file, after in itertools.pairwise(self._parts.log.run.files)
            if after.start < self._parts.log.end
        ]

    def _take_step(self, step: DiskStep, used: float) -> None:
        """Note how full the disk is, and tell of it when that changes."""
        before, self.disk_step = self.disk_step, step
        if step is before:
            return
        level, what = _STEPS[step]
        again = "; messages are taken again" if before is DiskStep.REFUSE else ""
        log.log(level, "the disk of %s is %.1f percent full: %s%s", self._parts.folder.commit_log, used, what, again)

    def _first_ms(self, start: int) -> int:
        """Return the store time, ms, of the first record of the log file that begins at `start`."""
        log = self._parts.log
        found = log.store_time(start)
        if found < 0:  # damaged: without a time the file before it would count as older than all
            place = next_record(log.run, start, min(log.end, start + log.file_bytes))
            found = log.store_time(place) if place is not None else log.newest_ms
        return found

    def _let_go(self, now_ms: int, ages: list[FileAge], *, at_once: bool) -> None:
        try:
            self.floors.look(now_ms, ages, at_once=at_once)
        except OSError as error:
            if not is_no_room(error):  # on a full disk go on: deleting log files makes room
                raise
            self._told.error("floors", "no topic could let go of its messages: %s", error)

    def _keep_up(self) -> None:
        with self.work:
            try:
                self.floors.keep_up()
            except OSError as error:
                if not is_no_room(error):  # on a full disk go on: the checkpoint may need no more room
                    raise
                self._told.error("floors", "what topics have let go of at the master can still be read here: %s", error)

    def _is_carried(self, debt: Debt | None) -> bool:
        """Whether the needed record may still be written anew: its owner was asked fewer than `_CARRY_ROUNDS` times."""
        if debt is None or debt.log_offset != self._carried[0]:
            self._carried = (debt.log_offset if debt else -1), 0
        return self._carried[1] < _CARRY_ROUNDS

    def _have_carried(self, expired: Expired) -> None:
        """Ask the owners to write the records anew for which an expired file stays."""
        if expired.held is None:
            return
        self._carried = self._carried[0], self._carried[1] + 1
        for owner in self._owners:
            place = owner.oldest()
            if place is not None and place < expired.held_end:
                owner.carry(expired.held_end)

    def owes(self, owner: Owed) -> None:
        """Ask `owner`, from now on, which records it still needs before a log file goes."""
        with self.work:
            self._owners = (*self._owners, owner)

    def _tell_of(self, debt: Debt, expired: Expired, used: float) -> None:
        if expired.given_up:
            self._told.error(
                "given up", "the disk is %.0f percent full, so that nothing can be stored: log files go with %s in them, the "
                "oldest at log offset %d, which are lost; free some space", used, debt.what, debt.log_offset,
            )  # fmt: skip
        elif expired.held is not None:
            self._told.warning(
                "held", "the log file at %d stays though its time is up (the disk is %.0f percent full): there are %s in it "
                "or behind it, the oldest at log offset %d", expired.held, used, debt.what, debt.log_offset,
            )  # fmt: skip

    def _drop(self, expired: Expired) -> None:
        parts, log_min = self._parts, expired.drop_before
        # Records that replace those in the files may not be durable yet: a power cut must not take both.
        self._flusher.flush()
        if parts.state.failed is not None:
            return
        # Before the files go: tails that name a record of theirs would be void, and the start would read the whole log.
        self._write_down_before(log_min)
        # The log first: units and entries that point below its begin are passed over until they are corrected.
        parts.log.run.drop_before(log_min)
        self.sums.expired(log_min)
        log.info("%d log files deleted, %s: the log begins at %d now", expired.files, expired.why, log_min)
        self._correct_minima(log_min)
        self._removals.extend(self._writer.drop_index_below(log_min))
        # Services forget what was in the files, and answer so. A file that a power cut brings back must not contradict that.
        parts.log.settle()

    def _write_down_before(self, place: int) -> None:
        """Renew the tails if their newest record goes: a start that does not find it believes none of them, nor the index."""
        if self._tails_at >= place:
            return
        try:
            self.checkpoint()
        except OSError as error:
            if not is_no_room(error):  # on a full disk go on: the deletion makes room
                raise

    def follow_floors(self, told: Mapping[str, int] | None) -> None:
        """Have the thread take over a master's floors (`Floors.follow`). Returns at once."""
        self.floors.follow(told)
        self.worker.wake()

    def remove(self, folder: Path) -> None:
        """Have the thread delete a folder that was moved aside, after tails that do not name its queues. Returns at once."""
        self._removals.append(folder)
        self.worker.wake()


def _ends_of(snapshot: Snapshot) -> dict[str, dict[int, int]]:
    """Return topic → queue id → max offset, of queues that are not empty."""
    ends: dict[str, dict[int, int]] = {}
    for queue, end in snapshot.filled():
        ends.setdefault(queue.topic, {})[queue.queue_id] = end
    return ends
