"""Pages of the dashboard about MetaQ 1.x: a real ZooKeeper, a server, a producer and a consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from metaq.metaq1 import ConsumerConfig, Message, MetaClientConfig, MetaMessageSessionFactory, ZKConfig
from tests.dashboard.running import browsing, dashboard, looping
from tests.interop.metaq1 import OriginalServer, OurServer, TextServer, Zookeeper
from tests.support import eventually

pytestmark = pytest.mark.interop

ROOT = "/shown"
HOSTILE = "<script>alert(1)</script>"


class Site1(NamedTuple):
    server: TextServer
    zookeeper: Zookeeper
    client: httpx.Client


@pytest.fixture(scope="module", params=["ours", pytest.param("original", marks=pytest.mark.all)])
def site(
    request: pytest.FixtureRequest, zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site1]:
    """Three partitions with 30 messages; the group `readers` has read them and is there, `left` was once."""
    root = f"{ROOT}-{request.param}"
    kind = {"ours": OurServer, "original": OriginalServer}[request.param]
    server = kind(
        tmp_path_factory.mktemp("metaq1"),
        zookeeper,
        {"test": {"numPartitions": 3}, "quiet": {}},
        registry={"zk.zkRoot": root},
    )
    config = MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root))
    with server, zookeeper.nodes() as nodes, MetaMessageSessionFactory(config) as factory:
        eventually(lambda: nodes.text(f"{root}/brokers/topics-pub/test/0-m"))
        got = list[bytes]()
        with factory.create_producer() as producer:
            producer.publish("test")
            for number in range(30):
                producer.send_message(Message("test", b"%02d" % number))
        consumer = factory.create_consumer(
            ConsumerConfig("readers", max_delay_fetch_time=0.2, commit_offset_period=0.2)
        )
        consumer.subscribe("test", 1 << 20, lambda message: got.append(message.data))
        consumer.complete_subscribe()
        eventually(lambda: len(got) == 30)
        eventually(lambda: len(nodes.tree(f"{root}/consumers/readers/offsets/test")) == 4)
        nodes.client.create(f"{root}/consumers/left/offsets/test/0-1", b"5-22", makepath=True)
        nodes.client.create(f"{root}/consumers/left/offsets/test/0-2", HOSTILE.encode())
        with (
            looping() as loop,
            dashboard(loop, "127.0.0.1:1", zookeeper=f"{zookeeper.address}{root}") as running,
            browsing(running) as client,
        ):
            yield Site1(server, zookeeper, client)


def json_of(client: httpx.Client, path: str, **params: str) -> Any:
    answer = client.get(path, params={"format": "json", **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_servers_topics_and_groups_are_listed(site: Site1) -> None:
    found = json_of(site.client, "/metaq1")
    (server,) = found["servers"]
    assert (server["broker_id"], server["role"], server["address"]) == (0, "master", site.server.text)
    assert (server["error"], server["partitions"] >= 3, server["connections"] > 0) == ("", True, True)
    rows = {row["topic"]: row for row in found["topics"]["rows"]}
    assert set(rows) >= {"test", "quiet"}
    test = rows["test"]
    assert (test["brokers"], test["partitions"], test["publish"], test["subscribe"]) == (1, 3, True, True)
    assert test["messages"] == 30
    groups = {row["group"]: row for row in found["groups"]}
    assert len(groups["readers"]["members"]) == 1
    assert groups["left"] == {"group": "left", "members": [], "topics": ["test"]}
    assert found["notes"] == []


def test_a_topic_tells_owners_and_offsets_of_each_partition(site: Site1) -> None:
    (member,) = next(row for row in json_of(site.client, "/metaq1")["groups"] if row["group"] == "readers")["members"]
    rows = json_of(site.client, "/metaq1/topics/test", sort="group")["rows"]["rows"]
    mine = [row for row in rows if row["group"] == "readers"]
    assert [(row["partition"], row["owner"]) for row in mine] == [(f"0-{number}", member) for number in range(3)]
    assert sum(row["end"] for row in mine) == 30 * 22
    eventually(
        lambda: all(
            row["behind"] == 0 for row in json_of(site.client, "/metaq1/topics/test", q="readers")["rows"]["rows"]
        ),
        what="all is read",
    )
    left = {row["partition"]: row for row in rows if row["group"] == "left"}
    assert (left["0-1"]["read"], left["0-1"]["owner"]) == (22, "")
    assert left["0-1"]["behind"] == left["0-1"]["end"] - 22
    assert (left["0-2"]["read"], left["0-2"]["behind"], left["0-2"]["text"]) == (None, None, HOSTILE)
    html = site.client.get("/metaq1/topics/test").text
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)" in html
    quiet = json_of(site.client, "/metaq1/topics/quiet")["rows"]["rows"]
    assert [(row["partition"], row["group"]) for row in quiet] == [("0-0", "")]


def test_nodes_are_walked_through_below_the_root_alone(site: Site1) -> None:
    root = json_of(site.client, "/zookeeper")
    assert [one["name"] for one in root["children"]] == ["brokers", "consumers"]
    assert (root["above"], root["session"]) == ([], "")
    master = json_of(site.client, "/zookeeper", node=f"{root['path']}/brokers/ids/0/master")
    assert master["text"] == f"meta://{site.server.text}"
    assert int(master["session"], 16) > 0
    assert [one["name"] for one in master["above"]] == [root["path"], "brokers", "ids", "0"]
    html = site.client.get("/zookeeper", params={"node": f"{root['path']}/consumers/left/offsets/test/0-2"}).text
    assert HOSTILE not in html
    for path, status in (
        ("/zookeeper", 400), ("/", 400), (f"{root['path']}x", 400), (f"{root['path']}/../zookeeper", 400),
        (f"{root['path']}/nowhere", 404), (f"{root['path']}/a//b", 400),
    ):  # fmt: skip
        assert site.client.get("/zookeeper", params={"node": path, "format": "json"}).status_code == status, path


def test_a_zookeeper_that_is_away_is_said_so_in_time() -> None:
    with (
        looping() as loop,
        dashboard(loop, "127.0.0.1:1", zookeeper="127.0.0.1:1") as running,
        browsing(running) as client,
    ):
        for path in ("/metaq1", "/metaq1/topics/%3Cscript%3E", "/zookeeper"):
            assert client.get(path, params={"format": "json"}).status_code == 503, path
        assert "cannot be reached within" in client.get("/metaq1").text
