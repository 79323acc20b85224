"""Servers that bring their own sockets, run by a broker as its own are: an ASGI application, and a listener with its own accept loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvloop

from metaq.app.broker import RunningBroker, start_broker
from metaq.app.serving import Serving
from metaq.broker.broker import Broker
from metaq.client.shared.transport import Transport
from metaq.errors import ConfigError
from metaq.net.budget import ListenLimits
from metaq.options import BrokerOptions
from metaq.servers.server import BrokerServices, Server
from metaq.testing import free_port
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from tests.broker.support import small_store
from tests.servers.support import send_header
from tests.support import PATIENCE

LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])


class Asgi:
    """Serves an ASGI application as uvicorn does, one request a connection: its server, its tasks, its own end."""

    name = "http"

    def __init__(self, port: int = 0) -> None:
        self._port, self.limits, self.ticks = port, ListenLimits(), 0
        self._server: asyncio.Server | None = None
        self._requests = set[asyncio.Task[None]]()
        self.app: Callable[..., Awaitable[None]] | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    async def bind(self) -> None:
        try:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port, start_serving=False)
        except OSError as error:
            raise ConfigError(f"the HTTP server (httpPort): {error}") from None

    async def start(self, services: BrokerServices) -> None:
        self.app = application(services.broker)
        assert self._server is not None
        await self._server.start_serving()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(reader, writer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)

        async def send(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.start":
                writer.write(b"HTTP/1.0 %d -\r\n\r\n" % event["status"])
            else:
                writer.write(event["body"])
                await writer.drain()

        if len(self._requests) > self.limits.connections_max:
            await send({"type": "http.response.start", "status": 503})
            return
        assert self.app is not None
        await self.app({"type": "http", "method": method, "path": path}, None, send)

    def tick(self) -> None:
        assert self.app is not None, "time passes from the start on"
        self.ticks += 1

    def limit(self, limits: ListenLimits) -> None:
        self.limits = limits

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)


def application(broker: Broker) -> Callable[..., Awaitable[None]]:
    """GET /topics: which topics there are."""

    async def app(scope: dict[str, Any], receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        status = 200 if scope["path"] == "/topics" else 404
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": json.dumps([*broker.topics.saved.table]).encode()})

    return app


class Tail:
    """A listener with its own accept loop, as replication has: each follower is sent the log's end whenever it has moved."""

    name = "tail"

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket()
        self._port, self._followers = port, dict[socket.socket, int]()
        self._accepting: asyncio.Task[None] | None = None
        self._broker: Broker | None = None

    @property
    def address(self) -> str:
        return "{}:{}".format(*self._socket.getsockname())

    async def bind(self) -> None:
        try:
            self._socket.bind(("127.0.0.1", self._port))
        except OSError as error:
            raise ConfigError(f"the tail (tailPort {self._port}): {error}") from None
        self._socket.setblocking(False)

    async def start(self, services: BrokerServices) -> None:
        self._broker = services.broker
        self._socket.listen()
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            follower, _ = await asyncio.get_running_loop().sock_accept(self._socket)
            self._followers[follower] = -1

    def tick(self) -> None:
        assert self._broker is not None
        end = self._broker.store.log.end
        for follower, sent in self._followers.items():
            if sent != end:
                follower.send(b"%d\n" % end)
                self._followers[follower] = end

    def limit(self, limits: ListenLimits) -> None:
        """It knows none."""

    async def close(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting
        for follower in self._followers:
            follower.close()
        self._socket.close()


def started(tmp_path, *servers: Server[BrokerServices], **more: object) -> Awaitable[RunningBroker]:
    options = BrokerOptions(listen_port=0, vip_port_enable=False, broker_name="broker-a", **more)
    return start_broker(options, small_store(tmp_path / "data"), servers=servers)


async def get(address: str, path: str) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


def run(main, loop_factory=asyncio.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main, PATIENCE))


@LOOPS
def test_an_asgi_application_is_served_beside_the_broker(tmp_path, loop_factory) -> None:
    """On the same services; its time passes, an option that is changed reaches it, and a stop frees its port."""

    async def main() -> None:
        server = Asgi()
        broker = await started(tmp_path, server)
        assert broker.addresses.keys() == {"remoting", "replication", "http"}
        address = broker.addresses["http"]
        answer = await get(address, "/topics")
        assert answer.startswith(b"HTTP/1.0 200")
        assert b'"TBW102"' in answer
        assert (await get(address, "/")).startswith(b"HTTP/1.0 404")
        while server.ticks < 2:
            await asyncio.sleep(0.01)
        broker.settings["broker"].change({"connectionsMax": 1})
        assert server.limits.connections_max == 1
        host, _, port = address.rpartition(":")
        silent = await asyncio.open_connection(host, int(port))
        while not server._requests:
            await asyncio.sleep(0.01)
        assert (await get(address, "/topics")).startswith(b"HTTP/1.0 503")
        await broker.close()
        assert await silent[0].read() == b"", "the stop ends what is under way"
        silent[1].close()
        with socket.create_server((host, int(port))):
            pass

    run(main(), loop_factory)


