"""Records of staged transactions (docs/formats/staging.md): encoding, and decoding after a start.

Queue 0 of rmq_sys_METAQ_STAGE holds CHUNK and SEAL records, queue 0 of rmq_sys_METAQ_TXN DECIDE, DONE, FINISHED, FORGET and
CHECKPOINT records. All are ordinary records. One that replaces an older one, whose file was to be deleted, names it in
PREPAREDTRANSACTIONOFFSET; so does each message made of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from metaq.broker.log.records import index_keys, put_record
from metaq.broker.requests import Stage
from metaq.errors import BadRequest, Reason, Refused
from metaq.model import properties as props
from metaq.model.message import StoredMessage, SysFlag
from metaq.model.topics.system import STAGE_TOPIC, TXN_TOPIC
from metaq.model.transactions.staging import (
    Chunk,
    PartLifetime,
    PartSeal,
    TransactionDecision,
    check_part,
    coordinator_of,
)
from metaq.store.log.writer import PutRecord
from metaq.store.reads.outline import Outline
from metaq.wire.record import (
    BATCH_HEAD,
    HOST_V4,
    HOST_V6,
    RECORD_BYTES_MIN,
    batch_place,
    copy_mark,
    decode_batch,
    tags_code,
)

CHUNK, SEAL = "chunk", "seal"
DECIDE, DONE, FINISHED, FORGET, CHECKPOINT = "decide", "done", "finished", "forget", "checkpoint"
"""Kinds of records; stored as the tag."""

TX: Final = "METAQ_TX"
PART: Final = "METAQ_PART"
NUMBER: Final = "METAQ_CHUNK"
LIFE: Final = "METAQ_LIFE"
ROWS: Final = "METAQ_ROWS"
SEALED: Final = "METAQ_SEAL"
SINCE: Final = "METAQ_SINCE"
"""Property of a rewritten record: store time of the original, ms."""
LEARNED: Final = "METAQ_LEARNED"
MISSING: Final = "METAQ_MISSING"
"""Property of a participant's commit: blank-separated parts that the manifest names here and that were missing."""
_MISSING_MAX: Final = 100
PROGRESS: Final = "METAQ_DONE"
"""Property of a rewritten decision: `1`: its parts here are applied; `2`: everywhere."""

FORBIDDEN: Final = (props.DELAY, props.TRANSACTION_PREPARED, props.RETRY_TOPIC)
"""Properties that a staged message may not have, because the broker would store such a message elsewhere, or changed."""
FORBIDDEN_BYTES: Final = tuple(name.encode() for name in FORBIDDEN)
FORBIDDEN_RETRIES: Final = tuple(name.encode() for name in FORBIDDEN if name != props.RETRY_TOPIC)
"""The same for retry topics, whose messages all have RETRY_TOPIC."""
_CHUNK_HEAD: Final = f"{props.TAGS}\x01{CHUNK}\x02{TX}\x01"
_CHUNK_CODE: Final = tags_code(CHUNK)
_DECIDE_HEAD: Final = f"{props.TAGS}\x01{DECIDE}\x02{props.KEYS}\x01"
_DECIDE_CODE: Final = tags_code(DECIDE)
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
RECORD_BYTES_MORE: Final = RECORD_BYTES_MIN + 2 * (HOST_V6 - HOST_V4)
"""Bytes of a record beside body, topic and properties at most (IPv6 hosts)."""


class Staging(Struct, frozen=True):
    """A decoded CHUNK or SEAL record."""

    transaction: str
    part: str
    number: int
    """Number of the chunk; of a seal, that of the part's last chunk."""
    rows: int
    topic: str
    queue_id: int
    lifetime: PartLifetime
    seconds: int
    since_ms: int
    is_seal: bool
    seal: PartSeal | None
    log_offset: int
    crc: int
    body_bytes: int


class Names(Struct, frozen=True):
    """Content of a FORGET record: the transaction or row that it drops."""

    transaction: str = ""
    row: str = ""


class Checkpoint(Struct, frozen=True):
    """Content of a CHECKPOINT record: queue offsets in the two topics from which a start reads."""

    stage: int
    txn: int


