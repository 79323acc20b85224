"""Message traces: records of clients' sends and deliveries, as RocketMQ's clients write them (docs/formats/trace.md).

The body of a message of the trace topic is UTF-8 text: records, each ended by 0x02, of fields joined by 0x01. The first
field is the kind of record. The message's keys are the ids and keys of the messages that its records are about, so that
a look-up by key finds all records of one message.

An absent field is empty or the text `null`, into which Java's string concatenation turns it; both are read as "".
Java's reader drops empty fields from the end of a record, and fails: a field that may come last is written as `null`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from metaq.errors import BadRequest
from metaq.model import properties as props
from metaq.model.trace import Begun, Handled, Record, Result, Sent, Settled, Trace
from metaq.wire.record import BATCH_HEAD, batch_place

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
NULL: Final = "null"
BODY_CHARS_MAX: Final = 118_000
"""Longest body of one trace message, as in RocketMQ's client. A single record may be longer."""
RUN_MAX: Final = 100
"""Most records that `batch_texts` yields at once."""
_CLEAN = str.maketrans({FIELD_END: " ", RECORD_END: " "})


def encode(records: Iterable[Record]) -> bytes:
    """Encode the body of a trace message."""
    return "".join(text_of(record) for record in records).encode("utf-8", "replace")


def text_of(record: Record) -> str:
    """Return the text of one record, with its end."""
    return _WRITERS[type(record)](record)


def batch_texts(shared: Sent, body: bytes, ids: str, offset_ids: str) -> Iterator[tuple[list[str], list[str], str]]:
    """Yield the `Pub` records of a stored batch in runs: their texts, their message ids, and the keys that a run
    shares.

    About a microsecond each. Raises BadRequest: the batch is malformed.

    Args:
        shared: what they have in common; message_id, tags, keys, body_bytes and offset_id are each message's own.
        body: the batch.
        ids: beginning of the message ids; four hexadecimal digits follow.
        offset_ids: those of all messages, joined by commas.
    """
    # Made once for a run: only id, tags, keys and size differ from message to message.
    before = _joined("Pub", shared.time_ms, shared.region, shared.group, shared.topic, "")[:-1]
    host = f"{FIELD_END}{shared.store_host.translate(_CLEAN)}{FIELD_END}"
    between = f"{FIELD_END}{shared.cost_ms}{FIELD_END}{int(shared.kind)}{FIELD_END}"
    after = FIELD_END + _joined(shared.success, *((shared.client_host,) if shared.client_host else ()))
    own_id = f"{props.UNIQUE_ID}{props.NAME_END}{ids}".encode()
    texts, message_ids, keys, described = list[str](), list[str](), "", ""
    stem, tail = b"", 0
    places = itertools.chain(offset_ids.translate(_CLEAN).split(","), itertools.repeat(""))
    start, end, unpack_head = 0, len(body), BATCH_HEAD.unpack_from
    for number, offset_id in enumerate(places):
        if start >= end:
            break
        # Most messages differ from the one before in their body and the last four digits of their id alone.
        again = bool(stem) and start + BATCH_HEAD.size + tail <= end
        if again:
            size, _, _, _, body_bytes = unpack_head(body, start)
            middle = start + BATCH_HEAD.size + body_bytes
            stop = middle + tail
            again = body_bytes >= 0 and start + size == stop <= end and body.startswith(stem, middle)
        if not again:
            _, to_middle, size = batch_place(body, start, number)
            middle, stop = start + to_middle, start + size
            body_bytes, tail = to_middle - BATCH_HEAD.size, stop - middle
            properties = props.parse(body[middle + 2 : stop].decode("utf-8", "replace"))
            tags, others = properties.get(props.TAGS, ""), properties.get(props.KEYS, "")
            # A trace message has one set of keys: records of other keys go into the next one.
            if texts and others != keys:
                yield texts, message_ids, keys
                texts, message_ids = [], []
            keys = others
            described = f"{FIELD_END}{tags.translate(_CLEAN)}{FIELD_END}{keys.translate(_CLEAN)}{host}"
            # The properties with their length, without the four digits of the id at their end.
            stem = body[middle : stop - 4]
            if not stem.endswith(own_id):
                stem = b""
        message_id = f"{ids}{number:04X}"
        texts.append(f"{before}{message_id}{described}{body_bytes}{between}{offset_id}{after}")
        message_ids.append(message_id)
        if len(texts) == RUN_MAX:
            yield texts, message_ids, keys
            texts, message_ids = [], []
        start = stop
    if texts:
        yield texts, message_ids, keys


def decode(body: bytes) -> Trace:
    """Decode a trace message into its records, in order. Raises nothing: unreadable records are counted."""
    records: list[Record] = []
    unreadable = 0
    for piece in body.decode("utf-8", "replace").split(RECORD_END):
        if not piece:
            continue
        name, *fields = piece.split(FIELD_END)
        try:
            records.append(_READERS[name](fields))
        # Records of other clients and versions: the others in the same message are still worth reading.
        except (KeyError, IndexError, ValueError, BadRequest):
            unreadable += 1
    return Trace(tuple(records), unreadable)


