"""A server on a small store, its clock, and one client."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from tests.servers.support import Client, open_server


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def server(tmp_path, clock):
    with open_server(tmp_path, clock) as (_, server):
        yield server


@pytest.fixture
def client(server):
    return Client(server)
