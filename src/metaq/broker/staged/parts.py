"""Open staged transactions and their parts in memory: log offsets and checksums of chunks, no bodies."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from metaq.broker.allowance import share_of
from metaq.broker.channel import Channel
from metaq.errors import Reason, Refused
from metaq.model.transactions.staging import (
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    PartState,
    TransactionDecision,
    part_crc,
)
from metaq.options import BrokerOptions

CHUNKS_MEAN: Final = 64
"""Chunks of all parts, per part of `stagedPartsMax`: each takes memory, however small it is."""
NAMED_MEAN: Final = 16
"""Parts (of any broker) named by all decisions that are not done, per part of `stagedPartsMax`."""
NOBODY: Final = ""
"""Peer of transactions found by recovery: the log does not say who staged them."""


# Arrays, with which the numbers of a chunk take 20 bytes in all.
def _places() -> array[int]:
    return array("q")


def _numbers() -> array[int]:
    return array("I")


class Part(Struct, eq=False):
    """Part of a transaction: its chunks for one queue."""

    part: str
    topic: str
    queue_id: int
    places: array[int] = field(default_factory=_places)
    """LogOffset of each chunk's record."""
    crcs: array[int] = field(default_factory=_numbers)
    sizes: array[int] = field(default_factory=_numbers)
    """Bytes of each chunk's body."""
    counts: array[int] = field(default_factory=_numbers)
    """Number of messages of each chunk."""
    rows: int = 0
    """Number of messages."""
    bytes: int = 0
    crc: int = 0
    seal: PartSeal | None = None
    since_ms: int = 0
    applied: int = 0
    """Chunks that are applied."""
    entries: int = 0
    """Applied messages of the next chunk: a crash or a full disk may leave some."""
    oldest: int = -1
    """Minimum of `places`."""

    @property
    def chunks(self) -> int:
        return len(self.places)

    @property
    def holds(self) -> PartSeal:
        """Seal that matches the chunks."""
        return PartSeal(len(self.places), self.rows, self.bytes, self.crc)

    @property
    def remaining(self) -> int:
        return len(self.places) - self.applied

    def add(self, place: int, crc: int, size: int, rows: int) -> None:
        """Add a chunk."""
        # Not simply the first: retention rewrites old chunks, which moves them to the log's end.
        if self.oldest < 0 or place < self.oldest:
            self.oldest = place
        self.places.append(place)
        self.crcs.append(crc)
        self.sizes.append(size)
        self.counts.append(rows)
        self.rows += rows
        self.bytes += size
        self.crc = part_crc(self.crc, crc)

    def state(self, lifetime: PartLifetime) -> PartState:
        return PartState(
            self.part,
            self.topic,
            self.queue_id,
            self.chunks,
            self.rows,
            self.bytes,
            self.seal is not None,
            lifetime,
            self.since_ms,
            self.applied,
        )

    def fits(self, named: ManifestPart) -> bool:
        """Return whether the part is complete and is the one in the manifest."""
        return self.topic == named.topic and self.queue_id == named.queue_id and named.seal == self.holds


