"""Handlers of a remoting server: one decorated method for each request code, or for a few alike.

    @handles(RequestCode.GET_MAX_OFFSET, headers.QueueHeader, Action.OBSERVE)
    def _max_offset(self, call: Call[headers.QueueHeader]) -> headers.OffsetReplyHeader:
        return headers.OffsetReplyHeader(offset=self._lookup.max_offset(call.header.topic, call.header.queue_id))

`metaq.servers.remoting.dispatch` decodes the header, asks whether the caller may, calls the method, and makes an answer
of what it returns or raises, unless the request is oneway.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from metaq.in_pieces import InPieces
from metaq.model.access import Action, Caller
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.net.peer import Peer
from metaq.saved import Pending
from metaq.servers.waiting import Parked
from metaq.wire.codes import RequestCode, request_name
from metaq.wire.command import Command, ExtWriter, SerializeType
from metaq.wire.headers import Header

H = TypeVar("H", bound=Header)
T = TypeVar("T")

NoHeader = Header
"""Header class of requests that have none."""
_MARK = "_metaq_handles"
_SETTINGS = (Action.ADMINISTER, Action.REGISTER)
_GROUPS = ("group", "consumer_group")
"""Header fields with the group that access is judged by. Producers' groups are not: anybody may be of one, as with RocketMQ."""


class Reply(NamedTuple):
    """An answer with a code, a remark, or both header and body."""

    header: ExtWriter | Mapping[str, str] | None = None
    body: bytes = b""
    code: int = 0
    remark: str | None = None


class After(NamedTuple):
    """The answer comes when a change is saved; `then` makes it. If the change is refused, that is the answer."""

    pending: Pending
    then: Callable[[], Answer] = lambda: None


class Later(enum.Enum):
    """Returned by a handler that answers by itself, with `Call.answer` or otherwise."""

    LATER = enum.auto()


LATER = Later.LATER

Answer: TypeAlias = "Header | bytes | Reply | After | Later | InPieces[Answer] | None"
"""Result of a handler. A header or body alone is an answer with code 0; None is code 0 and nothing else. What takes long is
work in pieces, which returns the answer: a generator, so that the handler may be one."""


class CallSession(Protocol):
    """A request's connection, as its handler sees it."""

    peer: Peer
    remote: str
    parked: Parked

    def answer_late(self, command: Command, work: Callable[[], Answer]) -> None:
        """Answer a request that a handler has put off."""
        ...

    def put_off(self, command: Command) -> None:
        """Note that `answer_late` will come: a client that sends no more is kept until then."""
        ...


class Call(Struct, Generic[H]):
    """One request, as its handler sees it."""

    session: CallSession
    caller: Caller
    """Caller of the request."""
    header: H
    command: Command
    """The undecoded request. Most handlers need none of it."""

    @property
    def body(self) -> bytes:
        return bytes(self.command.body)

    @property
    def version(self) -> int:
        """The client's version, RocketMQ's ordinal."""
        return self.command.version

    @property
    def language(self) -> str:
        return self.command.language

    @property
    def oneway(self) -> bool:
        """The client waits for no answer."""
        return self.command.is_oneway

    @property
    def reply_to(self) -> tuple[int, bool]:
        """Opaque, and whether the header was binary: what the compiled extension needs to write the answer."""
        return self.command.opaque, self.command.serialize is SerializeType.BINARY

    def answer(self, answer: Answer) -> None:
        """Answer now, from a handler that returned LATER."""
        self.session.answer_late(self.command, lambda: answer)


class Handler(Struct, frozen=True):
    """One entry of a server's table."""

    name: str
    """Name of the request: what access is judged by where it changes settings."""
    header: type[Header]
    action: Action
    topic: str
    """Header field with the topic; empty if there is none."""
    group: str
    """Header field with the group of consumers; empty if there is none."""
    run: Callable[[Call[Any]], Answer]
    public: bool = False
    """Answered to everybody, also to those who have no account."""

    def needs_of(self, header: Header) -> Sequence[tuple[Action, str]]:
        """Return what the caller must be allowed, all of it: actions and their resources (`metaq.model.access.Authorise`).

        A topic is judged by the request's action; a group always by that of a consumer. What the header does not name is judged
        by the handler, or by the service behind it.
        """
        if self.action in _SETTINGS:
            return ((self.action, self.name),)
        topic = getattr(header, self.topic) if self.topic else ""
        group = getattr(header, self.group) if self.group else ""
        if not group:
            return ((self.action, topic or ""),)
        of_group = Action.SUBSCRIBE, RETRY_PREFIX + group
        return ((self.action, topic), of_group) if topic else (of_group,)


class _Mark(NamedTuple):
    codes: tuple[int, ...]
    header: type[Header]
    action: Action
    public: bool


def handles(
    codes: int | tuple[int, ...], header: type[H], action: Action, *, public: bool = False
) -> Callable[[Callable[[T, Call[H]], Answer]], Callable[[T, Call[H]], Answer]]:
    """Mark a method as the handler of request codes, with their header class and the action that access is judged
    by; `public`: by none, everybody is answered."""
    mark = _Mark(codes if isinstance(codes, tuple) else (codes,), header, action, public)

    def marked(method: Callable[[T, Call[H]], Answer]) -> Callable[[T, Call[H]], Answer]:
        setattr(method, _MARK, mark)
        return method

    return marked


def table_of(*owners: object) -> dict[int, Handler]:
    """Return request code → handler of the marked methods of `owners`. Raises ValueError: two for one code."""
    table: dict[int, Handler] = {}
    for owner in owners:
        for _, method in inspect.getmembers(owner, inspect.ismethod):
            mark: _Mark | None = getattr(method, _MARK, None)
            if mark is None:
                continue
            known = {field.name for field in fields(mark.header)}
            # The fields are found once, at the start: the check of access runs for each request.
            topic = "topic" if "topic" in known else ""
            group = next((name for name in _GROUPS if name in known), "")
            for code in mark.codes:
                if code in table:
                    raise ValueError(f"request {request_name(code)} has two handlers")
                table[code] = Handler(_name(code), mark.header, mark.action, topic, group, method, mark.public)
    return table


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)
