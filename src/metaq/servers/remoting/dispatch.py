"""Base of the remoting servers: frames to commands, commands to handlers, errors to answers.

A handler (`metaq.servers.remoting.handlers`) gets a decoded request and returns its answer. What it raises becomes an
answer too: `Refused` with the code of its reason, anything else SYSTEM_ERROR, a shortage of files or memory with its
remedy. `Saving` is no error: the request is parked until what it needs is saved, then handled again
(`metaq.servers.waiting`). Only a broken frame closes the connection, since where the next one begins is unknown.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct, field

from metaq.broker.channel import OnAnswer, Unanswered
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.quota.service import Quotas
from metaq.clock import SYSTEM
from metaq.errors import BadRequest, LocalProtocolError, MetaqError, Reason, Refused, shortage
from metaq.in_pieces import InPieces
from metaq.log import RateLimitedLog
from metaq.model.access import Caller
from metaq.net.address import join_address
from metaq.net.peer import Peer
from metaq.saved import Pending, Saving
from metaq.servers.metering import Metering, Sink, account_of
from metaq.servers.remoting.asking import Questions
from metaq.servers.remoting.auditing import RequestAudit
from metaq.servers.remoting.handlers import After, Answer, Call, Handler, Later, Reply
from metaq.servers.remoting.quota.waits import ALWAYS_TAKEN, OUR_LANGUAGE, telling_the_wait
from metaq.servers.server import caller_of
from metaq.servers.slices import Slices, SlowWork
from metaq.servers.tally import UNKNOWN, Tally
from metaq.servers.waiting import Parked, Parking, Wording
from metaq.wire.codes import ResponseCode, request_name
from metaq.wire.command import FRAME_BYTES_MAX, LENGTH_BYTES, Command, decode, encode, frame_bytes, reply
from metaq.wire.extensions import NOT_LEADING_MARK

log = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 30.0
"""Longest wait for the answers that a client is owed which has shut its sending side. Acks and parked requests wait 5 s."""
LEAVE_POLL_SECONDS: Final = 0.05
REMARK_CHARS_MAX = 4096
"""Characters of an error text in an answer: some carry what the peer sent."""

PARSED_FACTOR: Final = 6
"""Memory of a body and its parsed form, as a multiple of its length: measured of heartbeats, the largest ones."""

CODE_OF: Final[Mapping[Reason, ResponseCode]] = {
    # RocketMQ has no code for bad requests: it answers 1, with the reason as the remark.
    Reason.INVALID: ResponseCode.SYSTEM_ERROR,
    Reason.NO_PERMISSION: ResponseCode.NO_PERMISSION,
    Reason.DENIED: ResponseCode.SYSTEM_ERROR,  # as RocketMQ's ACL, whose exception is an error like others there
    Reason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Reason.NO_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.NOT_SUBSCRIBED: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.SUBSCRIPTION_OLD: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.BAD_FILTER: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Reason.NO_FILTER: ResponseCode.FILTER_DATA_NOT_EXIST,
    Reason.OFFLINE: ResponseCode.CONSUMER_NOT_ONLINE,
    Reason.UNANSWERED: ResponseCode.CONSUME_MSG_TIMEOUT,
    Reason.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Reason.ILLEGAL_MESSAGE: ResponseCode.MESSAGE_ILLEGAL,
    Reason.STALE: ResponseCode.STALE_SEQUENCE,
    # Java's producer gives up at once on 2; on 1, 14, 16 and 17 it tries another broker.
    Reason.BUSY: ResponseCode.SYSTEM_BUSY,
    Reason.THROTTLED: ResponseCode.SYSTEM_BUSY,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.NOT_LEADING: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.NOT_STORED: ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""Response code of each reason. Complete: a reason without a code would be a request without an answer
(tests/servers/remoting/test_refusals.py)."""

BEGINNINGS: Final[Mapping[Reason, str]] = {
    Reason.ILLEGAL_MESSAGE: "the message is illegal: ",
    Reason.THROTTLED: "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: ",
    Reason.NOT_LEADING: f"{NOT_LEADING_MARK}service not available now: ",
    Reason.NOT_STORED: "service not available now: ",
}
"""RocketMQ's own beginnings of such remarks: users' alarms look for these words."""

WAITED_IN_VAIN: Final = Wording(
    too_often="[PCBUSY_CLEAN_QUEUE]broker busy: what the request needs is deleted as often as it is made",
    too_many="[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: {connection} bytes of your requests, "
    "{total} of all, wait for topics and groups to be saved",
    too_late="[TIMEOUT_CLEAN_QUEUE]broker busy: a change that the request needs was not saved within {seconds:g} s. ",
)
"""What requests hear that waited in vain; in RocketMQ's words, as `BEGINNINGS`."""


