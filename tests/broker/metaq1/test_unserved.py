"""Byte positions in the store of a broker that serves no clients of MetaQ 1.x: kept as they are, and loaded only if there are any."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

from metaq.clock import FakeClock
from metaq.options import Metaq1Options
from tests.broker.metaq1.support import settings, settled
from tests.broker.metaq1.test_position_bases import TOPIC, bodies, send, touched, work
from tests.broker.support import open_broker
from tests.support import PATIENCE, environment

STORE = {"mapped_file_size_commit_log": 64 << 10, "file_reserved_time": 1}
SERVED = settings(Metaq1Options(broker_id=7, delete_policy="delete,1"))


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "store"


def test_positions_survive_a_time_in_which_nobody_is_served(root: pathlib.Path):
    """Retention takes every log file of that time before; a client that comes back finds each message where it was."""
    clock = FakeClock()
    with open_broker(root, clock, store=STORE, metaq1=SERVED) as broker:
        send(broker, bodies(40))
        base = touched(broker).max
    with open_broker(root, clock, store=STORE) as broker:
        assert broker.metaq1 is None
        send(broker, bodies(1200), queue_id=1)
        clock.advance(2 * 3600)
        for _ in range(10):
            clock.advance(10)
            work(broker, 3)
            broker.store.keeper.retain(clock.now_ms(), at_once=True)
        assert broker.store.log.min > 0
        send(broker, [b"12345"])
    shutil.rmtree(root / "positions")  # what is left is what the log says
    with open_broker(root, clock, store=STORE, metaq1=SERVED) as broker:
        positions = broker.metaq1.bases.find(TOPIC, 0)
        assert positions is not None
        assert settled(broker, lambda: positions.position(40)) == base
        assert settled(broker, lambda: positions.max) == base + 25


def test_a_topic_that_is_deleted_meanwhile_begins_anew(root: pathlib.Path):
    """Behind the positions of the one before: they are known as old."""
    with open_broker(root, metaq1=SERVED) as broker:
        broker.topics.ensure(TOPIC, 1)
        send(broker, bodies(40))
        old = touched(broker).max
    with open_broker(root) as broker:
        broker.delete_topic(TOPIC)
        work(broker)
    with open_broker(root, metaq1=SERVED) as broker:
        assert broker.metaq1.bases.find(TOPIC, 0) is None
        broker.topics.ensure(TOPIC, 1)
        send(broker, [b"12345"])
        begin = touched(broker).min
        assert (begin > old, touched(broker).max) == (True, begin + 20 + 5)


def test_a_follower_that_leads_looks_for_positions_then(tmp_path: pathlib.Path):
    """They came with the leader's records while it followed."""
    with open_broker(tmp_path / "leader", metaq1=SERVED) as broker:
        send(broker, bodies(40))
        base = touched(broker).max
        records = (tmp_path / "leader" / "commitlog" / ("0" * 20)).read_bytes()[: broker.store.log.end]
    with open_broker(tmp_path / "follower", leading=False) as broker:
        broker.store.writer.append_raw(records, 0)
        broker.lead()
        send(broker, [b"12345"])
    with open_broker(tmp_path / "follower", metaq1=SERVED) as broker:
        positions = touched(broker)
        assert settled(broker, lambda: positions.position(40)) == base
        assert settled(broker, lambda: positions.max) == base + 25


LOADED = """
import sys
import metaq.app.broker, metaq.cli.servers.serve
print([name for name in sys.modules if "metaq1" in name])
"""


def test_a_broker_without_clients_of_1x_loads_none_of_its_code():
    """It is a megabyte of memory at rest."""
    command = [sys.executable, "-c", LOADED]
    output = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
    assert "metaq.broker.metaq1.settings" in output
    for module in (
        "broker.metaq1.partitions",
        "broker.metaq1.position_bases",
        "servers.metaq1.server",
        "store.metaq1.positions",
    ):
        assert f"metaq.{module}" not in output
