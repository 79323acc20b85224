"""Reads the staged transactions of a store folder offline, and checks that their records fit together.

The records alone count (docs/formats/staging.md): chunks and seals in one system topic, decisions in the other, copies of
chunks in the queues that they name. The state is derived by other code than a broker's, so that one checks the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from metaq.errors import BadRequest
from metaq.model import StoredMessage
from metaq.model.transactions.staging import DecisionOutcome, PartSeal, TransactionDecision, chunk_crc, part_crc
from metaq.store.offline.reader import StoreReader
from metaq.wire.record import copied_from, decode_batch

STAGE_TOPIC: Final = "rmq_sys_METAQ_STAGE"
DECISIONS_TOPIC: Final = "rmq_sys_METAQ_TXN"
_TRANSACTION, _PART, _NUMBER, _SEAL = "METAQ_TX", "METAQ_PART", "METAQ_CHUNK", "METAQ_SEAL"
_TOPIC, _QUEUE, _PROGRESS = "REAL_TOPIC", "REAL_QID", "METAQ_DONE"
_CHUNK_TAG, _DECIDE_TAG, _FORGET_TAG = "chunk", "decide", "forget"
_DONE_TAGS = {"done", "finished"}
"""Tags of marks: all parts here are applied, or all parts at all brokers."""

_decision_of = msgspec.json.Decoder(TransactionDecision)


class StagedRecord(Struct, frozen=True):
    """A decoded record of one of the two system topics."""

    kind: str
    """Its tag: chunk, seal, decide, done, finished, forget, checkpoint."""
    transaction: str = ""
    part: str = ""
    number: int = -1
    """Of a chunk in its part."""
    topic: str = ""
    queue_id: int = -1
    seal: PartSeal | None = None
    rows: tuple[tuple[int, bytes, bytes], ...] = ()
    """Of a chunk: (flag, body, property text) of each message."""
    decision: TransactionDecision | None = None
    done: bool = False
    """Of a decision that was written anew for retention: it was carried out here before."""
    value: Any = None
    """JSON of the others."""
    problem: str = ""
    """Why the record cannot be decoded."""


class Chunk(Struct):
    """A chunk, in its newest generation."""

    rows: int
    bytes: int
    crc: int
    row_crcs: tuple[int, ...]
    """Of the messages' bodies."""
    copies: dict[int, int] = field(default_factory=dict)
    """Queue offset → CRC of the body of each copy."""


class Part(Struct):
    """A part of a transaction, as far as the folder has it."""

    part: str
    topic: str
    queue_id: int
    chunks: dict[int, Chunk] = field(default_factory=dict)
    seal: PartSeal | None = None

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks.values())

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks.values())

    @property
    def copies(self) -> int:
        return sum(len(chunk.copies) for chunk in self.chunks.values())


class Transaction(Struct):
    """A transaction, as far as the folder has it."""

    transaction: str
    parts: dict[str, Part] = field(default_factory=dict)
    decision: TransactionDecision | None = None
    done: bool = False
    """The broker has marked that all its parts here are applied or dropped."""
    forgotten: bool = False
    """An operator has dropped the transaction."""
    problems: list[str] = field(default_factory=list)

    def drops(self, part: str) -> bool:
        """Whether it commits without this part: one of a Spark task that was lost, say, whose rows another task sent again."""
        decision = self.decision
        return (
            decision is not None
            and decision.outcome is DecisionOutcome.COMMIT
            and all(named.part != part for named in decision.parts)
        )

    @property
    def phase(self) -> str:
        if self.forgotten:
            return "forgotten"
        if self.decision is None:
            return "open"
        if self.decision.outcome is not DecisionOutcome.COMMIT:
            return "prepared" if self.decision.outcome is DecisionOutcome.PREPARED else "rolled back"
        return "committed" if self.done else "committing"


def staged_record(message: StoredMessage) -> StagedRecord | None:
    """Decode a record of staged transactions; None if it is of another topic."""
    if message.topic not in {STAGE_TOPIC, DECISIONS_TOPIC}:
        return None
    kind = message.tag or ""
    try:
        if message.topic == STAGE_TOPIC:
            return _staged(kind, message)
        if kind == _DECIDE_TAG:
            decision = _decision_of.decode(message.body)
            done = _PROGRESS in message.properties
            return StagedRecord(kind, transaction=decision.transaction, decision=decision, done=done)
        return StagedRecord(kind, value=msgspec.json.decode(message.body))
    except (BadRequest, KeyError, ValueError, TypeError, RecursionError) as error:  # msgspec's are ValueErrors
        what = f"no property {error}" if isinstance(error, KeyError) else str(error)[:200]
        return StagedRecord(kind, problem=f"the record at log offset {message.log_offset} cannot be read: {what}")


def _staged(kind: str, message: StoredMessage) -> StagedRecord:
    pairs = message.properties
    seal = PartSeal(*(int(number) for number in pairs[_SEAL].split(" "))) if _SEAL in pairs else None
    return StagedRecord(
        kind, transaction=pairs[_TRANSACTION], part=pairs[_PART], number=int(pairs.get(_NUMBER, -1)),
        topic=pairs[_TOPIC], queue_id=int(pairs[_QUEUE]), seal=seal,
        rows=tuple(decode_batch(message.body)) if kind == _CHUNK_TAG else (),
    )  # fmt: skip


