"""Routes by a real ZooKeeper, with brokers of ours: they come and go, sessions end, ZooKeeper is away."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.errors import ConnectionFailed, NoRoute
from metaq.metaq1 import Message, MetaClientConfig, MetaMessageSessionFactory, Partition, ZKConfig
from metaq.metaq1.shared.links import ConnectionPace
from metaq.metaq1.shared.zookeeper_routes import ZookeeperRoutes
from metaq.testing import eventually
from tests.interop.metaq1 import OurServer, Zookeeper
from tests.metaq1.stored import payloads
from tests.support import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]

_roots = (f"/routes-{number}" for number in itertools.count())
QUICK = ConnectionPace(reconnect_pause=0.1)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def root() -> str:
    return next(_roots)


def broker(folder: Path, zookeeper: Zookeeper, root: str, broker_id: int, **topics: int) -> OurServer:
    """Not started. `topics`: name → partitions."""
    sections = {topic: {"numPartitions": count} for topic, count in topics.items()}
    system = {"brokerId": broker_id}
    return OurServer(folder / str(broker_id), zookeeper, sections, system, registry={"zk.zkRoot": root})


def config(zookeeper: Zookeeper, root: str, **more: float) -> MetaClientConfig:
    return MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root, **more))


def parts(**counts: int) -> list[Partition]:
    """`b0=2` → 0-0 and 0-1."""
    return [Partition(int(name[1:]), number) for name, count in counts.items() for number in range(count)]


def followed(factory: MetaMessageSessionFactory, topic: str) -> list[Partition]:
    """What the next send chooses from."""
    route = factory._core.routes.route(topic)
    return [] if route is None else list(route.partitions)


def test_a_producer_follows_brokers_that_come_and_go(zookeeper, root, tmp_path):
    """Partitions in the order of numbers; each broker has one connection, as long as a topic needs it."""
    first = broker(tmp_path, zookeeper, root, 0, a=2, b=1)
    second = broker(tmp_path, zookeeper, root, 11, a=1)
    with first, MetaMessageSessionFactory(config(zookeeper, root), pace=QUICK) as factory:
        eventually(lambda: factory.get_partitions("a") == parts(b0=2), PATIENCE)
        producer = factory.create_producer()
        producer.publish("a")
        producer.publish("b")
        assert followed(factory, "a") == parts(b0=2)
        sent = [producer.send_message(Message("a", b"%d" % number)).partition for number in range(4)]
        assert sent == [Partition(0, 1), Partition(0, 0)] * 2
        assert payloads(first.text, "a", 2) == [[b"1", b"3"], [b"0", b"2"]]
        with second:
            eventually(lambda: followed(factory, "a") == parts(b0=2, b11=1), PATIENCE)
            partition = Partition(11, 0)
            eventually(lambda: producer.send_message(Message("a", b"x")).partition == partition, PATIENCE)
            assert payloads(second.text, "a", 1) == [[b"x"]]
            assert len(factory._core.links) == 2
            assert set(factory.get_stats()) == {first.text, second.text}
            second.stop()
            eventually(lambda: followed(factory, "a") == parts(b0=2), PATIENCE)
            assert len(factory._core.links) == 1
        producer.send_message(Message("a", b"still"))
        producer.shutdown()
        assert followed(factory, "a") == []
        assert len(factory._core.links) == 0


def test_a_topic_without_partitions_is_published_and_has_none_until_a_broker_has_it(zookeeper, root, tmp_path):
    with MetaMessageSessionFactory(config(zookeeper, root), pace=QUICK) as factory:
        producer = factory.create_producer()
        producer.publish("late")
        with pytest.raises(NoRoute, match="no available partition for topic late"):
            producer.send_message(Message("late", b"x"))
        with broker(tmp_path, zookeeper, root, 0, late=1) as server:
            eventually(lambda: followed(factory, "late") == parts(b0=1), PATIENCE)
            assert producer.send_message(Message("late", b"x")).offset == 0
            assert payloads(server.text, "late", 1) == [[b"x"]]


def test_routes_are_followed_in_the_session_behind_an_expired_one(zookeeper, root, tmp_path):
    """Watches of the old one are gone: everything is read again."""
    with (
        broker(tmp_path, zookeeper, root, 0, a=1) as first,
        MetaMessageSessionFactory(config(zookeeper, root), pace=QUICK) as factory,
    ):
        eventually(lambda: factory.get_partitions("a") == parts(b0=1), PATIENCE)
        producer = factory.create_producer()
        producer.publish("a")
        routes = factory._core.routes
        assert isinstance(routes, ZookeeperRoutes)
        assert routes._client is not None
        session = routes._client.session
        before = session.credentials
        zookeeper.expire(before)
        eventually(lambda: session.connected and session.id not in {0, before[0]}, PATIENCE)
        producer.send_message(Message("a", b"x"))
        with broker(tmp_path, zookeeper, root, 1, a=1):
            eventually(lambda: followed(factory, "a") == parts(b0=1, b1=1), PATIENCE)
        assert payloads(first.text, "a", 1)[0] == [b"x"]


def test_while_zookeeper_is_away_sends_go_on_and_new_topics_wait(tmp_path, root):
    with (
        Zookeeper(tmp_path) as own,
        broker(tmp_path, own, root, 0, a=1, b=1) as server,
        MetaMessageSessionFactory(config(own, root, zk_connection_timeout=2.0), pace=QUICK) as factory,
    ):
        eventually(lambda: factory.get_partitions("a") == parts(b0=1), PATIENCE)
        producer = factory.create_producer()
        producer.publish("a")
        own.stop()
        producer.send_message(Message("a", b"x"))
        with pytest.raises(ConnectionFailed, match=f"ZooKeeper {own.address}"):
            producer.publish("b")
        producer.send_message(Message("a", b"y"))
        own.start()

        def published() -> bool:
            try:
                producer.publish("b")
                producer.send_message(Message("b", b"z"))
            except (ConnectionFailed, NoRoute):
                return False
            return True

        eventually(published, PATIENCE)
        assert payloads(server.text, "a", 1) == [[b"x", b"y"]]
        assert payloads(server.text, "b", 1) == [[b"z"]]


def test_nodes_that_others_wrote_wrongly_are_left_out(zookeeper, root, tmp_path, caplog):
    """A text that is none, a broker without a master, a slave, a name that is no broker's."""
    with zookeeper.nodes() as nodes:
        for path, text in {
            "/brokers/ids/3/master": b"meta://127.0.0.1:1",
            "/brokers/topics-pub/a/3-m": b"three",
            "/brokers/topics-pub/a/4-m": b'{"numParts":3,"broker":"4-m"}',
            "/brokers/topics-pub/a/5-s1": b'{"numParts":3,"broker":"5-s1"}',
            "/brokers/topics-pub/a/any": b"",
            "/brokers/ids/6/master": b"nowhere",
            "/brokers/topics-pub/a/6-m": b'{"numParts":3,"broker":"6-m"}',
        }.items():
            nodes.client.create(root + path, text, makepath=True)
        with MetaMessageSessionFactory(config(zookeeper, root), pace=QUICK) as factory:
            producer = factory.create_producer()
            producer.publish("a")
            assert factory.get_partitions("a") == followed(factory, "a") == []
            assert "three" in caplog.text
            assert "nowhere" in caplog.text
            nodes.client.create(f"{root}/brokers/ids/4/master", b"meta://127.0.0.1:1", makepath=True)
            eventually(lambda: followed(factory, "a") == parts(b4=3), PATIENCE)
