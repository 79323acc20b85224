"""A topic that is deleted and made anew at RocketMQ's broker, under clients of ours that hold positions in it.

The broker tells nothing of it: that another message stands where the newest one had stood is all that can be known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.consumer import base, pull_base, reader_core
from metaq.client.consumer.options import GroupSeconds
from tests.interop.servers import RocketmqServer
from tests.support import PATIENCE

pytestmark = pytest.mark.interop

LOOK_SECONDS = 0.2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqServer]:
    running = RocketmqServer(tmp_path_factory.mktemp("rocketmq"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often whether topics were made anew."""
    for module in (base, pull_base):
        monkeypatch.setattr(module, "USUAL", GroupSeconds(rebalance=LOOK_SECONDS))
    monkeypatch.setattr(reader_core, "LOOK_SECONDS", LOOK_SECONDS)


def fill(server: RocketmqServer, topic: str, what: str, count: int) -> list[bytes]:
    bodies = [f"{what} {number}".encode() for number in range(count)]
    with metaq.Producer(server.namesrv, timeout=PATIENCE) as producer:
        queue = min(producer.queues(topic))
        for body in bodies:
            producer.send(topic, body, queue=queue)
    return bodies


def make(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, queues=1)


def take(client: metaq.Consumer | metaq.PullConsumer | metaq.Reader) -> list[bytes]:
    """What comes within a moment."""
    if isinstance(client, metaq.PullConsumer):
        return [message.body for message in client.poll(LOOK_SECONDS)]
    message = client.receive(LOOK_SECONDS)
    if message is None:
        return []
    if isinstance(client, metaq.Consumer):
        message.ack()
    return [message.body]


def taken(client: metaq.Consumer | metaq.PullConsumer | metaq.Reader, wanted: list[bytes]) -> None:
    found, until = set[bytes](), time.monotonic() + PATIENCE
    while not found >= set(wanted):
        assert time.monotonic() < until, f"{sorted(found)} of {wanted} came"
        found.update(take(client))


@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.all, id="shorter"), pytest.param(9, id="longer")])
@pytest.mark.parametrize("kind", [metaq.Consumer, metaq.PullConsumer, metaq.Reader], ids=["push", "poll", "reader"])
def test_it_is_read_from_its_first_message_on(
    server: RocketmqServer,
    kind: type[metaq.Consumer | metaq.PullConsumer | metaq.Reader],
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"{kind.__name__}-{count}"
    with Admin(server.namesrv) as admin:
        make(admin, topic)
        old = fill(server, topic, "old", 5)
        client: metaq.Consumer | metaq.PullConsumer | metaq.Reader
        if kind is metaq.Reader:
            client = metaq.Reader(server.namesrv, topic, start="earliest")
        else:
            client = kind(server.namesrv, group=topic, topics=topic, start="earliest")
        with client:
            taken(client, old)
            # A look at what has come, to which the next one compares.
            until = time.monotonic() + 3 * LOOK_SECONDS
            while time.monotonic() < until:
                take(client)
            admin.delete_topic(topic, force=True)
            make(admin, topic)
            taken(client, fill(server, topic, "new", count))
        assert "made anew at broker" in caplog.text
