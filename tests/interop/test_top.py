"""`metaq top` at our broker and at RocketMQ's: what RocketMQ does not tell is left empty."""

from __future__ import annotations

import json

import pytest

import metaq
from metaq.admin import Activity, Admin
from tests.interop.servers import RocketmqServer, Server
from tests.support import PATIENCE, eventually, run_metaq

pytestmark = pytest.mark.interop

TOPIC, GROUP = "top-interop", "top-interop-group"


def test_figures_of_a_broker(server: Server) -> None:
    with Admin(server.namesrv) as admin, metaq.Producer(server.namesrv) as producer:
        admin.create_topic(TOPIC, queues=2)
        eventually(lambda: producer.send(TOPIC, b"first"))
        for number in range(4):
            producer.send(TOPIC, b"%d" % number)
        with metaq.Consumer(server.namesrv, group=GROUP, topics=TOPIC, start="earliest") as consumer:
            for _ in range(3):
                consumer.receive(PATIENCE).ack()

        def settled() -> Activity | None:
            found = admin.activity()
            lag = [one.lag for one in found.groups if one.group == GROUP]
            stored = [one.stored for one in found.topics if one.topic == TOPIC]
            return found if lag == [2] and stored[0] else None

        looked = eventually(settled)
        assert looked is not None
    assert looked.notes == ()
    done = run_metaq("top", "--once", "--json", "-n", server.namesrv)
    assert done.returncode == 0, done.stderr
    look = json.loads(done.stdout)
    [broker] = look["brokers"]
    assert 0 < broker["disk_used"] < 1
    assert (broker["connections"] is None) == isinstance(server, RocketmqServer)
    assert broker["answers"]
    assert next(one for one in look["topics"] if one["topic"] == TOPIC)["lag"] == 2
