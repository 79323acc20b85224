"""A second server, of a protocol with two words, on the same services: nothing in the broker is the remoting protocol's.

put TOPIC TEXT          ok QUEUE OFFSET
get TOPIC OFFSET [MS]   one TEXT, or none; with MS the answer may wait so long
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from metaq.app.broker import start_broker
from metaq.broker.broker import Broker
from metaq.broker.channel import Notice, OnAnswer, Unanswered
from metaq.broker.pulls.pull import Pull, PullAnswer, PullOutcome
from metaq.broker.requests import FILTER, HOLD, PullRequest, Send
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.message import host_bytes
from metaq.net.budget import ListenLimits
from metaq.net.peer import Peer, Session
from metaq.options import BrokerOptions
from metaq.saved import Saving
from metaq.servers.server import BrokerServices, PeerServer, SessionServer
from metaq.servers.waiting import WAIT_SECONDS, Parked, Parking
from metaq.wire.record import decode_record
from tests.broker.support import SlowFile, open_broker, small_store
from tests.servers.support import Client, FakePeer, open_server
from tests.support import PATIENCE

CODES = {Reason.NO_TOPIC: "404", Reason.INVALID: "400", Reason.THROTTLED: "503"}


class EchoSession:
    """One connection of the echo server; also the channel that the broker knows it by."""

    def __init__(self, peer: Peer, broker: Broker, parking: Parking) -> None:
        self.peer, self._broker, self._parking, self._parked = peer, broker, parking, Parked(peer.keep)
        self.remote, self.caller = f"{peer.address[0]}:{peer.address[1]}", Caller(peer.address[0], loopback=True)

    def data_received(self, data: memoryview) -> int:
        end = bytes(data).rfind(b"\n") + 1
        for line in bytes(data[:end]).decode().splitlines():
            self._one(line)
        self._broker.answer_pulls()
        return end

    def _one(self, line: str) -> None:
        word, topic, *rest = line.split(" ", 3 if line.startswith("get") else 2)
        try:
            self._say(self._put(topic, *rest) if word == "put" else self._get(topic, *map(int, rest)))
        except Refused as refused:
            self._refuse(refused)
        except Saving as saving:
            self._wait(line, saving)

    def _wait(self, line: str, saving: Saving) -> None:
        """The topic is being made: once more when it is there."""
        try:
            self._parking.park(saving, self._parked, lambda _then: self._one(line), self._refuse)
        except Refused as busy:
            self._refuse(busy)

    def _refuse(self, refused: Refused) -> None:
        self._say(f"{CODES.get(refused.reason, '500')} {refused.text}")

    def _put(self, topic: str, text: str) -> str:
        born = host_bytes(*self.peer.address)
        sent = self._broker.sends.send(Send(topic=topic, body=text.encode(), born_ms=1, born_host=born, queue_id=0))
        return f"ok {sent.queue_id} {sent.put.queue_offset}"

    def _get(self, topic: str, offset: int, wait_ms: int = 0) -> str | None:
        wanted = PullRequest(b"echo", topic.encode(), 0, offset, 1, FILTER | HOLD, hold_ms=wait_ms, subscription=b"*")
        pull = self._broker.pulls.make(self, self.caller, wanted, None)
        answer = self._broker.pulls.first(pull)
        return None if answer is None else self._text_of(answer)

    def _text_of(self, answer: PullAnswer) -> str:
        found = answer.outcome is PullOutcome.FOUND
        return f"one {decode_record(bytes(answer.pulled.body)).body.decode()}" if found else "none"

    def answer_pull(self, pull: Pull, answer: PullAnswer | Exception) -> None:
        self._say(str(answer) if isinstance(answer, Exception) else self._text_of(answer))

    congested = False

    def keep(self, more: int) -> None: ...

    def may_keep(self, more: int) -> bool:
        return True

    def tell(self, what: Notice) -> None:
        self._say(f"told {what}")

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:
        done(Unanswered.UNKNOWN)

    def _say(self, text: str | None) -> None:
        if text is not None:
            self.peer.write(f"{text}\n".encode())

    def frame_needed(self) -> int:
        return 0

    def connection_lost(self, why: str) -> None:
        self._broker.closed(self)


class EchoServer:
    """All of a server."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._parking = broker, Parking(broker.clock)

    def session(self, peer: Peer) -> Session:
        return EchoSession(peer, self._broker, self._parking)

    def tick(self) -> None:
        self._parking.expire()

    def close(self) -> None:
        """It holds nothing."""


class Lines(FakePeer):
    """The transport of an echo connection: what is written, as lines."""

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def lines(self) -> list[str]:
        found, self.writes = b"".join(self.writes).decode().splitlines(), []
        return found


