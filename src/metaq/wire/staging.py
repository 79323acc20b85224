"""Bodies of staged transactions (docs/formats/staging.md).

The body of STAGE (30000) is a run of *sections*, so that one request stages and ends several small parts, and decides a
transaction whose parts all lie at one broker:

    0              4      5      6      7      8            12           16
    ├──────────────┼──────┼──────┼──────┼──────┼────────────┼────────────┤
    │ section size │ kind │ p    │ t    │ 0    │ queue id   │ number     │ seal (20, kind 2) │ part (p) │ topic (t) │ batch
    └──────────────┴──────┴──────┴──────┴──────┴────────────┴────────────┘

The other bodies are JSON: the values of `metaq.model.transactions.staging` as they are. For a body X, `x(...)` encodes
and `x_of(body)` decodes; what cannot be read raises BadRequest. Whether ids, queues and manifests make sense is the
broker's to judge.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from metaq.errors import BadRequest, LocalProtocolError
from metaq.model.transactions.metaq1 import BranchState
from metaq.model.transactions.staging import (
    Chunk,
    Decided,
    DecisionOutcome,
    ManifestPart,
    PartSeal,
    Staged,
    TransactionDecision,
    TransactionRow,
    TransactionState,
)

CHUNK: Final = 1
LAST_CHUNK: Final = 2
"""A chunk that ends its part: its section has a seal."""
DECISION: Final = 3
"""The body's last section: the decision, as in the body of DECIDE."""

SECTIONS_MAX: Final = 1024
"""Most sections in one body."""

LIST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size at which a list ends, with the entry that reaches it; the client asks for more behind that one."""

_HEAD = struct.Struct(">IBBBxiI")
_SEAL = struct.Struct(">IIQI")
_HEAD_BYTES, _SEAL_BYTES = _HEAD.size, _SEAL.size
_unpack_head, _unpack_seal = _HEAD.unpack_from, _SEAL.unpack_from
_CHUNKS: Final = frozenset({CHUNK, LAST_CHUNK})
# Slices of bytes are made faster than those of a view; larger bodies would cost more by being copied twice.
_COPIED_MAX: Final = 256 * 1024
_INT_MAX, _LONG_MAX, _CRC_MAX = (1 << 31) - 1, (1 << 63) - 1, (1 << 32) - 1

V = TypeVar("V")


class DecideBody(Struct, frozen=True):
    """Body of DECIDE (30002): the outcome of a transaction and its manifest."""

    outcome: DecisionOutcome
    parts: tuple[ManifestPart, ...] | None = None
    """Parts at all brokers. None: those of the preparation; with a rollback, all that are staged."""
    row: str = ""
    """Key of the writer's row, empty for none."""
    sequence: int = -1
    """Sequence number of this transaction in that row."""


class ApplyBody(Struct, frozen=True):
    """Body of APPLY (30003), empty if both are missing."""

    decision: TransactionDecision | None = None
    """For a participant: the coordinator's decision."""
    confirmed: tuple[str, ...] = ()
    """For the coordinator: brokers that told the client that they have applied all of it."""


_NOTHING_MORE = ApplyBody()


def sections(chunks: Iterable[Chunk], decide: DecideBody | None = None) -> bytes:
    """Encode STAGE (30000). Raises LocalProtocolError: a name or number that does not fit a section."""
    pieces: list[bytes] = []
    for chunk in chunks:
        pieces += _chunk(chunk)
    if decide is not None:
        text = decide_body(decide)
        pieces += (_HEAD.pack(_HEAD.size + len(text), DECISION, 0, 0, 0, 0), text)
    return b"".join(pieces)


def _chunk(chunk: Chunk) -> tuple[bytes, ...]:
    part, topic, seal = chunk.part.encode(), chunk.topic.encode(), chunk.seal
    try:
        end = b"" if seal is None else _SEAL.pack(seal.chunks, seal.rows, seal.bytes, seal.crc)
        size = _HEAD.size + len(end) + len(part) + len(topic) + len(chunk.body)
        kind = CHUNK if seal is None else LAST_CHUNK
        head = _HEAD.pack(size, kind, len(part), len(topic), chunk.queue_id, chunk.number)
    except struct.error as error:
        where = f"chunk {chunk.number} of part {chunk.part:.100} for {chunk.topic:.127}:{chunk.queue_id}"
        raise LocalProtocolError(f"{where} cannot be staged: {error}") from None
    return head, end, part, topic, chunk.body


