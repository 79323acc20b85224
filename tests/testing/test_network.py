"""The network that fails on demand, between a plain client and a plain server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest

import metaq
from metaq.testing import FlakyNetwork
from metaq.testing.network import HELD_BYTES_MAX, NetworkThread, SharedPort, _Connection, _End, _Way
from tests.support import PATIENCE, eventually


class Echo:
    """A server that sends back what it gets, and says good-bye when its client does."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.received = bytearray()
        self.broken = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw):
        with raw:
            try:
                while data := raw.recv(65536):
                    self.received += data
                    raw.sendall(data)
                raw.sendall(b"bye")
            except ConnectionError:
                self.broken.set()

    def close(self):
        self._listener.close()


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def network(echo):
    with FlakyNetwork(echo.address) as between:
        yield between


def test_connection_that_is_cut_before_it_has_begun_breaks(echo):
    """A cut in the loop's very turn that accepted it: the client must not be left with a connection that leads nowhere."""
    ours, theirs = socket.socketpair()
    thread, ended = NetworkThread(), []

    async def accepted_and_cut():
        host, _, port = echo.address.rpartition(":")
        client = _End(*await asyncio.open_connection(sock=ours))
        connection = _Connection(client, (host, int(port)), _Way(), _Way(), lambda: None)
        connection.start(ended.append)
        connection.abort()
        await connection.ended()

    with theirs:
        theirs.settimeout(PATIENCE)
        thread.call(accepted_and_cut())
        assert len(ended) == 1
        with contextlib.suppress(ConnectionError):
            assert theirs.recv(1) == b""
    thread.close()


@pytest.mark.parametrize("shared", [False, True])
def test_network_may_be_started_again_and_leaves_no_thread(echo, shared):
    """On its own thread or a shared one; while it runs a second start is refused."""
    before = set(threading.enumerate())
    thread = NetworkThread() if shared else None
    network = FlakyNetwork(echo.address, thread=thread)
    for _ in range(2):
        with network:
            with pytest.raises(metaq.ConfigError, match="started already"):
                network.start()
            with connect(network) as raw:
                raw.sendall(b"hello")
                assert receive(raw, 5) == b"hello"
    if thread is not None:
        thread.close()
    assert not [one for one in set(threading.enumerate()) - before if one.name == "flaky-network"]


@pytest.fixture
def client(network):
    with connect(network) as raw:
        yield raw


def connect(network, seconds=PATIENCE):
    host, _, port = network.address.rpartition(":")
    return socket.create_connection((host, int(port)), seconds)


def receive(raw, count):
    data = b""
    while len(data) < count:
        more = raw.recv(count - len(data))
        assert more, f"ended behind {data!r}"
        data += more
    return data


def exchange(raw, data=b"hello"):
    raw.sendall(data)
    return receive(raw, len(data)) == data


def silent(raw):
    """Whether nothing comes for a moment: only a fault of the test could make this true by chance."""
    raw.settimeout(0.2)
    try:
        return not raw.recv(1)
    except TimeoutError:
        return True
    finally:
        raw.settimeout(PATIENCE)


def test_everything_gets_through_in_order_and_good_byes_too(client, network):
    """Both directions at once, more than any buffer holds; the client's good-bye reaches the server and comes back."""
    data = bytes(range(256)) * 40_000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()
    client.shutdown(socket.SHUT_WR)
    assert receive(client, 3) == b"bye"
    assert client.recv(1) == b""
    eventually(lambda: network.open == 0)


def test_cut_breaks_and_refuses_until_mended(client, network):
    """An open connection is reset, a new one refused, as by a machine whose server is gone."""
    assert exchange(client)
    network.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(network)
    network.mend()
    with connect(network) as again:
        assert exchange(again)
    assert network.connections == 2


def test_cut_inside_a_frame_lets_so_many_bytes_through(client, network, echo):
    """The server has exactly these, and sees its end break."""
    network.cut_after(3)
    client.sendall(b"hello")
    with pytest.raises(ConnectionResetError):
        while client.recv(10):
            pass
    eventually(lambda: bytes(echo.received) == b"hel")
    with pytest.raises(ConnectionRefusedError):
        connect(network)


@pytest.mark.parametrize("direction", ["to server", "to client", "both"])
def test_stalled_direction_holds_bytes_and_gives_them_later(client, network, echo, direction):
    """What was sent meanwhile arrives, once and in order, when the direction is resumed; the other one is not touched."""
    assert exchange(client, b"before")
    network.stall(direction)
    client.sendall(b"one")
    client.sendall(b"two")
    assert silent(client)
    if direction == "to client":
        eventually(lambda: bytes(echo.received) == b"beforeonetwo")
    else:
        assert bytes(echo.received) == b"before"
    network.resume(direction)
    assert receive(client, 6) == b"onetwo"


def test_stalled_network_holds_no_more_than_a_window(network, client, echo):
    """Who goes on sending is stopped by its own full buffers, as TCP would."""
    network.stall("to server")
    client.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while True:
            sent += client.send(bytes(65536))
            assert sent < 10 * HELD_BYTES_MAX
    network.mend()
    eventually(lambda: len(echo.received) == sent)


