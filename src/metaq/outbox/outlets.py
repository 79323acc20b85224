"""Outlets: what an outbox needs of a producer, and the producers of both generations behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from metaq.errors import ConfigError, SendFailed
from metaq.model import SendStatus
from metaq.outbox.entry import METAQ1, ROCKETMQ, Entry, metaq1_message, rocketmq_message

_UNSURE = {SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT}
"""Stored, but not as safely as the broker is to store it: sent again, under the same id."""


class Outlet(Protocol):
    """Sends entries. For threads `prepare` waits; for asyncio it returns an awaitable."""

    protocol: str
    """ROCKETMQ or METAQ1: entries of that protocol are sent by it."""

    def prepare(self, topic: str) -> Any:
        """Called before the messages of a topic are sent. Raises MetaqError."""

    def submit(self, entry: Entry) -> Any:
        """Begin to send. Returns a future with `result(timeout)`, which asyncio can await. Both raise MetaqError."""

    def check(self, result: Any) -> None:
        """Raise MetaqError: what the future gave is not good enough."""


class RocketmqOutlet:
    """By a `metaq.Producer` or `metaq.aio.Producer`."""

    protocol = ROCKETMQ

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def prepare(self, topic: str) -> None:
        """Nothing."""

    def submit(self, entry: Entry) -> Any:
        message, ordering_key = rocketmq_message(entry)
        return self._producer.submit(message, ordering_key=ordering_key, message_id=entry.message_id)

    def check(self, result: Any) -> None:
        if result.status in _UNSURE:
            raise SendFailed(f"the broker answered {result.status.name} for a message of {result.queue}")


class Metaq1Outlet:
    """By a producer of `metaq.metaq1` or `metaq.metaq1.aio`. Its selector chooses the partitions."""

    protocol = METAQ1

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def prepare(self, topic: str) -> Any:
        return None if topic in self._producer.published else self._producer.publish(topic)

    def submit(self, entry: Entry) -> Any:
        return self._producer.submit(metaq1_message(entry))

    def check(self, result: Any) -> None:
        """A server that answers has stored it."""


def outlets_of(producers: Any) -> dict[str, Outlet]:
    """Return outlets by protocol. Args: producers: one producer or outlet, or several of different protocols.

    Raises TypeError: it is no producer. ConfigError: none, or two of one protocol.
    """
    several = producers if isinstance(producers, Sequence) else [producers]
    found: dict[str, Outlet] = {}
    for producer in several:
        outlet = _outlet(producer)
        if outlet.protocol in found:
            raise ConfigError(f"two producers for {outlet.protocol}: a sender takes one of each generation")
        found[outlet.protocol] = outlet
    if not found:
        raise ConfigError("a sender needs a producer")
    return found


def _outlet(producer: Any) -> Outlet:
    if hasattr(producer, "protocol") and hasattr(producer, "prepare"):
        return producer  # type: ignore[no-any-return]
    if hasattr(producer, "send_message") and hasattr(producer, "submit"):
        return Metaq1Outlet(producer)
    if hasattr(producer, "send") and hasattr(producer, "submit"):
        return RocketmqOutlet(producer)
    raise TypeError(f"{producer!r:.100} is no producer: pass one of metaq, metaq.aio, metaq.metaq1 or metaq.metaq1.aio")
