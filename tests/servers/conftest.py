"""A door on a small store, its clock, and one client."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from tests.servers.support import Client, open_door


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def door(tmp_path, clock):
    with open_door(tmp_path, clock) as (_, door):
        yield door


@pytest.fixture
def client(door):
    return Client(door)
