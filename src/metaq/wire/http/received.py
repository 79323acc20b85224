"""Messages that a group receives by HTTP, and the ids by which it acknowledges them."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from metaq.errors import BadRequest
from metaq.wire.http.stored import StoredAsJson

ACKS_MAX: Final = 10_000
"""Ids of one request at most."""
_PARTS: Final = 7
_DIGITS_MAX: Final = 19


class AckId(NamedTuple):
    """What a consumer of a group gets with each message, to acknowledge it.

    It stands for the offsets [`start`, `stop`) of a queue: the message, and those before it that its filter has passed over.
    """

    group: str
    topic: str
    queue: int
    start: int
    stop: int
    end: int
    """Behind the last message of the queue that came in the same answer."""
    client: str

    def __str__(self) -> str:
        return ":".join(map(str, self))


def ack_id(text: str) -> AckId:
    """Return the id that a text is. Raises BadRequest: it is none."""
    parts = text.split(":", _PARTS - 1)
    numbers = parts[2:6]
    if len(parts) < _PARTS or not all(one.isascii() and one.isdecimal() and len(one) <= _DIGITS_MAX for one in numbers):
        raise BadRequest(f"{text!r:.200} is no ackId: give back what came with the message")
    queue, start, stop, end = map(int, numbers)
    if not start < stop <= end < 1 << 63:
        raise BadRequest(f"{text!r:.200} is no ackId: its offsets are in no order")
    return AckId(parts[0], parts[1], queue, start, stop, end, parts[6])


class ReceivedMessage(Struct, frozen=True, rename="camel"):
    """A message for a group, and what acknowledges it."""

    ack_id: str
    message: StoredAsJson


class Gone(Struct, frozen=True):
    """Messages that the group had not read and that have left the log: offsets [start, stop) of a queue."""

    topic: str
    queue: int
    start: int
    stop: int


class Received(Struct, frozen=True):
    """Answer to a group that receives. `consumer`: who holds the queues of these messages."""

    consumer: str
    messages: list[ReceivedMessage]
    gone: list[Gone] = []


class Acknowledged(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a group acknowledges."""

    ack_ids: Annotated[list[str], Meta(min_length=1, max_length=ACKS_MAX)]


class GroupOffset(Struct, frozen=True):
    """Where a group goes on in a queue."""

    topic: str
    queue: int
    offset: int


class GroupOffsets(Struct, frozen=True):
    """Where a group goes on in the queues of which it has acknowledged messages."""

    offsets: list[GroupOffset]
