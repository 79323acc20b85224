"""Consumers of the Python client of MetaQ 1.x at the original server 1.4.6.2 and at ours, alone and in a group with Java's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metaq.metaq1 import (
    ConsumerConfig,
    MetaBroadcastMessageSessionFactory,
    MetaClientConfig,
    MetaMessageSessionFactory,
    ReceivedMessage,
    aio,
)
from metaq.registry.zookeeper.layout import parse_offset
from tests.interop import metaq1_python
from tests.interop.metaq1 import OurServer, Zookeeper, bodies, metaq1_client
from tests.interop.metaq1_python import (
    PACE,
    config_of,
    server_fixture,
    topic_fixture,
    until_registered,
)
from tests.support import eventually

pytestmark = pytest.mark.interop

PARTITIONS = 4
TOPICS = [f"t{number}" for number in range(10)]
server = server_fixture("consumers", TOPICS, PARTITIONS)
topic = topic_fixture(TOPICS)
root, config = metaq1_python.root, metaq1_python.config


def sent(config: MetaClientConfig, topic: str, texts: list[bytes]) -> None:
    metaq1_python.sent(config, topic, PARTITIONS, texts)


def quick(group: str) -> ConsumerConfig:
    return ConsumerConfig(group, max_delay_fetch_time=0.2, commit_offset_period=0.2)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(start, start + count)]


def test_consume_stop_and_go_on(config: MetaClientConfig, topic: str, zookeeper: Zookeeper, root: str) -> None:
    """Offsets are in ZooKeeper as Java writes them, with the id of the last message; its nodes go when it leaves."""
    first, second = list[ReceivedMessage](), list[ReceivedMessage]()
    sent(config, topic, numbered(40))
    with MetaMessageSessionFactory(config, pace=PACE) as factory:
        with factory.create_consumer(quick("g")).subscribe(topic, 1 << 20, first.append) as consumer:
            consumer.complete_subscribe()
            eventually(lambda: len(first) == 40)
            assert len(consumer.partitions) == PARTITIONS
        with zookeeper.nodes() as nodes:
            for number in range(PARTITIONS):
                last = [message for message in first if message.partition.partition == number][-1]
                stored = parse_offset(nodes.text(f"{root}/consumers/g/offsets/{topic}/0-{number}") or "")
                assert (stored.position, stored.message_id) == (last.offset + last.size, last.message_id)
            assert not nodes.client.get_children(f"{root}/consumers/g/ids")
            assert not nodes.client.get_children(f"{root}/consumers/g/owners/{topic}")
    sent(config, topic, numbered(10, 40))
    with MetaMessageSessionFactory(config, pace=PACE) as factory:
        factory.create_consumer(quick("g")).subscribe(topic, 1 << 20, second.append).complete_subscribe()
        eventually(lambda: len(second) == 10)
    assert sorted(message.data for message in first + second) == numbered(50)


def test_a_group_of_python_and_java(
    config: MetaClientConfig, topic: str, zookeeper: Zookeeper, root: str, tmp_path: Path
) -> None:
    """Each gets its share; the Java member leaves, and nothing is lost."""
    ours = list[ReceivedMessage]()
    with metaq1_client(tmp_path) as java, MetaMessageSessionFactory(config, pace=PACE) as factory:
        java.factory("f", zookeeper.address, root=root)
        java.subscriber("j", "f", "mixed", {topic: 1 << 20}, max_delay_ms=200)
        consumer = factory.create_consumer(quick("mixed")).subscribe(topic, 1 << 20, ours.append)
        consumer.complete_subscribe()
        eventually(lambda: len(consumer.partitions) == PARTITIONS // 2, what="each has its half")
        sent(config, topic, numbered(200))

        def theirs() -> list[bytes]:
            return [text.encode() for text in bodies(java.received("j"))]

        eventually(lambda: {message.data for message in ours} | set(theirs()) == set(numbered(200)))
        assert ours
        assert theirs()
        java.shutdown("j")
        eventually(lambda: len(consumer.partitions) == PARTITIONS, what="all are ours")
        sent(config, topic, numbered(20, 200))
        eventually(lambda: {message.data for message in ours} | set(theirs()) == set(numbered(220)))


def test_a_server_that_is_killed_and_comes_back(zookeeper: Zookeeper, tmp_path: Path) -> None:
    """Ours, alone: the original waits for the end of its ZooKeeper session."""
    root = "/consumers-killed"
    server = OurServer(tmp_path / "s", zookeeper, {"t": {"numPartitions": PARTITIONS}}, registry={"zk.zkRoot": root})
    config = config_of(zookeeper, root, tmp_path)
    got = list[ReceivedMessage]()
    with server, MetaMessageSessionFactory(config, pace=PACE) as factory:
        sent(config, "t", numbered(20))
        factory.create_consumer(quick("g")).subscribe("t", 1 << 20, got.append).complete_subscribe()
        eventually(lambda: len(got) == 20)
        server.kill()
        server.start()
        sent(config, "t", numbered(20, 20))
        eventually(lambda: {message.data for message in got} == set(numbered(40)))


def test_asyncio_get_browse_and_broadcast(config: MetaClientConfig, topic: str) -> None:
    sent(config, topic, numbered(12))

    async def program() -> list[bytes]:
        async with aio.MetaMessageSessionFactory(config, pace=PACE) as factory:
            browsed = [message.data async for message in factory.create_topic_browser(topic)]
            assert sorted(browsed) == numbered(12)
            found = await factory.create_consumer(quick("get")).get(topic, "0-0", 0)
            assert found is not None
            return [message.data for message in found]

    assert set(asyncio.run(program())) < set(numbered(12))
    got = list[ReceivedMessage]()
    with MetaBroadcastMessageSessionFactory(config, pace=PACE) as factory:
        consumer = factory.create_broadcast_consumer(quick("everybody")).subscribe(topic, 1 << 20, got.append)
        consumer.complete_subscribe()
        assert consumer.group.startswith("everybody-")
        eventually(lambda: len(got) == 12)
    assert Path(config.offsets_path).exists()


def put_offsets(zookeeper: Zookeeper, path: str, partitions: int, offset: int) -> None:
    with zookeeper.nodes() as nodes:
        for number in range(partitions):
            nodes.client.create(f"{path}/0-{number}", f"-1-{offset}".encode(), makepath=True)


def test_an_offset_beyond_the_end(
    config: MetaClientConfig, topic: str, zookeeper: Zookeeper, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that tells consumers where its end is (updateConsumerOffsets) answers 301: they go on there, and say so; what is there
    already is not delivered, and what comes is."""
    sent(config, topic, numbered(12))
    path = f"{root}/consumers/beyond/offsets/{topic}"
    put_offsets(zookeeper, path, PARTITIONS, 1_000_000)
    got = list[ReceivedMessage]()
    with MetaMessageSessionFactory(config, pace=PACE) as factory:
        consumer = factory.create_consumer(quick("beyond")).subscribe(topic, 1 << 20, got.append)
        consumer.complete_subscribe()
        with zookeeper.nodes() as nodes:
            ends = [f"-1-{3 * 24}"] * PARTITIONS
            eventually(
                lambda: [nodes.text(f"{path}/0-{number}") for number in range(PARTITIONS)] == ends,
                what="the ends are saved, with the ids as they were",
            )
        sent(config, topic, numbered(12, 12))
        eventually(lambda: len(got) == 12)
    assert sorted(message.data for message in got) == numbered(12, 12)
    for number in range(PARTITIONS):
        text = f"goes on at 72 in topic {topic}, partition 0-{number}: its server has nothing at 1000000 any more"
        assert caplog.text.count(text) == 1


