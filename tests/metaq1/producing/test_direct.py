"""Sends that the calling thread writes and reads by itself: what they find when something else than their answer comes, or nothing."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import pytest

from metaq.errors import BrokerError, ClientClosed, ConnectionFailed, RequestTimeout
from metaq.metaq1 import Message, MessageProducer, MetaClientConfig, MetaMessageSessionFactory
from metaq.metaq1.producing import direct
from metaq.metaq1.shared import core
from metaq.metaq1.shared.connection import WISHES, Connection
from metaq.metaq1.shared.links import ConnectionPace
from metaq.net.lent import POSSIBLE, Lent
from metaq.testing import eventually
from metaq.wire.metaq1.commands import Line, PutLine, ResultLine, VersionLine, encode
from tests.metaq1.conftest import at
from tests.metaq1.stored import read
from tests.metaq1.stub import Stub, StubConnection
from tests.support import PATIENCE

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="needs epoll")

SHORT = 0.05
"""Seconds of a wait that is meant to be in vain."""


def stores(connection: StubConnection, line: Line) -> None:
    if isinstance(line, PutLine):
        connection.answer(200, b"7 0 %d" % len(connection.lines), line.opaque)
    elif isinstance(line, VersionLine):
        connection.answer(200, b"1.4.6.2", line.opaque)


class Server:
    """A stub in a thread of its own."""

    def __init__(self) -> None:
        self.stub = Stub(stores)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self.stub.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.stub.__aexit__, None, None, None)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def do(self, function: Callable[..., object], *arguments: object) -> None:
        """Run a coroutine function or a plain one in the stub's loop."""

        async def run() -> None:
            done = function(*arguments)
            if asyncio.iscoroutine(done):
                await done

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE)

    @property
    def puts(self) -> list[bytes]:
        return [line.body for line in self.stub.lines if isinstance(line, PutLine)]


@pytest.fixture
def far() -> Iterator[Server]:
    with Server() as running:
        yield running


class Client:
    """A producer whose connection is lent, and what of its sends were direct."""

    def __init__(self, far: Server, **pace: float) -> None:
        times = ConnectionPace(**({"idle": PATIENCE, "reconnect_pause": SHORT} | pace))  # type: ignore[arg-type]
        self.factory = MetaMessageSessionFactory(MetaClientConfig(server_url=f"meta://{far.stub.address}"), pace=times)
        self.producer: MessageProducer = self.factory.create_producer()
        self.producer.publish("t")
        self._address = far.stub.address

    @property
    def connection(self) -> Connection | None:
        link = self.factory._core.links.get(self._address)
        return link.up if link is not None else None

    @property
    def is_lent(self) -> bool:
        return self.connection is not None and self.connection.lent is not None

    def warm(self) -> None:
        """Send until the connection is lent."""

        def lent() -> bool:
            self.producer.send_message(Message("t", b"warm"))
            return self.is_lent

        eventually(lent)


@pytest.fixture
def client(far: Server) -> Iterator[Client]:
    made = Client(far)
    with made.factory:
        yield made


def test_after_some_sends_the_thread_does_it_itself(far: Server, client: Client) -> None:
    """On the connection that there is, and the loop has nothing to do any more."""
    for _ in range(WISHES - 1):
        client.producer.send_message(Message("t", b"0"))
        assert not client.is_lent
    client.warm()
    handed: list[object] = []
    client.factory._core.hand_in = handed.append  # type: ignore[method-assign]
    results = [client.producer.send_message(Message("t", b"%d" % number)) for number in range(100)]
    assert [one.offset for one in results] == sorted(one.offset for one in results)
    assert far.puts[-100:] == [b"%d" % number for number in range(100)]
    assert not handed
    assert len(far.stub.connections) == 1
    assert client.factory._core.messages == 0


def test_the_loop_takes_it_back_and_lends_it_again(far: Server, client: Client) -> None:
    """A send that does not wait, and figures, between direct sends: everything in the order of the calls."""
    expected = []
    for turn in range(5):
        client.warm()
        client.producer.send_message(Message("t", b"direct"))
        futures = [client.producer.submit(Message("t", b"%d" % number)) for number in range(turn)]
        client.producer.send_message(Message("t", b"last"))
        for future in futures:
            future.result(PATIENCE)
        expected += [b"direct", *(b"%d" % number for number in range(turn)), b"last"]
    assert [body for body in far.puts if body != b"warm"] == expected
    assert len(far.stub.connections) == 1


@pytest.mark.parametrize(("code", "text"), [(500, "no room"), (403, "closed")])
def test_a_refusal(far: Server, client: Client, code: int, text: str) -> None:
    client.warm()
    far.stub.answering = lambda connection, line: connection.answer(code, text.encode(), line.opaque)  # type: ignore[union-attr]
    with pytest.raises(BrokerError, match=text) as failed:
        client.producer.send_message(Message("t", b"x"))
    assert failed.value.code == code
    assert client.is_lent
    far.stub.answering = stores
    client.producer.send_message(Message("t", b"y"))


