"""Datagrams to a service manager, by a path and by a name that is no file."""

from __future__ import annotations

import socket

import pytest

from metaq.errors import ConfigError
from metaq.net.notify_socket import NotifySocket


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    """A service manager's socket, and the address that it hands out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.setblocking(False)
        told = str(tmp_path / "n") if request.param == "path" else f"@metaq-test-{tmp_path.name}-{id(listening)}"
        listening.bind(told.replace("@", "\0", 1) if request.param == "abstract" else told)
        yield listening, told


def test_lines_come_as_one_datagram(manager):
    listening, told = manager
    notify = NotifySocket(told)
    notify.send("READY=1", "STATUS=ready ß")
    assert listening.recv(1000).decode() == "READY=1\nSTATUS=ready ß"
    notify.close()


def test_a_manager_that_is_gone_or_does_not_read_costs_a_line_of_the_log(manager, caplog):
    listening, told = manager
    notify = NotifySocket(told)
    for _ in range(1000):  # more than its buffer takes
        notify.send("STATUS=" + "x" * 2000)
    listening.close()
    notify.send("READY=1")
    assert len(caplog.records) == 1
    assert "the service manager could not be told STATUS=" in caplog.text
    notify.close()
    notify.send("READY=1")


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1234", "@", "/"])
def test_other_addresses_are_refused(address):
    with pytest.raises(ConfigError, match="NOTIFY_SOCKET="):
        NotifySocket(address)