def connect(protocol_server: SessionServer) -> tuple[Lines, Session]:
    peer = Lines()
    return peer, protocol_server.session(peer)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_an_echo_server_publishes_and_pulls_with_codes_of_its_own(tmp_path, clock) -> None:
    """A broken line waits for its rest; a refusal has this protocol's number and the service's plain words."""
    with open_broker(tmp_path, clock) as broker:
        peer, session = connect(EchoServer(broker))
        data = b"put orders first one\nput orders second\nget orders 0\nget orders 7\nget ord"
        assert session.data_received(memoryview(data)) == len(data) - len(b"get ord")
        assert peer.lines() == ["ok 0 0", "ok 0 1", "one first one", "none"]
        session.data_received(memoryview(b"get nobody 0\nput rmq_sys_METAQ_X hello\n"))
        (missing, forbidden) = peer.lines()
        assert missing.startswith("404 topic[nobody] not exist")
        assert forbidden.startswith("500 the topic rmq_sys_METAQ_X belongs to the broker itself")


def test_servers_share_one_log_and_wake_each_other(tmp_path, clock) -> None:
    """A held pull of one server is answered by the other's append, in its own protocol; and the other way round."""
    with open_server(tmp_path, clock) as (broker, protocol_server):
        client = Client(protocol_server)
        peer, session = connect(EchoServer(broker))
        client.send("orders", b"from remoting")
        session.data_received(memoryview(b"get orders 0\nget orders 1 60000\n"))
        assert peer.lines() == ["one from remoting"]
        client.send("orders", b"more of it")
        assert peer.lines() == ["one more of it"]
        assert client.pull("orders", offset=2, sys_flag=6, suspend_ms=60_000) == []
        session.data_received(memoryview(b"put orders from echo\n"))
        assert peer.lines() == ["ok 0 2"]
        (answer,) = client.received()
        assert b"from echo" in answer.body
        session.data_received(memoryview(b"get orders 3 5000\n"))
        clock.advance(5)
        broker.tick()
        assert peer.lines() == ["none"]


def test_a_connection_of_an_echo_server_leaves_nothing_behind(tmp_path, clock) -> None:
    """Its held pulls go with it."""
    with open_broker(tmp_path, clock) as broker:
        peer, session = connect(EchoServer(broker))
        session.data_received(memoryview(b"put orders x\nget orders 1 5000\n"))
        assert len(broker.held_pulls) == 1
        session.connection_lost("")
        assert len(broker.held_pulls) == 0
        assert peer.lines() == ["ok 0 0"]


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_broker_runs_an_echo_server_as_it_runs_its_own(tmp_path, loop_factory) -> None:
    """At an address of its own, under the broker's limits, which change while it runs; the stop closes its connections."""

    async def asked(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], text: str) -> str:
        streams[1].write(f"{text}\n".encode())
        return (await streams[0].readline()).decode().strip()

    async def main() -> None:
        def open_sessions(services: BrokerServices, _: object) -> EchoServer:
            return EchoServer(services.broker)

        options = BrokerOptions(listen_port=0, vip_port_enable=False)
        echo = PeerServer("echo", ("127.0.0.1", 0), ListenLimits(), open_sessions)
        broker = await start_broker(options, small_store(tmp_path), servers=[echo])
        host, port = broker.addresses["echo"].rsplit(":", 1)
        streams = await asyncio.open_connection(host, int(port))
        assert await asked(streams, "put orders hello") == "ok 0 0", "a topic that is saved first"
        assert await asked(streams, "get orders 0") == "one hello"
        streams[1].write(b"get orders 1 1000000\n")
        other = await asyncio.open_connection(host, int(port))
        assert await asked(other, "put orders again") == "ok 0 1"
        assert await streams[0].readline() == b"one again\n"
        broker.settings["broker"].change({"connectionsMax": 2})
        third = await asyncio.open_connection(host, int(port))
        assert await third[0].read() == b"", "there are as many as may be"
        await broker.close()
        for reader, writer in (streams, other, third):
            assert await reader.read() == b""
            writer.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE))


def test_what_an_echo_server_waits_for_comes_or_is_given_up(tmp_path, clock) -> None:
    """In the words that no protocol has chosen; the put is not done later."""
    file = SlowFile()
    file.slow = False
    with open_broker(tmp_path, clock, files={"topics.json": file}) as broker:
        file.slow = True
        server = EchoServer(broker)
        peer, session = connect(server)
        session.data_received(memoryview(b"put orders one\n"))
        assert peer.lines() == []
        file.end()
        assert peer.lines() == ["ok 0 0"]
        session.data_received(memoryview(b"put others one\n"))
        clock.advance(WAIT_SECONDS)
        server.tick()
        (late,) = peer.lines()
        assert late == (
            "500 busy: a change that the request needs was not saved within 5 s. Nothing was done for it, try again"
        )
        file.end()
        session.data_received(memoryview(b"get others 0\n"))
        assert peer.lines() == ["none"]
