"""A process that is killed at each step of order, outbox, send and handler: nothing is lost, nothing has two effects."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.idempotence import Idempotence
from metaq.outbox import Outbox, OutboxSender
from metaq.testing import EmbeddedBroker
from tests.outbox.databases import KINDS, connect, run, running, until
from tests.outbox.killed_child import TOPIC, handled
from tests.support import PATIENCE, environment

pytestmark = pytest.mark.slow

TAKEN = {"INSERT orders", "INSERT metaq_outbox", "commit"}
SENT = {"SELECT", "SELECT metaq_outbox", "UPDATE metaq_outbox", "send", "DELETE metaq_outbox"}
HANDLED = {"INSERT metaq_seen", "INSERT bills"}


@pytest.fixture
def broker():
    """An empty one: what is sent to it is of one database."""
    with EmbeddedBroker() as running_broker:
        with Admin(running_broker.namesrv) as admin:
            admin.create_topic(TOPIC, queues=1)
        yield running_broker


def deaths(module, *arguments, order):
    """Run a program that dies at its first step, then at its second, until it gets through. Returns its steps, in order."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("deaths.py")), module, order, *arguments],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(PYTHONPATH=":".join(sys.path)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def both_sides(steps):
    return {f"{side} {step}" for step in steps for side in ("before", "behind")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_each_step(kind, broker, tmp_path):
    """Each order that was committed is billed once, whatever died when; each that was not is not."""
    with running(kind, tmp_path / "database") as url:
        with contextlib.closing(connect(url)) as connection:
            tables_in(connection)
        steps = deaths("killed_child", url, broker.namesrv, order="order")
        assert set(steps) == both_sides(TAKEN | SENT | HANDLED)
        with contextlib.closing(connect(url)) as connection, metaq.Producer(broker.namesrv) as producer:
            sent_in_time(Outbox(), url, producer)
            handled(lambda: connect(url), broker.namesrv)
            orders = names(connection, "orders")
            assert names(connection, "bills") == orders
            assert orders == committed(steps)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "mysql" not in str(kind)])
def test_a_sender_of_asyncio_that_is_killed_at_each_step(kind, broker, tmp_path):
    """Each order that was committed is sent, in order; one is there twice only if the sender died between send and commit.

    There is no driver for MariaDB and asyncio among those of the extra dev."""
    for package in ("greenlet", "aiosqlite", "psycopg"):
        pytest.importorskip(package)
    with running(kind, tmp_path / "database") as url:
        with contextlib.closing(connect(url)) as connection:
            tables_in(connection)
        asynchronous = url.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql:", "postgresql+psycopg:")
        steps = deaths("killed_async_child", asynchronous, broker.namesrv, order="order")
        assert set(steps) == both_sides(TAKEN | SENT)
        with contextlib.closing(connect(url)) as connection, metaq.Producer(broker.namesrv) as producer:
            sent_in_time(Outbox(), url, producer)
            orders = names(connection, "orders")
        assert orders == committed(steps)
    with metaq.Reader(broker.namesrv, TOPIC, start="earliest", stop_at_end=True) as reader:
        bodies = [message.body.decode() for message in reader]
    assert list(dict.fromkeys(bodies)) == orders
    sends = steps.index("behind send")
    doubtful = range(sends, sends + steps[sends:].index("behind commit"))  # up to the commit of what has become of it
    twice = sorted({body for body in bodies if bodies.count(body) > 1})
    assert twice == [f"order-{index + 1:03}" for index in doubtful]


def tables_in(connection):
    Outbox().create_table(connection)
    Idempotence("billing").create_table(connection)
    run(connection, "CREATE TABLE orders (name VARCHAR(50) PRIMARY KEY)")
    run(connection, "CREATE TABLE bills (name VARCHAR(50))")
    connection.commit()


def committed(steps):
    """All orders but those whose process died before their commit."""
    return [f"order-{number:03}" for number in range(steps.index("behind commit") + 1, len(steps) + 2)]


def names(connection, table):
    return [name for (name,) in run(connection, f"SELECT name FROM {table} ORDER BY name")]


def sent_in_time(outbox, url, producer):
    def waiting():
        with contextlib.closing(connect(url)) as connection:
            return outbox.listed(connection)

    with contextlib.closing(connect(url)) as connection:
        run(connection, "UPDATE metaq_outbox SET lease_ms = 0")
        connection.commit()
    with OutboxSender(outbox, lambda: connect(url), producer):
        until(lambda: not waiting(), "all is sent")
