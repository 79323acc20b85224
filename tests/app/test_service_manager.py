"""What systemd is told of real processes, on a real socket: readiness, status, stop, and signs of life."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

import pytest

from metaq.app.supervision.service_manager import ServiceManager
from metaq.client.conversation.administration import GetReplicaState, StepDown
from metaq.client.conversation.driver import ask
from metaq.client.shared.transport import Transport
from metaq.testing.embedded import SMALL
from tests.support import PATIENCE, environment, metaq_command, process, read_line


@contextlib.contextmanager
def manager(tmp_path, *, abstract=False):
    """Yields a function that returns the next datagram as a table, and the address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(PATIENCE)
        name = f"metaq-test-{tmp_path.name}-{os.getpid()}-{id(listening)}"
        listening.bind(f"\0{name}" if abstract else str(tmp_path / "n"))

        def received():
            return dict(line.split("=", 1) for line in listening.recv(10_000).decode().splitlines())

        yield received, f"@{name}" if abstract else str(tmp_path / "n")


def until(received, key):
    """The first datagram that has a key, and the keys of those before."""
    before = []
    while key not in (found := received()):
        before += found
    return found, before


SERVERS = {
    "namesrv": ("namesrv", "--port", "0"),
    "broker": ("broker", "--port", "0", "--name", "b"),
    "up": ("up", "--port", "0", "--namesrv-port", "0"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_says_when_it_is_ready_lives_and_stops(tmp_path, name):
    """The socket is one of Linux's abstract ones for the broker, a file for the others."""
    options = [] if name == "namesrv" else [word for pair in SMALL.items() for word in ("-o", "{}={}".format(*pair))]
    with manager(tmp_path, abstract=name == "broker") as (received, address):
        told = environment(NOTIFY_SOCKET=address, WATCHDOG_USEC="200000")
        command = metaq_command(*SERVERS[name], "--data", str(tmp_path / "data"), *options)
        with process(*command, env=told) as child:
            ready = read_line(child, "ready")
            found, before = until(received, "READY")
            assert found == {"READY": "1", "STATUS": ready}
            assert "STOPPING" not in before
            for _ in range(3):
                assert until(received, "WATCHDOG")[0] == {"WATCHDOG": "1"}
            child.send_signal(signal.SIGTERM)
            found, before = until(received, "STOPPING")
            assert found == {"STOPPING": "1", "STATUS": "stopping"}
            assert child.wait(PATIENCE) == 0


@pytest.mark.parametrize("name", ["broker", "up"])
def test_a_broker_that_starts_again_as_a_slave_has_the_ports_that_the_system_chose_for_it(tmp_path, name):
    options = [word for pair in SMALL.items() for word in ("-o", "{}={}".format(*pair))]
    command = metaq_command(*SERVERS[name], "--data", str(tmp_path / "data"), *options)
    with process(*command, env=environment()) as child:
        ready = read_line(child, "ready")
        address = ready.split()[-1] if name == "broker" else ready.split("broker=")[1].split()[0]
        before = asyncio.run(_step_down(address))
        assert read_line(child, "ready") == ready
        after = asyncio.run(_state(address))
        assert (before.leads, after.leads) == (True, False)


async def _step_down(address):
    async with contextlib.AsyncExitStack() as stack:
        transport = Transport()
        stack.push_async_callback(transport.close)
        before = await ask(transport, address, GetReplicaState())
        await ask(transport, address, StepDown(1, ""))
        return before


async def _state(address):
    transport = Transport()
    try:
        return await ask(transport, address, GetReplicaState())
    finally:
        await transport.close()


def test_a_start_that_fails_says_nothing_of_readiness(tmp_path):
    with manager(tmp_path) as (received, address):
        command = metaq_command("broker", "--port", "70000", "--data", str(tmp_path / "data"))
        with process(*command, env=environment(NOTIFY_SOCKET=address)) as child:
            assert child.wait(PATIENCE) == 2
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.connect(address)
            own.send(b"LAST=1")
        assert received() == {"LAST": "1"}, "nothing came before"


def test_the_environment_is_taken_and_the_watchdog_of_another_process_is_not_ours(tmp_path):
    with manager(tmp_path) as (_, address):
        given = {
            "NOTIFY_SOCKET": address,
            "WATCHDOG_USEC": "1000000",
            "WATCHDOG_PID": str(os.getpid() + 1),
            "HOME": "/",
        }
        of_other = ServiceManager.of(given)
        assert given == {"HOME": "/"}
        assert of_other is not None and of_other._watchdog_seconds == 0
        of_other.close()
        for wrong in ("", "soon", "-1", "¹"):
            found = ServiceManager.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": wrong})
            assert found is not None and found._watchdog_seconds == 0
            found.close()
    assert ServiceManager.of({}) is None
    assert ServiceManager.of({"NOTIFY_SOCKET": "vsock:2:1"}) is None


def test_a_loop_that_stands_still_gives_no_sign_of_life(tmp_path):
    """The watchdog is of the event loop, not of a thread beside it."""

    async def run():
        with manager(tmp_path) as (received, address):
            found = ServiceManager.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000"})
            found.start()
            assert received() == {"WATCHDOG": "1"}  # this very wait keeps the loop from going on
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
                own.connect(address)
                own.send(b"LAST=1")
            assert received() == {"LAST": "1"}, "nothing else came"
            await asyncio.sleep(0.02)
            assert received() == {"WATCHDOG": "1"}
            found.close()

    asyncio.run(run())


def test_a_status_is_one_line(tmp_path):
    with manager(tmp_path) as (received, address):
        found = ServiceManager.of({"NOTIFY_SOCKET": address})
        found.starting("a\nREADY=1" + "x" * 5000)
        told = received()
        assert set(told) == {"STATUS", "EXTEND_TIMEOUT_USEC"}
        assert told["STATUS"].startswith("a READY=1") and len(told["STATUS"]) == 500
        found.close()
