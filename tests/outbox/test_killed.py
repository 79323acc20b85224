"""A process that is killed at each step of order, outbox, send and handler: nothing is lost, nothing has two effects."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import metaq
from metaq.idempotence import Idempotence
from metaq.outbox import Outbox, OutboxSender
from tests.outbox.databases import KINDS, connect, run, running, until
from tests.support import PATIENCE, environment

CHILD = Path(__file__).with_name("killed_child.py")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_each_step(kind, metaq_broker, tmp_path):
    """Each order that was committed is billed once, whatever died when; each that was not is not."""
    with running(kind, tmp_path / "database") as url:
        with contextlib.closing(connect(url)) as connection:
            Outbox().create_table(connection)
            Idempotence("billing").create_table(connection)
            run(connection, "CREATE TABLE orders (name VARCHAR(50) PRIMARY KEY)")
            run(connection, "CREATE TABLE bills (name VARCHAR(50))")
            connection.commit()
        killed = 0
        for number in range(1, 61):  # each order adds steps: those of the handlers of all before
            done = subprocess.run(
                [sys.executable, str(CHILD), url, metaq_broker.namesrv, str(number), f"order-{kind}-{number:03}"],
                capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(PYTHONPATH=":".join(sys.path)),
            )  # fmt: skip
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
            killed += 1
        assert killed > 30, "there were steps to die at"
        with contextlib.closing(connect(url)) as connection, metaq.Producer(metaq_broker.namesrv) as producer:
            outbox, seen = Outbox(), Idempotence("billing")
            with OutboxSender(outbox, lambda: connect(url), producer):
                until(lambda: not _waiting(outbox, url), "all is sent")

            @seen.handler(lambda: connect(url))
            def bill(message, connection):
                run(connection, "INSERT INTO bills (name) VALUES (?)", message.body.decode())

            with metaq.Reader(metaq_broker.namesrv, "orders-killed", start="earliest", stop_at_end=True) as reader:
                for message in reader:
                    bill(message)
            orders = [name for (name,) in run(connection, "SELECT name FROM orders ORDER BY name")]
            bills = [name for (name,) in run(connection, "SELECT name FROM bills ORDER BY name") if kind in name]
            assert bills == orders
            # Only those are missing that died before the commit of their order.
            assert 0 < killed + 1 - len(orders) < 10


def _waiting(outbox, url):
    with contextlib.closing(connect(url)) as connection:
        return outbox.listed(connection)
