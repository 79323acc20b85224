"""A message in the outbox, and its encoding there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from metaq.errors import InvalidMessage
from metaq.idempotence.keys import OUTBOX_MARK
from metaq.model import Message

if TYPE_CHECKING:
    from metaq.metaq1.model.message import Message as Metaq1Message

WAITING: Final = "waiting"
"""State of an entry that is still to be sent."""
SENT: Final = "sent"
"""State of an entry that a broker has acknowledged; kept only with `Rules.keep`."""
PARKED: Final = "parked"
"""State of an entry that failed `Rules.tries_max` times: nobody tries it until `Outbox.resend`."""
ROCKETMQ: Final = "rocketmq"
METAQ1: Final = "metaq1"


class Entry(Struct, frozen=True):
    """A row of the table."""

    position: int
    """Number in the order of insertion, from 1 on; `Outbox.listed` goes by it."""
    message_id: str
    """The same in all tries: UNIQ_KEY of RocketMQ's messages, the attribute of those of 1.x that have none of their own."""
    protocol: str
    """ROCKETMQ or METAQ1."""
    topic: str
    """Topic that it is sent to."""
    lane: str
    """Entries of one lane are sent in order; "": of no order."""
    content: bytes
    """Body and everything else that `Outbox.add` was given, as MessagePack."""
    state: str
    """WAITING, SENT or PARKED."""
    tries: int
    """Number of failed tries."""
    due_ms: int
    """When it may be sent, ms since 1970."""
    added_ms: int
    """When it was added, ms since 1970, by the clock of the process that added it."""
    ended_ms: int
    """When it was sent or parked, ms since 1970; 0: it waits."""
    error: str
    """Error of the last try; "": there was none."""


class _Content(Struct, omit_defaults=True):
    """What the other columns have not."""

    body: bytes
    tag: str | None = None
    """Of 1.x: the attribute."""
    keys: tuple[str, ...] = ()
    flag: int = 0
    delay_level: int = 0
    wait_store_ok: bool = True
    properties: dict[str, str] = {}
    ordering_key: str | None = None


def packed(message: Any, ordering_key: str | None) -> tuple[str, str, bytes]:
    """Return protocol, topic and content of a message. Raises TypeError, InvalidMessage: it can never be sent."""
    if isinstance(message, Message):
        message.check()
        if not message.body:
            raise InvalidMessage(f"the message for topic {message.topic} has an empty body, which no broker takes")
        content = _Content(
            message.body, message.tag, message.keys, message.flag, message.delay_level, message.wait_store_ok,
            message.properties, ordering_key,
        )  # fmt: skip
        return ROCKETMQ, message.topic, msgspec.msgpack.encode(content)
    from metaq.metaq1.model.message import Message as Metaq1Message

    if isinstance(message, Metaq1Message):
        content = _Content(message.data, message.attribute, ordering_key=ordering_key)
        return METAQ1, message.topic, msgspec.msgpack.encode(content)
    raise TypeError(f"message is {message!r:.100}: pass a metaq.Message or a metaq.metaq1.Message")


def rocketmq_message(entry: Entry) -> tuple[Message, str | None]:
    """Return the message of an entry and its ordering key."""
    found = msgspec.msgpack.decode(entry.content, type=_Content)
    message = Message(
        entry.topic,
        found.body,
        found.tag,
        found.keys,
        found.flag,
        found.delay_level,
        found.wait_store_ok,
        found.properties,
    )
    return message, found.ordering_key


def metaq1_message(entry: Entry) -> Metaq1Message:
    """Return the message of an entry; its attribute carries the id, unless it has one of its own."""
    from metaq.metaq1.model.message import Message as Metaq1Message

    found = msgspec.msgpack.decode(entry.content, type=_Content)
    return Metaq1Message(
        entry.topic, found.body, f"{OUTBOX_MARK}{entry.message_id}" if found.tag is None else found.tag
    )
