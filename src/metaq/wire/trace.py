"""Message traces: what clients tell of their sends and deliveries, as RocketMQ's clients write it (docs/formats/trace.md).

The body of a message of the trace topic is text, UTF-8: records, each ended by 0x02, of fields parted by 0x01. The
first field names the kind of record. The message's keys are the ids and keys of the messages that its records are about, so that
a look-up by key finds all that is told of one message.

An absent field is empty, or the text `null`, which is what Java makes of one; both are read as "". Java's reader drops
empty fields from the end of a record, and fails: what may come last is written as `null`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from metaq.errors import BadRequest

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
NULL: Final = "null"
BODY_CHARS_MAX: Final = 118_000
"""RocketMQ's own limit for one trace message. One record may be longer."""
_CLEAN = str.maketrans({FIELD_END: " ", RECORD_END: " "})


class Kind(enum.IntEnum):
    """What kind of message it was, as RocketMQ numbers them."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class Result(enum.IntEnum):
    """How a delivery ended."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4
    """The listener said so: it comes again, or is a dead letter."""


class Sent(Struct, frozen=True, kw_only=True):
    """`Pub`: a send, and what came of it. Of a batch of Java's, all in one: `message_id` and `offset_id` are lists, joined by
    commas."""

    time_ms: int
    """When the send began."""
    region: str = ""
    group: str = ""
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    kind: int = Kind.NORMAL
    offset_id: str = ""
    success: bool = True
    client_host: str = ""
    """Java leaves it out."""

    @property
    def message_ids(self) -> tuple[str, ...]:
        return tuple(self.message_id.split(","))

    def text(self) -> str:
        return _joined(
            "Pub", self.time_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys,
            self.store_host, self.body_bytes, self.cost_ms, int(self.kind), self.offset_id, self.success,
            *((self.client_host,) if self.client_host else ()),
        )  # fmt: skip


class Begun(Struct, frozen=True, kw_only=True):
    """`SubBefore`: a delivery to a listener begins. `request_id` ties it to its end."""

    time_ms: int
    region: str = ""
    group: str = ""
    request_id: str
    message_id: str
    retry_times: int = 0
    """Deliveries before this one that failed."""
    keys: str = ""
    client_host: str = ""
    """Java leaves it out."""

    def text(self) -> str:
        return _joined(
            "SubBefore", self.time_ms, self.region, self.group, self.request_id, self.message_id, self.retry_times,
            self.keys or NULL, *((self.client_host,) if self.client_host else ()),
        )  # fmt: skip


class Handled(Struct, frozen=True, kw_only=True):
    """`SubAfter`: a delivery has ended. `time_ms` is 0 and `group` empty where clients are old, or write for a cloud."""

    request_id: str
    message_id: str
    cost_ms: int = 0
    success: bool = True
    keys: str = ""
    code: int = Result.SUCCESS
    time_ms: int = 0
    group: str = ""

    def text(self) -> str:
        return _joined(
            "SubAfter", self.request_id, self.message_id, self.cost_ms, self.success, self.keys or NULL,
            int(self.code), self.time_ms, self.group or NULL,
        )  # fmt: skip


class Settled(Struct, frozen=True, kw_only=True):
    """`EndTransaction`: a half message's producer has said what becomes of it."""

    time_ms: int
    region: str = ""
    group: str = ""
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    kind: int = Kind.COMMIT
    transaction_id: str = ""
    state: str = ""
    """COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
    from_check: bool = False
    """The broker had asked."""

    def text(self) -> str:
        return _joined(
            "EndTransaction", self.time_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys,
            self.store_host, int(self.kind), self.transaction_id, self.state, self.from_check,
        )  # fmt: skip


Record: TypeAlias = Sent | Begun | Handled | Settled


class Trace(Struct, frozen=True):
    """What one trace message says. `unreadable` of its records are of no kind known here, or cut off."""

    records: tuple[Record, ...]
    unreadable: int = 0


def encode(records: Iterable[Record]) -> bytes:
    """The body of a trace message."""
    return "".join(record.text() for record in records).encode("utf-8", "replace")


def decode(body: bytes) -> Trace:
    """The records of a trace message, in order. Raises nothing: what cannot be read is counted."""
    records: list[Record] = []
    unreadable = 0
    for piece in body.decode("utf-8", "replace").split(RECORD_END):
        if not piece:
            continue
        name, *fields = piece.split(FIELD_END)
        try:
            records.append(_READERS[name](fields))
        except (KeyError, IndexError, ValueError, BadRequest):
            unreadable += 1
    return Trace(tuple(records), unreadable)


def _joined(*fields: object) -> str:
    return FIELD_END.join(map(_field, fields)) + RECORD_END


def _field(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).translate(_CLEAN)


def _text(value: str) -> str:
    return "" if value == NULL else value


def _number(value: str) -> int:
    """Raises ValueError: it is none that Java could have written."""
    if len(value) > 20:
        raise ValueError(value[:20])
    return int(value)


def _flag(value: str) -> bool:
    return value.lower() == "true"


def _optional(fields: Sequence[str], place: int) -> str:
    return _text(fields[place]) if len(fields) > place else ""


def _sent(fields: Sequence[str]) -> Sent:
    """12 fields: older, without the offset id."""
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
