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
"""Of the unique part of a transaction's id, of a part's id and of a row's key."""
BROKER_NAME_CHARS_MAX: Final = 127
CHUNK_BYTES_MAX: Final = 1 << 20
"""Of the body of a chunk with several messages, which is the body of a batch (docs/formats/batch.md). What is put into a
queue in one go is to be little. A chunk of one message has no such limit: its message has that of any send, maxMessageSize."""

_NAME = re.compile(r"[A-Za-z0-9_.:%-]+\Z")


def transaction_id(unique: str, coordinator: str) -> str:
    """The id of a transaction that the broker `coordinator` decides. Raises Refused INVALID: a name that cannot be in one."""
    _check(unique, "the transaction id")
    _check_broker(coordinator)
    return f"{unique}@{coordinator}"


def coordinator_of(transaction: str) -> str:
    """The name of the broker that decides a transaction. Raises Refused INVALID: this is no id of a transaction."""
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
    """Of a chunk: what its record's BODYCRC holds."""
    return zlib.crc32(body) & 0x7FFFFFFF


def part_crc(crcs_before: int, crc: int) -> int:
    """The CRC of a part with one more chunk: `crcs_before` is that of the chunks before it, 0 for none; `crc` its own."""
    return zlib.crc32(crc.to_bytes(4, "big"), crcs_before)


class Outcome(enum.Enum):
    """What was decided. PREPARED is not the end: a commit or a rollback follows, however late."""

    PREPARED = "prepared"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class Lifetime(enum.Enum):
    """When the parts of an undecided transaction are rolled back without anybody's word."""

    AGE = "a"
    """After so many seconds."""
    CONNECTION = "c"
    """When the connection ends that staged them, and at the broker's start."""
    PREPARED = "p"
    """Never."""


class Phase(enum.Enum):
    """How far a transaction has come, as the asked broker knows it."""

    UNKNOWN = "unknown"
    """Nothing of it is known: it never was, or is over for so long that it is forgotten."""
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTING = "committing"
    """Decided; not everything is where it belongs yet."""
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Seal(Struct, frozen=True):
    """What a part holds, said by its writer."""

    chunks: int
    rows: int
    """Messages."""
    bytes: int
    """Of all its chunks' bodies."""
    crc: int
    """See `part_crc`."""


class Chunk(Struct, frozen=True):
    """A run of messages for one queue, to be seen once their transaction is committed."""

    part: str
    number: int
    """In its part, from 0."""
    topic: str
    queue_id: int
    body: bytes
    """A batch (docs/formats/batch.md)."""
    seal: Seal | None = None
    """The part ends with this chunk, and this is all of it."""
    of_partition: bool = False
    """From a client of MetaQ 1.x: the topic, which is there, may have a name that is legal there only. No other client can say
    so."""


class ManifestPart(Struct, frozen=True):
    """A part that a decision is about."""

    broker: str
    part: str
    topic: str
    queue_id: int
    seal: Seal


class Decision(Struct, frozen=True):
    """The end of a transaction, or that it is prepared. The first end stands."""

    transaction: str
    outcome: Outcome
    parts: tuple[ManifestPart, ...] = ()
    """Of all brokers. A rollback may name none: everything of the transaction is dropped."""
    row: str = ""
    """Key of the row that it moves on; empty for none."""
    sequence: int = -1
    decided_ms: int = 0
    label: str | UnsetType = UNSET
    """What whoever prepared it calls it; unset: nothing."""


class PartState(Struct, frozen=True):
    """A part as its broker holds it."""

    part: str
    topic: str
    queue_id: int
    chunks: int
    """That are staged."""
    rows: int
    bytes: int
    sealed: bool
    lifetime: Lifetime
    staged_ms: int
    """When its first chunk came, milliseconds."""
    applied_chunks: int = 0


class TransactionState(Struct, frozen=True):
    """What one broker knows of a transaction."""

    transaction: str
    phase: Phase
    decision: Decision | None = None
    parts: tuple[PartState, ...] = ()
    """That it holds."""
    remaining: int = 0
    """Chunks that are committed and not yet where they belong, here."""
    missing: tuple[str, ...] = ()
    """Parts that the manifest says are here, and are not."""
    unconfirmed: tuple[str, ...] = ()
    """At the coordinator: the brokers that have not said yet that they have applied the decision."""


class RowState(Struct, frozen=True):
    """What a coordinator remembers of a writer."""

    key: str
    sequence: int
    transaction: str
    phase: Phase


class Staged(Struct, frozen=True):
    """What became of chunks, and of the decision that came with them."""

    decision: Decision | None = None
    first: bool = True
    """As in `Decided`."""
    remaining: int = 0


class Decided(Struct, frozen=True):
    """The decision that stands: of this request, or of an earlier one, which may say otherwise.

    It is that of another transaction if the request's row had come to its sequence number before.
    """

    decision: Decision
    first: bool
    """It is this request that decided."""
    remaining: int = 0
    """Chunks that are committed and not yet where they belong, here."""
