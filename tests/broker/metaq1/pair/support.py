"""A synchronous pair without sockets: two brokers with their text servers, and between them a wire that the test holds."""

from __future__ import annotations

import pathlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from metaq.app.pair.link import line_of
from metaq.broker.broker import Broker
from metaq.broker.metaq1.pair.samsa import Samsa
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model.metaq1.pair import GregorSettings, Heard, PairSettings, SamsaSettings, SyncMessage, ToSlave
from metaq.servers.metaq1.server import Metaq1Server
from metaq.store.metaq1.frames import FramesRead
from metaq.wire.hot import crc31
from metaq.wire.metaq1.commands import ResultLine, ValueLine, encode
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings
from tests.support import eventually

SLAVE = "10.0.0.6:8124"


def paired(pair: PairSettings, topics: dict[str, int] | None = None, **options: object) -> Metaq1Settings:
    made = settings(topics, **options)
    return Metaq1Settings(made.options, made.rules, made.text, pair)


def samsa_settings(**more: object) -> SamsaSettings:
    return SamsaSettings(slave=SLAVE, **more)


class Turns:
    """Calls for later turns of the loop, from whichever thread."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def __call__(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def run(self) -> None:
        for _ in range(1000):
            if not self._calls:
                return
            self._calls.popleft()()
        raise AssertionError("there is no end of calls")


class Slave:
    """The slave's side."""

    def __init__(self, broker: Broker, server: Metaq1Server) -> None:
        self.broker, self._server = broker, server

    def client(self) -> TextClient:
        return TextClient(self._server)

    def ask(self, client: TextClient, line: bytes) -> ResultLine | ValueLine:
        """Send a command, and wait for its answer as long as something is saved."""
        client.feed(line)
        for _ in range(200):
            if found := client.answers():
                (answer,) = found
                assert isinstance(answer, ResultLine | ValueLine)
                return answer
            self.broker.store.flusher.flush()
            self.broker.deliver()
            client.go_on()
        raise AssertionError(f"{line[:100]!r} is never answered")


class Wire:
    """The connection to a slave. What is sent waits until the test lets it through."""

    def __init__(self, samsa: Samsa, slave: Slave) -> None:
        self._samsa, self._slave, self.client = samsa, slave, slave.client()
        self.congested = False
        self.waiting: deque[tuple[int, ToSlave]] = deque()
        self.sent: list[ToSlave] = []
        self.dropped = ""
        self.instead: Callable[[ToSlave], Heard | None] = lambda _: None
        """What the slave answers in place of its own answer."""

    def send(self, opaque: int, what: ToSlave) -> None:
        self.waiting.append((opaque, what))
        self.sent.append(what)

    def read(self, job: Callable[[], FramesRead], done: Callable[[FramesRead | Refused], None]) -> None:
        done(job())

    def drop(self, why: str) -> None:
        self.dropped = why

    @property
    def messages(self) -> list[bytes]:
        """Bodies of what was to be stored, in the order in which it was sent."""
        return [what.body for what in self.sent if isinstance(what, SyncMessage) and what.checksum == crc31(what.body)]

    def let_through(self, count: int = 1 << 30) -> None:
        """Bring so many commands to the slave, and its answers back."""
        while self.waiting and count:
            opaque, what = self.waiting.popleft()
            count -= 1
            told = self.instead(what)
            if told is None:
                answer = self._slave.ask(self.client, encode(line_of(opaque, what)))
                assert answer.opaque == opaque
                told = Heard(answer.code if isinstance(answer, ResultLine) else 200, bytes(answer.body))
            self._samsa.answered(opaque, told)
        self._samsa.answers_over()


class Master:
    """The master's side."""

    def __init__(self, broker: Broker, server: Metaq1Server, clock: FakeClock, turns: Turns) -> None:
        self.broker, self.server, self._clock, self._turns = broker, server, clock, turns
        assert broker.metaq1 is not None
        assert broker.metaq1.samsa is not None
        self.samsa = broker.metaq1.samsa
        self.client = TextClient(server)
        self.wire: Wire | None = None

    def turn(self) -> None:
        """A turn of the loop."""
        self._turns.run()

    def tick(self, seconds: float = 0.1) -> None:
        self._clock.advance(seconds)
        self.broker.store.flusher.flush()
        self.broker.deliver()
        self.broker.tick()
        self.server.tick()
        self.turn()

    def connect(self, slave: Slave) -> Wire:
        """Connect to a slave; the test lets the questions through."""
        self.wire = Wire(self.samsa, slave)
        self.samsa.attach(self.wire)
        return self.wire

    def settle(self, wire: Wire) -> None:
        """Let everything through, until the slave has all."""
        for _ in range(200):
            self.tick(0.01)
            wire.let_through()
            self.turn()
            if self.samsa.enough and not wire.waiting:
                return
        raise AssertionError("the slave never has all")

    def put(self, body: bytes, partition: int = 0, topic: str = "test", opaque: int = 1) -> None:
        """Begin a put; its answer comes later."""
        self.client.feed(b"put %b %d %d 0 %d\r\n%b" % (topic.encode(), partition, len(body), opaque, body))

    def answers(self) -> list[tuple[int, bytes]]:
        """Code and text of each answer so far."""
        return [(answer.code, bytes(answer.body)) for answer in self.client.answers() if isinstance(answer, ResultLine)]


@contextmanager
def open_master(root: pathlib.Path, clock: FakeClock, pair: SamsaSettings | None = None) -> Iterator[Master]:
    turns = Turns()
    with open_metaq1_server(root, clock, paired(pair or samsa_settings()), call_soon=turns) as (
        broker,
        server,
    ):
        yield Master(broker, server, clock, turns)


@contextmanager
def open_slave(
    root: pathlib.Path, clock: FakeClock, topics: dict[str, int] | None = None, **options: object
) -> Iterator[Slave]:
    with open_metaq1_server(root, clock, paired(GregorSettings(), topics, **options)) as (broker, server):
        yield Slave(broker, server)


def frames_of(client: TextClient, partition: int = 0, topic: str = "test") -> bytes:
    """All frames of a partition."""
    client.feed(b"get %b g %d 0 1000000 7\r\n" % (topic.encode(), partition))
    (answer,) = eventually(client.answers, what="the get is answered")  # what is not in memory is read by a thread
    return bytes(answer.body) if isinstance(answer, ValueLine) else b""
