"""The partitions of one fixed server: found, followed, waited for; no ZooKeeper."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from metaq.errors import ConfigError, ConnectionFailed
from metaq.metaq1 import ConsumerConfig, Message, MetaClientConfig, MetaMessageSessionFactory, Partition
from metaq.metaq1.rebalance.fixed import FixedBalance
from metaq.metaq1.shared.links import ConnectionPace
from metaq.testing import eventually
from tests.interop.metaq1 import OurServer
from tests.metaq1.conftest import at
from tests.metaq1.rebalance.members import Recorder
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

BROKER_ID = 5


class Fixed:
    """One consumer without fetches, at a fixed server."""

    def __init__(self, server: str, config: ConsumerConfig) -> None:
        client = MetaClientConfig(server_url=f"meta://{server}")
        self.factory = MetaMessageSessionFactory(client, pace=ConnectionPace(reconnect_pause=0.1, connect=5.0))
        self.fetching, self.config = Recorder(), config
        self.core = self.factory._core
        self.balance = self.core.run(self._make)

    async def _make(self) -> FixedBalance:
        return FixedBalance(self.core, self.config, self.fetching, look_seconds=0.1)

    def begin(self, *topics: str) -> None:
        self.core.run(lambda: self.balance.begin(topics))

    def end(self) -> None:
        self.core.run(self.balance.end)

    def put(self, topic: str, number: int) -> None:
        with self.factory.create_producer(at(number)) as producer:
            producer.publish(topic)
            producer.send_message(Message(topic, b"x"))

    @property
    def partitions(self) -> list[str]:
        return self.fetching.partitions


@pytest.fixture(scope="module")
def fifth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    topics = {f"f{number}": {"numPartitions": 3} for number in range(10)}
    with OurServer(tmp_path_factory.mktemp("fifth"), None, topics, {"brokerId": BROKER_ID}) as running:
        yield running


@pytest.fixture
def made() -> Iterator[list[Fixed]]:
    found: list[Fixed] = []
    yield found
    for one in found:
        one.factory.shutdown()
    assert [fault for one in found for fault in one.fetching.faults] == []


def consumer(made: list[Fixed], server: str, **options: object) -> Fixed:
    made.append(Fixed(server, ConsumerConfig("g", **options)))
    return made[-1]


def test_partitions_that_were_written_to(fifth, made):
    """With the broker's own id, by which offsets are stored; new ones are found, and what is fetched goes on."""
    one = consumer(made, fifth.text)
    one.put("f0", 2)
    one.begin("f0", "f1")
    assert one.partitions == ["f0 5-2"]
    assert set(one.fetching.servers.values()) == {fifth.text}
    one.put("f0", 0)
    one.put("f1", 1)
    eventually(lambda: one.partitions == ["f0 5-0", "f0 5-2", "f1 5-1"], PATIENCE)
    assert set(one.fetching.loads.values()) == {1}
    one.end()
    assert one.fetching.steps[-3:] == ["stop", "commit", "forget"]
    assert one.partitions == []
    one.end()


def test_a_topic_without_partitions_is_waited_for_and_said(fifth, made, caplog):
    one = consumer(made, fifth.text)
    with caplog.at_level(logging.WARNING):
        one.begin("f2")
    assert f"topic f2 has no partition at {fifth.text} that was written to: group g waits for one" in caplog.text
    assert one.fetching.steps == []
    one.put("f2", 1)
    eventually(lambda: one.partitions == ["f2 5-1"], PATIENCE)
    assert caplog.text.count("waits for one") == 1


def test_the_one_partition_of_the_configuration(fifth, made):
    """Whether or not it was written to, under the name that was given."""
    one = consumer(made, fifth.text, partition="0-1")
    one.begin("f3")
    assert one.partitions == ["f3 0-1"]
    assert one.balance.owned == {("f3", Partition(0, 1))}
    with pytest.raises(ConfigError, match="partition: 'x-1' names no partition"):
        consumer(made, fifth.text, partition="x-1")


def test_offsets_that_do_not_load_are_asked_for_again(fifth, made, caplog):
    one = consumer(made, fifth.text)
    one.put("f4", 0)
    one.fetching.refusals = 2
    one.begin("f4")
    assert one.partitions == []
    eventually(lambda: one.partitions == ["f4 5-0"], PATIENCE)
    assert "group g: offsets of 1 partitions are not known: the storage is away" in caplog.text


def test_a_server_that_is_away(made, tmp_path, caplog):
    """`begin` raises; later the consumer waits for it."""
    server = OurServer(tmp_path, None, {"t": {"numPartitions": 2}})
    one = consumer(made, server.text)
    with pytest.raises(ConnectionFailed, match=server.text):
        one.begin("t")
    one.end()
    with server:
        other = consumer(made, server.text)
        other.put("t", 0)
        other.begin("t")
        server.kill()
        eventually(lambda: "group g: new partitions are not known" in caplog.text, PATIENCE)
        assert other.partitions == ["t 0-0"]
        server.start()
        eventually(lambda: _put(other), PATIENCE)
        eventually(lambda: other.partitions == ["t 0-0", "t 0-1"], PATIENCE)


def _put(one: Fixed) -> bool:
    one.put("t", 1)
    return True
