"""Records of message traces: clients' sends and deliveries (docs/formats/trace.md)."""

from __future__ import annotations

import enum
from typing import TypeAlias

from msgspec import Struct


class Kind(enum.IntEnum):
    """Kind of a message, RocketMQ's numbers."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class Result(enum.IntEnum):
    """Outcome of a delivery, RocketMQ's numbers."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4
    """The listener refused the message: it is delivered again, or becomes a dead letter."""


class Sent(Struct, frozen=True, kw_only=True):
    """`Pub`: a send and its outcome. Java writes one record for a batch: `message_id` and `offset_id` are lists joined
    by commas."""

    time_ms: int
    """Start of the send."""
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
    """Not written by Java."""

    @property
    def message_ids(self) -> tuple[str, ...]:
        return tuple(self.message_id.split(","))


class Begun(Struct, frozen=True, kw_only=True):
    """`SubBefore`: the start of a delivery to a listener. `request_id` is that of its end."""

    time_ms: int
    region: str = ""
    group: str = ""
    request_id: str
    message_id: str
    retry_times: int = 0
    """Failed deliveries before this one."""
    keys: str = ""
    client_host: str = ""
    """Not written by Java."""


class Handled(Struct, frozen=True, kw_only=True):
    """`SubAfter`: the end of a delivery. Old clients, and those with AccessChannel CLOUD, leave out `time_ms` (0) and
    `group`."""

    request_id: str
    message_id: str
    cost_ms: int = 0
    success: bool = True
    keys: str = ""
    code: int = Result.SUCCESS
    time_ms: int = 0
    group: str = ""


class Settled(Struct, frozen=True, kw_only=True):
    """`EndTransaction`: a producer has ended the transaction of a half message."""

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
    """The producer answered a check of the broker."""


Record: TypeAlias = Sent | Begun | Handled | Settled


class Trace(Struct, frozen=True):
    """Content of a trace message. `unreadable`: number of records of an unknown kind, or cut off."""

    records: tuple[Record, ...]
    unreadable: int = 0
