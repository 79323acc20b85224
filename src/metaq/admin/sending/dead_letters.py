"""Dead letters, sent again: to the topic that they come from, or to the failed group alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from metaq.admin.queues.browsing import is_as_stored
from metaq.admin.sending.messages import send
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError
from metaq.model import Message, SendReceipt, StoredMessage
from metaq.model import properties as props
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX

ID: Final = "REDRIVE_ID"
FROM: Final = "REDRIVEN_FROM"
TIMES: Final = "REDRIVES"
"""Properties of what is sent: the dead letter's offset id, its place, and how often the message was sent again; as of the pipeline
`redrive`."""


class Edited(Struct, frozen=True, kw_only=True):
    """A dead letter as it is to be sent. What is not named stays as it was."""

    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def origin_of(message: StoredMessage) -> str | None:
    """Return the topic that a dead letter comes from; None: it does not say."""
    for name in (props.RETRY_TOPIC, props.REAL_TOPIC):
        topic = message.properties.get(name)
        if topic is not None and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            return topic
    return None


def unchanged(message: StoredMessage) -> Edited:
    """Return a dead letter as it was sent first: without what brokers and consumers have added."""
    kept = {name: value for name, value in message.properties.items() if name not in props.RESERVED | {ID, FROM, TIMES}}
    return Edited(body=message.body, tag=message.tag, keys=message.keys, properties=kept)


async def resend(
    core: ClientCore, message: StoredMessage, group: str, edited: Edited, *, only_group: bool
) -> SendReceipt:
    """Send a copy of a dead letter, which stays where it is.

    Args: only_group: to the group's retry topic, which nobody else reads; else to the topic that it comes from, for all who do.
    Raises: ConfigError: it does not say where it comes from. InvalidMessage: no message may be so. As `send`.
    """
    origin = origin_of(message)
    if is_as_stored(message) and edited.body == message.body:
        raise ConfigError(f"the body of the dead letter {message.offset_id} cannot be decompressed")
    if origin is None:
        raise ConfigError(f"the dead letter {message.offset_id} does not say which topic it comes from")
    times = message.properties.get(TIMES, "0")
    marks = {
        ID: message.offset_id,
        FROM: f"{message.topic}/{message.broker}/{message.queue_id}/{message.queue_offset}",
        TIMES: str(int(times) + 1 if times.isdecimal() and len(times) < 10 else 1),
    }
    new = Message(
        RETRY_PREFIX + group if only_group else origin, edited.body, tag=edited.tag, keys=edited.keys, flag=message.flag,
        properties={**edited.properties, **marks},
    )  # fmt: skip
    return await send(core, new, more={props.RETRY_TOPIC: origin} if only_group else None)
