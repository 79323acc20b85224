"""What a broker says to a client without being asked: effects, questions, and the channel that carries them.

The broker decides what is to be told and to whom; the channel, a server's connection, says it in its protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from metaq.model.access import Caller
from metaq.model.notices import MembersChanged, OffsetsReset, TransactionCheck

Notice: TypeAlias = MembersChanged | OffsetsReset | TransactionCheck
"""All that a client may be told. Whoever adds to it gives each server a way to say it."""


class Unanswered(enum.Enum):
    """Why a question to a client has no answer."""

    GONE = "its connection has ended"
    TIMED_OUT = "it did not answer in time"
    TOO_MANY = "too many questions wait for answers already"
    UNKNOWN = "it cannot be asked that in its protocol"
    UNREADABLE = "its answer cannot be understood"


OnAnswer: TypeAlias = Callable[[Any], None]
"""Called once, on the event loop: with the answer, or with an `Unanswered`."""


class Channel(Protocol):
    """A client's connection, as the decisions see it."""

    @property
    def remote(self) -> str:
        """`ip:port` of the client."""
        ...

    @property
    def caller(self) -> Caller:
        """Who the client is, as far as its connection says. A request may be somebody else's."""
        ...

    @property
    def congested(self) -> bool:
        """Whether so much waits for the client already that what can be put off should be, or asked of another."""
        ...

    def tell(self, what: Notice) -> None:
        """Tell the client; nobody waits for an answer."""
        ...

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:
        """Ask the client. `done` is called once, at the latest after `seconds`."""
        ...


class Effect(NamedTuple):
    """Something to be told to one client."""

    channel: Channel
    what: Notice


def carry_out(effects: Iterable[Effect]) -> None:
    """Tell each what it is to be told."""
    for channel, what in effects:
        channel.tell(what)
