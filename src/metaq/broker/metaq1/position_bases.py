"""Bases of MetaQ 1.x's byte positions: records in the log that map a queue offset of a partition to its byte position.

The first base of a queue is written when a 1.x client first uses it: its oldest message gets position 0. Whenever the log
continues in a new file, all queues in use get new bases there, so that retention never deletes the last one. No position is
handed out before the first base is durable: after a power cut it would mean another message.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from metaq.broker.environment import Environment
from metaq.broker.log.appender import Appender
from metaq.broker.metaq1.base_records import BaseRecords, Entry
from metaq.broker.metaq1.copied_bases import CopiedBases
from metaq.broker.metaq1.kept_positions import BaseRound, KeptPositions
from metaq.broker.part import BrokerPart
from metaq.errors import Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model.topics.system import POSITIONS_TOPIC
from metaq.saved import Pending, at_once
from metaq.store.metaq1.position_bases import (
    Base,
    Known,
    anew_behind,
    bound_of,
    encode_bases,
    encode_complete,
    encode_dropped,
    newest_bases,
)
from metaq.store.metaq1.position_files import POSITIONS_END
from metaq.store.metaq1.positions import Positions
from metaq.store.metaq1.queue_positions import QueuePositions
from metaq.store.queues.table import QueueKey

log = logging.getLogger(__name__)
FAR: Final = 1 << 62
"""Value of `settled` for a queue without positions: no limit for retention."""
ANEW_MAX: Final = 10_000
"""Queues of deleted topics for which it is kept where their positions go on, if a topic of that name is made; the newest."""
_QUEUES_PER_STEP: Final = 256
_PAUSE_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.05
_AGAIN_SECONDS: Final = 5.0
_STUCK_SECONDS: Final = 60.0


class Bases(BrokerPart):
    """The bases of all queues that 1.x clients have used. An `Owed` of the store: keeps log files that positions depend on."""

    leads = False
    what = "what byte positions of MetaQ 1.x are computed from"

    def __init__(
        self,
        environment: Environment,
        appender: Appender,
        closed: Callable[[str], bool] = lambda _topic: False,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        """Args: closed: returns whether a topic is being created or deleted."""
        self._environment, self._store, self._appender = environment, environment.store, appender
        self._closed, self._call_soon = closed, call_soon
        self.positions = Positions(environment.store, call_soon, self._rebase)
        self._kept: dict[QueueKey, KeptPositions] = {}
        self._anew: dict[QueueKey, Base] = {}
        """Queues of deleted topics that no 1.x client has touched since: where their positions begin, behind those of before.

        `Base.log_offset` is the record that must not go before a newer one says so."""
        self._round: BaseRound | None = None
        self._carry_before = 0
        self._checked_at = -1
        """Start of the log file for which the last round ran."""
        self._again_at = 0.0
        self._looked: list[QueueKey] = []
        """Queues still to be checked for a base before their oldest message."""
        self._owing: list[QueuePositions] = []
        """Queues whose base must be durable before any of their positions is handed out."""
        self._records = BaseRecords(environment, appender, call_soon)
        self._copied: CopiedBases | None = None
        """What this broker's master has written; None: it leads, and writes bases itself."""
        self._opened = False
        self._log = RateLimitedLog(log, environment.clock)

    def open(self) -> None:
        """Find the bases in the log, and queues that have position files only; a slave has those of its master alone."""
        if self._store.state.follows is not None:
            self._copied = CopiedBases(self._store)
        self._load()
        self._store.keeper.owes(self)
        self._opened = True

    def lead(self) -> None:
        """Write bases from now on. Positions that are open stay as they are: computing them anew could take long."""
        self._take_copied()
        self._copied = None
        self._load()

    def log_was_cut(self) -> None:
        """Begin anew with the bases that are left in the log: what was cut may have held some, and the messages of positions."""
        if not self._opened:
            return
        for kept in self._kept.values():
            kept.positions.give_up()
        for table in (self.positions.table, self._kept, self._anew):
            table.clear()
        self._owing.clear()
        self._looked.clear()
        self._load()

    def _load(self) -> None:
        if self._store.reader.existing_queue(POSITIONS_TOPIC, 0) is None and not self.positions.root.exists():
            return
        known = newest_bases(self._store)
        if self._copied is not None:
            self._copied.begin(known)
        for key, (base, place) in reversed(known.ended.items()) if self._copied is None else ():
            # A crash came between the deletion and the record of where they go on, or an earlier release has deleted it.
            self._anew.setdefault(key, Base(0, anew_behind(bound_of(base, place)), base.log_offset))
        for key, base in reversed(known.bases.items()):
            if key not in self._kept:
                self._know(key, base)
        if self._copied is None:
            self._look_on_disk(known)
        self._forget_oldest()

    def _know(self, key: QueueKey, base: Base) -> KeptPositions | None:
        """Take over a queue's newest base. Returns None: it is for messages to come."""
        known = self._store.reader.existing_queue(*key) is not None
        if (base.queue_offset == 0 and not known) or (self._copied is not None and self._copied.is_of_before(key)):
            self._anew[key] = base
            return None
        self._anew.pop(key, None)
        try:
            kept = self._keep(key, base)
        except Refused as error:
            log.warning("a base of byte positions at log offset %d is passed over: %s", base.log_offset, error)
            return None
        kept.settled = base.queue_offset
        return kept

    def _look_on_disk(self, known: Known) -> None:
        on_disk = self.positions.on_disk()
        # A crash came between the record of the deletion and the removal of the files.
        for topic in known.dropped.intersection(topic for topic, _ in on_disk):
            self.positions.remove_folder(topic)
        for key in on_disk:
            if (
                key not in self._kept
                and key[0] not in known.dropped
                and self._store.reader.existing_queue(*key) is not None
            ):
                self._keep(key, None)
        self.positions.remove_leftovers()

    def _forget_oldest(self) -> None:
        while len(self._anew) > ANEW_MAX:
            del self._anew[next(iter(self._anew))]

    def _keep(self, key: QueueKey, base: Base | None) -> KeptPositions:
        self._store.reader.queue(*key)  # there may be nothing of it left in the log
        positions = self.positions.add(*key, base)
        kept = self._kept[key] = KeptPositions(positions, base, self._debt(key, base))
        return kept

    def _debt(self, key: QueueKey, base: Base | None) -> int:
        queue = self._store.reader.existing_queue(*key)
        if base is None:
            return self._store.log.min
        if queue is None or base.queue_offset >= queue.max_offset:
            return base.log_offset
        unit = queue.unit(max(base.queue_offset, queue.min_offset))
        return min(base.log_offset, unit.log_offset) if unit is not None and not unit.is_fill else base.log_offset

    # ------------------------------------------------------------------ what is asked

    def touch(self, topic: str, queue_id: int) -> QueuePositions:
        """Return the positions of a queue; the first call creates them.

        Raises Saving: their first base is being made durable; Refused, as `Appender.put`, and for illegal topic names; at a slave
        NOT_FOUND: its master has not begun them.
        """
        if self._copied is not None:
            return self._followed(self._copied, topic, queue_id)
        anew = self._anew.get((topic, queue_id))
        return self._begun(topic, queue_id, anew.position if anew is not None else 0)

    def begin_at(self, topic: str, queue_id: int, position: int) -> QueuePositions:
        """Return the positions of a queue; create them from `position` on. Used by the import of MetaQ 1.x's files.

        Raises as `touch`; Refused INVALID: they exist and begin elsewhere, or `position` is out of range.
        """
        if not 0 <= position < POSITIONS_END:
            text = f"queue {queue_id} of topic {topic} cannot begin at byte position {position}: they end at {POSITIONS_END}"
            raise Refused(Reason.INVALID, text)
        kept = self._kept.get((topic, queue_id))
        positions = self._begun(topic, queue_id, position)
        if kept is not None and positions.min != position:
            text = f"queue {queue_id} of topic {topic} has byte positions from {positions.min} on: {position} is not possible"
            raise Refused(Reason.INVALID, text)
        return positions

    def _begun(self, topic: str, queue_id: int, position: int) -> QueuePositions:
        kept = self._kept.get((topic, queue_id))
        if kept is None:
            kept = self._begin((topic, queue_id), position)
        positions = kept.positions
        if not positions.touched:
            positions.require()
        return positions

    def find(self, topic: str, queue_id: int) -> QueuePositions | None:
        """Return the positions of a queue; None: no 1.x client has used it."""
        return self.positions.queue(topic, queue_id)

    def settled(self, topic: str, queue_id: int) -> int:
        """Return the QueueOffset from which on positions need the messages: retention must not delete them."""
        kept = self._kept.get((topic, queue_id))
        if kept is None:
            return FAR
        if kept.base is not None and kept.base.log_offset < self._store.state.flushed:
            kept.settled = kept.base.queue_offset
        return kept.settled

    def carry_queue(self, topic: str, queue_id: int) -> None:
        """Have a new base of the queue written soon, as far on as its positions are known."""
        if (topic, queue_id) in self._kept:
            if self._round is None:
                self._round = BaseRound(self._store.log.end, 0, [], whole=False)
            if (topic, queue_id) not in self._round.left:
                self._round.left.append((topic, queue_id))

    # ------------------------------------------------------------------ following

    def _followed(self, copied: CopiedBases, topic: str, queue_id: int) -> QueuePositions:
        key = topic, queue_id
        self._take_copied()
        kept = self._kept.get(key)
        if kept is None and (base := self._anew.get(key)) is not None:
            kept = self._took(key, base)
        if kept is None or copied.is_of_before(key):
            raise Refused(
                Reason.NOT_FOUND,
                f"The topic `{topic}` in partition `{queue_id}` has no byte positions at this slave yet: they begin when a client of "
                "MetaQ 1.x uses it at the master",
            )
        if not kept.positions.touched:
            kept.positions.require()
        return kept.positions

    def _take_copied(self) -> None:
        """Take over what the master has written since the last call."""
        for place, told in self._copied.news() if self._copied is not None else ():
            for topic in told.topics:
                self._forget_topic(topic)
            for key, (offset, position) in told.bases.items():
                self._take(key, Base(offset, position, place))

    def _take(self, key: QueueKey, base: Base) -> None:
        kept = self._kept.get(key)
        if kept is None:
            self._took(key, base)
        else:
            kept.base = kept.positions.base = base
            kept.debt = self._debt(key, base)

    def _took(self, key: QueueKey, base: Base) -> KeptPositions | None:
        kept = self._know(key, base)
        if kept is not None:  # as at the master: nothing is told that a power cut could take back
            kept.positions.settle_with(self._records.durable())
        return kept

    def _forget_topic(self, topic: str) -> None:
        for table in (self._kept, self._anew):
            for key in [key for key in table if key[0] == topic]:
                del table[key]
        self.positions.drop_topic(topic)

    def _follow_on(self) -> None:
        """Take over what has come, and look again at positions that the bases here did not lead to."""
        self._take_copied()
        owing, self._owing = self._owing, []
        for positions in owing:
            if positions.busy:
                self._owing.append(positions)
            elif not positions.gone:
                positions.begin_again()

    # ------------------------------------------------------------------ beginning

    def go_on_at(self, topic: str, queue_id: int, position: int) -> None:
        """Have the next message of a queue, all of whose messages are gone, begin at a later position.

        A slave by the text protocol leaves out what its master does not have any more. Raises Refused INVALID: there are messages, or
        positions of some that were told lie behind; else as `touch`.
        """
        queue, kept = self._store.reader.queue(topic, queue_id), self._kept.get((topic, queue_id))
        if (
            kept is None
            or queue.min_offset < queue.max_offset
            or not kept.positions.bound() <= position < POSITIONS_END
        ):
            raise Refused(
                Reason.INVALID,
                f"queue {queue_id} of topic {topic} cannot go on at byte position {position}: it holds messages, or ends behind that",
            )
        place = self._records.put(encode_bases([((topic, queue_id), queue.max_offset, position)]))
        kept.positions.give_up()
        self._keep((topic, queue_id), Base(queue.max_offset, position, place)).positions.settle_with(
            self._records.durable()
        )

    def _begin(self, key: QueueKey, position: int) -> KeptPositions:
        if self._closed(key[0]):
            # A base would be written for a topic that is about to lose its positions.
            raise Refused(Reason.BUSY, f"the topic {key[0]} is being made or deleted, try again")
        queue = self._store.reader.queue(*key)
        place = self._records.put(encode_bases([(key, queue.min_offset, position)]))
        self._anew.pop(key, None)
        base = Base(queue.min_offset, position, place)
        kept = self._keep(key, base)
        kept.positions.settle_with(self._records.durable())
        kept.positions.fill()  # meanwhile
        return kept

    def _rebase(self, positions: QueuePositions) -> None:
        """Require a new durable base of a queue whose positions cannot be derived from those in the log."""
        if positions not in self._owing:
            self._owing.append(positions)
        if self._copied is None:
            self._pay()
            return
        pending = Pending()
        pending.finish(
            Refused(
                Reason.UNAVAILABLE,
                f"the byte positions of queue {positions.queue_id} of topic {positions.topic} wait for a record of the master's",
            )
        )
        positions.settle_with(pending)

    def _pay(self) -> None:
        owing, self._owing = self._owing, []
        for positions in owing:
            if positions.gone:
                continue
            if positions.reached is None:  # the thread is computing what is to be written
                self._owing.append(positions)
                continue
            pending = Pending()
            positions.settle_with(pending)
            try:
                self._write([positions])
            except Refused as error:
                self._log.warning("owing", "byte positions wait for a record that cannot be stored: %s", error)
                self._owing.append(positions)
                pending.finish(error)
                continue
            positions.rebased = False
            positions.settle_with(self._records.durable())

    # ------------------------------------------------------------------ going on

    def step(self) -> float:
        """Take over the thread's results, and write due bases. Returns the seconds until the next call."""
        if self._copied is not None:
            self._records.settle()
            self.positions.publish()
            self._follow_on()
            return _PAUSE_SECONDS
        if not (self._kept or self._anew):
            return _AGAIN_SECONDS
        self._records.settle()
        self.positions.publish()
        if self._owing:
            self._pay()
        if self._environment.clock.monotonic() < self._again_at:
            return _PAUSE_SECONDS
        self._look()
        start = self._store.log.end - self._store.log.end % self._store.log.file_bytes
        if self._round is None and (start != self._checked_at or self._carry_before):
            self._begin_round(start)
        if self._round is None:
            return _PAUSE_SECONDS
        self._go_on(self._round)
        return _SOON_SECONDS if self._round is not None else _PAUSE_SECONDS

    def _look(self) -> None:
        """Find queues whose base lies before their oldest message, because a topic's own retention has deleted some."""
        if not self._looked:
            self._looked = list(self._kept)
        for _ in range(min(_QUEUES_PER_STEP, len(self._looked))):
            key = self._looked.pop()
            kept, queue = self._kept.get(key), self._store.reader.existing_queue(*key)
            if kept is None or queue is None or kept.base is None or kept.positions.busy:
                continue
            if kept.base.queue_offset < queue.min_offset:
                self.carry_queue(*key)

    def _begin_round(self, start: int) -> None:
        before = max(start, self._carry_before)
        self._checked_at, self._carry_before = start, 0
        if any(debt < before for debt in self._debts()):
            # Of all queues, so that a start need not read further back than the last complete round.
            self._round = BaseRound(self._store.log.end, before, [*self._kept, *self._anew], whole=True)

    def _go_on(self, around: BaseRound) -> None:
        if around.working:
            return
        if not around.left:
            self._round = None
            self._end_round(around)
            return
        # In slices: thousands of queues would block the loop.
        some, around.left = around.left[:_QUEUES_PER_STEP], around.left[_QUEUES_PER_STEP:]
        lagging = [kept for key in some if (kept := self._kept.get(key)) is not None and self._lags(kept)]
        around.working = True
        waiting = [kept.positions.fill() for kept in lagging]
        left = len(waiting)

        def caught_up(_error: Refused | None) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._sync(around, some)

        for pending in waiting:
            pending.when_done(caught_up)
        if not waiting:
            self._sync(around, some)

    def _end_round(self, around: BaseRound) -> None:
        now = self._environment.clock.monotonic()
        if around.failed:
            self._checked_at, self._again_at = -1, now + _AGAIN_SECONDS
        elif around.whole:
            with contextlib.suppress(Refused):  # without the mark, a start reads further back
                self._records.put(encode_complete(around.began))
            if any(debt < around.before for debt in self._debts()):
                # Some queues cannot be computed now: no new round for every request of retention.
                self._again_at = now + _STUCK_SECONDS

    def _lags(self, kept: KeptPositions) -> bool:
        queue = self._store.reader.existing_queue(kept.positions.topic, kept.positions.queue_id)
        if queue is None:
            return False
        reached = kept.positions.reached
        if reached is None:
            return kept.base is None or kept.base.queue_offset < queue.max_offset
        return reached[0] < queue.max_offset

    def _sync(self, around: BaseRound, keys: Sequence[QueueKey]) -> None:
        """Sync position files first, then write bases: after a crash, units before a base are trusted."""
        ends = [
            (kept.positions, kept.positions.reached)
            for key in keys
            if (kept := self._kept.get(key)) is not None and not kept.positions.gone
        ]
        opened = [(positions, reached) for positions, reached in ends if reached is not None]
        closed = [positions for positions, reached in ends if reached is None]
        anew = [key for key in keys if key in self._anew]

        def work() -> Callable[[], None]:
            try:
                self.positions.sync([(positions, reached[0]) for positions, reached in opened])
                for positions, _ in opened:
                    positions.drop_below()
            except OSError as error:
                return functools.partial(self._not_synced, around, error)
            return lambda: self._synced(around, opened, closed, anew)

        self.positions.ask(work)

    def _not_synced(self, around: BaseRound, error: OSError) -> None:
        self._log.error("sync", "byte positions could not be made durable: %s", error)
        around.working, around.failed = False, True

    def _synced(
        self,
        around: BaseRound,
        opened: list[tuple[QueuePositions, tuple[int, int]]],
        closed: list[QueuePositions],
        anew: list[QueueKey],
    ) -> None:
        around.working = False
        if not around.whole:  # only bases that have moved
            opened = [(one, end) for one, end in opened if one.base is None or one.base[:2] != end]
            closed = []
        try:
            self._write([positions for positions, _ in opened], dict(opened))
            self._write([positions for positions in closed if positions.base is not None], {})
            self._write_entries([(key, *base[:2]) for key in anew if (base := self._anew.get(key)) is not None])
            # Flush at once: retention waits for durable bases, and would otherwise have new ones written again and again.
            self._store.flusher.when_flushed(self._store.log.end, lambda _good: None)
        except Refused as error:
            self._log.warning("round", "the bases of byte positions cannot be written anew: %s", error)
            around.failed = True

    def _write(
        self, queues: Iterable[QueuePositions], ends: dict[QueuePositions, tuple[int, int]] | None = None
    ) -> None:
        """Write one base per queue: at its synced end, else its known end, else as the newest base. Raises Refused."""
        entries = list[Entry]()
        for positions in queues:
            if positions.gone:
                continue
            end = (ends or {}).get(positions)
            if end is None:
                end = positions.reached if ends is None else None
            if end is None and positions.base is not None:
                end = positions.base[:2]
            if end is not None:
                entries.append(((positions.topic, positions.queue_id), *end))
        self._write_entries(entries)

    def _write_entries(self, entries: Sequence[Entry]) -> None:
        """Write these bases. Raises Refused: some may be written."""
        for written, place in self._records.write(entries):
            for key, offset, position in written:
                kept = self._kept.get(key)
                if kept is not None:
                    kept.base = kept.positions.base = Base(offset, position, place)
                    kept.debt = self._debt(key, kept.base)
                elif key in self._anew:
                    self._anew[key] = Base(offset, position, place)

    # ------------------------------------------------------------------ what is owed

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest record that positions depend on; None: none. From any thread."""
        return min(self._debts(), default=None)

    def _debts(self) -> list[int]:
        # Copies: retention's thread asks while the loop may change the tables.
        return [kept.debt for kept in list(self._kept.values())] + [
            base.log_offset for base in list(self._anew.values())
        ]

    def carry(self, before: int) -> None:
        """Have new bases written, so that nothing below this LogOffset is needed. From any thread."""
        self._carry_before = max(self._carry_before, before)

    # ------------------------------------------------------------------ ends

    def drop_topic(self, topic: str) -> None:
        """Drop the positions of a deleted topic. One made anew begins behind them: who holds an old one is told the first."""
        anew = {key: base for key, base in self._anew.items() if key[0] == topic}
        kept = {key: kept for key, kept in self._kept.items() if key[0] == topic}
        if not (anew or kept):
            return
        for key, one in kept.items():
            needed = one.base.log_offset if one.base is not None else self._store.log.min
            anew[key] = Base(0, anew_behind(one.positions.bound()), needed)
            del self._kept[key]
        self.positions.drop_topic(topic)
        for key, base in anew.items():
            self._anew.pop(key, None)
            self._anew[key] = base  # as the newest
        self._forget_oldest()
        try:
            self._records.put(encode_dropped([topic]))
            self._write_entries([(key, *base[:2]) for key, base in anew.items()])
        except Refused as error:  # metaqDeleted.json has the deletion too; a copy of the log alone does not
            log.warning("the log does not say that the byte positions of topic %s are over: %s", topic, error)

    def close(self) -> None:
        """End the thread, and write bases at the queues' ends, so that a start has nothing to compute."""
        # The thread first, which writes the same files.
        self.positions.stop()
        moved = [
            kept.positions
            for kept in self._kept.values()
            if kept.base is not None and kept.positions.reached not in {None, kept.base[:2]}
        ]
        if moved and self._copied is None and self._store.state.failed is None:
            try:
                self.positions.sync([(queue, queue.tail.next_offset) for queue in moved])
                self._write(moved)
            except (Refused, OSError) as error:
                log.warning("the next start computes some byte positions anew: %s", error)
        self.positions.close()
