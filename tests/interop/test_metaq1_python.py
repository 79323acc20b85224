"""The Python client of MetaQ 1.x at the original server 1.4.6.2 and at ours, beside MetaQ's Java client."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.errors import BrokerError, ConnectionFailed, NoRoute, TransactionFailed
from metaq.metaq1 import Message, MetaClientConfig, MetaMessageSessionFactory, Partition, aio
from metaq.testing import eventually
from tests.interop import metaq1_python
from tests.interop.metaq1 import Metaq1Client, TextServer, Zookeeper, consumer
from tests.interop.metaq1_python import (
    PACE,
    SERVERS,
    config_of,
    server_fixture,
    topic_fixture,
    until_registered,
)
from tests.metaq1.conftest import patient_senders  # noqa: F401  a fixture
from tests.metaq1.stored import payloads, read
from tests.support import PATIENCE

pytestmark = pytest.mark.interop

PARTITIONS = 3
TOPICS = [f"t{number}" for number in range(12)]
server = server_fixture("python", TOPICS, PARTITIONS)
topic = topic_fixture(TOPICS)
root, config = metaq1_python.root, metaq1_python.config


@pytest.fixture
def factory(config: MetaClientConfig, topic: str) -> Iterator[MetaMessageSessionFactory]:
    with MetaMessageSessionFactory(config, pace=PACE) as made:
        until_registered(made, topic, PARTITIONS)
        yield made


def by_digit(topic, partitions, message):
    """The partition is the last digit of the message."""
    return Partition(partitions[0].broker_id, int(message.data[-1:]))


def test_java_reads_what_python_sends(
    factory: MetaMessageSessionFactory,
    topic: str,
    server: TextServer,
    java1: Metaq1Client,
    zookeeper: Zookeeper,
    root: str,
) -> None:
    """Ids, attributes and bodies; round robin begins with the second partition; the checksum is right."""
    producer = factory.create_producer()
    producer.publish(topic)
    sent = [producer.send_message(Message(topic, b"m%d" % n, ["red", "", None][n % 3])) for n in range(6)]
    assert [one.partition for one in sent] == [Partition(0, number) for number in (1, 2, 0, 1, 2, 0)]
    assert [one.offset for one in sent[:3]] == [0, 0, 0]
    java1.factory("f", zookeeper.address, root=root)
    consumer(java1, "c", f"{root}-{topic}", {topic: 1 << 20})
    found = java1.wait("c", 6)
    assert sorted(one["body"] for one in found) == [f"m{number}" for number in range(6)]
    assert {one["body"]: one["id"] for one in found} == {f"m{n}": sent[n].message_id for n in range(6)}
    assert {one["attribute"] for one in found} == {"red", "", None}
    stored = [message for number in range(PARTITIONS) for message in read(server.text, topic, number)]
    assert {message_id for message_id, _, _ in stored} == {one.message_id for one in sent}


def test_one_by_one_by_the_thread_itself(factory: MetaMessageSessionFactory, topic: str, server: TextServer) -> None:
    """The original answers in other pieces than ours may; sends that do not wait come in between, and one that is refused."""
    producer = factory.create_producer(lambda topic, partitions, message: Partition(0, len(message.data) // 100))
    producer.publish(topic)
    link = factory._core.links.get(server.text)
    assert link is not None
    lent = 0
    for number in range(200):
        body = b"%d" % number
        if number % 50 == 49:
            producer.submit(Message(topic, body)).result(PATIENCE)
        elif number % 50 == 25:
            with pytest.raises(BrokerError, match="wrong partition"):
                producer.send_message(Message(topic, bytes(500)))
            producer.send_message(Message(topic, body))
        else:
            producer.send_message(Message(topic, body))
        lent += link.up is not None and link.up.lent is not None
    assert payloads(server.text, topic, PARTITIONS)[0] == [b"%d" % number for number in range(200)]
    assert lent > 100
    assert len(factory._core.links) == 1


def test_many_are_under_way_at_once(factory: MetaMessageSessionFactory, topic: str, server: TextServer) -> None:
    """All are stored, each once. The original handles them in any order."""
    producer = factory.create_producer()
    producer.publish(topic)
    futures = [producer.submit(Message(topic, b"%d" % number)) for number in range(2000)]
    assert len({future.result(PATIENCE).message_id for future in futures}) == 2000
    found = [body for bodies in payloads(server.text, topic) for body in bodies]
    assert sorted(found) == sorted(b"%d" % number for number in range(2000))


def test_a_local_transaction_is_all_or_nothing(
    factory: MetaMessageSessionFactory, topic: str, server: TextServer
) -> None:
    """Over partitions of one broker."""
    producer = factory.create_producer(by_digit)
    producer.publish(topic)
    with producer.transaction():
        results = [producer.send_message(Message(topic, b"in %d" % number)) for number in (0, 1, 2, 0)]
        assert [(one.offset, one.partition.broker_id) for one in results] == [(-1, 0)] * 4
        assert payloads(server.text, topic) == [[], [], []]
    with pytest.raises(KeyError), producer.transaction():
        producer.send_message(Message(topic, b"never 1"))
        raise KeyError
    producer.begin_transaction()
    futures = [producer.submit(Message(topic, b"more %d" % (number % 3))) for number in range(30)]
    producer.commit()
    assert {future.result(0).offset for future in futures} == {-1}
    wanted = [[b"in 0", b"in 0"], [b"in 1"], [b"in 2"]]
    wanted = [some + [b"more %d" % number] * 10 for number, some in enumerate(wanted)]
    # The original answers a commit before it has written what is in it.
    eventually(lambda: payloads(server.text, topic) == wanted, PATIENCE)


def test_a_transaction_that_the_server_has_ended(
    factory: MetaMessageSessionFactory, topic: str, server: TextServer
) -> None:
    """By its time-out."""
    producer = factory.create_producer(by_digit)
    producer.publish(topic)

    def refused() -> str:
        try:
            producer.send_message(Message(topic, b"0"))
        except BrokerError as error:
            return error.remark
        return ""

    with pytest.raises(TransactionFailed) as failed, producer.transaction(timeout=1):
        assert "has not been started" in eventually(refused, PATIENCE)
    assert failed.value.state == "rolled back"
    assert payloads(server.text, topic) == [[], [], []]


def test_what_the_server_refuses(factory: MetaMessageSessionFactory, topic: str, server: TextServer) -> None:
    """In its own words."""
    producer = factory.create_producer(lambda topic, partitions, message: Partition(0, 9))
    producer.set_default_topic(topic)
    with pytest.raises(BrokerError, match="wrong partition 9"):
        producer.send_message(Message(topic, b"x"))
    other = factory.create_producer()
    with pytest.raises(BrokerError, match="do not accept topic unknown-topic") as refused:
        other.send_message(Message("unknown-topic", b"x"))
    assert (refused.value.code, refused.value.address) == (500, server.text)


def test_a_fixed_server_needs_no_zookeeper(topic: str, server: TextServer) -> None:
    """Sends, figures, and a transaction, which the Java client cannot have there."""
    with MetaMessageSessionFactory(MetaClientConfig(server_url=f"meta://{server.text}"), pace=PACE) as factory:
        producer = factory.create_producer()
        producer.publish(topic)
        result = producer.send_message(Message(topic, b"one"))
        assert result.partition.broker_id == -1
        assert factory.get_stats()[server.text]["broker_id"] == "0"
        assert factory.get_stats("topics")[server.text][topic].startswith("partitions")
        with producer.transaction():
            producer.send_message(Message(topic, b"two"))
            producer.send_message(Message(topic, b"three"))
    eventually(lambda: sorted(itertools.chain(*payloads(server.text, topic))) == [b"one", b"three", b"two"], PATIENCE)


def test_asyncio(config: MetaClientConfig, factory: MetaMessageSessionFactory, topic: str, server: TextServer) -> None:
    async def main() -> None:
        async with aio.MetaMessageSessionFactory(config, pace=PACE) as own:
            producer = own.create_producer(by_digit)
            await producer.publish(topic)
            await producer.send_message(Message(topic, b"one 0"))
            async with producer.transaction():
                await asyncio.gather(*(producer.send_message(Message(topic, b"%d" % n)) for n in range(3)))

    asyncio.run(main())
    eventually(lambda: payloads(server.text, topic) == [[b"one 0", b"0"], [b"1"], [b"2"]], PATIENCE)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_is_killed_and_comes_back(kind: str, zookeeper: Zookeeper, tmp_path: Path) -> None:
    """What was acknowledged is there; an open transaction is not; the producer goes on by itself."""
    root = f"/python-killed-{kind}"
    server = SERVERS[kind](tmp_path, zookeeper, {"t": {"numPartitions": 1}}, registry={"zk.zkRoot": root})
    with server, MetaMessageSessionFactory(config_of(zookeeper, root, tmp_path), pace=PACE) as factory:
        until_registered(factory, "t", 1)
        producer = factory.create_producer()
        producer.publish("t")
        producer.send_message(Message("t", b"before"))
        producer.begin_transaction()
        producer.send_message(Message("t", b"open"))
        server.kill()
        with pytest.raises(TransactionFailed) as failed:
            producer.commit()
        assert failed.value.state in {"rolled back", "unknown"}
        # The dead server's session ends first: the original cannot register before.
        with zookeeper.nodes() as nodes:
            eventually(lambda: nodes.text(f"{root}/brokers/ids/0/master") is None, PATIENCE)
        server.start()

        def sent() -> bool:
            try:
                producer.send_message(Message("t", b"after"))
            except (ConnectionFailed, NoRoute):
                return False
            return True

        eventually(sent, PATIENCE)
        assert payloads(server.text, "t", 1)[0][0] == b"before"
        assert payloads(server.text, "t", 1)[0][-1] == b"after"
        assert b"open" not in payloads(server.text, "t", 1)[0]
