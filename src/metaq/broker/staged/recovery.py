"""Recovery of staged transactions at a start, from the log alone, from the newest checkpoint on."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from metaq.broker.staged.decisions import ENDED_MAX, Decisions
from metaq.broker.staged.parts import Part, Staged, Transaction
from metaq.broker.staged.records import (
    CHECKPOINT,
    DECIDE,
    DONE,
    FINISHED,
    FORGET,
    LEARNED,
    PROGRESS,
    Checkpoint,
    Staging,
    read_checkpoint,
    read_decision,
    read_forgotten,
    read_names,
    read_staging,
)
from metaq.errors import RemoteProtocolError
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.topics.system import STAGE_TOPIC, TXN_TOPIC
from metaq.model.transactions.staging import DecisionOutcome, TransactionDecision, coordinator_of
from metaq.store.message_store import MessageStore
from metaq.store.queues.consume_queue import ConsumeQueue, Unit
from metaq.wire.record import copy_mark, decode_record, tags_code

log = logging.getLogger(__name__)

UNITS: Final = 1024
"""Consume-queue units per read."""


class _Known(Struct):
    """A decision, and its progress."""

    decision: TransactionDecision
    place: int
    learned: bool
    done: bool = False
    finished: bool = False

    def broker(self, name: str) -> str:
        """Return the name that this broker had when it decided, which its manifest has: brokers may be renamed."""
        return name if self.learned else coordinator_of(self.decision.transaction)


class _Found(Struct):
    """Records of one part, in any order."""

    chunks: dict[int, Staging] = field(default_factory=dict)
    seal: Staging | None = None


class Recovery:
    """One pass over the log, which fills `staged` and `decisions`."""

    def __init__(self, store: MessageStore, name: str, staged: Staged, decisions: Decisions) -> None:
        self._store, self._name, self._staged, self._decisions = store, name, staged, decisions
        self._known: dict[str, _Known] = {}
        self._over: set[str] = set()
        """Transactions that are over: the great majority, so nothing but the id is kept."""
        self._forgotten: dict[str, int] = {}
        self._found: dict[str, dict[str, _Found]] = {}
        self.commits: list[Transaction] = []
        """Commits that may be incompletely applied here, in the order of their decisions."""

    def run(self) -> None:
        """Read everything from the newest checkpoint on."""
        txn, stage = self._store.reader.existing_queue(TXN_TOPIC, 0), self._store.reader.existing_queue(STAGE_TOPIC, 0)
        place = self._checkpoint(txn) if txn else Checkpoint(0, 0)
        if txn:
            # With an index, older decisions are found by their transaction's id.
            if self._store.index is None:
                self._remember(txn, place.txn)
            # Decisions first: of transactions that are over, chunks need not be looked at.
            for unit in _units(txn, place.txn):
                if (record := self._record(unit)) is not None:
                    self._take_decision(record)
                elif unit.size > 0 and not unit.is_fill:
                    log.error(
                        "%s cannot be read: queue 0 of topic %s has lost a decision of staged transactions, or a mark; one that it "
                        "decides is open again", self._where(unit.log_offset), TXN_TOPIC,
                    )  # fmt: skip
        if stage:
            for unit in _units(stage, place.stage):
                self._take_staging(unit)
        for transaction, parts in self._found.items():
            self._build(transaction, parts)
        for transaction, known in self._known.items():
            if self._staged.get(transaction) is None:
                self._decided(transaction, known, {})
        self.commits.sort(key=lambda transaction: transaction.place)
        self._count_copies()

    # ------------------------------------------------------------------ decisions

    def _checkpoint(self, txn: ConsumeQueue) -> Checkpoint:
        """Return the newest checkpoint; (0, 0) if there is none."""
        wanted, stop = tags_code(CHECKPOINT), txn.max_offset
        while stop > txn.min_offset:
            start = max(txn.min_offset, stop - UNITS)
            for unit in reversed(txn.units(start, stop - start)):
                if unit.tags_code == wanted and (record := self._record(unit)) is not None:
                    place = read_checkpoint(record.body)
                    if place is not None and record.properties.get(props.TAGS) == CHECKPOINT:
                        return place
            stop = start
        return Checkpoint(0, 0)

    def _remember(self, txn: ConsumeQueue, stop: int) -> None:
        """Load the newest decisions before the checkpoint. Without an index they cannot be looked up later."""
        wanted, start = tags_code(DECIDE), max(txn.min_offset, stop - ENDED_MAX)
        for unit in itertools.islice(_units(txn, start), max(0, stop - start)):
            if unit.tags_code != wanted or (record := self._record(unit)) is None:
                continue
            decision = read_decision(record.body)
            if decision is not None and decision.outcome is not DecisionOutcome.PREPARED:
                self._decisions.ended(decision.transaction, record.log_offset)

    def _record(self, unit: Unit) -> StoredMessage | None:
        data = self._store.reader.record_at(unit.log_offset) if unit.size > 0 and not unit.is_fill else None
        try:
            return decode_record(data) if data is not None else None
        except RemoteProtocolError:
            return None

    def _where(self, log_offset: int) -> str:
        """Return where a record lies, for an administrator."""
        file = self._store.log.run.find(log_offset)
        at = f"{file.path} at byte {log_offset - file.start}" if file is not None else "the log"
        return f"the record in {at} (log offset {log_offset})"

    def _take_decision(self, record: StoredMessage) -> None:
        kind, names = record.properties.get(props.TAGS), set[str]()
        if kind == DECIDE:
            decision = read_decision(record.body)
            if decision is None:
                log.error(
                    "%s cannot be understood: it is a decision, and is passed over", self._where(record.log_offset)
                )
                return
            self._take(decision, record)
        elif kind in {DONE, FINISHED}:
            names.update(read_names(record.body))
        elif kind == FORGET:
            forgotten = read_forgotten(record.body)
            self._decisions.rows.pop(forgotten.row, None)
            dropped = self._known.pop(forgotten.transaction, None)
            if dropped is not None and dropped.decision.outcome is not DecisionOutcome.PREPARED:
                self._decisions.ended(forgotten.transaction, dropped.place)
                self._over.add(forgotten.transaction)
            self._forgotten[forgotten.transaction] = record.log_offset
        for name in names:
            if (known := self._known.get(name)) is not None:
                known.done = True
                known.finished = known.finished or kind == FINISHED
                self._let_go(name, known)

    def _take(self, decision: TransactionDecision, record: StoredMessage) -> None:
        before, progress = self._known.get(decision.transaction), record.properties.get(PROGRESS, "")
        # The first decision stands. It may follow a preparation, and its rewritten copy may follow it.
        if before is None or before.decision.outcome in {DecisionOutcome.PREPARED, decision.outcome}:
            known = _Known(decision, record.log_offset, LEARNED in record.properties)
            if before is not None and before.decision.outcome is decision.outcome:
                known.done, known.finished = before.done, before.finished
            known.done, known.finished = known.done or progress in {"1", "2"}, known.finished or progress == "2"
            self._known[decision.transaction] = known
            if not known.learned:
                self._decisions.move_row(decision, record.log_offset)
                self._decisions.moved(decision, record.log_offset)
            self._let_go(decision.transaction, known)

    def _let_go(self, name: str, known: _Known) -> None:
        """Drop a transaction that is over from the table, except for its id and its decision's place."""
        decision = known.decision
        if decision.outcome is DecisionOutcome.PREPARED or (
            decision.outcome is DecisionOutcome.COMMIT and not known.done
        ):
            return
        if decision.outcome is DecisionOutcome.ROLLBACK or known.finished or not self._others(known):
            self._decisions.ended(name, known.place)
            self._over.add(name)
            del self._known[name]

    def _others(self, known: _Known) -> tuple[str, ...]:
        """Return the brokers that have to confirm this coordinator's commit."""
        if known.learned or known.decision.outcome is not DecisionOutcome.COMMIT:
            return ()
        return tuple(sorted({part.broker for part in known.decision.parts} - {known.broker(self._name)}))

    def _decided(self, name: str, known: _Known, parts: dict[str, Part]) -> None:
        """Add a decided transaction, with its parts that may have to be applied."""
        decision = known.decision
        me = known.broker(self._name)
        here = [part.part for part in decision.parts if part.broker == me]
        committed = decision.outcome is DecisionOutcome.COMMIT
        transaction = Transaction(
            name,
            coordinator_of(name),
            parts=parts,
            bytes=sum(part.bytes for part in parts.values()),
            decision=decision,
            place=known.place,
            applied=known.done,
            unconfirmed=self._others(known),
            missing=tuple(part for part in here if part not in parts) if committed and not known.done else (),
            since_ms=min((part.since_ms for part in parts.values()), default=decision.decided_ms),
        )
        self._staged.add(transaction)
        if transaction.missing:
            log.error(
                "transaction %s is committed, and its parts %s are not in the log, or not whole: their messages are lost",
                name,
                ", ".join(transaction.missing),
            )
        if committed and not known.done:
            self.commits.append(transaction)

    # ------------------------------------------------------------------ parts

    def _take_staging(self, unit: Unit) -> None:
        record = self._store.reader.outline_at(unit.log_offset) if unit.size > 0 and not unit.is_fill else None
        staging = read_staging(record) if record is not None else None
        if staging is None:
            log.error(
                "%s cannot be understood: it is a chunk or a seal of a staged transaction, in queue 0 of topic %s, and is passed "
                "over", self._where(unit.log_offset), STAGE_TOPIC,
            )  # fmt: skip
            return
        known = self._known.get(staging.transaction)
        # Over or applied: nothing of it is needed.
        if staging.transaction in self._over or (known is not None and known.done):
            return
        # An administrator has dropped what came before that record.
        if staging.log_offset < self._forgotten.get(staging.transaction, -1):
            return
        found = self._found.setdefault(staging.transaction, {}).setdefault(staging.part, _Found())
        if staging.is_seal:
            found.seal = staging
        else:
            found.chunks[staging.number] = staging

    def _build(self, name: str, found: dict[str, _Found]) -> None:
        known = self._known.get(name)
        manifest = None
        if known is not None and known.decision.outcome is DecisionOutcome.COMMIT:
            me = known.broker(self._name)
            manifest = {part.part: part for part in known.decision.parts if part.broker == me}
        parts, any_chunk = dict[str, Part](), None
        for part_id, records in found.items():
            part = _part_of(part_id, records)
            if part is not None and (manifest is None or (part_id in manifest and part.fits(manifest[part_id]))):
                parts[part_id] = part
                any_chunk = records.chunks[0]
            elif manifest is None:
                # Of a decided transaction, other parts are leftovers of given-up attempts: no error.
                log.error(
                    "part %s of transaction %s is not whole in the log: it is dropped, and cannot be committed",
                    part_id,
                    name,
                )
        if known is not None:
            self._decided(name, known, parts)
            transaction = self._staged.get(name)
        elif any_chunk is not None:
            transaction = Transaction(
                name, coordinator_of(name), parts=parts, bytes=sum(part.bytes for part in parts.values())
            )
            self._staged.add(transaction)
        else:
            return
        if transaction is not None and any_chunk is not None:
            transaction.lifetime, transaction.seconds = any_chunk.lifetime, any_chunk.seconds
            transaction.since_ms = min(part.since_ms for part in parts.values())

    # ------------------------------------------------------------------ copies

    def _count_copies(self) -> None:
        """Count the applied messages of each commit: they name their chunks in the log."""
        marks = {
            copy_mark(place): (part, number)
            for transaction in self.commits
            for part in transaction.parts.values()
            for number, place in enumerate(part.places)
        }
        if not marks:
            return
        counts: dict[int, int] = {}
        # Messages of a commit lie behind its decision, so reading begins at the oldest decision.
        for head in self._store.reader.heads(min(transaction.place for transaction in self.commits)):
            if head.prepared_offset < 0 and (found := marks.get(head.prepared_offset)) is not None:
                part, _ = found
                if head.queue_id == part.queue_id and head.topic == part.topic.encode():
                    counts[head.prepared_offset] = counts.get(head.prepared_offset, 0) + 1
        for mark, count in counts.items():
            part, number = marks[mark]
            if number >= part.applied:
                # Chunks are applied in order, so the highest one found tells how far the part has come.
                whole = count >= part.counts[number]
                part.applied, part.entries = (number + 1, 0) if whole else (number, count)


def _part_of(part_id: str, found: _Found) -> Part | None:
    """Build a part from its records; None: chunks are missing."""
    count = len(found.chunks)
    # The numbers are distinct and none is below 0: so the highest one shows every gap.
    if not count or max(found.chunks) != count - 1:
        return None
    first, last = found.chunks[0], found.chunks[count - 1]
    part = Part(part_id, first.topic, first.queue_id, since_ms=first.since_ms)
    for number in range(count):
        chunk = found.chunks[number]
        part.add(chunk.log_offset, chunk.crc, chunk.body_bytes, chunk.rows)
    if last.seal is not None:
        part.seal = last.seal
    elif found.seal is not None:
        part.seal = found.seal.seal
    return part


def _units(queue: ConsumeQueue, start: int) -> Iterator[Unit]:
    """Return the units of a queue from an offset on."""
    start = max(start, queue.min_offset)
    while start < queue.max_offset and (units := queue.units(start, UNITS)):
        yield from units
        start += len(units)
