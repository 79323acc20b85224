"""Webhook and broker die by kill -9, again and again: every message is posted at least once."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

import metaq
from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, eventually, metaq_command, process, read_line
from tests.webhooks.receiver import Receiver
from tests.webhooks.running import Group
from tests.webhooks.test_webhook import bodies

pytestmark = pytest.mark.slow

MESSAGES = 3000


@contextlib.contextmanager
def webhook(group, url):
    command = metaq_command(
        "webhook", "run", group.name, "--url", url, "--topics", group.name, "--start", "earliest", "--allow-networks", "127.0.0.0/8",
        "-n", group.namesrv, "--pause-most-seconds", "1", "--timeout-seconds", "60",
    )  # fmt: skip
    with process(*command) as child:
        read_line(child, f"webhook {group.name}: ")
        threading.Thread(target=child.stderr.read, daemon=True).start()
        yield child


@pytest.fixture
def broker():
    with EmbeddedBroker() as one:
        yield one


def test_none_is_lost(broker):
    group, seen = Group(broker.namesrv, "orders"), set
    with Receiver() as receiver, metaq.Producer(broker.namesrv, timeout=PATIENCE) as producer:

        def posted():
            return len(seen(receiver.bodies))

        def send(start, count):
            for pending in [producer.submit(group.name, body) for body in bodies(count, start)]:
                pending.result(PATIENCE)
                group.sent += 1

        for turn in range(3):
            with webhook(group, receiver.url) as child:
                send(turn * 600, 600)
                enough = turn * 600 + 200
                eventually(lambda enough=enough: posted() > enough, what="some of them")
                child.send_signal(signal.SIGKILL)
                child.wait(PATIENCE)
        with webhook(group, receiver.url) as child:
            send(1800, 1200)
            eventually(lambda: posted() > 2000, what="some of them")
            broker.kill()
            broker.start()
            eventually(lambda: posted() == MESSAGES, what="all of them")
            group.consumed()
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == 0
        assert seen(receiver.bodies) == set(bodies(MESSAGES))
    assert group.retries == group.dead == []