def remark_of(refused: Refused) -> str:
    """Return the remark of the answer that tells a refusal."""
    return BEGINNINGS.get(refused.reason, "") + refused.text


def when_saved(pending: Pending, then: Callable[[], Command | None]) -> Command | None:
    """Return what `then` answers once the change is saved. Raises Saving before that, or the refusal."""
    if not pending.done:
        raise Saving(pending, then=then)
    pending.settle()
    return then()


Identify: TypeAlias = Callable[[Caller, Command], Caller]
"""(the connection's caller, a request) → the request's caller: the connection's unless it is signed. Raises Refused: a
wrong signature, or none where one is needed."""


class Handling(Struct, frozen=True):
    """Shared by the sessions of one server."""

    handlers: Mapping[int, Handler]
    parking: Parking
    questions: Questions
    faults: RateLimitedLog
    """Log of failed requests."""
    gatekeeper: Gatekeeper = field(default_factory=Gatekeeper)
    frame_bytes_max: int = FRAME_BYTES_MAX
    identify: Identify | None = None
    """Finds the caller of a signed request; None: signatures are not looked at."""
    slow_work: SlowWork = field(default_factory=SlowWork)
    audit: RequestAudit | None = None
    quotas: Quotas = field(default_factory=lambda: Quotas(SYSTEM, {}, 0.0))
    tally: Tally = field(default_factory=Tally)

    def tick(self) -> None:
        """End what has waited too long."""
        self.faults.tick()
        self.parking.expire()
        self.questions.expire()


