"""What a consumer has subscribed to: listeners, and how they are called."""

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from metaq.client.identity.options import check_flag, check_whole
from metaq.errors import ClientError, ConfigError
from metaq.metaq1.consuming.delivery import MessageFilter
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.model.received import ReceivedMessage
from metaq.wire.metaq1.frame import HEAD_BYTES

MAX_SIZE: Final = 1 << 20
"""Bytes that a fetch asks for, if the subscription says nothing."""


@runtime_checkable
class MessageListener(Protocol):
    """A listener as an object. A function of the message does as well.

    It may have an attribute `executor` (`concurrent.futures.Executor`), which calls it in place of the consumer's own threads.
    """

    def receive_messages(self, message: ReceivedMessage) -> Any:
        """Process one message. An error that it raises has the message delivered again. What it returns is not looked at."""
        ...


ListenerFunction: TypeAlias = Callable[[ReceivedMessage], Any]
AsyncListenerFunction: TypeAlias = Callable[[ReceivedMessage], Awaitable[Any]]


class Subscription(Struct, frozen=True):
    """One topic of a consumer."""

    topic: str
    max_size: int
    call: ListenerFunction
    is_async: bool
    accept: MessageFilter | None
    executor: concurrent.futures.Executor | None
    auto_ack: bool


def subscription(
    topic: str,
    max_size: int,
    listener: object,
    message_filter: object,
    executor: object,
    auto_ack: bool,
    *,
    asyncio_allowed: bool,
) -> Subscription:
    """Return the subscription of these arguments. Raises TypeError, ConfigError, InvalidMessage."""
    check_topic_word(topic)
    check_whole("max_size", max_size)
    if max_size <= HEAD_BYTES:
        raise ConfigError(
            f"max_size={max_size}: a fetch for topic {topic} needs more than the {HEAD_BYTES} bytes of a header"
        )
    check_flag("auto_ack", auto_ack)
    call = listener.receive_messages if isinstance(listener, MessageListener) else listener
    if not callable(call):
        raise TypeError(
            f"listener is {listener!r:.100}: pass a function of the message, or an object with receive_messages"
        )
    if message_filter is not None and not callable(message_filter):
        raise TypeError(f"message_filter is {message_filter!r:.100}: pass a function of group and message")
    executor = getattr(listener, "executor", None) if executor is None else executor
    if executor is not None and not isinstance(executor, concurrent.futures.Executor):
        raise TypeError(f"executor is {executor!r:.100}: pass a concurrent.futures.Executor")
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004
    if is_async and not asyncio_allowed:
        raise TypeError("listener is a coroutine function: use metaq.metaq1.aio")
    if is_async and executor is not None:
        raise TypeError("executor calls functions, and the listener is a coroutine function")
    return Subscription(topic, max_size, call, is_async, message_filter, executor, auto_ack)


class Subscriptions:
    """The topics of one consumer, until it begins."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.by_topic: dict[str, Subscription] = {}
        self.is_complete = False

    def add(self, one: Subscription) -> None:
        """Raises ClientError: the topic is subscribed to already, or the consumer has begun."""
        if self.is_complete:
            raise ClientError(
                f"subscribe({one.topic!r}) comes after complete_subscribe() of group {self._group}: make another consumer"
            )
        if one.topic in self.by_topic:
            raise ClientError(f"topic {one.topic} is subscribed to by this consumer of group {self._group} already")
        self.by_topic[one.topic] = one

    def complete(self) -> None:
        """Raises ClientError: nothing is subscribed to, or this was called before."""
        if self.is_complete:
            raise ClientError(f"complete_subscribe() of group {self._group} was called already")
        if not self.by_topic:
            raise ClientError(f"complete_subscribe() of group {self._group}: subscribe to a topic first")
        self.is_complete = True
