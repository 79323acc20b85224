"""What clients tell of their sends and deliveries: the records of message traces (docs/formats/trace.md)."""

from __future__ import annotations

import enum
from typing import TypeAlias

from msgspec import Struct


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


Record: TypeAlias = Sent | Begun | Handled | Settled


class Trace(Struct, frozen=True):
    """What one trace message says. `unreadable` of its records are of no kind known here, or cut off."""

    records: tuple[Record, ...]
    unreadable: int = 0