class Transaction(Struct, eq=False):
    """Transaction that is not over, with its parts at this broker."""

    id: str
    coordinator: str
    lifetime: PartLifetime = PartLifetime.AGE
    seconds: int = 0
    since_ms: int = 0
    parts: dict[str, Part] = field(default_factory=dict)
    bytes: int = 0
    decision: TransactionDecision | None = None
    place: int = -1
    """LogOffset of its DECIDE record; -1: none."""
    applied: bool = False
    """Whether its parts here are applied, and a DONE record says so."""
    waiting: int = 0
    """Number of its parts that wait to be applied (`Applier`)."""
    unconfirmed: tuple[str, ...] = ()
    """At the coordinator: brokers that have not confirmed the commit."""
    missing: tuple[str, ...] = ()
    """Parts that the manifest names here, and that are missing."""
    peer: str = NOBODY
    channel: Channel | None = None
    """With PartLifetime.CONNECTION: the connection with which it ends."""

    @property
    def chunks(self) -> int:
        """Number of chunks of all its parts."""
        return sum([part.chunks for part in self.parts.values()])

    @property
    def final(self) -> bool:
        """Whether it is committed or rolled back."""
        return self.decision is not None and self.decision.outcome is not DecisionOutcome.PREPARED

    @property
    def committed(self) -> bool:
        return self.decision is not None and self.decision.outcome is DecisionOutcome.COMMIT

    @property
    def remaining(self) -> int:
        """Number of committed chunks that are not applied."""
        left = 0
        if self.committed:
            for part in self.parts.values():
                left += len(part.places) - part.applied
        return left

    @property
    def expires_ms(self) -> int | None:
        """Time of its automatic rollback, ms; None: there is none."""
        if self.decision is not None or self.lifetime is not PartLifetime.AGE:
            return None
        return self.since_ms + self.seconds * 1000

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest record that is needed for it; None: none."""
        # The decision is needed until everything is applied here and all participants have confirmed.
        found = [self.place] if self.place >= 0 and not (self.applied and not self.unconfirmed) else []
        if not self.applied:
            found += [part.oldest for part in self.parts.values()]
        return min(found, default=None)


class Staged:
    """All transactions that are not over, with their totals and limits."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self.table: dict[str, Transaction] = {}
        self.parts = self.chunks = self.named = 0
        self.bytes = 0
        self._peers: dict[str, int] = {}
        """Peer → number of parts."""

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self.table.values())

    def get(self, transaction: str) -> Transaction | None:
        return self.table.get(transaction)

    # ------------------------------------------------------------------ limits

    def check_room(self, transaction: Transaction | None, peer: str, parts: int, chunks: int, size: int) -> None:
        """Return if so many more parts, chunks and bytes are within the limits. Raises Refused: BUSY (may fit later), INVALID.

        A part counts for its transaction's peer; `peer`: that of a new transaction.
        """
        options = self._options
        if transaction is None:
            # Transactions are limited too, since each takes memory even without parts.
            self.check_count()
        else:
            peer = transaction.peer
        if self.chunks + chunks > CHUNKS_MEAN * options.staged_parts_max:
            raise Refused(
                Reason.BUSY,
                f"{self.chunks} chunks of staged transactions are open, the limit is {CHUNKS_MEAN} for each of "
                f"stagedPartsMax={options.staged_parts_max}: nothing was staged, commit or roll back some, and make larger chunks",
            )
        if parts:
            if self.parts + parts > options.staged_parts_max:
                raise Refused(
                    Reason.BUSY,
                    f"{self.parts} parts of staged transactions are open, the limit is {options.staged_parts_max} "
                    "(stagedPartsMax): nothing was staged, commit or roll back some",
                )
            share = share_of(options.staged_parts_max)
            if self._peers.get(peer, 0) + parts > share:
                raise Refused(
                    Reason.BUSY,
                    f"{self._peers.get(peer, 0)} parts of staged transactions of this client are open, the limit is {share} (a "
                    "quarter of stagedPartsMax): nothing was staged, commit or roll back some",
                )
        # INVALID, not BUSY: such a transaction will never fit, and waiting does not help.
        held = transaction.bytes if transaction else 0
        if held + size > options.staged_bytes_per_transaction_max:
            raise Refused(
                Reason.INVALID,
                f"the transaction has staged {held} bytes here, the limit is {options.staged_bytes_per_transaction_max} "
                "(stagedBytesPerTransactionMax): roll it back, and do with less",
            )
        if self.bytes + size > options.staged_bytes_max:
            raise Refused(
                Reason.BUSY,
                f"{self.bytes} bytes are staged, the limit is {options.staged_bytes_max} (stagedBytesMax): nothing was "
                "staged, commit or roll back some",
            )

    def check_count(self) -> None:
        """Return if one more transaction is within the limit, with parts here or without. Raises Refused BUSY."""
        limit = self._options.staged_parts_max
        if len(self.table) >= limit:
            raise Refused(
                Reason.BUSY,
                f"{len(self.table)} staged transactions are not over, the limit is {limit} (stagedPartsMax): commit or roll back "
                "some; those that wait for other brokers are over once these have answered (metaq transaction list)",
            )

    def check_named(self, decision: TransactionDecision, transaction: Transaction | None) -> None:
        """Return if a decision with so many parts is within the limit. Raises Refused BUSY."""
        before = transaction.decision.parts if transaction is not None and transaction.decision is not None else ()
        limit = NAMED_MEAN * self._options.staged_parts_max
        if self.named - len(before) + len(decision.parts) > limit:
            raise Refused(
                Reason.BUSY,
                f"the decision of transaction {decision.transaction} names {len(decision.parts)} parts, and those that are not "
                f"done name {self.named}; the limit is {limit}, {NAMED_MEAN} for each of stagedPartsMax: nothing was decided, try "
                "again when others are done",
            )

    # ------------------------------------------------------------------ changes

    def decided(self, transaction: Transaction, decision: TransactionDecision, place: int) -> None:
        """Set a transaction's decision, stored at this LogOffset."""
        # Others are counted by `add`, with their decision.
        if transaction.id in self.table:
            before = transaction.decision
            self.named += len(decision.parts) - (len(before.parts) if before is not None else 0)
        transaction.decision, transaction.place = decision, place

    def adopt(self, transaction: Transaction, peer: str) -> None:
        """Count a transaction found by recovery for the peer that stages more of it."""
        if transaction.peer == NOBODY:
            transaction.peer = peer
            if peer != NOBODY and transaction.parts:
                self._peers[peer] = self._peers.get(peer, 0) + len(transaction.parts)

    def add(self, transaction: Transaction) -> None:
        self.table[transaction.id] = transaction
        self.named += len(transaction.decision.parts) if transaction.decision is not None else 0
        self._count(transaction, len(transaction.parts), transaction.bytes, transaction.chunks)

    def add_part(self, transaction: Transaction, part: Part) -> None:
        transaction.parts[part.part] = part
        self._count(transaction, 1, part.bytes, part.chunks)
        transaction.bytes += part.bytes

    def grew(self, transaction: Transaction, size: int) -> None:
        """Count one more chunk of so many bytes."""
        transaction.bytes += size
        self.bytes += size
        self.chunks += 1

    def drop_part(self, transaction: Transaction, part: str) -> None:
        gone = transaction.parts.pop(part)
        transaction.bytes -= gone.bytes
        self._count(transaction, -1, -gone.bytes, -gone.chunks)

    def drop(self, transaction: Transaction) -> None:
        """Remove a transaction with its parts."""
        if self.table.pop(transaction.id, None) is not None:
            self.named -= len(transaction.decision.parts) if transaction.decision is not None else 0
            self._count(transaction, -len(transaction.parts), -transaction.bytes, -transaction.chunks)

    def _count(self, transaction: Transaction, parts: int, size: int, chunks: int) -> None:
        self.chunks += chunks
        self.parts += parts
        self.bytes += size
        if transaction.peer != NOBODY and parts:
            count = self._peers.get(transaction.peer, 0) + parts
            if count:
                self._peers[transaction.peer] = count
            else:
                self._peers.pop(transaction.peer, None)


