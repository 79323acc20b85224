"""Retention and checkpoints of staged transactions: records that are needed outlive their log file, and a start reads little.

All that is not over lies behind one LogOffset. A checkpoint has the offsets of both queues at that place, and the store keeps log
files from there on. When such a file is to be deleted, undecided chunks, decisions that are not done everywhere, and decisions of
rows are rewritten at the log's end; commits are applied instead.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import structs

from metaq.broker.environment import Environment
from metaq.broker.log.appender import Appender
from metaq.broker.staged.apply import AT_ONCE_BYTES, Applier, ChunkReader, DamagedChunk
from metaq.broker.staged.decisions import Decisions, Row
from metaq.broker.staged.parts import Part, Staged, Transaction
from metaq.broker.staged.records import CHECKPOINT, Checkpoint, checkpoint_record, decide_record, life_text, renewed
from metaq.errors import Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model.topics.system import STAGE_TOPIC, TXN_TOPIC
from metaq.model.transactions.staging import DecisionOutcome, TransactionDecision
from metaq.store.queues.consume_queue import Unit
from metaq.wire.record import tags_code

log = logging.getLogger(__name__)

CARRY_RECORDS: Final = 200_000
"""Records of a topic that a start may have to read; older needed ones are rewritten."""
CHECKPOINT_RECORDS: Final = 1000
CHECKPOINT_BYTES: Final = 64 << 20
CHECKPOINT_SECONDS: Final = 60.0
NEEDED_SLACK: Final = 1000
"""Dead entries allowed in the heap before it is rebuilt."""
LOOK_SECONDS: Final = 1.0
"""Interval of the search for the oldest needed record, s."""


class Retention:
    """Rewrites old records that are needed, and writes checkpoints. `done`: writes pending DONE records now."""

    def __init__(
        self,
        environment: Environment,
        appender: Appender,
        staged: Staged,
        decisions: Decisions,
        applier: Applier,
        chunks: ChunkReader,
        done: Callable[[], None],
    ) -> None:
        self._environment, self._store, self._clock = environment, environment.store, environment.clock
        self._appender, self._staged, self._decisions = appender, staged, decisions
        self._applier, self._chunks, self._done = applier, chunks, done
        self._oldest: int | None = None
        """LogOffset of the oldest needed record at the last search. New records lie behind it, so it stays a lower bound."""
        self._needed: list[tuple[int, str]] = []
        """Heap of (LogOffset, transaction id or row key). Entries may be outdated, and are checked when they come to the top."""
        self._look_at = 0.0
        self._checkpoint_seconds = CHECKPOINT_SECONDS
        self._checkpoint_at = environment.clock.monotonic() + CHECKPOINT_SECONDS
        self._at = Checkpoint(-1, -1)
        """Ends of the queues at the last checkpoint."""
        self._log_end = 0
        self._carry_before = 0
        self._before = 0
        """If above 0, records below this LogOffset are being rewritten."""
        self._todo: deque[Transaction] = deque()
        self._rows: deque[Row] = deque()
        self._log = RateLimitedLog(log, environment.clock)

    def open(self) -> None:
        """Find the needed records after recovery."""
        self._checkpoint_at = self._clock.monotonic() + self._checkpoint_seconds
        if self._is_fresh():
            self._at = self._ends()
        self._gather()
        self.look()

    # ------------------------------------------------------------------ what is owed

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest record that is needed; None: none. From any thread."""
        return self._oldest

    def added(self, place: int, name: str) -> None:
        """Register the newest record, at this LogOffset, as the first one needed of a transaction or row."""
        if self._oldest is None:
            # `oldest` may be called by retention's thread before the next search.
            self._oldest = place
        heapq.heappush(self._needed, (place, name))

    def _gather(self) -> None:
        self._needed = [(place, tx.id) for tx in self._staged if (place := tx.oldest()) is not None]
        self._needed += [(row.place, row.key) for row in self._decisions.rows.values()]
        heapq.heapify(self._needed)

    def look(self) -> int:
        """Find the LogOffset of the oldest needed record; the log's end if none is needed."""
        if len(self._needed) > 2 * (len(self._staged.table) + len(self._decisions.rows)) + NEEDED_SLACK:
            self._gather()  # most entries are outdated
        while self._needed:
            place, name = self._needed[0]
            now = self._place_of(name)
            if now is None:
                heapq.heappop(self._needed)
            elif now > place:
                heapq.heapreplace(self._needed, (now, name))
            else:
                break
        self._oldest = self._needed[0][0] if self._needed else None
        return self._store.log.end if self._oldest is None else self._oldest

    def _place_of(self, name: str) -> int | None:
        if "@" in name:
            transaction = self._staged.get(name)
            return transaction.oldest() if transaction is not None else None
        row = self._decisions.rows.get(name)
        return row.place if row is not None else None

    def carry(self, before: int) -> None:
        """Have needed records below this LogOffset rewritten by the next steps. From any thread."""
        self._carry_before = max(self._carry_before, before)

    # ------------------------------------------------------------------ time

    def tick(self) -> None:
        """Find the oldest needed record, and write a checkpoint when due."""
        self._log.tick()
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        place = self.look()
        ends = self._ends()
        if self._is_due(ends, now):
            try:
                self.checkpoint()
            except Refused as error:
                self._log.warning("checkpoint", "a checkpoint of staged transactions waits: %s", error)
        # Records further back than CARRY_RECORDS are rewritten in larger steps, up to half of that, so that this is rare.
        for topic, end in ((STAGE_TOPIC, ends.stage), (TXN_TOPIC, ends.txn)):
            queue = self._store.reader.existing_queue(topic, 0)
            far = queue.unit(end - CARRY_RECORDS) if queue and end - queue.min_offset > CARRY_RECORDS else None
            half = (
                queue.unit(end - CARRY_RECORDS // 2) if queue and far is not None and far.log_offset > place else None
            )
            if half is not None:
                self.carry(half.log_offset)

    def _ends(self) -> Checkpoint:
        stage, txn = self._store.reader.existing_queue(STAGE_TOPIC, 0), self._store.reader.existing_queue(TXN_TOPIC, 0)
        return Checkpoint(stage.max_offset if stage else 0, txn.max_offset if txn else 0)

    def _is_fresh(self) -> bool:
        """Return whether a checkpoint is the newest record of both queues."""
        stage, txn = self._newest(STAGE_TOPIC), self._newest(TXN_TOPIC)
        return (
            txn is not None
            and txn.tags_code == tags_code(CHECKPOINT)
            and (stage is None or stage.log_offset < txn.log_offset)
        )

    def _newest(self, topic: str) -> Unit | None:
        queue = self._store.reader.existing_queue(topic, 0)
        return queue.unit(queue.max_offset - 1) if queue is not None and queue.max_offset > queue.min_offset else None

    def _is_due(self, ends: Checkpoint, now: float) -> bool:
        if ends == self._at:
            # Nothing was stored: an idle broker writes no checkpoints.
            self._checkpoint_at = now + self._checkpoint_seconds
            return False
        return (
            now >= self._checkpoint_at
            or ends.txn - self._at.txn >= CHECKPOINT_RECORDS
            or (ends.stage > self._at.stage and self._store.log.end - self._log_end >= CHECKPOINT_BYTES)
        )

    def checkpoint_within(self, seconds: float) -> None:
        """Shorten the interval of checkpoints, s. Without new records none is written."""
        seconds = min(seconds, CHECKPOINT_SECONDS)
        if seconds != self._checkpoint_seconds:
            self._checkpoint_at += seconds - self._checkpoint_seconds
            self._checkpoint_seconds = seconds

    def checkpoint(self) -> None:
        """Write a checkpoint. Raises Refused, as `Appender.put`."""
        place = self.look()
        stage, txn = self._store.reader.existing_queue(STAGE_TOPIC, 0), self._store.reader.existing_queue(TXN_TOPIC, 0)
        if stage is None and txn is None:
            return
        try:
            found = Checkpoint(stage.first_at(place) if stage else 0, txn.first_at(place) if txn else 0)
        except OSError as error:  # out of file descriptors: as Refused, so that `close` of the other parts still runs
            raise Refused(Reason.NOT_STORED, str(error)) from error
        self._appender.put([checkpoint_record(found, self._clock.now_ms(), self._environment.store_host)])
        self._at, self._log_end = self._ends(), self._store.log.end
        self._checkpoint_at = self._clock.monotonic() + self._checkpoint_seconds

    @property
    def changed(self) -> bool:
        """Whether anything was stored since the last checkpoint."""
        return self._ends() != self._at

    # ------------------------------------------------------------------ writing anew

    def step(self, more_time: Callable[[], bool]) -> bool:
        """Rewrite records as long as there is time. Returns whether something was done."""
        if not self._before:
            if not self._carry_before:
                return False
            self._before, self._carry_before = self._carry_before, 0
            self._todo.extend(tx for tx in self._staged if (place := tx.oldest()) is not None and place < self._before)
            self._rows.extend(row for row in self._decisions.rows.values() if row.place < self._before)
        done = False
        try:
            # Each once: one that waits for a read goes to the back.
            for _ in range(len(self._todo)):
                if self._carry(self._todo[0], more_time):
                    done = True
                    self._todo.popleft()
                else:
                    self._todo.rotate(-1)
                if not more_time():
                    return True
            while self._rows:
                self._carry_row(self._rows[0])
                self._rows.popleft()
                done = True
                if not more_time():
                    return True
        except Refused as error:
            self._log.warning("carry", "staged transactions whose log file is to go wait: %s", error)
            return False
        if not self._todo and not self._rows:
            self._before = 0
            self.look()
        return done

    def _carry(self, transaction: Transaction, more_time: Callable[[], bool]) -> bool:
        """Rewrite one transaction's records. Returns whether none below `_before` is needed any more."""
        # It may be over meanwhile.
        if self._staged.get(transaction.id) is not transaction:
            return True
        if transaction.committed and not transaction.applied:
            # Applied rather than rewritten: its messages are due anyway, and then its chunks are needed no more.
            self._applier.run(transaction, AT_ONCE_BYTES, carrying=True)
            if transaction.remaining:
                return False
            self._done()
            if self._staged.get(transaction.id) is not transaction:
                return True
            if not transaction.applied:
                return False
        if not transaction.applied:
            for part in list(transaction.parts.values()):
                done = self._carry_part(transaction, part, more_time)
                # Also if it is unfinished: chunks rewritten so far need not hold the old file.
                part.oldest = min(part.places)
                if not done:
                    return False
        if transaction.decision is not None and transaction.place < self._before:
            progress = "1" if transaction.applied else ""
            transaction.place = self._write(
                self._as_it_counts(transaction.decision),
                transaction.place,
                progress,
                transaction.coordinator,
                transaction.missing,
            )
        return True

    def _as_it_counts(self, decision: TransactionDecision) -> TransactionDecision:
        """Return the decision to rewrite; without the row if an administrator has dropped it, so that no start restores it."""
        row = self._decisions.rows.get(decision.row)
        if decision.outcome is DecisionOutcome.COMMIT and (row is None or row.transaction != decision.transaction):
            return structs.replace(decision, row="", sequence=-1)
        return decision

    def _carry_part(self, transaction: Transaction, part: Part, more_time: Callable[[], bool]) -> bool:
        for number, place in enumerate(part.places):
            if place >= self._before:
                continue
            try:
                chunk = self._chunks.get(place, part.sizes[number])
            except DamagedChunk:
                log.error(  # noqa: TRY400  the text says it all
                    "chunk %d of part %s of transaction %s cannot be read at log offset %d: the part is dropped, and cannot "
                    "be committed", number, part.part, transaction.id, place,
                )  # fmt: skip
                self._staged.drop_part(transaction, part.part)
                return True
            if chunk is None:
                return False
            seal = part.seal if number == part.chunks - 1 else None
            life = life_text(transaction.lifetime, transaction.seconds)
            # `carrying`: also when flow control or a full disk stops others, since this makes room.
            # With the seal, whose own record lies behind the chunk and leaves the log after it.
            put = self._appender.put([renewed(chunk, life, part.since_ms, seal)], carrying=True)
            part.places[number] = put.log_offset
            if not more_time():
                return False
        return True

    def _carry_row(self, row: Row) -> None:
        if self._decisions.rows.get(row.key) is not row or row.place >= self._before:
            return
        if self._staged.get(row.transaction) is not None:
            return  # not over: its decision is rewritten with it, or with the next round
        decision = self._decisions.at(row.place) or TransactionDecision(
            row.transaction, DecisionOutcome.COMMIT, (), row.key, row.sequence
        )
        self._write(decision, row.place, "2", self._environment.name)

    def _write(
        self, decision: TransactionDecision, place: int, progress: str, coordinator: str, missing: tuple[str, ...] = ()
    ) -> int:
        record = decide_record(
            decision,
            self._clock.now_ms(),
            self._environment.store_host,
            learned=coordinator != self._environment.name,
            progress=progress,
            missing=missing,
            copy_of=place,
        )
        put = self._appender.put([record], carrying=True)
        self._decisions.moved(decision, put.log_offset)
        return put.log_offset