class StagedSurvey:
    """All staged transactions of a folder. `problems`: records that cannot be decoded, so that their transaction is unknown."""

    def __init__(self, reader: StoreReader) -> None:
        """Reads the whole log. Raises StoreCorrupt: a log file is missing between two others."""
        self.transactions: dict[str, Transaction] = {}
        self.problems: list[str] = []
        self._chunk_at: dict[int, tuple[str, str, int]] = {}
        """Log offset of any generation of a chunk → transaction, part, number."""
        self._begin = reader.files()[0][0] if reader.files() else 0
        for message in reader.records():
            self._take(message)
        for transaction in self.transactions.values():
            transaction.problems += self._judged(transaction)

    def _take(self, message: StoredMessage) -> None:
        record = staged_record(message)
        if record is None:
            origin = copied_from(message.prepared_offset)
            if origin in self._chunk_at:
                self._take_copy(message, self._chunk_at[origin])
        elif record.problem:
            self.problems.append(record.problem)
        elif record.kind in _DONE_TAGS and isinstance(record.value, list):
            for name in record.value:
                self._transaction(str(name)).done = True
        elif record.kind == _FORGET_TAG and isinstance(record.value, dict):
            if (gone := self.transactions.get(str(record.value.get("transaction")))) is not None:
                gone.forgotten = True
        elif record.decision is not None:
            self._take_decision(record.decision)
            self._transaction(record.transaction).done |= record.done
        elif message.topic == STAGE_TOPIC:
            self._take_staged(record, message)

    def _transaction(self, name: str) -> Transaction:
        return self.transactions.setdefault(name, Transaction(name))

    def _take_decision(self, decision: TransactionDecision) -> None:
        transaction = self._transaction(decision.transaction)
        before = transaction.decision
        if before is None or before.outcome is DecisionOutcome.PREPARED:
            transaction.decision = decision
        elif decision.outcome not in {before.outcome, DecisionOutcome.PREPARED}:
            transaction.problems.append(f"decided {before.outcome.value} first, and {decision.outcome.value} later")

    def _take_staged(self, record: StagedRecord, message: StoredMessage) -> None:
        transaction = self._transaction(record.transaction)
        if transaction.forgotten:  # its writer begins anew
            transaction.forgotten, transaction.parts = False, {}
            self._chunk_at = {place: key for place, key in self._chunk_at.items() if key[0] != record.transaction}
        part = transaction.parts.setdefault(record.part, Part(record.part, record.topic, record.queue_id))
        if (part.topic, part.queue_id) != (record.topic, record.queue_id):
            transaction.problems.append(
                f"part {part.part} is for {part.topic}:{part.queue_id}, and a record of it for {record.topic}:{record.queue_id}"
            )
        part.seal = record.seal or part.seal
        if record.kind != _CHUNK_TAG:
            return
        key = record.transaction, record.part, record.number
        older = copied_from(message.prepared_offset)
        for place in (message.log_offset, *([older] if older is not None else ())):
            self._chunk_at[place] = key
        crc = chunk_crc(message.body)
        known = part.chunks.get(record.number)
        if known is None:
            crcs = tuple(zlib.crc32(body) for _, body, _ in record.rows)
            part.chunks[record.number] = Chunk(len(crcs), len(message.body), crc, crcs)
        elif known.crc != crc:
            transaction.problems.append(f"chunk {record.number} of part {part.part} is there with two contents")

    def _take_copy(self, message: StoredMessage, key: tuple[str, str, int]) -> None:
        name, part_name, number = key
        transaction = self._transaction(name)
        part = transaction.parts.get(part_name)
        if transaction.forgotten or part is None or number not in part.chunks:
            return
        where = f"a copy of chunk {number} of part {part_name} in {message.topic}:{message.queue_id} at {message.queue_offset}"
        if (message.topic, message.queue_id) != (part.topic, part.queue_id):
            transaction.problems.append(f"{where} belongs into {part.topic}:{part.queue_id}")
        elif transaction.decision is None or transaction.decision.outcome is not DecisionOutcome.COMMIT:
            transaction.problems.append(f"{where} of a transaction that is {transaction.phase}")
        else:
            part.chunks[number].copies[message.queue_offset] = zlib.crc32(message.body)

    def _judged(self, transaction: Transaction) -> Iterator[str]:
        for part in transaction.parts.values():
            yield from _judged_seal(part, complete=self._begin == 0)
            if transaction.drops(part.part):
                if part.copies:
                    yield f"part {part.part} has {part.copies} copies, and the decision does not name it"
                continue
            for number, chunk in part.chunks.items():
                found = tuple(chunk.copies[offset] for offset in sorted(chunk.copies))
                if found != chunk.row_crcs[: len(found)]:
                    yield f"the {len(found)} copies of chunk {number} of part {part.part} are not its {chunk.rows} messages"
                elif transaction.done and transaction.phase == "committed" and len(found) < chunk.rows:
                    yield f"chunk {number} of part {part.part} has {len(found)} copies of {chunk.rows}, and counts as applied"
            offsets = sorted(offset for chunk in part.chunks.values() for offset in chunk.copies)
            if offsets and offsets[-1] - offsets[0] + 1 != len(offsets):
                yield f"something lies between the copies of part {part.part} in {part.topic}:{part.queue_id}"
        if transaction.decision is not None and transaction.decision.outcome is DecisionOutcome.COMMIT:
            for named in transaction.decision.parts:
                mine = transaction.parts.get(named.part)
                if mine and (mine.topic, mine.queue_id, mine.seal) != (named.topic, named.queue_id, named.seal):
                    yield f"part {named.part} is not what the decision says of it"


def _judged_seal(part: Part, *, complete: bool) -> Iterator[str]:
    numbers = sorted(part.chunks)
    if numbers != list(range(len(numbers))):
        if complete:
            yield f"part {part.part} has the chunks {numbers}"
        return
    if part.seal is None or not complete:
        return
    crc = 0
    for number in numbers:
        crc = part_crc(crc, part.chunks[number].crc)
    found = PartSeal(len(numbers), part.rows, part.bytes, crc)
    if found != part.seal:
        yield f"part {part.part} holds {found}, and is sealed with {part.seal}"
