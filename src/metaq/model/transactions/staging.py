"""Staged transactions: several messages in several queues of several brokers, all or none (docs/formats/staging.md).

A *transaction* has *parts*, each a run of *chunks* for one queue of one broker. A *seal* says what a part holds. One
*decision*, with the *manifest* of all parts, is the commit or the rollback; the broker that the transaction's id names is
its *coordinator* and the only one that decides, all brokers with parts of it are *participants*. A coordinator remembers
one *row* of each writer that wants it: the last transaction and its sequence number.
"""

from __future__ import annotations

import enum
import re
import zlib
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from metaq.errors import Reason, Refused

NAME_CHARS_MAX: Final = 100
"""Most characters of the unique part of a transaction's id, of a part's id and of a row's key."""
BROKER_NAME_CHARS_MAX: Final = 127
CHUNK_BYTES_MAX: Final = 1 << 20
"""Largest body of a chunk with several messages (a batch, docs/formats/batch.md): little is put into a queue in one go.
A chunk of one message is limited by maxMessageSize, as any send."""

# No `@`, which stands before the coordinator's name in an id.
_NAME = re.compile(r"[A-Za-z0-9_.:%-]+\Z")


def transaction_id(unique: str, coordinator: str) -> str:
    """Return the id of a transaction that the broker `coordinator` decides. Raises Refused INVALID: a name that no id
    can have."""
    _check(unique, "the transaction id")
    _check_broker(coordinator)
    return f"{unique}@{coordinator}"


def coordinator_of(transaction: str) -> str:
    """Return the name of the broker that decides a transaction. Raises Refused INVALID: no id of a transaction."""
    unique, found, coordinator = transaction.partition("@")
    if not found:
        raise Refused(
            Reason.INVALID,
            f"the transaction id {transaction[:120]!r} does not name its coordinator: UNIQUE@BROKER is wanted",
        )
    _check(unique, "the transaction id")
    return _check_broker(coordinator)


def check_part(part: str) -> str:
    """Return `part` if it may be the id of a part. Raises Refused INVALID."""
    return _check(part, "the part id")


def check_row(key: str) -> str:
    """Return `key` if it may be the key of a coordinator's row. Raises Refused INVALID."""
    return _check(key, "the row's key")


def _check(name: str, what: str) -> str:
    if len(name) > NAME_CHARS_MAX or not _NAME.match(name):
        raise Refused(
            Reason.INVALID, f"{what} {name[:120]!r} is not 1 to {NAME_CHARS_MAX} characters of [A-Za-z0-9_.:%-]"
        )
    return name


def _check_broker(name: str) -> str:
    if not 1 <= len(name) <= BROKER_NAME_CHARS_MAX or not name.isprintable() or {"@", " "} & set(name):
        raise Refused(Reason.INVALID, f"{name[:120]!r} in a transaction id cannot be the name of a broker")
    return name


def chunk_crc(body: bytes | memoryview) -> int:
    """Return the CRC of a chunk, as BODYCRC of its record has it."""
    return zlib.crc32(body) & 0x7FFFFFFF


def part_crc(crcs_before: int, crc: int) -> int:
    """Return the CRC of a part with one more chunk: `crcs_before` of the chunks before it (0 without any), `crc` of
    this one."""
    return zlib.crc32(crc.to_bytes(4, "big"), crcs_before)


class DecisionOutcome(enum.Enum):
    """Outcome of a decision. PREPARED is not the end: a commit or a rollback follows, however late."""

    PREPARED = "prepared"
    """All of it is stored, and waits for a commit or a rollback."""
    COMMIT = "commit"
    """All its messages are delivered."""
    ROLLBACK = "rollback"
    """None of its messages is delivered."""


class PartLifetime(enum.Enum):
    """When the parts of an undecided transaction are rolled back by the broker itself."""

    AGE = "a"
    """After a number of seconds."""
    CONNECTION = "c"
    """At the end of the connection that staged them, and at the broker's start."""
    PREPARED = "p"
    """Never."""


class Phase(enum.Enum):
    """Phase of a transaction, as far as the asked broker knows."""

    UNKNOWN = "unknown"
    """Not known: it never began, or ended so long ago that it is forgotten."""
    OPEN = "open"
    """Messages of it are staged, nothing is decided; brokers roll it back when its time is up."""
    PREPARED = "prepared"
    """Everything is stored, nothing is decided; it waits for that without a limit."""
    COMMITTING = "committing"
    """Decided; not all its messages are in their queues yet."""
    COMMITTED = "committed"
    """Committed, and all its messages are in their queues."""
    ROLLED_BACK = "rolled back"
    """Rolled back: none of its messages was delivered."""


