"""What all remoting servers share: every request is answered, and only a broken frame ends a connection."""

from __future__ import annotations

import asyncio
import logging

import pytest

from metaq.broker.gatekeeper import Gatekeeper
from metaq.clock import FakeClock
from metaq.errors import BadRequest, Reason, Refused, RemoteProtocolError, StoreFull
from metaq.log import RateLimitedLog
from metaq.model.access import Action, Authorise, Caller, everybody
from metaq.net.budget import ListenLimits
from metaq.net.dialer import dial
from metaq.net.listener import listen
from metaq.net.peer import Peer
from metaq.servers.remoting.asking import Questions
from metaq.servers.remoting.dispatch import Handling, RemotingSession
from metaq.servers.remoting.handlers import LATER, Call, Later, NoHeader, Reply, handles, table_of
from metaq.servers.slices import SlowWork
from metaq.servers.waiting import Parking
from metaq.wire import headers
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command, SerializeType, encode
from metaq.wire.connection import Connection
from tests.servers.support import FakePeer
from tests.support import PATIENCE

ECHO, BAD, FULL, BUG, LATER_ON, NEVER, HUGE, LONG, CHANGE = range(1, 10)
log = logging.getLogger(__name__)


class Handlers:
    """A handler for each way in which a request can end."""

    def __init__(self) -> None:
        self.waiting: list[Call[NoHeader]] = []

    @handles(ECHO, NoHeader, Action.OBSERVE)
    def _echo(self, call: Call[NoHeader]) -> Reply:
        return Reply(call.command.ext, call.body)

    @handles(BAD, NoHeader, Action.OBSERVE)
    def _bad(self, _call: Call[NoHeader]) -> None:
        raise Refused(Reason.NO_TOPIC, "the field x=1 is wrong")

    @handles(FULL, NoHeader, Action.OBSERVE)
    def _full(self, _call: Call[NoHeader]) -> None:
        raise StoreFull("no room on /data")

    @handles(BUG, NoHeader, Action.OBSERVE)
    def _bug(self, _call: Call[NoHeader]) -> None:
        raise ZeroDivisionError("division by zero")

    @handles(LATER_ON, NoHeader, Action.OBSERVE)
    def _later(self, call: Call[NoHeader]) -> Later:
        self.waiting.append(call)
        return LATER

    @handles(NEVER, NoHeader, Action.OBSERVE)
    def _never(self, _call: Call[NoHeader]) -> Later:
        return LATER

    @handles(HUGE, NoHeader, Action.OBSERVE)
    def _huge(self, _call: Call[NoHeader]) -> bytes:
        return bytes(16 * 1024 * 1024)

    @handles(LONG, NoHeader, Action.OBSERVE)
    def _long(self, _call: Call[NoHeader]) -> None:
        raise BadRequest("x" * 100_000)

    @handles(CHANGE, headers.TopicHeader, Action.ADMINISTER)
    def _change(self, call: Call[headers.TopicHeader]) -> headers.TopicHeader:
        return call.header

    def release(self) -> None:
        for call in self.waiting:
            call.answer(Reply(remark="at last"))


def handling(
    handlers: Handlers | None = None, clock: FakeClock | None = None, authorise: Authorise = everybody
) -> Handling:
    clock = clock or FakeClock()
    return Handling(
        table_of(handlers or Handlers()),
        Parking(clock),
        Questions(clock, {}),
        RateLimitedLog(log),
        Gatekeeper(authorise),
        slow_work=SlowWork(clock.monotonic),
    )


@pytest.fixture
def peer() -> FakePeer:
    return FakePeer()


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def session(peer: FakePeer, handlers: Handlers, clock: FakeClock) -> RemotingSession:
    return RemotingSession(peer, handling(handlers, clock))


def feed(session: RemotingSession, *commands: Command) -> int:
    return session.data_received(memoryview(b"".join(map(encode, commands))))


