"""Base classes of calls: values that encode a request and decode its response."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Generator
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from metaq.client.conversation.retry import denied, refusal
from metaq.errors import BadRequest, BrokerError, ClientError, RemoteProtocolError
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command

FAULTS = (ClientError, BrokerError, BadRequest, RemoteProtocolError)
"""Errors of a request: of the connection, a refusal by the peer, or an undecodable response."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Call(Struct, Generic[T_co], frozen=True):
    """A request with the decoding of its response."""

    seconds: ClassVar[float] = 3.0
    """Time-out including the connect, s. RocketMQ's clients wait 3 s too."""
    answers: ClassVar[Container[int]] = (ResponseCode.SUCCESS,)
    """Response codes that `read` decodes; every other is a refusal."""

    @property
    @abstractmethod
    def action(self) -> str:
        """Text that completes "to ..." in errors."""

    @abstractmethod
    def request(self) -> Command:
        """Encode the command, a new one each time, since the sender sets its opaque. Raises LocalProtocolError."""

    def outcome(self, answer: Command, peer: str = "") -> T_co:
        """Decode the response of `peer`. Raises BrokerError: refused; BadRequest: undecodable."""
        # For some calls SYSTEM_ERROR is an answer, such as for a group without members; never that of access control.
        if answer.code not in self.answers or denied(answer.code, answer.remark):
            raise refusal(answer.code, answer.remark or "", peer, self.action)
        return self.read(answer)

    @abstractmethod
    def read(self, answer: Command) -> T_co:
        """Decode a response with one of the codes in `answers`. Raises BadRequest."""


class Order(Call[None], frozen=True):
    """A call whose response has no content."""

    def read(self, answer: Command) -> None:
        """Return None."""


class At(Struct, Generic[T_co], frozen=True):
    """A call for one address, in a conversation with several peers."""

    address: str
    call: Call[T_co]


Conversation = Generator[Call[Any], Any, T]
"""Calls to one peer, or to the broker of the queue in question, one after the other, and a result."""
Consultation = Generator[At[Any], Any, T]
"""Calls to peers that the conversation chooses, and a result."""


def asked(call: Call[T]) -> Conversation[T]:
    """Make a step of a conversation, with the type of its outcome: `value = yield from asked(call)`."""
    value: T = yield call
    return value


def asked_at(address: str, call: Call[T]) -> Consultation[T]:
    """Make a step for a chosen peer, as `asked`."""
    value: T = yield At(address, call)
    return value


def unknown_topic(error: Exception) -> bool:
    """Return whether a broker or name server refused because it does not know the topic."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