def test_a_time_out_and_a_late_answer(far: Server, client: Client) -> None:
    """The late answer is nobody's, and the connection stays."""
    client.warm()
    late: list[tuple[StubConnection, int]] = []
    far.stub.answering = lambda connection, line: late.append((connection, line.opaque))  # type: ignore[union-attr]
    with pytest.raises(RequestTimeout, match=r"did not answer within 0\.05 s; to send to topic t") as failed:
        client.producer.send_message(Message("t", b"x"), timeout=SHORT)
    assert failed.value.sent
    far.stub.answering = stores
    eventually(lambda: bool(late))
    connection, opaque = late[0]
    far.do(connection.answer, 200, b"1 0 666", opaque)
    for _ in range(3 * WISHES):
        assert client.producer.send_message(Message("t", b"y")).offset != 666
    assert len(far.stub.connections) == 1
    assert client.factory._core.messages == 0
    assert client.is_lent


def pieces(connection: StubConnection, data: bytes) -> None:
    """In two segments."""
    loop = asyncio.get_running_loop()
    connection.writer.write(data[:9])
    loop.call_later(SHORT, connection.writer.write, data[9:])


@pytest.mark.parametrize(
    "told",
    [
        lambda connection, good: pieces(connection, good),
        lambda connection, good: connection.writer.write(good + b"version 5\r\n"),
        lambda connection, good: connection.writer.write(encode(ResultLine(200, b"1 0 666", 12345)) + good),
        lambda connection, good: pieces(connection, good + encode(ResultLine(200, b"1 0 666", 12345))),
    ],
)
def test_other_bytes_than_the_one_answer(
    far: Server, client: Client, told: Callable[[StubConnection, bytes], None]
) -> None:
    """In pieces, with more behind it, or with another's before it: the loop sorts it out."""
    client.warm()

    def answering(connection: StubConnection, line: Line) -> None:
        assert isinstance(line, PutLine)
        told(connection, encode(ResultLine(200, b"7 0 42", line.opaque)))

    far.stub.answering = answering
    assert client.producer.send_message(Message("t", b"x")).offset == 42
    far.stub.answering = stores
    client.warm()
    assert len(far.stub.connections) == 1


def test_the_connection_breaks(far: Server, client: Client) -> None:
    """During a send it says so, and that the server may have it; between two sends the loop notices and makes another."""
    client.warm()
    far.stub.answering = lambda connection, line: connection.cut()
    with pytest.raises(ConnectionFailed, match="broke") as failed:
        client.producer.send_message(Message("t", b"x"))
    assert failed.value.sent
    far.stub.answering = stores
    eventually(lambda: client.connection is not None)
    client.warm()
    before = client.connection
    far.do(far.stub.connections[-1].cut)
    eventually(lambda: client.connection not in {None, before})
    client.warm()
    assert client.factory._core.messages == 0


def test_what_is_no_answer(far: Server, client: Client) -> None:
    """It ends the connection, as in the loop."""
    client.warm()
    far.stub.answering = lambda connection, line: connection.writer.write(b"nonsense\r\n")
    with pytest.raises(ConnectionFailed):
        client.producer.send_message(Message("t", b"x"))


def test_heartbeats_go_on(far: Server) -> None:
    """A lent connection that is idle is asked for its version, and is lent again when it is used again."""
    client = Client(far, idle=SHORT)
    with client.factory:
        client.warm()
        count = len(far.stub.lines)
        eventually(lambda: sum(isinstance(line, VersionLine) for line in far.stub.lines[count:]) >= 3)
        client.warm()
        assert len(far.stub.connections) == 1


def test_a_heartbeat_during_a_send(far: Server) -> None:
    """It comes in between, since the server takes its time; both are answered."""
    client = Client(far, idle=SHORT)
    with client.factory:
        client.warm()
        waiting: list[tuple[StubConnection, int]] = []

        def answering(connection: StubConnection, line: Line) -> None:
            if isinstance(line, PutLine):
                waiting.append((connection, line.opaque))
            elif isinstance(line, VersionLine):
                stores(connection, line)
                for other, opaque in waiting:
                    other.answer(200, b"7 0 42", opaque)
                waiting.clear()

        far.stub.answering = answering
        assert client.producer.send_message(Message("t", b"x")).offset == 42
        assert len(far.stub.connections) == 1


