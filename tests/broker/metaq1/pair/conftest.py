"""A master and its slave, and the link between them."""

import pytest

from metaq.clock import FakeClock
from tests.broker.metaq1.pair.support import open_master, open_slave


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def slave(tmp_path, clock):
    with open_slave(tmp_path / "slave", clock) as made:
        yield made


@pytest.fixture
def master(tmp_path, clock):
    with open_master(tmp_path / "master", clock) as made:
        yield made


@pytest.fixture
def wire(master, slave):
    wire = master.connect(slave)
    master.settle(wire)
    return wire