def _sent_text(record: Sent) -> str:
    return _joined(
        "Pub", record.time_ms, record.region, record.group, record.topic, record.message_id, record.tags, record.keys,
        record.store_host, record.body_bytes, record.cost_ms, int(record.kind), record.offset_id, record.success,
        *((record.client_host,) if record.client_host else ()),
    )  # fmt: skip


def _begun_text(record: Begun) -> str:
    return _joined(
        "SubBefore", record.time_ms, record.region, record.group, record.request_id, record.message_id, record.retry_times,
        record.keys or NULL, *((record.client_host,) if record.client_host else ()),
    )  # fmt: skip


def _handled_text(record: Handled) -> str:
    return _joined(
        "SubAfter", record.request_id, record.message_id, record.cost_ms, record.success, record.keys or NULL,
        int(record.code), record.time_ms, record.group or NULL,
    )  # fmt: skip


def _settled_text(record: Settled) -> str:
    return _joined(
        "EndTransaction", record.time_ms, record.region, record.group, record.topic, record.message_id, record.tags, record.keys,
        record.store_host, int(record.kind), record.transaction_id, record.state, record.from_check,
    )  # fmt: skip


def _joined(*fields: object) -> str:
    text = FIELD_END.join([field if type(field) is str else _field(field) for field in fields])
    # Looked for only afterwards: names and ids nearly never hold a separator.
    if RECORD_END in text or text.count(FIELD_END) != len(fields) - 1:  # a separator within a value
        text = FIELD_END.join(_field(field).translate(_CLEAN) for field in fields)
    return text + RECORD_END


def _field(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _text(value: str) -> str:
    return "" if value == NULL else value


def _number(value: str) -> int:
    """Return a Java long. Raises ValueError: int() takes quadratic time for a megabyte of digits."""
    if len(value) > 20:
        raise ValueError(value[:20])
    return int(value)


def _flag(value: str) -> bool:
    return value.lower() == "true"


def _optional(fields: Sequence[str], place: int) -> str:
    return _text(fields[place]) if len(fields) > place else ""


def _sent(fields: Sequence[str]) -> Sent:
    """Decode `Pub`. Older clients write 12 fields, without the offset id."""
    if len(fields) < 12:
        raise BadRequest(f"a Pub record of {len(fields)} fields")
    offset_id, success = ("", fields[11]) if len(fields) == 12 else (_text(fields[11]), fields[12])
    return Sent(
        time_ms=_number(fields[0]), region=_text(fields[1]), group=_text(fields[2]), topic=_text(fields[3]),
        message_id=_text(fields[4]), tags=_text(fields[5]), keys=_text(fields[6]), store_host=_text(fields[7]),
        body_bytes=_number(fields[8]), cost_ms=_number(fields[9]), kind=_number(fields[10]), offset_id=offset_id,
        success=_flag(success), client_host=_optional(fields, 13),
    )  # fmt: skip


def _begun(fields: Sequence[str]) -> Begun:
    return Begun(
        time_ms=_number(fields[0]), region=_text(fields[1]), group=_text(fields[2]), request_id=_text(fields[3]),
        message_id=_text(fields[4]), retry_times=_number(fields[5]), keys=_optional(fields, 6),
        client_host=_optional(fields, 7),
    )  # fmt: skip


def _handled(fields: Sequence[str]) -> Handled:
    return Handled(
        request_id=_text(fields[0]), message_id=_text(fields[1]), cost_ms=_number(fields[2]), success=_flag(fields[3]),
        keys=_optional(fields, 4), code=_number(fields[5]) if len(fields) > 5 else int(not _flag(fields[3])) * Result.FAILED,
        time_ms=_number(fields[6]) if len(fields) > 6 else 0, group=_optional(fields, 7),
    )  # fmt: skip


def _settled(fields: Sequence[str]) -> Settled:
    return Settled(
        time_ms=_number(fields[0]), region=_text(fields[1]), group=_text(fields[2]), topic=_text(fields[3]),
        message_id=_text(fields[4]), tags=_text(fields[5]), keys=_text(fields[6]), store_host=_text(fields[7]),
        kind=_number(fields[8]), transaction_id=_text(fields[9]), state=_text(fields[10]), from_check=_flag(fields[11]),
    )  # fmt: skip


_READERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "Pub": _sent,
    "SubBefore": _begun,
    "SubAfter": _handled,
    "EndTransaction": _settled,
}
_WRITERS: dict[type, Callable[[Any], str]] = {
    Sent: _sent_text, Begun: _begun_text, Handled: _handled_text, Settled: _settled_text,
}  # fmt: skip