@LOOPS
def test_a_listener_with_its_own_accept_loop_follows_the_log(tmp_path, loop_factory) -> None:
    """A send over the remoting server moves what it says, and the stop ends its followers."""

    async def main() -> None:
        broker = await started(tmp_path, Tail())
        host, _, port = broker.addresses["tail"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        end = int(await reader.readline())

        client = Transport(lambda _address, _command: None, lambda _address: None, lambda _address: None)
        send = request(RequestCode.SEND_MESSAGE_V2, send_header("BenchmarkTest"), b"hello")
        assert (await client.call(broker.address, send, PATIENCE)).code == 0
        assert int(await reader.readline()) > end
        await client.close()
        await broker.close()
        assert await reader.read() == b""
        writer.close()

    run(main(), loop_factory)


@LOOPS
def test_a_taken_address_of_any_server_stops_the_start(tmp_path, loop_factory) -> None:
    """It is named, the addresses of the others are let go, and the store was not touched."""

    async def main() -> None:
        port = free_port()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            servers = (Asgi(port), Tail(number))
            with pytest.raises(ConfigError, match=rf"the tail \(tailPort {number}\): .*in use"):
                await started(tmp_path, *servers)
        with socket.create_server(("127.0.0.1", port)):
            pass

    run(main(), loop_factory)
    assert not (tmp_path / "data").exists()


class Recorded:
    """A server that notes what is asked of it, and fails where it is told to."""

    def __init__(self, name: str, calls: list[str], failing: Sequence[str] = ()) -> None:
        self.name, self.address, self._calls, self._failing = name, f"{name}:1", calls, failing

    def _note(self, what: str) -> None:
        self._calls.append(f"{what} {self.name}")
        if what in self._failing:
            raise ConfigError(f"{self.name} cannot {what}")

    async def bind(self) -> None:
        self._note("bind")

    async def start(self, services: str) -> None:
        self._note(f"start on {services}")

    def tick(self) -> None:
        self._note("tick")

    def limit(self, limits: ListenLimits) -> None:
        self._note("limit")

    async def close(self) -> None:
        self._note("close")


def test_all_addresses_are_taken_before_anybody_is_served() -> None:
    """Then the servers start and end in their order; limits and time reach each."""
    calls = list[str]()

    async def main() -> None:
        serving = Serving([Recorded("a", calls), Recorded("b", calls)])
        await serving.bind()
        assert list(serving.started()) == []
        assert serving.addresses == {"a": "a:1", "b": "b:1"}
        await serving.start("S")
        for server in serving.started():
            server.tick()
        serving.limit(ListenLimits())
        await serving.close()

    run(main())
    whats = ["bind", "start on S", "tick", "limit", "close"]
    assert calls == [f"{what} {name}" for what in whats for name in "ab"]


def test_a_server_that_cannot_start_or_close_leaves_the_others_closed(caplog) -> None:
    """The time of one that has not started does not pass; a fault at the end is in the log."""
    calls = list[str]()

    async def main() -> None:
        serving = Serving([Recorded("a", calls, ["close"]), Recorded("b", calls, ["start on S"]), Recorded("c", calls)])
        await serving.bind()
        with pytest.raises(ConfigError, match="b cannot start"):
            await serving.start("S")
        assert [server.name for server in serving.started()] == ["a"]
        await serving.close()

    with caplog.at_level(logging.ERROR):
        run(main())
    assert calls[3:] == ["start on S a", "start on S b", "close a", "close b", "close c"]
    assert "the a server could not be closed in order" in caplog.text


def test_a_broker_whose_server_cannot_start_is_closed(tmp_path) -> None:
    """Its store can be opened at once by the next one."""

    async def main() -> None:
        with pytest.raises(ConfigError, match="x cannot start"):
            await started(tmp_path, BrokenAtStart())
        await (await started(tmp_path)).close()

    class BrokenAtStart(Asgi):
        async def start(self, services: BrokerServices) -> None:
            raise ConfigError("x cannot start")

    run(main())
