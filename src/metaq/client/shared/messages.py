"""Arguments of sends: a message (whole, or topic and body), a batch, and the choice of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from metaq.client.identity.options import checked_seconds
from metaq.client.shared.serializers import Encode
from metaq.errors import ConfigError
from metaq.model import Message, MessageQueue
from metaq.model.filters.subscription import java_string_hash
from metaq.model.message import as_body, as_keys

NO_KEYS: tuple[str, ...] = ()

Body = Any
"""Body of a message: bytes, a bytearray or a memoryview; with `serialize`, whatever that accepts."""

Selector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses a message's queue among the topic's writable ones."""


def queue_for_key(key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue of an ordering key: by Java's `hashCode`, as SelectMessageQueueByHash, so that Java producers agree."""
    # Java takes the absolute value of a remainder that has the sign of the hash: the same number.
    return queues[abs(java_string_hash(key)) % len(queues)]


def chosen(selector: Selector, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the selector's choice. Raises TypeError: it is no queue."""
    queue = selector(queues)
    if not isinstance(queue, MessageQueue):
        raise TypeError(f"the selector returned {queue!r}: it must return one of the queues that it is given")
    return queue


def is_plain(
    keys: object,
    ordering_key: str | None,
    selector: Selector | None,
    queue: MessageQueue | None,
    flag: int,
    delay_level: int,
    wait_store_ok: bool,
    properties: dict[str, str] | None,
    message_id: str | None,
    strict: bool,
) -> bool:
    """Return whether a send has topic, body and tag only, so that it may take the fast path. Arguments as of `submit`."""
    return (
        ordering_key is None and properties is None and selector is None and queue is None
        and message_id is None and keys is NO_KEYS and not (flag or delay_level or strict) and wait_store_ok is True
    )  # fmt: skip


def as_message(
    topic: str | Message,
    body: Body | None,
    tag: str | None,
    keys: str | Iterable[str] = NO_KEYS,
    *,
    flag: int = 0,
    delay_level: int = 0,
    wait_store_ok: bool = True,
    properties: dict[str, str] | None = None,
    serialize: Encode | None = None,
) -> Message:
    """Make a message of the arguments of a send. Raises TypeError, InvalidMessage.

    `serialize`: what makes a body of the given one; a whole `Message` has its bytes already.
    """
    if isinstance(topic, Message):
        if not (
            body is None and tag is None and properties is None and not (keys or flag or delay_level) and wait_store_ok
        ):
            raise TypeError(
                "a Message is sent as it is: set its fields, instead of passing body, tag, keys, ... beside it"
            )
        topic.check()
        return topic
    if body is None:
        raise TypeError("body is missing: pass bytes")
    return Message(
        topic,
        as_body(body) if serialize is None else serialize(body),
        tag,
        as_keys(keys),
        flag=flag,
        delay_level=delay_level,
        wait_store_ok=wait_store_ok,
        properties={} if properties is None else properties,
    )


def as_request(message: Message, timeout: float) -> float:
    """Return the time-out of a request, s. Raises ConfigError, TypeError: the message cannot be a request."""
    if message.delay_level:
        raise ConfigError(
            f"a request to topic {message.topic} with delay_level={message.delay_level}: who waits does not"
        )
    return checked_seconds("timeout", timeout, least=0.001)


def as_batch(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of one `send_batch`. Raises ConfigError: they cannot go in one request."""
    batch = list(messages)
    if not batch:
        raise ConfigError("send_batch got no message")
    for message in batch:
        if not isinstance(message, Message):
            raise TypeError(f"send_batch got {message!r}: pass metaq.Message objects")
        message.check()
    # As RocketMQ's MessageBatch: one request has one header, and so one topic, no delay and one WAIT.
    if len({message.topic for message in batch}) > 1:
        raise ConfigError("the messages of one batch must have one topic")
    if any(message.delay_level for message in batch):
        raise ConfigError("a delayed message cannot be part of a batch")
    if len({message.wait_store_ok for message in batch}) > 1:
        raise ConfigError("the messages of one batch must agree on wait_store_ok")
    return batch
