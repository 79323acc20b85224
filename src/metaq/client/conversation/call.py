"""The form of a question: a value that makes its request and reads its answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Generator
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from metaq.client.conversation.retry import refusal
from metaq.errors import BadRequest, BrokerError, ClientError, RemoteProtocolError
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command

FAULTS = (ClientError, BrokerError, BadRequest, RemoteProtocolError)
"""Errors of a request to a peer: on the way there, its refusal, or an answer that cannot be read."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Call(Struct, Generic[T_co], frozen=True):
    """One request and what its answer means."""

    seconds: ClassVar[float] = 3.0
    """How long an answer may take, the connection included."""
    answers: ClassVar[Container[int]] = (ResponseCode.SUCCESS,)
    """Response codes that are outcomes; every other is a refusal."""

    @property
    @abstractmethod
    def action(self) -> str:
        """Completes "to ..." in the text of an error."""

    @abstractmethod
    def request(self) -> Command:
        """The command, anew each time: who sends it numbers it. Raises nothing but LocalProtocolError."""

    def outcome(self, answer: Command, peer: str = "") -> T_co:
        """Read the answer of `peer`. Raises BrokerError: refused; BadRequest: the answer cannot be read."""
        if answer.code not in self.answers:
            raise refusal(answer.code, answer.remark or "", peer, self.action)
        return self.read(answer)

    @abstractmethod
    def read(self, answer: Command) -> T_co:
        """The value in an answer with one of the codes in `answers`. Raises BadRequest."""


class Order(Call[None], frozen=True):
    """A call whose answer has no content: it was done."""

    def read(self, answer: Command) -> None:
        """Nothing is in it."""


class At(Struct, Generic[T_co], frozen=True):
    """A call for one address, in a conversation with several peers."""

    address: str
    call: Call[T_co]


Conversation = Generator[Call[Any], Any, T]
"""Calls of one peer, or of whoever holds the queue in question, one after the other; then a result."""
Consultation = Generator[At[Any], Any, T]
"""Calls of peers that the conversation chooses."""


def asked(call: Call[T]) -> Conversation[T]:
    """`value = yield from asked(call)`: a step of a conversation, with the type of its outcome."""
    value: T = yield call
    return value


def asked_at(address: str, call: Call[T]) -> Consultation[T]:
    """The same for a peer of choice."""
    value: T = yield At(address, call)
    return value


def unknown_topic(error: Exception) -> bool:
    """Whether a broker or name server refused because it does not have the topic."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
