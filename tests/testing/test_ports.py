"""The ports that tests give to servers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest
import uvloop

from metaq.testing import FlakyNetwork, free_port, ports
from metaq.testing.ports import HeldPort
from tests.support import PATIENCE, environment, kept_port

linux = pytest.mark.skipif(not ports.HOLDS, reason="ports are held on Linux only")


@pytest.fixture
def only(monkeypatch):
    """Leave one port to choose from."""
    return lambda port: monkeypatch.setattr(ports, "PORTS", [port])


def address(port):
    return ("127.0.0.1", port)


def test_a_free_port_and_its_neighbours_can_be_listened_on():
    """They are below those that systems give to outgoing connections."""
    port = free_port(-2, 1)
    assert port in ports.PORTS
    for neighbour in (port - 2, port, port + 1):
        socket.create_server(address(neighbour)).close()


def test_a_port_with_a_taken_neighbour_is_passed_over(only):
    """The next one is tried; where none is free, somebody is told."""
    with socket.create_server(address(0)) as taken:
        number = taken.getsockname()[1]
        for choose in (free_port, HeldPort):
            for arguments in ((), (1,)):
                only(number - sum(arguments))
                with pytest.raises(OSError, match="in use"):
                    choose(*arguments)


@linux
def test_a_held_port_is_given_to_nobody_else(only):
    """Neither by this process nor by another, nor as a neighbour; `close` gives all of them back, and may be called again."""
    with HeldPort(1) as held:
        for port, distances in ((held.port, ()), (held.port + 1, ()), (held.port - 1, (1,))):
            only(port)
            for choose in (free_port, HeldPort):
                with pytest.raises(OSError, match="in use"):
                    choose(*distances)
        program = f"from metaq.testing import ports; ports.PORTS = [{held.port}]; print(ports.free_port())"
        command = [sys.executable, "-c", program]
        passed = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False
        )
        assert passed.returncode == 1
        assert "in use" in passed.stderr
    held.close()
    only(held.port)
    assert free_port(1) == held.port
    given = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=True)
    assert given.stdout == f"{held.port}\n"


@linux
def test_a_server_listens_on_a_held_port_as_often_as_it_starts(only):
    """Connections are refused before and behind it, though one was still open when it ended; the port stays its own."""
    with HeldPort() as held:
        only(held.port)
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address(held.port))
            with socket.create_server(address(held.port)) as server:
                client = socket.create_connection(address(held.port))
                server.accept()[0].close()  # the server ends it first, so that the port is in TIME_WAIT behind that
                client.close()
            with pytest.raises(OSError, match="in use"):
                free_port()


@linux
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_event_loops_listen_on_a_held_port(run):
    """As brokers do, by either loop; a listening server stays when the port is given back."""

    async def body():
        with HeldPort() as held:
            for last in (False, True):
                server = await asyncio.start_server(lambda _, writer: writer.close(), *address(held.port))
                async with server:
                    if last:
                        held.close()
                    reader, writer = await asyncio.open_connection(*address(held.port))
                    assert await reader.read() == b""
                    writer.close()
                    await writer.wait_closed()

    run(body())


@linux
def test_a_network_keeps_its_port_while_it_refuses(only):
    """Nobody else is given it, so it can accept again; closed, it gives it back."""
    with FlakyNetwork("127.0.0.1:1") as network:
        port = int(network.address.rpartition(":")[2])
        only(port)
        for _ in range(2):
            network.refuse()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address(port))
            with pytest.raises(OSError, match="in use"):
                free_port()
            network.accept()
    assert free_port() == port


@linux
def test_a_kept_port_goes_with_its_owner(only):
    class Owner:
        def __init__(self):
            self.port = kept_port(self)

    owner = Owner()
    only(port := owner.port)
    with pytest.raises(OSError, match="in use"):
        free_port()
    del owner
    assert free_port() == port


def test_elsewhere_a_port_is_chosen_and_not_held(only, monkeypatch):
    """Other systems would refuse the server's bind."""
    monkeypatch.setattr(ports, "HOLDS", False)
    with HeldPort() as held:
        only(held.port)
        assert free_port() == held.port
