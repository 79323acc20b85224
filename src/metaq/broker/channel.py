"""Broker-initiated requests to clients: notices (one-way), questions (with an answer), and the channel that carries them.

The services decide who gets what; the channel is a server's connection and encodes it in its protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from metaq.model.access import Caller
from metaq.model.notices import MembersChanged, OffsetsReset, TransactionCheck

Notice: TypeAlias = MembersChanged | OffsetsReset | TransactionCheck
"""One-way requests to clients (RocketMQ's codes 40, 220 and 39). Every server must have an encoding for each, or drop it."""


class Unanswered(enum.Enum):
    """Reason why a question to a client has no answer."""

    GONE = "its connection has ended"
    TIMED_OUT = "it did not answer in time"
    TOO_MANY = "too many questions wait for answers already"
    UNKNOWN = "it cannot be asked that in its protocol"
    UNREADABLE = "its answer cannot be understood"


OnAnswer: TypeAlias = Callable[[Any], None]
"""Callback for a question. Called once, on the event loop, with the answer or an `Unanswered`."""


class Channel(Protocol):
    """A client's connection as the services see it."""

    @property
    def remote(self) -> str:
        """Address of the client, `ip:port`."""
        ...

    @property
    def caller(self) -> Caller:
        """Identity of the connection. A signed request may have another one."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the client leaves so much unread that notices should be put off, or another client asked."""
        ...

    def keep(self, more: int) -> None:
        """Count bytes of memory that a service keeps for this client, or gives up (below 0).

        Above the limit for all clients (`peerBytesMax`) the one that holds the most is closed. With the end of the connection
        all is given up by itself.
        """
        ...

    def may_keep(self, more: int) -> bool:
        """Return whether so many bytes more would not get this client closed. Asked by services that can refuse instead."""
        ...

    def tell(self, what: Notice) -> None:
        """Send a one-way notice."""
        ...

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:
        """Send a question. `done` is called once, at the latest after `seconds`."""
        ...


class Effect(NamedTuple):
    """A notice to one client, returned by services instead of being sent by them."""

    channel: Channel
    what: Notice


def carry_out(effects: Iterable[Effect]) -> None:
    """Send the notices."""
    for channel, what in effects:
        channel.tell(what)
