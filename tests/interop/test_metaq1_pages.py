"""The pages of MetaQ 1.x at a broker that is registered in ZooKeeper: its neighbours, groups' partitions, and a reload."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metaq.metaq1 import ConsumerConfig, Message, MetaClientConfig, MetaMessageSessionFactory, Partition, ZKConfig
from tests.interop.metaq1 import Nodes, OurServer, Zookeeper
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

JSON = {"accept": "application/json"}
HTML = {"accept": "text/html"}
HOSTILE = "meta://<script>alert(1)</script>:1"
_roots = (f"/pages-{number}" for number in itertools.count())


@pytest.fixture
def root() -> str:
    return next(_roots)


@pytest.fixture
def nodes(zookeeper: Zookeeper) -> Iterator[Nodes]:
    with zookeeper.nodes() as found:
        yield found


@pytest.fixture
def server(zookeeper: Zookeeper, root: str, tmp_path: Path) -> Iterator[OurServer]:
    with OurServer(tmp_path, zookeeper, {"test": {"numPartitions": 2}}, registry={"zk.zkRoot": root}) as running:
        yield running


def factory(zookeeper: Zookeeper, root: str) -> MetaMessageSessionFactory:
    return MetaMessageSessionFactory(MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root)))


def shares(server: OurServer, group: str = "g") -> list[dict[str, object]]:
    answer = httpx.get(f"{server.http}/topics/test?group={group}", headers=JSON, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    found = answer.json()["pending-stats"]
    return found if isinstance(found, list) else [found]


def test_a_groups_partitions_are_told_and_skipped_when_nobody_has_them(
    server: OurServer, zookeeper: Zookeeper, root: str, nodes: Nodes
) -> None:
    def skip(partition: int, accept: str = "*/*") -> httpx.Response:
        url = f"{server.http}/topics/test/groups/g/partitions/{partition}/skip"
        return httpx.post(url, headers={"accept": accept}, timeout=PATIENCE)

    with factory(zookeeper, root) as made:
        producer = made.create_producer(lambda topic, partitions, message: Partition(0, 1))
        producer.publish("test")
        for _ in range(4):
            producer.send_message(Message("test", b"hello"))
        assert shares(server) == [{"error": "The consumer group 'g' is not exists."}]
        consumer = made.create_consumer(ConsumerConfig("g", max_delay_fetch_time=0.05, commit_offset_period=0.05))
        consumer.subscribe("test", listener=lambda message: None)
        consumer.complete_subscribe()
        eventually(lambda: shares(server)[1].get("consumed-bytes") == 100, what="what is consumed")
        owned = shares(server)
        assert owned[1]["owner"]
        assert (owned[1]["pending-bytes"], owned[1]["pending-messages"], owned[1]["consumed-messages"]) == (0, 0, 4)
        refused = skip(1)
        assert refused.status_code == 409 and "stop the group's consumers first" in refused.json()["detail"]
        consumer.shutdown()
        for _ in range(3):
            producer.send_message(Message("test", b"hello"))
        waiting = shares(server)[1]
        assert (waiting["owner"], waiting["pending-bytes"], waiting["pending-messages"]) == (None, 75, 3)
        assert (skip(1).status_code, skip(1).text) == (200, "success")
        assert nodes.text(f"{root}/consumers/g/offsets/test/0-1") == "0-175"
        assert shares(server)[1]["pending-bytes"] == 0
        shown = skip(1, "text/html")
        assert (shown.status_code, shown.headers["location"]) == (303, "/topics/test?group=g")
        page = httpx.get(f"{server.http}/topics/test?group=g", headers=HTML, timeout=PATIENCE).text
        assert 'action="/topics/test/groups/g/partitions/1/skip"' in page and "Skip pending messages" in page


def test_the_brokers_of_the_cluster_are_told_whatever_they_call_themselves(
    server: OurServer, root: str, nodes: Nodes
) -> None:
    nodes.client.create(f"{root}/brokers/ids/7/master", HOSTILE.encode(), makepath=True)
    nodes.client.create(f"{root}/brokers/ids/0/slave3", b"meta://127.0.0.1:9", makepath=True)
    nodes.client.create(f"{root}/brokers/ids/x/other", b"nothing", makepath=True)
    told = httpx.get(f"{server.http}/cluster", headers=JSON, timeout=PATIENCE).json()
    own = f"meta://{server.text}"
    assert told["current"] == own
    assert [(one["id"], [(broker["slave"], broker["broker-uri"]) for broker in one["brokers"]]) for one in told["nodes"]] == [
        (0, [(False, own), (True, "meta://127.0.0.1:9")]), (7, [(False, HOSTILE)]),
    ]  # fmt: skip
    page = httpx.get(f"{server.http}/cluster", headers=HTML, timeout=PATIENCE).text
    assert "<script" not in page and "&lt;script&gt;" in page and "this broker" in page


def test_the_configuration_is_read_again(server: OurServer) -> None:
    def reload(**fields: str) -> httpx.Response:
        return httpx.post(f"{server.http}/reload-config", headers=fields, timeout=PATIENCE)

    assert "[topic=more]" not in httpx.get(f"{server.http}/config", timeout=PATIENCE).text
    server.configure({"test": {"numPartitions": 2}, "more": {"numPartitions": 3}})
    assert (reload().status_code, reload().text) == (200, "Reload config successfully.")
    topics = httpx.get(f"{server.http}/topics", headers=JSON, timeout=PATIENCE).json()["topics"]
    assert {one["topic"]: one["partitions"] for one in topics} == {"test": 2, "more": 3}
    assert "[topic=more]" in httpx.get(f"{server.http}/config", headers=JSON, timeout=PATIENCE).json()["config"]
    server.configure({"test": {"numPartitions": 2}, "more": {"numPartitions": 4}})
    assert any("more" in line for line in reload(**JSON).json()["changed"])
    server.ini.write_text(server.ini.read_text() + "wrong=1\n")
    wrong = reload(**HTML)
    assert wrong.status_code == 400 and "a topic has no option" in wrong.text
    assert {one["topic"]: one["partitions"] for one in httpx.get(f"{server.http}/topics", headers=JSON, timeout=PATIENCE).json()["topics"]}[
        "more"
    ] == 4  # fmt: skip


def test_a_zookeeper_that_is_away_is_told(zookeeper: Zookeeper, tmp_path: Path) -> None:
    with Zookeeper(tmp_path) as own, OurServer(tmp_path, own, {"test": {}}) as server:
        assert httpx.get(f"{server.http}/cluster", headers=JSON, timeout=PATIENCE).status_code == 200
        own.kill()

        def away() -> bool:
            answer = httpx.get(f"{server.http}/cluster", headers=HTML, timeout=PATIENCE)
            return answer.status_code == 503 and "ZooKeeper does not answer" in answer.text

        eventually(away, what="the page to say so")
        assert httpx.get(f"{server.http}/stats", timeout=PATIENCE).status_code == 200