class NewChunks(Struct):
    """Chunks of one part in a request that are to be stored."""

    base: Part | None
    """The part so far; None: it is new."""
    topic: str
    queue_id: int
    chunks: list[Chunk] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Number of messages of each chunk."""

    @property
    def count(self) -> int:
        """Number of chunks including the new ones."""
        return (self.base.chunks if self.base else 0) + len(self.chunks)

    def holds(self) -> PartSeal:
        """Return the seal that matches the part with the new chunks."""
        crc = self.base.crc if self.base else 0
        for more in self.crcs:
            crc = part_crc(crc, more)
        rows, size = (self.base.rows, self.base.bytes) if self.base else (0, 0)
        return PartSeal(self.count, rows + sum(self.counts), size + sum(len(chunk.body) for chunk in self.chunks), crc)


def is_next(new: NewChunks, chunk: Chunk, crc: int) -> bool:
    """Return whether a chunk is the next one of its part; False: it is stored already, so a repeated request is harmless.

    Raises Refused INVALID: a gap, other content under the same number, another queue, or a sealed part.
    """
    part = new.base
    if part is None and chunk.number == 0 and not new.chunks:
        return True
    where = f"chunk {chunk.number} of part {chunk.part}"
    if (new.topic, new.queue_id) != (chunk.topic, chunk.queue_id):
        raise Refused(
            Reason.INVALID,
            f"{where} is for queue {chunk.queue_id} of topic {chunk.topic}, and the part for queue {new.queue_id} of {new.topic}",
        )
    if part is not None and 0 <= chunk.number < part.chunks:
        # By checksum: bodies are in the log only.
        if (part.crcs[chunk.number], part.sizes[chunk.number]) != (crc, len(chunk.body)):
            raise Refused(Reason.INVALID, f"{where} was staged before, with other content")
        return False
    if chunk.number != new.count:
        raise Refused(
            Reason.INVALID,
            f"{where} leaves a gap, or comes twice: {new.count} chunks are there, chunk {new.count} is the next one",
        )
    if part is not None and part.seal is not None:
        raise Refused(Reason.INVALID, f"{where} comes after the part's seal, at {part.seal.chunks} chunks")
    if new.chunks and new.chunks[-1].seal is not None:
        raise Refused(Reason.INVALID, f"{where} comes after the part's seal")
    return True


def check_seal(part_id: str, said: PartSeal, found: PartSeal) -> None:
    """Return if a seal matches what the part holds. Raises Refused INVALID."""
    if said != found:
        raise Refused(
            Reason.INVALID,
            f"the seal of part {part_id} says {_words(said)}, and it holds {_words(found)}: it was not sealed",
        )


def _words(seal: PartSeal) -> str:
    return f"{seal.chunks} chunks, {seal.rows} messages, {seal.bytes} bytes, CRC {seal.crc:08x}"
