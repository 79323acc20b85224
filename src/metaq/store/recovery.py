"""Opening a folder: of its facts (`metaq.store.survey`) a plan (`metaq.store.recovery_plan`), made by reading alone, then one act.

The log is the truth. Consume queues and index are derived from it, and are trusted up to the place where all three are
known to be durable: `config/metaqTails.json` gives it to the byte, RocketMQ's `checkpoint` to the log file. From there
on the log is read and checked, and its records are dispatched again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from metaq.errors import StoreCorrupt
from metaq.store.checkpoint import Checkpoint
from metaq.store.log.aside import keep_aside
from metaq.store.log.broken import DamagedPlace
from metaq.store.log.commit_log import CommitLog
from metaq.store.log.scan import END_OF_FILES, WHY, Judge, LogScan, NeedsWholeLog, past_damage, past_places
from metaq.store.log_walk import LogWalk, Promise, Walk
from metaq.store.mapped_file import any_byte
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.queues.dispatch import Dispatcher, index_keys, topic_of
from metaq.store.queues.index_file import Index, IndexHeader
from metaq.store.recovery_plan import IndexPlan, Key, Plan, Start, choose_start, plan_index
from metaq.store.start_progress import StartProgress
from metaq.store.survey import Facts
from metaq.wire import hot
from metaq.wire.record import split

log = logging.getLogger(__name__)
_SECTOR_BYTES: Final = 512
_NOTHING: Final[frozenset[Key]] = frozenset()


class Recovery:
    """Makes the plan for one folder, and carries it out."""

    def __init__(
        self,
        facts: Facts,
        commit_log: CommitLog,
        queues: Mapping[Key, ConsumeQueue],
        index: Index | None,
        *,
        check_crc: bool,
        refuse_damage: bool = False,
        progress: StartProgress | None = None,
    ) -> None:
        """
        Args:
            refuse_damage: raise StoreCorrupt where the log is damaged, and step over nothing.
            progress: is told how far it is, and may stop it: then `plan` and `act` raise StartStopped.
        """
        self._facts, self._log, self._queues, self._index = facts, commit_log, queues, index
        self._check_crc, self._refuses = check_crc, refuse_damage
        self._progress = progress or StartProgress()

    # ------------------------------------------------------------------ the plan

    def plan(self) -> Plan:
        """Read and check the log; changes nothing. Raises StoreCorrupt: damage that no crash explains."""
        self._check_hints()
        start = choose_start(self._facts)
        rebuild = self._damaged(start) | self._outlived()
        while True:
            try:
                plan = self._plan_from(start, rebuild)
                if start.log_offset == self._facts.log_min or not self._is_ahead(plan):
                    return plan
                start = Start(
                    self._facts.log_min, "the checkpoint names a time that no record has: the whole log is read"
                )
                log.warning("%s", start.why)
            except NeedsWholeLog as lost:
                topic = lost.queue[0].decode("utf-8", "replace")
                log.warning("the consume queue %s:%d misses units: the whole log is read", topic, lost.queue[1])
                start = Start(self._facts.log_min, f"queue {lost.queue[1]} of topic {topic} misses units")

    def _check_hints(self) -> None:
        """Believe the tails only if they fit what they speak of: they may be an older version, or somebody's text."""
        tails = self._facts.tails
        if tails is None:
            return
        for (topic, queue_id), queue in self._queues.items():
            counted = tails.queues.get(topic, {}).get(queue_id, 0)
            end = queue.end_below(tails.log_end, counted)
            low = max(self._facts.log_min, self._facts.deleted.get(topic, 0))
            # Units that they do not count are void unless they lead to messages of the queue.
            if end > counted and (self._leads(queue, counted, low) or self._leads(queue, end - 1, low)):
                log.warning(
                    "metaqTails.json counts %d messages of queue %d of topic %s, and more are there: it is not believed, and the "
                    "whole log is read", counted, queue_id, topic,
                )  # fmt: skip
                self._facts = structs.replace(self._facts, tails=None)
                return
        mark = tails.index
        if mark is None or self._facts.index is None or mark.log <= tails.last_record:
            return
        head = self._head(tails.last_record, tails.log_end - tails.last_record)
        newest = IndexHeader(*mark.header)
        if (
            head is not None
            and index_keys(head)
            and newest.end_log < head.log_offset
            and (newest.next_ordinal > 1 or not mark.files)
        ):
            log.warning(
                "metaqTails.json says that all messages are in the index, and the newest is not: it is made anew"
            )
            self._facts = structs.replace(self._facts, index_unfit=tuple(name for name, _ in self._facts.index))

    def _leads(self, queue: ConsumeQueue, offset: int, low: int) -> bool:
        """Whether a unit points at the record of its queue and queue offset, at or behind the LogOffset `low`."""
        unit = queue.unit(offset)
        if unit is None or unit.size <= 0 or unit.is_fill or unit.log_offset < low:
            return False
        head = self._head(unit.log_offset, unit.size)
        return head is not None and (head.topic, head.queue_id, head.queue_offset) == (
            queue.topic.encode(),
            queue.queue_id,
            offset,
        )

    def _is_ahead(self, plan: Plan) -> bool:
        """Whether the checkpoint, which alone says where to begin, is of a later time than the newest record."""
        checkpoint = self._facts.checkpoint
        return self._facts.tails is None and max(checkpoint.log_ms, checkpoint.queues_ms) > plan.last_ms

    def _damaged(self, start: Start) -> frozenset[Key]:
        """Return the queues that hold fewer units than the tails say: somebody deleted or damaged their files."""
        tails = self._facts.tails
        if tails is None or start.log_offset not in {tails.last_record, tails.log_end}:
            return _NOTHING
        found = set()
        for topic, ends in tails.queues.items():
            if self._facts.deleted.get(topic, 0) >= tails.log_end:
                continue  # all that they say of it is of the deleted topic
            for queue_id, end in ends.items():
                queue = self._queues.get((topic, queue_id))
                if end > 0 and (queue is None or queue.end_below(tails.log_end, end) < end):
                    found.add((topic, queue_id))
                    log.warning("the consume queue %s:%d is missing or short: it is rebuilt", topic, queue_id)
        return frozenset(found)

    def _outlived(self) -> frozenset[Key]:
        """Return queues of deleted topics that a crash kept from going: they begin with one of the deleted topic's records."""
        found = set()
        for key, queue in self._queues.items():
            place = self._facts.deleted.get(key[0], 0)
            oldest = queue.oldest() if place else None
            if oldest is not None and oldest.log_offset < place:
                found.add(key)
        return frozenset(found)

    def _plan_from(self, start: Start, rebuild: frozenset[Key]) -> Plan:
        facts = self._facts
        ends = {
            key: 0 if key in rebuild else self._true_end(queue, start.log_offset) for key, queue in self._queues.items()
        }
        # An administrator may delete all consume queues to have them rebuilt. Then the checkpoint says nothing of queues.
        no_queues = not any(ends.values()) and start.log_offset > facts.log_min
        if no_queues and facts.tails is None:
            start = Start(facts.log_min, "there are no consume queues: the whole log is read")
        whole_log = start.log_offset == facts.log_min
        promise = self._promise()
        judge = Judge(
            {(key[0].encode(), key[1]): end for key, end in ends.items() if key not in rebuild},
            start.last_ms,
            self._has_unit,
            whole_log=whole_log,
            from_zero=facts.log_min == 0,
            exact=facts.tails is not None,
            promised=lambda place: place < promise.durable_end or promise.same_boot,
            deleted={topic.encode(): place for topic, place in facts.deleted.items()},
        )
        walk = LogWalk(self._log.run, judge, self._queues, self._has_unit, promise)
        files = self._log.run.files
        self._progress.check(start.log_offset, files[-1].end if files else start.log_offset)
        found = walk.walk(start.log_offset, check_crc=self._check_crc, told=self._progress.at)
        log_end, why, records = self._judged_end(found)
        self._refuse_damage(log_end, why, found.places)
        index = plan_index(facts, start, log_end)
        rebuild |= {(topic.decode(), queue_id) for topic, queue_id in judge.restarted}
        dispatch_from = start.log_offset
        if rebuild and not whole_log:
            dispatch_from = facts.log_min
        dispatch_from = min(dispatch_from, index.first)
        places = found.places
        if dispatch_from < start.log_offset:
            places = (*self._walk(dispatch_from, start.log_offset), *places)
        return Plan(
            start, log_end, why, dispatch_from,
            queue_ends=ends, rebuild=rebuild, index=index, records=records, last_ms=judge.last_ms,
            places=places,
            missing={(key[0].decode(), key[1]): tuple(filter(None, known)) for key, known in judge.missing.items()},
            lost={(key[0].decode(), key[1]): units for key, units in found.units.items()},
            in_order=self._ended_in_order(log_end, why, {key: end for key, end in ends.items() if key not in rebuild}, index),
            kept=facts.clean or facts.same_boot,
            torn_from=log_end if facts.clean or facts.same_boot else min(start.log_offset, log_end),
        )  # fmt: skip

    def _ended_in_order(self, log_end: int, why: str, ends: Mapping[Key, int], index: IndexPlan) -> bool:
        """Whether the last run ended in order: a missing abort file alone does not prove it, somebody may have removed it."""
        facts = self._facts
        if not facts.clean or facts.tails is None:
            return facts.clean
        # A stop in order leaves log, queues and index where the tails say, and nothing behind.
        if log_end != facts.tails.log_end or index.rewind is not None or why not in {END_OF_FILES, WHY[hot.END_ZERO]}:
            return False
        return not any((unit := self._queues[key].unit(end)) and unit.size for key, end in ends.items())

    def _promise(self) -> Promise:
        facts = self._facts
        return Promise(
            facts.tails.log_end if facts.tails is not None else 0,
            ended_at=facts.tails.log_end if facts.tails is not None and facts.clean else -1,
            same_boot=facts.same_boot,
            is_ours=facts.tails is not None or facts.began_empty,
            safe_ms=facts.checkpoint.safe_ms,
        )

    def _judged_end(self, found: Walk) -> tuple[int, str, int]:
        """Return where the log ends, why there, and the number of records that were read."""
        head = found.last
        if head is not None and head.log_offset + head.size == found.log_end and self._ends_in_zeros(head):
            tails = self._facts.tails
            undurable = tails is not None and head.log_offset + head.size > tails.log_end
            if undurable or self._facts.began_empty:
                return head.log_offset, "a record whose last properties are missing", found.records - 1
            log.warning(
                "the newest record, of queue %d of topic %s at log offset %d, ends in zeros: a power cut may have taken "
                "the end of its properties; it is kept, since they may be meant",
                head.queue_id, head.topic.decode("utf-8", "replace"), head.log_offset,
            )  # fmt: skip
        return found.log_end, found.why, found.records

    def _ends_in_zeros(self, head: hot.RecordHead) -> bool:
        """Whether the record's bytes behind the last sector border are zeros, all of them properties: it may be torn."""
        # Properties have no checksum, and the sizes in front of them are right. What never reached the disk reads as zeros, and
        # so does a property whose value ends in NUL characters. `Writer` ends no record so (`end_properties`): in its store it
        # is a torn one, unless it is known to be durable. In a RocketMQ's it is kept.
        file = self._log.run.find(head.log_offset)
        record = file.read(head.log_offset, head.size) if file else b""
        end = head.log_offset + head.size
        behind = end - (end - 1) // _SECTOR_BYTES * _SECTOR_BYTES
        *_, properties_start, properties_end = split(memoryview(record), 0, len(record), check_crc=False)
        lost = min(behind, properties_end - properties_start)
        return behind < head.size and lost > 0 and not any_byte(record[-lost:])

    def _walk(self, start: int, stop: int) -> list[DamagedPlace]:
        """Return the damaged places between `start` and `stop`, before anything is changed. Raises StoreCorrupt."""
        places: list[DamagedPlace] = []
        for _ in LogScan(self._log.run, start, stop, check_crc=False, past=past_damage(self._log.run, stop, places)):
            pass
        self._refuse_damage(stop, "", tuple(places))
        return places

    def _refuse_damage(self, log_end: int, why: str, places: tuple[DamagedPlace, ...]) -> None:
        """Raises StoreCorrupt: the log is damaged and that is to be refused, or it would end in front of a file that was
        flushed."""
        if places and self._refuses:
            raise self._corrupt(places[0].start, places[0].why)
        # To go on would delete flushed messages. The tails know what was flushed to the byte. The checkpoint knows a time, and
        # a record that was not flushed may bear the same one, or an older one if the clock was set back.
        tails = self._facts.tails
        for start, first_ms in self._facts.first_ms:
            flushed = start < tails.log_end if tails else 0 < first_ms <= self._facts.checkpoint.safe_ms
            if start > log_end and flushed:
                raise self._corrupt(log_end, why)

    def _corrupt(self, place: int, why: str) -> StoreCorrupt:
        file = self._log.run.find(place)
        name = file.path if file else self._log.run.folder
        at = place - file.start if file else place
        return StoreCorrupt(
            f"{name} holds {why} at byte {at} (log offset {place}), and flushed records follow it: nothing was touched; "
            "restore the file from a copy, or delete it and all files after it to give up what they hold"
        )

    def _true_end(self, queue: ConsumeQueue, log_offset: int) -> int:
        """Return one past the last unit below `log_offset` that points at its record."""
        # RocketMQ leaves units behind a tail that it has cut off. Our tails are written when there are none, but a power cut
        # may bring back a file of them that a start has deleted: units that the tails do not count are void.
        tails = self._facts.tails
        if tails is not None:
            counted = tails.queues.get(queue.topic, {}).get(queue.queue_id, 0)
            return min(counted, queue.end_below(log_offset, counted))
        end = queue.end_below(log_offset)
        while end > 0 and (unit := queue.unit(end - 1)) and not unit.is_fill and unit.log_offset >= self._facts.log_min:
            if self._leads(queue, end - 1, self._facts.log_min):
                break
            end -= 1
        return end

    def _head(self, log_offset: int, size: int) -> hot.RecordHead | None:
        data = self._log.run.find(log_offset)
        if data is None:
            return None
        record = data.read(log_offset, size)
        # The body does not matter here: only whose record it is.
        heads, _, _ = hot.scan_records(record, 0, len(record), log_offset, 1, check_crc=False)
        return heads[0] if heads else None

    def _has_unit(self, head: hot.RecordHead) -> bool:
        topic = topic_of(head)
        queue = self._queues.get((topic, head.queue_id)) if topic else None
        unit = queue.unit(head.queue_offset) if queue else None
        return unit is not None and unit[:2] == (head.log_offset, head.size)

    # ------------------------------------------------------------------ the act

    def act(
        self,
        plan: Plan,
        queue: Callable[[str, int], ConsumeQueue],
        delays_ms: tuple[int, ...],
        now_ms: int,
        root: Path,
    ) -> int:
        """Carry out the plan. `root`: the store's, where what is cut off is kept. Returns the number of units dispatched. Raises StoreFull, OSError.

        A crash anywhere in it leaves a folder for which the same plan is made again. Afterwards the log is durable;
        queues and index know how far they are.
        """
        untouched = self.untouched(plan)
        self._tell_damage(plan)
        if not untouched:
            self._log.run.remove_leftovers()
            self._keep_aside(plan, root)
            self._log.truncate(plan.log_end, zero=True, again=not plan.in_order)
        for key, held in self._queues.items():
            if not held.run.is_whole or not untouched:
                held.run.remove_leftovers()
            if key in plan.rebuild:
                held.delete()
                held.start_at(0, 0)
            else:
                end = plan.queue_ends[key]
                last = held.unit(end - 1) if end else None
                held.start_at(end, last.log_end if last else 0)
        if self._index is not None:
            # The index is cut back before the dispatch, which makes the entries anew.
            self._index.forget(set(plan.index.drop))
            if plan.index.rewind is not None:
                self._index.rewind(plan.index.rewind)
            self._index.start()
        dispatcher = Dispatcher(
            queue,
            self._index,
            delays_ms,
            queues_from=plan.start.log_offset,
            rebuild=plan.rebuild,
            index_from=plan.index.first,
            deleted=self._facts.deleted,
            lost=plan.lost,
        )
        damaged = {place.start for place in plan.places}
        self._progress.replay(plan.dispatch_from, plan.log_end)
        for heads in LogScan(
            self._log.run,
            plan.dispatch_from,
            plan.log_end,
            check_crc=False,
            past=past_places(plan.places),
            told=self._progress.at,
        ):
            for head in heads:
                if head.log_offset not in damaged:
                    dispatcher.dispatch(head, now_ms)
        self._progress.secure()
        dispatcher.fill_ends({key: known[-1].stop for key, known in plan.missing.items() if known}, plan.log_end)
        # The end is set behind the dispatch: the scan above reads the files, whatever the end is.
        self._log.start_at(plan.log_end)
        self._log.tail.store_ms = plan.last_ms
        if untouched:
            if self._index is not None and self._facts.tails is not None:
                self._index.durable = self._facts.tails.index
        else:
            self._report(plan, dispatcher.messages)
            for held in list(self._queues.values()):
                held.cut()
                held.mark_unsynced()
            self._log.secure(plan.start.log_offset, again=not plan.in_order)
        for held in list(self._queues.values()):
            held.correct_min(self._facts.log_min)
            held.run.close()  # a start has opened thousands: whoever needs a queue opens it again
        return dispatcher.messages

    def checkpoint_meanwhile(self, plan: Plan) -> Checkpoint | None:
        """Return the checkpoint that holds while the plan is carried out; None if the present one stays true."""
        # Index entries that are made anew have the old store times, and nobody has synced them: without this, the next start
        # would take them for durable if this one is killed.
        before = self._facts.checkpoint
        return structs.replace(before, index_ms=0) if before.index_ms and plan.index.first < plan.log_end else None

    def untouched(self, plan: Plan) -> bool:
        """Whether the last run ended in order and everything is as it left it: then all of it is durable."""
        return (
            plan.in_order
            and self._facts.tails is not None
            and plan.start.log_offset == plan.log_end
            and not plan.rebuild
            and not plan.index.drop
            and plan.dispatch_from == plan.log_end
        )

    def _tell_damage(self, plan: Plan) -> None:
        """Say which places of the log are damaged, and which messages that has cost."""
        for place in plan.places:
            log.error("%s: it is stepped over; restore the file from a copy if its messages are needed", place)
        for (topic, queue_id), known in plan.missing.items():
            for offsets in known:
                log.error(
                    "queue %d of topic %s: %d messages, of offsets %d to %d, are damaged in the log: consumers pass over them",
                    queue_id, topic, len(offsets), offsets[0], offsets[-1],
                )  # fmt: skip

    def _keep_aside(self, plan: Plan, root: Path) -> None:
        """Copy what lies behind the log's end before it is zeroed. Raises StoreFull, OSError."""
        kept = keep_aside(self._log.run, plan.log_end, root, self._log.run.disk)
        if kept is not None:
            tell = log.error if kept.messages else log.warning
            tell(
                "the log ends at %d (%s), and %d bytes behind it with %d whole messages are cut off: they are kept in %s, which "
                "`metaq store dump` reads", plan.log_end, plan.why_end, kept.bytes, kept.messages, kept.folder,
            )  # fmt: skip

    def _report(self, plan: Plan, messages: int) -> None:
        log.info(
            "recovered: read from %d (%s) to %d (%s), %d records", plan.start.log_offset, plan.start.why, plan.log_end,
            plan.why_end, plan.records,
        )  # fmt: skip
        log.info(
            "recovered: %d units put; %d queues rebuilt; %d index files dropped", messages, len(plan.rebuild),
            len(plan.index.drop),
        )  # fmt: skip