class RemotingSession:
    """One connection of a remoting server."""

    def __init__(self, peer: Peer, handling: Handling) -> None:
        self.peer, self.handling = peer, handling
        self.parked = Parked(peer.keep)
        self.remote = join_address(*peer.address)
        self.caller = caller_of(peer)
        """Caller of unsigned requests."""
        self.slices = Slices(peer, handling.slow_work)
        self.client_id = ""
        """Of the last heartbeat."""
        self.out: Sink = peer
        self.metering = Metering(self, handling.quotas)
        self.hears_waits: bool | None = None
        """Whether the client is one of ours, which waits by itself when it is told to; None: not known yet."""
        self._frame_bytes_max = handling.frame_bytes_max
        self._needed = 0
        self._pushes = 0
        self._owed: set[int] | None = None
        """Opaques of requests that are answered by `answer_late`; None: there was none."""
        self._leave_until = 0.0
        """Loop time until which a client that sends no more gets the answers it is owed; 0: it sends."""
        peer.on_half_closed = self._half_closed

    # -- metaq.net.peer.Session
    def data_received(self, data: memoryview) -> int:
        """Handle every whole frame. Return the bytes used. Raises RemoteProtocolError."""
        start, end, self._needed, slices, metering = 0, len(data), 0, self.slices, self.metering
        if metering.waits:
            return self.nothing_now()
        try:
            # A peer that does not read its answers gets no more of them: what is left comes again once it has read.
            while not (self.peer.congested or slices.waits or metering.waits):
                size = frame_bytes(data, start, end, self._frame_bytes_max)
                if not size or start + size > end:
                    self._needed = size
                    break
                if not slices.may_go_on():
                    break
                with data[
                    start + LENGTH_BYTES : start + size
                ] as frame:  # released: the loop's buffer must not stay exported
                    command = decode(frame)
                start += size
                if not metering.limited or self._is_taken(command, size):
                    self.handle(command)
        finally:
            if slices.began:
                slices.end()
        return start

    def frame_needed(self) -> int:
        return self._needed

    def connection_lost(self, why: str) -> None:
        self.metering.close()
        self.handling.questions.gone(self)
        self.on_lost(why)

    # -- quotas
    def nothing_now(self) -> int:
        """Leave what was read for the time when the quotas have paid. Return 0, the bytes used."""
        self._needed = 0
        self.peer.pause()
        return 0

    def may_read(self) -> bool:
        """Return whether the connection waits for nothing but its quota."""
        return not self.slices.waits

    def telling(self, data: bytes | bytearray | memoryview, wait_ms: int) -> bytes | None:
        """Return answers of which the last tells how long to wait; None: the client does not know of it."""
        return telling_the_wait(bytes(data), wait_ms) if self.hears_waits else None

    def _is_taken(self, command: Command, size: int) -> bool:
        """Judge a request by the quotas. If it is not taken, it is refused."""
        self.note_language(command)
        if self.metering.judge(1, size, lambda _row: size) or command.is_response or command.code in ALWAYS_TAKEN:
            return True
        if not command.is_oneway:
            self.send(self.failure(command, self.metering.refusal))
        return False

    def note_language(self, command: Command) -> None:
        """Note whose client this is, by a request of it."""
        self.hears_waits = command.language == OUR_LANGUAGE

    # -- a client that sends no more, and reads on
    def _half_closed(self) -> bool:
        """Handle the end of the client's sending. Return whether answers are still to come."""
        loop = asyncio.get_running_loop()
        if not self._leave_until:
            self._leave_until = loop.time() + LEAVE_SECONDS
            self.on_leaving()
            if self.owes:
                loop.call_later(LEAVE_POLL_SECONDS, self._leave)
        return self.owes

    def _leave(self) -> None:
        if self.gone:
            return
        loop = asyncio.get_running_loop()
        self.on_leaving()  # again: what was parked may have joined a group, or be a held pull now
        if self.owes and loop.time() < self._leave_until:
            loop.call_later(LEAVE_POLL_SECONDS, self._leave)
        else:
            self.peer.close("it sends no more")

    @property
    def owes(self) -> bool:
        """Whether requests are still to be answered, or long answers to be written."""
        waits = self.slices.waits or self.metering.waits
        return bool(self.parked.kept.bytes or waits or self._owed or self.peer.busy)

    def on_leaving(self) -> None:
        """Handle the end of the client's sending: it can renew or take nothing any more. Overridden as `on_lost`."""

    def put_off(self, command: Command) -> None:
        """Note that a request will be answered by `answer_late`."""
        if self._owed is None:
            self._owed = set()
        self._owed.add(command.opaque)

    # -- for servers
    def on_lost(self, why: str) -> None:
        """Handle the end of the connection. Overridden by servers that keep state for it."""

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:
        """Send the peer a request; `done` gets its answer, or an `Unanswered`."""
        if self.gone:
            done(Unanswered.GONE)
        else:
            self.handling.questions.ask(self, question, seconds, done)

    def handle(self, command: Command) -> None:
        """Answer one command, unless it is oneway."""
        answer = self.answer(command)
        # RocketMQ answers unknown and rejected requests also if they are oneway; clients drop such answers.
        if answer is not None and not command.is_oneway:
            self.send(answer)

    def answer(self, command: Command) -> Command | None:
        """Return the answer to a command; None: it comes later, or never."""
        if command.is_response:  # of a client to a request of ours (326)
            self.handling.questions.answered(self, command)
            return None
        handler = self.handling.handlers.get(command.code)
        self.handling.tally.asked(command.code if handler is not None else UNKNOWN)
        if handler is None:
            if (audit := self.handling.audit) is not None:
                audit.unsupported(self, command)
            # RocketMQ's remark, with its leading blank.
            return reply(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {request_name(command.code)} not supported",
            )
        return self._outcome(command, functools.partial(self._run, handler, command))

    def _run(self, handler: Handler, command: Command) -> Command | None:
        header, handling, caller = handler.header.from_ext(command.ext), self.handling, self.caller
        if handler.public:
            return self._made(command, handler.run(Call(self, caller, header, command)))
        try:
            if handling.identify is not None:
                caller = handling.identify(caller, command)
                if (account := account_of(caller)) != self.metering.account:
                    self.metering.proven(account, len(command.body), refuse=command.code not in ALWAYS_TAKEN)
            for action, resource in handler.needs_of(header):
                handling.gatekeeper.check(caller, action, resource)
        except Refused as refused:
            # The request's name: a client that does several things at once must know which of them was refused. In front,
            # but for access control, whose remarks begin with the name of RocketMQ's exception.
            named = (
                f"{refused.text}; asked: {handler.name}"
                if refused.reason is Reason.DENIED
                else f"{handler.name}: {refused.text}"
            )
            raise Refused(refused.reason, named) from None
        return self._made(command, handler.run(Call(self, caller, header, command)))

    def _made(self, command: Command, answer: Answer) -> Command | None:
        """Return the answer that a handler's result stands for; None: it comes later, or never."""
        if isinstance(answer, After):
            return when_saved(answer.pending, lambda: self._made(command, answer.then()))
        if isinstance(answer, Later):
            return None
        if isinstance(answer, Generator):
            self.slices.run(self._in_pieces(command, answer), PARSED_FACTOR * len(command.body))
            return None
        if isinstance(answer, Reply):
            return reply(command, answer.code, answer.header, remark=answer.remark, body=answer.body)
        if isinstance(answer, bytes):
            return reply(command, body=answer)
        return reply(command, 0, answer)

    def _in_pieces(self, command: Command, work: InPieces[Answer]) -> InPieces[None]:
        """Run a handler's work in pieces, then answer."""
        error: Exception | None = None
        answer: Answer = None
        try:
            answer = yield from work
        except Exception as failed:  # noqa: BLE001  becomes the answer
            error = failed

        def outcome() -> Answer:
            if error is not None:
                raise error
            return answer

        try:
            self._answer_late(command, outcome)
        finally:
            # Its traceback holds this frame, and so all that the request brought: megabytes until the next collection.
            error = None

    def answer_late(self, command: Command, work: Callable[[], Answer]) -> None:
        """Answer a request whose handler returned LATER."""
        self._answer_late(command, work)
        if self._owed:
            self._owed.discard(command.opaque)

    def _answer_late(self, command: Command, work: Callable[[], Answer]) -> None:
        late = self._outcome(command, lambda: self._made(command, work()))
        if late is not None and not command.is_oneway and not self.gone:
            self.send(late)

    def _outcome(self, command: Command, work: Callable[[], Command | None]) -> Command | None:
        try:
            answer = work()
        except Saving as saving:
            return self.park(command, saving)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            if self._owed:
                self._owed.discard(command.opaque)
            return self.failure(command, error)
        audit = self.handling.audit
        if audit is not None and command.code in audit.administrative and answer is not None:
            audit.answered(self, command, answer)
        return answer

    # -- requests that wait for something to be saved
    @property
    def gone(self) -> bool:
        """The connection is closed."""
        return self.peer.closed

    def park(self, command: Command, saving: Saving) -> Command | None:
        """Park a request until what it needs is saved. Return None, or the answer that too many wait."""
        try:
            self.handling.parking.park(
                saving,
                self.parked,
                functools.partial(self.resume, command),
                functools.partial(self.refuse, command),
                len(command.body),
            )
        except Refused as busy:
            return self.failure(command, busy)
        return None

    def resume(self, command: Command, work: Callable[[], Command | None] | None) -> None:
        """Handle a parked request again, or answer it by `work`."""
        if self.gone:
            return
        if work is None:
            self.handle(command)
            return
        answer = self._outcome(command, work)
        if answer is not None and not command.is_oneway:
            self.send(answer)

    def refuse(self, command: Command, error: Refused) -> None:
        """Answer a parked request: what it needs could not be saved."""
        if not command.is_oneway and not self.gone:
            self.send(self.failure(command, error))

    def failure(self, command: Command, error: Exception) -> Command:
        """Return the answer for an error."""
        self.handling.tally.failed(error)
        if (audit := self.handling.audit) is not None:
            audit.failed(self, command, error)
        if isinstance(error, Refused):
            return reply(command, CODE_OF[error.reason], remark=remark_of(error)[:REMARK_CHARS_MAX])
        if isinstance(error, BadRequest):
            return reply(command, ResponseCode.SYSTEM_ERROR, remark=str(error)[:REMARK_CHARS_MAX])
        # One log line for each request code and kind of fault in a while: a client in a loop must not fill the log.
        told, text = (command.code, type(error).__name__), f"{type(error).__name__}: {error}"
        if isinstance(error, MetaqError | OSError | MemoryError):
            text = shortage(error) or text
            self.handling.faults.warning(
                told, "request %s of %s failed: %s", request_name(command.code), self.remote, text
            )
        else:
            self.handling.faults.error(
                told, "request %s of %s failed", request_name(command.code), self.remote, error=error
            )
        return reply(command, ResponseCode.SYSTEM_ERROR, remark=text[:REMARK_CHARS_MAX])

    def send(self, command: Command) -> None:
        """Write a command. An answer that cannot be encoded is replaced by one that says so."""
        try:
            data = encode(command)
        except LocalProtocolError as error:
            log.error("an answer to %s cannot be sent: %s", self.remote, error)  # noqa: TRY400  the text says it all
            # Nobody waits for a notice; for an answer somebody does, so a shorter one takes its place.
            if not command.is_response:
                return
            data = encode(
                Command(
                    ResponseCode.SYSTEM_ERROR,
                    command.opaque,
                    command.flag,
                    remark=str(error)[:REMARK_CHARS_MAX],
                    serialize=command.serialize,
                )
            )
        self.write(data)

    def write(self, data: bytes) -> None:
        """Write whole frames to the peer; a server may gather them first."""
        self.out.write(data)

    def push(self, command: Command) -> None:
        """Send a request of our own.

        Its number is from our own counter, which may equal one of the peer's: the response flag tells the two apart.
        """
        # All clients read the opaque as a signed 32-bit number: it stays positive and begins anew.
        self._pushes = self._pushes + 1 & 0x7FFFFFFF
        command.opaque = self._pushes
        self.send(command)