def entries_of(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Decode a chunk: (flag, body, property text) of each message. Raises Refused ILLEGAL_MESSAGE: it is no batch."""
    try:
        return decode_batch(body)
    except BadRequest as error:
        raise Refused(Reason.ILLEGAL_MESSAGE, f"a chunk is no batch: {error}") from error


def single_body_bytes(body: bytes) -> int | None:
    """Return the body size of a chunk's only message, bytes; None: it has several, or is no batch."""
    try:
        _, to_middle, size = batch_place(body, 0, 0)
    except BadRequest:
        return None
    return to_middle - BATCH_HEAD.size if size == len(body) else None


def check_entry(
    where: str, number: int, text: bytes, more: int, forbidden: tuple[bytes, ...] = FORBIDDEN_BYTES
) -> None:
    """Check a message's properties. `more`: bytes that the broker adds. Raises Refused ILLEGAL_MESSAGE: it cannot be staged."""
    if len(text) + more > props.PROPERTIES_BYTES_MAX:
        raise Refused(
            Reason.ILLEGAL_MESSAGE,
            f"message {number} of a chunk for {where} has {len(text)} bytes of properties, the limit is "
            f"{props.PROPERTIES_BYTES_MAX - more}",
        )
    for name in forbidden:
        # The first test is cheap, and rules out most; the name may also occur within a value.
        if name in text and name.decode() in props.parse(text.decode("utf-8", "replace")):
            raise Refused(
                Reason.ILLEGAL_MESSAGE,
                f"message {number} of a chunk for {where} has the property {name.decode()}: no staged message may",
            )


# ------------------------------------------------------------------ made


def life_text(lifetime: PartLifetime, seconds: int) -> str:
    """Encode a lifetime: `a86400`, `c` or `p`."""
    return f"{lifetime.value}{seconds}" if lifetime is PartLifetime.AGE else lifetime.value


def seal_text(seal: PartSeal) -> str:
    return f"{seal.chunks} {seal.rows} {seal.bytes} {seal.crc}"


class ChunkName(Struct, frozen=True):
    """Identity of a chunk in a CHUNK record, or of the last chunk in a SEAL record."""

    transaction: str
    part: str
    number: int
    rows: int
    topic: str
    queue_id: int
    life: str
    """See `life_text`."""


def stage_record(
    kind: str, name: ChunkName, seal: PartSeal | None, body: bytes, born_ms: int, born_host: bytes
) -> PutRecord:
    """Make a CHUNK or SEAL record."""
    pairs = {
        props.TAGS: kind, TX: name.transaction, PART: name.part, NUMBER: str(name.number), ROWS: str(name.rows),
        props.REAL_TOPIC: name.topic, props.REAL_QUEUE_ID: str(name.queue_id), LIFE: name.life,
    }  # fmt: skip
    if seal is not None:
        pairs[SEALED] = seal_text(seal)
    return put_record(STAGE_TOPIC, 0, body, pairs, flag=0, sys_flag=0, born_ms=born_ms, born_host=born_host)


def chunk_record(stage: Stage, chunk: Chunk, rows: int, life: str) -> PutRecord:
    """Make the CHUNK record of a request, as `stage_record` does.

    The property text is made in one go: there are thousands of chunks a second.
    """
    text = (
        f"{_CHUNK_HEAD}{stage.transaction}\x02{PART}\x01{chunk.part}\x02{NUMBER}\x01{chunk.number}\x02{ROWS}\x01{rows}\x02"
        f"{props.REAL_TOPIC}\x01{chunk.topic}\x02{props.REAL_QUEUE_ID}\x01{chunk.queue_id}\x02{LIFE}\x01{life}"
    )
    if chunk.seal is not None:
        text = f"{text}\x02{SEALED}\x01{seal_text(chunk.seal)}"
    return PutRecord(
        STAGE_TOPIC, 0, chunk.body, text.encode(), 0, _BORN_V6 if len(stage.born_host) == HOST_V6 else 0, stage.born_ms,
        stage.born_host, tags_code=_CHUNK_CODE, is_judged=True,
    )  # fmt: skip


def renewed(chunk: StoredMessage, life: str, since_ms: int, seal: PartSeal | None) -> PutRecord:
    """Rewrite a CHUNK record. `seal`: the part's, if it ends with this chunk."""
    pairs = {**chunk.properties, LIFE: life, SINCE: str(since_ms)}
    if seal is not None:
        pairs[SEALED] = seal_text(seal)
    return put_record(
        STAGE_TOPIC, 0, chunk.body, pairs, flag=0, sys_flag=0, born_ms=chunk.born_ms, born_host=chunk.born_host_raw,
        copy_of=chunk.log_offset,
    )  # fmt: skip


def decide_record(
    decision: TransactionDecision,
    now_ms: int,
    host: bytes,
    *,
    learned: bool = False,
    progress: str = "",
    missing: Sequence[str] = (),
    copy_of: int | None = None,
) -> PutRecord:
    """Make the record of a decision. It is indexed by the transaction's id, and found as long as the log holds it."""
    if copy_of is None and not learned and not progress:
        # The usual decision, without building and encoding a dict of properties.
        text = f"{_DECIDE_HEAD}{decision.transaction}"
        return PutRecord(
            TXN_TOPIC, 0, msgspec.json.encode(decision), text.encode(), 0, _BORN_V6 if len(host) == HOST_V6 else 0, now_ms,
            host, tags_code=_DECIDE_CODE, keys=(f"{TXN_TOPIC}#{decision.transaction}".encode(),),
        )  # fmt: skip
    pairs = {props.TAGS: DECIDE, props.KEYS: decision.transaction}
    if learned:
        pairs[LEARNED] = "1"
    if progress:
        pairs[PROGRESS] = progress
    if missing:  # the broker's log file names all of them
        pairs[MISSING] = " ".join(missing[:_MISSING_MAX])
    return _txn(pairs, msgspec.json.encode(decision), now_ms, host, copy_of)


def done_record(kind: str, transactions: Sequence[str], now_ms: int, host: bytes) -> PutRecord:
    """Make a DONE record (nothing is left to do at this broker), or a FINISHED record (nothing at any broker)."""
    return _txn({props.TAGS: kind}, msgspec.json.encode(list(transactions)), now_ms, host)


def forget_record(names: Names, now_ms: int, host: bytes) -> PutRecord:
    return _txn({props.TAGS: FORGET}, msgspec.json.encode(names), now_ms, host)


def checkpoint_record(place: Checkpoint, now_ms: int, host: bytes) -> PutRecord:
    return _txn({props.TAGS: CHECKPOINT}, msgspec.json.encode(place), now_ms, host)


def _txn(pairs: Mapping[str, str], body: bytes, now_ms: int, host: bytes, copy_of: int | None = None) -> PutRecord:
    return put_record(TXN_TOPIC, 0, body, pairs, flag=0, sys_flag=0, born_ms=now_ms, born_host=host, copy_of=copy_of)


def copies_of(
    entries: Sequence[tuple[int, bytes, bytes]],
    topic: str,
    queue_id: int,
    chunk: int,
    cluster: str,
    born: tuple[int, bytes],
) -> list[PutRecord]:
    """Make the messages of a chunk as consumers get them. `chunk`: LogOffset of its record; `born`: time (ms) and host."""
    born_ms, born_host = born
    v6 = int(SysFlag.BORN_HOST_V6) if len(born_host) == HOST_V6 else 0
    mark, records = copy_mark(chunk), []
    for flag, body, text in entries:
        pairs = props.parse(text.decode("utf-8", "replace"))
        # As for plain sends: responders of request-reply need it.
        pairs[props.CLUSTER] = cluster
        records.append(
            PutRecord(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=props.join(pairs).encode(),
                flag=flag,
                sys_flag=v6,
                born_ms=born_ms,
                born_host=born_host,
                prepared_offset=mark,
                tags_code=tags_code(pairs.get(props.TAGS)),
                keys=index_keys(topic, pairs),
            )
        )
    return records


# ------------------------------------------------------------------ read


def kind_of(record: Outline) -> str:
    """Return the record's kind."""
    return props.parse(record.properties.decode("utf-8", "replace")).get(props.TAGS, "")


def read_staging(record: Outline) -> Staging | None:
    """Decode a record of rmq_sys_METAQ_STAGE; None: it is malformed."""
    pairs = props.parse(record.properties.decode("utf-8", "replace"))
    kind, life = pairs.get(props.TAGS), pairs.get(LIFE, "")
    try:
        lifetime = PartLifetime(life[:1])
        seconds = int(life[1:]) if lifetime is PartLifetime.AGE else 0
        # Properties have no checksum: one damaged byte must not refuse a start.
        coordinator_of(pairs[TX])
        number, rows = int(pairs[NUMBER]), int(pairs[ROWS])
        if number < 0 or rows < 0:
            return None
        return Staging(
            transaction=pairs[TX],
            part=check_part(pairs[PART]),
            number=number,
            rows=rows,
            topic=pairs[props.REAL_TOPIC],
            queue_id=int(pairs[props.REAL_QUEUE_ID]),
            lifetime=lifetime,
            seconds=seconds,
            # The age of a transaction counts from its first chunk, also after that was rewritten.
            since_ms=int(pairs.get(SINCE, record.store_ms)),
            is_seal=kind == SEAL,
            seal=_seal_of(pairs[SEALED]) if SEALED in pairs else None,
            log_offset=record.log_offset,
            crc=record.crc,
            body_bytes=record.body_bytes,
        )
    except (KeyError, ValueError, Refused):
        return None


def _seal_of(text: str) -> PartSeal:
    chunks, rows, size, crc = map(int, text.split(" "))
    return PartSeal(chunks, rows, size, crc)


def read_decision(body: bytes) -> TransactionDecision | None:
    """Decode a DECIDE record; None: it is malformed."""
    try:
        return _decision.decode(body)
    except _UNREADABLE:
        return None


def read_names(body: bytes) -> list[str]:
    """Decode a DONE or FINISHED record: ids of transactions."""
    try:
        return _list.decode(body)
    except _UNREADABLE:
        return []


def read_forgotten(body: bytes) -> Names:
    try:
        return _names.decode(body)
    except _UNREADABLE:
        return Names()


def read_checkpoint(body: bytes) -> Checkpoint | None:
    try:
        return _checkpoint.decode(body)
    except _UNREADABLE:
        return None


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_decision = msgspec.json.Decoder(TransactionDecision)
_list = msgspec.json.Decoder(list[str])
_names = msgspec.json.Decoder(Names)
_checkpoint = msgspec.json.Decoder(Checkpoint)