@pytest.mark.parametrize("form", list(SerializeType))
def test_requests_are_answered_in_order_and_in_kind(session, peer, form) -> None:
    """Number, form and body come back; a partial frame waits and tells what it needs."""
    commands = [Command(ECHO, n, ext={"n": str(n)}, body=b"b" * n, serialize=form) for n in range(3)]
    data = b"".join(map(encode, commands))
    assert session.data_received(memoryview(data + data[:9])) == len(data)
    assert session.frame_needed() == len(encode(commands[0]))
    answers = peer.received()
    assert [(answer.opaque, answer.ext, answer.body, answer.serialize) for answer in answers] == [
        (n, {"n": str(n)}, b"b" * n, form) for n in range(3)
    ]


@pytest.mark.parametrize(
    ("code", "answer_code", "says"),
    [
        (BAD, 17, "the field x=1 is wrong"),
        (FULL, 1, "no room on /data"),
        (BUG, 1, "ZeroDivisionError: division by zero"),
        (12345, 3, " request type 12345 not supported"),
        (318, 3, "UPDATE_NAMESRV_CONFIG"),
        (HUGE, 1, "the limit is 16777216"),
    ],
)
def test_every_failure_is_an_answer(session, peer, code, answer_code, says) -> None:
    """The text says what is wrong, and the connection goes on working."""
    feed(session, Command(code, 7), Command(ECHO, 8))
    failed, echoed = peer.received()
    assert (failed.opaque, failed.code) == (7, answer_code)
    assert says in failed.remark
    assert (echoed.opaque, echoed.code) == (8, 0)


def test_unexpected_failure_is_logged_with_its_traceback(session, peer, caplog) -> None:
    """The peer gets a line, we get the place."""
    feed(session, Command(BUG, 7))
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("code", [ECHO, BAD, BUG])
def test_oneway_gets_no_answer(session, peer, code) -> None:
    """Not even when it fails."""
    feed(session, Command(code, 7, flag=2))
    assert peer.received() == []


def test_a_response_is_not_taken_for_a_request(session, peer) -> None:
    """A late answer to a push of ours ends here."""
    feed(session, Command(ECHO, 7, flag=1))
    assert peer.received() == []


def test_an_answer_can_come_later(session, peer, handlers) -> None:
    """A handler that returns LATER may answer through the session; other requests are not held up."""
    feed(session, Command(LATER_ON, 1), Command(NEVER, 2), Command(ECHO, 3))
    assert [answer.opaque for answer in peer.received()] == [3]
    handlers.release()
    (answer,) = peer.received()
    assert (answer.opaque, answer.remark) == (1, "at last")


def test_pushes_have_numbers_of_their_own(session, peer) -> None:
    """The peer counts its requests, we count ours."""
    for _ in range(2):
        session.push(Command(40, flag=2))
    assert [push.opaque for push in peer.received()] == [1, 2]


def test_whether_a_peer_may_is_asked_before_a_handler_runs(peer) -> None:
    """With who it is, what the request does, and the topic that it names; settings are asked about by the request's name."""
    asked = []

    def authorise(who: Caller, action: Action, resource: str) -> None:
        asked.append((who, action, resource))
        if action is Action.ADMINISTER:
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not yours")

    session = RemotingSession(peer, handling(authorise=authorise))
    feed(session, Command(CHANGE, 1, ext={"topic": "orders"}), Command(ECHO, 2))
    refused, echoed = peer.received()
    assert (refused.code, refused.remark) == (16, f"{CHANGE}: {CHANGE} is not yours")
    assert echoed.code == 0
    here = Caller("127.0.0.1", loopback=True)
    assert asked == [(here, Action.ADMINISTER, str(CHANGE)), (here, Action.OBSERVE, "")]


def test_a_header_that_a_handler_cannot_have_is_refused_before_it(session, peer) -> None:
    """The answer names the field."""
    feed(session, Command(CHANGE, 1))
    (answer,) = peer.received()
    assert (answer.code, answer.remark) == (1, "the request lacks the field topic")


def test_a_code_has_one_handler() -> None:
    """Two are a mistake of ours, found when the server is made."""
    with pytest.raises(ValueError, match="has two handlers"):
        table_of(Handlers(), Handlers())


def test_congested_peer_is_not_served_until_it_reads(session, peer) -> None:
    """What was not taken is presented again by the transport."""
    command = encode(Command(ECHO, 1))
    peer.congested = True
    assert session.data_received(memoryview(command)) == 0
    assert peer.received() == []
    peer.congested = False
    assert session.data_received(memoryview(command)) == len(command)
    assert len(peer.received()) == 1


