"""The ports that tests give to servers."""

from __future__ import annotations

import socket

import pytest

from metaq.testing import free_port, ports


def test_a_free_port_and_its_neighbours_can_be_listened_on():
    """They are below those that systems give to outgoing connections."""
    port = free_port(-2, 1)
    assert port in ports.PORTS
    for neighbour in (port - 2, port, port + 1):
        socket.create_server(("127.0.0.1", neighbour)).close()


def test_a_port_with_a_taken_neighbour_is_passed_over(monkeypatch):
    """The next one is tried; where none is free, somebody is told."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", [number, number - 1])
        for arguments in ((), (1,)):
            monkeypatch.setattr(ports, "PORTS", [number - arguments[0] if arguments else number])
            with pytest.raises(OSError, match="in use"):
                free_port(*arguments)