class PartSeal(Struct, frozen=True):
    """Content of a part, as its writer counts it: brokers compare it with what they have."""

    chunks: int
    """Number of its chunks."""
    rows: int
    """Number of messages."""
    bytes: int
    """Bytes of all its chunks' bodies."""
    crc: int
    """CRC of its chunks (`part_crc`)."""


class Chunk(Struct, frozen=True):
    """A run of messages for one queue, delivered once their transaction is committed."""

    part: str
    number: int
    """Number in its part, from 0."""
    topic: str
    queue_id: int
    body: bytes
    """A batch (docs/formats/batch.md)."""
    seal: PartSeal | None = None
    """Seal of the part if it ends with this chunk."""
    of_partition: bool = False
    """From a client of MetaQ 1.x: the name of the topic, which exists, may be legal there only. Not settable over the
    wire."""


class ManifestPart(Struct, frozen=True):
    """A part of a transaction, as a decision names it."""

    broker: str
    """Name of the broker that has it."""
    part: str
    """Its id in the transaction."""
    topic: str
    """The topic of its messages."""
    queue_id: int
    """Their queue."""
    seal: PartSeal
    """Its content, as its writer counted it."""


class TransactionDecision(Struct, frozen=True):
    """Decision about a transaction: its end, or that it is prepared. The first end stands."""

    transaction: str
    """Id of the transaction."""
    outcome: DecisionOutcome
    """How it ends, or that it is prepared."""
    parts: tuple[ManifestPart, ...] = ()
    """Parts at all brokers. A rollback may name none: everything of the transaction is dropped."""
    row: str = ""
    """Key of the row that it advances to `sequence`; empty for none."""
    sequence: int = -1
    """Number that the row has reached with it; -1: it has no row."""
    decided_ms: int = 0
    """When it was decided, ms since 1970, by the coordinator's clock."""
    label: str | UnsetType = UNSET
    """Name given at the preparation; unset without one."""


class PartState(Struct, frozen=True):
    """A part as its broker holds it."""

    part: str
    """Its id in the transaction."""
    topic: str
    """The topic of its messages."""
    queue_id: int
    """Their queue."""
    chunks: int
    """Number of staged chunks."""
    rows: int
    """Number of messages in these."""
    bytes: int
    """Bytes of the chunks' bodies."""
    sealed: bool
    """Whether its writer has ended it: no chunk follows."""
    lifetime: PartLifetime
    """When the broker rolls it back by itself if nobody decides."""
    staged_ms: int
    """Time of its first chunk, ms."""
    applied_chunks: int = 0
    """Chunks whose messages are in their queue."""


class TransactionState(Struct, frozen=True):
    """State of a transaction at one broker."""

    transaction: str
    """Id of the transaction."""
    phase: Phase
    """Its phase, as far as this broker knows."""
    decision: TransactionDecision | None = None
    """The decision; None: there is none, or this broker does not know it."""
    parts: tuple[PartState, ...] = ()
    """Parts at this broker."""
    remaining: int = 0
    """Committed chunks here that are not in their queue yet."""
    missing: tuple[str, ...] = ()
    """Parts that the manifest has at this broker, and that are not here."""
    unconfirmed: tuple[str, ...] = ()
    """At the coordinator: brokers that have not confirmed yet that they have applied the decision."""


class TransactionRow(Struct, frozen=True):
    """A coordinator's row of a writer: its last transaction."""

    key: str
    """The key that the writer gave it."""
    sequence: int
    """Number of the last transaction, which each one raises."""
    transaction: str
    """Id of the last transaction."""
    phase: Phase
    """Phase of that."""


class Staged(Struct, frozen=True):
    """Outcome of STAGE: the decision that came with the chunks, if any."""

    decision: TransactionDecision | None = None
    first: bool = True
    """As in `Decided`."""
    remaining: int = 0


class Decided(Struct, frozen=True):
    """Outcome of DECIDE: the decision that stands, of this request or of an earlier one, which may differ.

    It is that of another transaction if the row had reached the sequence number before.
    """

    decision: TransactionDecision
    first: bool
    """This request decided."""
    remaining: int = 0
    """Committed chunks here that are not in their queue yet."""