def sections_of(body: bytes | memoryview) -> tuple[tuple[Chunk, ...], DecideBody | None]:
    """Decode STAGE: its chunks, and the decision if there is one. Raises BadRequest."""
    data = bytes(body) if len(body) <= _COPIED_MAX else body
    chunks, at, total, decide = list[Chunk](), 0, len(data), None
    while at < total:
        if decide is not None:
            raise BadRequest("a section follows the decision, which is to be the last one")
        # Each chunk is a record and a judgement: one request must not hold the event loop for long.
        if len(chunks) == SECTIONS_MAX:
            raise BadRequest(f"more than {SECTIONS_MAX} chunks in one request: send them in several")
        names_at = at + _HEAD_BYTES
        if names_at > total:
            raise BadRequest(f"the body ends within the head of a section at byte {at}")
        size, kind, part_bytes, topic_bytes, queue_id, number = _unpack_head(data, at)
        end, seal_at = at + size, names_at
        if kind == LAST_CHUNK:
            names_at += _SEAL_BYTES
        topic_at = names_at + part_bytes
        body_at = topic_at + topic_bytes
        if body_at > end or end > total:
            raise BadRequest(f"the section at byte {at} says that it has {size} bytes, which cannot be")
        if kind in _CHUNKS:
            try:
                part, topic = str(data[names_at:topic_at], "utf-8"), str(data[topic_at:body_at], "utf-8")
            except UnicodeDecodeError:
                raise BadRequest(f"the section at byte {at} names a part or topic that is not UTF-8") from None
            seal = PartSeal(*_unpack_seal(data, seal_at)) if kind == LAST_CHUNK else None
            chunks.append(Chunk(part, number, topic, queue_id, bytes(data[body_at:end]), seal))
        elif kind == DECISION:
            decide = decide_body_of(data[names_at:end])
        else:
            raise BadRequest(f"the section at byte {at} is of kind {kind}: there are 1, 2 and 3")
        at = end
    if not chunks:  # a decision alone is DECIDE
        raise BadRequest("there is no chunk in the body")
    return tuple(chunks), decide


# -- JSON
def decide_body(decide: DecideBody) -> bytes:
    """Encode DECIDE (30002)."""
    return _encode(decide)


def decide_body_of(body: bytes | memoryview) -> DecideBody:
    """Decode what `decide_body` encodes. Raises BadRequest."""
    decide = _decoded(_decide, body, "decision")
    _check_parts(decide.parts or ())
    _check("sequence", decide.sequence, -1, _LONG_MAX)
    return decide


def apply_body(apply: ApplyBody) -> bytes:
    """Encode APPLY (30003)."""
    return b"" if apply == _NOTHING_MORE else _encode(apply)


def apply_body_of(body: bytes | memoryview) -> ApplyBody:
    """Decode what `apply_body` encodes. Raises BadRequest."""
    if not len(body):
        return _NOTHING_MORE
    apply = _decoded(_apply, body, "decision")
    if apply.decision is not None:
        _check_decision(apply.decision)
    return apply


def staged(answer: Staged) -> bytes:
    """Encode the answer to STAGE: empty if nothing is decided."""
    return b"" if answer.decision is None else _encode(answer)


def staged_of(body: bytes | memoryview) -> Staged:
    """Decode what `staged` encodes. Raises BadRequest."""
    return _decoded(_staged, body, "answer to STAGE") if len(body) else Staged()


def decided(answer: Decided) -> bytes:
    """Encode the answer to DECIDE."""
    return _encode(answer)


def decided_of(body: bytes | memoryview) -> Decided:
    """Decode what `decided` encodes. Raises BadRequest."""
    return _decoded(_decided, body, "answer to DECIDE")