@pytest.mark.parametrize("kind", metaq1_python.SERVERS)
def test_an_offset_beyond_the_end_of_a_server_that_does_not_tell(
    kind: str, zookeeper: Zookeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers 404, as if nothing had come: a consumer waits there, says once that it does, and goes on when the partition is as long as
    that. At a place within a message it asks where one begins: the original names the beginning of the file, ours that message."""
    root = f"/consumers-beyond-{kind}"
    topics = {name: {"numPartitions": 1} for name in ("whole", "within")}
    server = metaq1_python.SERVERS[kind](
        tmp_path, zookeeper, topics, {"updateConsumerOffsets": "false"}, registry={"zk.zkRoot": root}
    )
    config = config_of(zookeeper, root, tmp_path)
    got = list[ReceivedMessage]()
    with server, MetaMessageSessionFactory(config, pace=PACE) as factory:
        until_registered(factory, "within", 1)
        consumer = factory.create_consumer(quick("beyond"))
        for topic, offset in {"whole": 4 * 24, "within": 4 * 24 + 5}.items():
            metaq1_python.sent(config, topic, 1, numbered(3))
            put_offsets(zookeeper, f"{root}/consumers/beyond/offsets/{topic}", 1, offset)
            consumer.subscribe(topic, 1 << 20, got.append)
        consumer.complete_subscribe()
        for topic, offset in {"whole": 96, "within": 101}.items():
            text = f"group beyond waits at {offset} in topic {topic}, partition 0-0, which ends at 72 at {server.text}"
            eventually(lambda text=text: text in caplog.text, what="it is said")
        assert got == []
        for topic in topics:
            metaq1_python.sent(config, topic, 1, numbered(5, 3))

        def bodies_of(topic: str) -> list[bytes]:
            return [message.data for message in got if message.topic == topic]

        eventually(lambda: bodies_of("whole") == numbered(4, 4), what="all but the one before the offset")
        again = numbered(8) if kind == "original" else numbered(4, 4)
        eventually(lambda: bodies_of("within") == again, what="from where the server says")
    assert caplog.text.count("group beyond waits at") == 2
    assert "the frame at 101" in caplog.text