def test_an_interrupt(far: Server, client: Client) -> None:
    """Ctrl-C ends the wait; what was sent is nobody's any more, and the next send is a good one."""
    client.warm()
    far.stub.answering = lambda connection, line: _thread.interrupt_main()
    with interrupts(), pytest.raises(KeyboardInterrupt):
        client.producer.send_message(Message("t", b"x"))
    far.stub.answering = stores
    client.warm()
    assert client.factory._core.messages == 0


def test_an_interrupt_while_it_writes(far: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how much went out: what the next send writes must not be taken for the rest of it."""
    client.warm()

    def interrupted(self: Lent, request: bytes) -> None:
        self._socket.send(request[:5])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Lent, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.producer.send_message(Message("t", b"x"))
    client.warm()
    assert len(far.stub.connections) == 2
    assert client.factory._core.messages == 0


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt: commands that other tests have run in this process have a handler of their own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_shutdown_ends_a_send_that_has_no_answer(
    far: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "FLUSH_SECONDS", SHORT)
    client.warm()
    asked = threading.Event()
    far.stub.answering = lambda connection, line: asked.set()
    errors: list[BaseException] = []

    def send() -> None:
        try:
            client.producer.send_message(Message("t", b"x"), timeout=PATIENCE)
        except ClientClosed as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert asked.wait(PATIENCE)
    began = time.monotonic()
    client.factory.shutdown()
    thread.join(PATIENCE)
    assert len(errors) == 1
    assert time.monotonic() - began < PATIENCE / 2


def test_a_shutdown_waits_for_a_send(far: Server, client: Client) -> None:
    client.warm()
    asked: list[tuple[StubConnection, int]] = []
    far.stub.answering = lambda connection, line: asked.append((connection, line.opaque))  # type: ignore[union-attr]
    results: list[int] = []
    thread = threading.Thread(
        target=lambda: results.append(client.producer.send_message(Message("t", b"x"), timeout=PATIENCE).offset)
    )
    thread.start()
    eventually(lambda: bool(asked))
    ending = threading.Thread(target=client.factory.shutdown)
    ending.start()
    eventually(lambda: client.factory._core.closed)
    connection, opaque = asked[0]
    far.do(connection.answer, 200, b"7 0 42", opaque)
    for one in (thread, ending):
        one.join(PATIENCE)
    assert results == [42]


def test_what_the_socket_does_not_take(far: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop writes the rest, before what comes then."""
    monkeypatch.setattr(direct, "LARGE_BYTES", 1 << 30)
    client.factory._core.config = MetaClientConfig(
        server_url=client.factory.config.server_url, max_message_bytes=1 << 26
    )
    client.warm()
    body = random.Random(1).randbytes((1 << 20) - 100)  # the stub's reader takes no more
    raw = client.connection.lent._socket  # type: ignore[union-attr]
    client.connection.lent._socket = Stingy(raw)  # type: ignore[union-attr,assignment]
    client.producer.send_message(Message("t", body))
    client.producer.send_message(Message("t", b"next"))
    assert far.puts[-2:] == [body, b"next"]
    assert len(far.stub.connections) == 1


class Stingy:
    """A socket that takes a kilobyte."""

    def __init__(self, raw: object) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> object:
        return getattr(self._raw, name)

    def send(self, data: bytes) -> int:
        sent: int = self._raw.send(data[:1000])  # type: ignore[attr-defined]
        return sent


def test_large_ones_go_by_the_loop(far: Server, client: Client) -> None:
    client.warm()
    client.producer.send_message(Message("t", bytes(direct.LARGE_BYTES + 1)))
    assert not client.is_lent


def test_threads_that_come_and_go(factory: MetaMessageSessionFactory, topic: str, config: MetaClientConfig) -> None:
    """Alone and together, waiting and not: every message is stored once, those of each thread in order."""
    producer = factory.create_producer(at(0))
    producer.publish(topic)
    errors: list[BaseException] = []

    def work(name: int) -> None:
        chance = random.Random(name)
        try:
            for number in range(150):
                message = Message(topic, b"%d-%d" % (name, number))
                if chance.random() < 0.1:
                    producer.submit(message)
                    time.sleep(chance.random() / 1000)
                else:
                    producer.send_message(message)
        except BaseException as error:
            errors.append(error)

    for together in (1, 2, 4, 1):
        threads = [threading.Thread(target=work, args=(together * 10 + number,)) for number in range(together)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert not errors
    producer.send_message(Message(topic, b"end"))
    assert config.address is not None
    found = [payload.decode() for _, _, payload in read(config.address, topic, 0)][:-1]
    by_thread: dict[str, list[int]] = {}
    for one in found:
        name, _, number = one.partition("-")
        by_thread.setdefault(name, []).append(int(number))
    assert by_thread.pop("10") == [*range(150)] * 2
    assert by_thread == {name: [*range(150)] for name in ("20", "21", "40", "41", "42", "43")}