def transaction_state(state: TransactionState) -> bytes:
    """Encode the answers to APPLY, without decision and parts, and to STAGED_STATE (30004) of a transaction."""
    return _encode(state)


def transaction_state_of(body: bytes | memoryview) -> TransactionState:
    """Decode what `transaction_state` encodes. Raises BadRequest."""
    return _decoded(_state, body, "state of a transaction")


def row_state(state: TransactionRow | None) -> bytes:
    """Encode the answer to STAGED_STATE of a row; `null` if there is none."""
    return _encode(state)


def row_state_of(body: bytes | memoryview) -> TransactionRow | None:
    """Decode what `row_state` encodes. Raises BadRequest."""
    return _decoded(_row, body, "state of a row")


def transaction_list(states: Iterable[TransactionState], bytes_max: int = LIST_BYTES_MAX) -> bytes:
    """Encode the answer to LIST_STAGED (30006): the first states, up to about `bytes_max` bytes."""
    return _list(states, bytes_max)


def transaction_list_of(body: bytes | memoryview) -> list[TransactionState]:
    """Decode what `transaction_list` encodes. Raises BadRequest."""
    return _decoded(_states, body, "list of transactions")


def row_list(states: Iterable[TransactionRow], bytes_max: int = LIST_BYTES_MAX) -> bytes:
    """Encode the answer to LIST_STAGED of rows."""
    return _list(states, bytes_max)


def row_list_of(body: bytes | memoryview) -> list[TransactionRow]:
    """Decode what `row_list` encodes. Raises BadRequest."""
    return _decoded(_rows, body, "list of rows")


def branch_list(states: Iterable[BranchState], bytes_max: int = LIST_BYTES_MAX) -> bytes:
    """Encode the answer to LIST_BRANCHES (30008): the first states, up to about `bytes_max` bytes."""
    return _list(states, bytes_max)


def branch_list_of(body: bytes | memoryview) -> list[BranchState]:
    """Decode what `branch_list` encodes. Raises BadRequest."""
    return _decoded(_branches, body, "list of transactions of MetaQ 1.x clients")


def _list(values: Iterable[Struct], bytes_max: int) -> bytes:
    pieces, size = list[bytes](), 0
    for value in values:
        pieces.append(_encode(value))
        size += len(pieces[-1])
        # Behind the entry that reaches it: a single one larger than the limit comes alone, and the list goes on.
        if size >= bytes_max:
            break
    return b"[" + b",".join(pieces) + b"]"


_encode = msgspec.json.Encoder().encode
_decide = msgspec.json.Decoder(DecideBody)
_apply = msgspec.json.Decoder(ApplyBody)
_staged = msgspec.json.Decoder(Staged)
_decided = msgspec.json.Decoder(Decided)
_state = msgspec.json.Decoder(TransactionState)
_row: msgspec.json.Decoder[TransactionRow | None] = msgspec.json.Decoder(TransactionRow | None)
_states = msgspec.json.Decoder(list[TransactionState])
_rows = msgspec.json.Decoder(list[TransactionRow])
_branches = msgspec.json.Decoder(list[BranchState])


def _decoded(decoder: msgspec.json.Decoder[V], body: bytes | memoryview, what: str) -> V:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the {what} in the body cannot be read: {str(error)[:200]}") from None


def _check_decision(made: TransactionDecision) -> None:
    _check_parts(made.parts)
    _check("sequence", made.sequence, -1, _LONG_MAX)
    _check("decided_ms", made.decided_ms, 0, _LONG_MAX)


def _check_parts(parts: Iterable[ManifestPart]) -> None:
    for part in parts:
        _check("queue_id", part.queue_id, 0, _INT_MAX)
        _check("chunks", part.seal.chunks, 0, _INT_MAX)
        _check("rows", part.seal.rows, 0, _INT_MAX)
        _check("bytes", part.seal.bytes, 0, _LONG_MAX)
        _check("crc", part.seal.crc, 0, _CRC_MAX)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadRequest(f"the field {name}={str(value)[:40]} of the decision is not between {low} and {high}")
