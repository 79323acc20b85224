"""What the peer of a server sees of an end: a reset when the server's process was killed, else all that was written, and then the end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from metaq.address import split_address
from tests.support import PATIENCE, process, read_line

MUCH = 4 << 20
PROGRAM = f"""
import asyncio, sys
import uvloop
from metaq.net.listener import listen

class Session:
    def __init__(self, peer):
        self.peer = peer
    def frame_needed(self):
        return 0
    def connection_lost(self, why):
        pass
    def data_received(self, data):
        self.peer.write(data if bytes(data) == b"echo" else b"x" * {MUCH})
        if bytes(data) == b"close":
            self.peer.close("it was asked to")
        return len(data)

async def main():
    listener = await listen("127.0.0.1", 0, Session)
    print("ready", listener.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await listener.close({PATIENCE})

asyncio.Runner(loop_factory=getattr(sys.modules[sys.argv[1]], "new_event_loop")).run(main())
"""


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(loop: str) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A process that echoes, and a connection to it that it has served."""
    with process(sys.executable, "-c", PROGRAM, loop, stdin=subprocess.PIPE) as child:
        address = split_address(read_line(child, "ready").split()[1])
        with socket.create_connection(address, PATIENCE) as connection:
            connection.sendall(b"echo")
            assert connection.recv(100) == b"echo"
            yield child, connection


def rest(connection: socket.socket) -> int:
    """Bytes until the peer's end."""
    count = 0
    while data := connection.recv(1 << 16):
        count += len(data)
    return count


def test_a_reset_when_it_is_killed(server) -> None:
    """RocketMQ's Java client fails what it has asked when it sees one, and waits on when it sees an end."""
    child, connection = server
    child.kill()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)


def test_what_was_written_before_it_ends_a_connection(server) -> None:
    _, connection = server
    connection.sendall(b"close")
    assert rest(connection) == MUCH


def test_what_was_written_before_the_server_stops(server) -> None:
    child, connection = server
    connection.sendall(b"much")
    assert connection.recv(1) == b"x"
    child.stdin.write("end\n")
    child.stdin.flush()
    assert rest(connection) == MUCH - 1


def test_what_was_written_when_the_peer_has_said_its_last(server) -> None:
    """A half-closed connection gets what it had asked for."""
    _, connection = server
    connection.sendall(b"much")
    connection.shutdown(socket.SHUT_WR)
    assert rest(connection) == MUCH