def test_good_requests_before_garbage_are_answered(session, peer) -> None:
    """Then the connection is broken."""
    with pytest.raises(RemoteProtocolError, match="the limit is"):
        session.data_received(memoryview(encode(Command(ECHO, 1)) + b"\xff" * 10))
    assert len(peer.received()) == 1


def test_long_error_texts_are_cut(session, peer) -> None:
    """A peer cannot make us send back its megabytes."""
    feed(session, Command(LONG, 1))
    assert len(peer.received()[0].remark) <= 4096


class Asking:
    """A client session: asks, and collects answers."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.connection = peer, Connection()
        self.answers: asyncio.Queue[Command] = asyncio.Queue()
        self.lost = asyncio.Event()

    def data_received(self, data: memoryview) -> int:
        self.connection.receive_data(data)
        while (command := self.connection.next_command()) is not None:
            self.answers.put_nowait(command)
        return len(data)

    def frame_needed(self) -> int:
        return 0

    def connection_lost(self, why: str) -> None:
        self.lost.set()

    async def ask(self, command: Command) -> Command:
        self.peer.write(encode(command))
        return await self.answers.get()


def test_garbage_over_tcp_ends_one_connection_and_no_other() -> None:
    """Two peers on one port: one sends what can never be a frame, the other goes on working."""

    async def body() -> None:
        shared = handling()
        listener = await listen("127.0.0.1", 0, lambda peer: RemotingSession(peer, shared), ListenLimits())
        sessions: list[Asking] = []

        def make(peer: Peer) -> Asking:
            sessions.append(Asking(peer))
            return sessions[-1]

        async def connect() -> Asking:
            await dial(f"127.0.0.1:{listener.port}", make, 5)
            return sessions[-1]

        good = await connect()
        for garbage in (
            b"\xff" * 64,
            b"\x00\x00\x00\x09\x00\x00\x00\x05hello",
            b"GET / HTTP/1.0\r\n\r\n",
            b"\x16\x03\x01",
        ):
            bad = await connect()
            answer = await bad.ask(Command(ECHO, 1, body=b"fine so far"))
            assert answer.body == b"fine so far"
            bad.peer.write(garbage + bytes(8))
            await bad.lost.wait()
            assert (await good.ask(Command(ECHO, 2, body=b"still here"))).body == b"still here"
        await listener.close()

    logging.getLogger("metaq.net").setLevel(logging.CRITICAL)
    try:
        asyncio.run(asyncio.wait_for(body(), PATIENCE))
    finally:
        logging.getLogger("metaq.net").setLevel(logging.NOTSET)


def test_work_in_pieces_is_answered_at_its_end(peer):
    """In turns, in which requests behind it wait; an error on the way is the answer."""
    clock = FakeClock()

    class Long:
        @handles(7001, NoHeader, Action.OBSERVE)
        def _sum(self, call):
            for _ in range(5):
                clock.advance(0.002)
                yield
            return b"sum"

        @handles(7002, NoHeader, Action.OBSERVE)
        def _fails(self, call):
            clock.advance(0.002)
            yield
            raise Refused(Reason.BUSY, "no more")

        @handles(7003, NoHeader, Action.OBSERVE)
        def _quick(self, call):
            return b"quick"

    session = RemotingSession(peer, handling(Long(), clock))
    frames = b"".join(encode(Command(code, opaque)) for opaque, code in enumerate((7001, 7002, 7003), 1))
    rest = [frames]

    def present():
        used = session.data_received(memoryview(rest[0]))
        rest[0] = rest[0][used:]

    peer.present = present
    present()
    assert (peer.paused, peer.received()) == (True, [])
    while peer.jobs:
        peer.jobs.popleft()()
    answers = peer.received()
    assert [(answer.opaque, answer.code, bytes(answer.body)) for answer in answers] == [
        (1, 0, b"sum"), (2, ResponseCode.SYSTEM_BUSY, b""), (3, 0, b"quick"),
    ]  # fmt: skip
    assert (peer.paused, rest) == (False, [b""])
