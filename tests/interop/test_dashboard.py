"""The dashboard at our broker and at RocketMQ's: every page is there, and what RocketMQ does not tell is said so."""

from __future__ import annotations

from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.dashboard.pages.table import PAGES
from tests.dashboard.beside import pipeline
from tests.dashboard.running import browsing, dashboard, looping, page_of, path_of
from tests.interop.servers import RocketmqServer, Server
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

TOPIC, GROUP = "dashboard-interop", "dashboard-interop-group"


def test_pages_about_a_cluster(server: Server, tmp_path: Path) -> None:
    foreign = isinstance(server, RocketmqServer)
    with Admin(server.namesrv) as admin, metaq.Producer(server.namesrv) as producer:
        admin.create_topic(TOPIC, queues=2)
        eventually(lambda: producer.send(TOPIC, b"first"))
        for number in range(4):
            producer.send(TOPIC, b"%d" % number)
    with (
        metaq.Consumer(server.namesrv, group=GROUP, topics=TOPIC, start="earliest") as consumer,
        looping() as loop,
        pipeline(tmp_path / "archive"),
        dashboard(loop, server.namesrv, allow_changes=True, pipelines=(str(tmp_path),)) as running,
        browsing(running) as client,
    ):
        for _ in range(3):
            consumer.receive(PATIENCE).ack()
        found = page_of(
            client,
            "/groups",
            lambda found: [row["lag"] for row in found["rows"]["rows"] if row["group"] == GROUP] == [2],
        )
        address = client.get("/brokers", params={"format": "json"}).json()["rows"]["rows"][0]["address"]
        for page in (one for one in PAGES if "{id" not in one.path):  # those of one message: test_dashboard_messages
            answer = client.get(
                path_of(page, topic=TOPIC, group=GROUP, address=address, folder=str(tmp_path / "archive"))
            )
            assert (answer.status_code, page.name) == (200, page.name)
            assert "could not be found out" not in answer.text
        group = client.get(f"/groups/{GROUP}", params={"format": "json"}).json()
        assert [(one["language"], one["queues"]) for one in group["members"]] == [("PYTHON", 3)]
        assert {row["owner"] for row in group["queues"] if row["topic"] == TOPIC} == {group["members"][0]["client"]}
        assert [row["lag"] for row in client.get(f"/topics/{TOPIC}", params={"format": "json"}).json()["readers"]] == [
            2
        ]
        broker = client.get(path_of(next(page for page in PAGES if page.name == "broker"), address=address))
        assert ("this broker does not tell" in broker.text) == foreign
        values = client.get(
            path_of(next(page for page in PAGES if page.name == "broker"), address=address), params={"format": "json"}
        ).json()
        assert values["is_ours"] == (not foreign)
        assert {row["key"] for row in values["options"]} >= {"fileReservedTime", "brokerName"}
        overview = page_of(client, "/", lambda found: found["dead_letters"] is not None)
        assert (overview["undecided"] is None) == foreign
        assert overview["error"] == ""
        del found