def test_delay_is_added_once_and_not_to_each_piece(client, network):
    """Ten pieces sent at once arrive together after the delay: it makes answers late, not the line narrow."""
    network.delay(0.3, "to client")
    start = time.monotonic()
    for _ in range(10):
        client.sendall(b"x" * 1000)
    receive(client, 10_000)
    assert time.monotonic() - start >= 0.3
    network.delay(3600)
    client.sendall(b"y")
    assert silent(client)
    network.mend()
    assert receive(client, 1) == b"y", "what was on its way need not wait for a delay that has ended"


def test_throttle_narrows_all_connections_together(network):
    """Two connections share one rate; an end to it lets everything through at once."""
    network.throttle(100_000, "to server")
    with connect(network) as one, connect(network) as other:
        start = time.monotonic()
        one.sendall(bytes(15_000))
        other.sendall(bytes(15_000))
        receive(one, 15_000)
        receive(other, 15_000)
        assert time.monotonic() - start >= 0.25
        network.throttle(1)
        one.sendall(bytes(1_000_000))
        network.mend()
        receive(one, 1_000_000)


def test_half_open_connection_looks_open_and_is_never_answered(client, network, echo):
    """The server has lost it, the client learns of that only when the network is mended: RST, as from a restarted machine."""
    assert exchange(client)
    network.half_open()
    client.sendall(b"lost")
    with connect(network) as fresh:
        fresh.sendall(b"lost too")
        assert silent(client)
        assert silent(fresh)
        assert echo.broken.wait(PATIENCE)
        assert bytes(echo.received) == b"hello"
        network.mend()
        for raw in (client, fresh):
            with pytest.raises(ConnectionResetError):
                raw.recv(1)
    with connect(network) as again:
        assert exchange(again)


def test_connection_to_nobody_breaks():
    """The target does not listen: the client's connection is reset. A network that is told so refuses."""
    with FlakyNetwork("127.0.0.1:1") as dead:
        with pytest.raises(ConnectionResetError), connect(dead) as raw:
            raw.recv(1)
        dead.refuse()
        dead.mend()
        with pytest.raises(ConnectionRefusedError):
            connect(dead)
        dead.accept()
        with pytest.raises(ConnectionResetError), connect(dead) as raw:
            raw.recv(1)
        assert dead.connections == 2


def test_networks_share_a_thread_and_go_with_their_block(echo):
    """Several on one thread; afterwards neither ports nor connections are left."""
    thread = NetworkThread()
    with (
        FlakyNetwork(echo.address, thread=thread) as one,
        FlakyNetwork(echo.address, thread=thread) as two,
        connect(one) as first,
        connect(two) as second,
    ):
        assert exchange(first)
        assert exchange(second)
        two.close()
        with pytest.raises(ConnectionResetError):
            second.recv(1)
        assert exchange(first)
    thread.close()
    for address in (one.address, two.address):
        host, _, port = address.rpartition(":")
        socket.create_server((host, int(port))).close()
    with pytest.raises(metaq.ConfigError, match="not started"):
        one.cut()


def test_wrong_faults_are_refused(network):
    """A direction that is none, a negative delay, a negative rate."""
    with pytest.raises(metaq.ConfigError, match="'to server'"):
        network.stall("up")
    for wrong in (lambda: network.delay(-1), lambda: network.throttle(-1)):
        with pytest.raises(metaq.ConfigError, match="need a"):
            wrong()


def test_a_port_that_always_has_somebody_waiting_leaves_the_thread_its_turns(echo, monkeypatch):
    """Clients whose connections break at once come back faster than a busy machine finds out who they are."""
    monkeypatch.setattr("metaq.testing.network.CALL_SECONDS", PATIENCE)
    thread = NetworkThread()
    network = FlakyNetwork(echo.address, listen="", thread=thread).start()
    network.refuse()
    knocking, enough = [], threading.Event()

    def knock():
        knocking.append(None)
        with contextlib.suppress(ConnectionResetError):  # it is refused before the call returns
            socket.create_connection((host, int(number)), PATIENCE).close()

    def route(_accepted):
        if not enough.is_set() and len(knocking) < 20_000:  # else this test would never end
            knock()
        return network

    port = SharedPort("127.0.0.1:0", route, thread).start()
    host, number = port.address.split(":")
    try:
        knock()
        network.accept()
        assert len(knocking) < 20_000
    finally:
        enough.set()
        port.close()
        network.close()
        thread.close()


def test_a_port_goes_on_behind_a_connection_that_nobody_could_route(echo, caplog):
    """That one is refused, and the log says why."""
    thread = NetworkThread()
    network = FlakyNetwork(echo.address, listen="", thread=thread).start()
    routes = iter([None, network])

    def route(_accepted):
        found = next(routes)
        if found is None:
            raise RuntimeError("the broker has just been stopped")
        return found

    port = SharedPort("127.0.0.1:0", route, thread).start()
    try:
        host, number = port.address.split(":")
        # The port may be so quick that the reset comes before the call has returned.
        with pytest.raises(ConnectionResetError), socket.create_connection((host, int(number)), PATIENCE) as refused:
            refused.recv(1)
        with socket.create_connection((host, int(number)), PATIENCE) as connection:
            connection.sendall(b"hello")
            assert connection.recv(5) == b"hello"
        assert "the broker has just been stopped" in caplog.text
    finally:
        port.close()
        network.close()
        thread.close()
