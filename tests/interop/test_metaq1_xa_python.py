"""XA by Python at the original server 1.4.6.2 and at ours, beside Java's XAResource."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.errors import NoRoute, XaError
from metaq.metaq1 import (
    Message,
    MetaClientConfig,
    Vote,
    XAMessageProducer,
    XAMetaMessageSessionFactory,
    Xid,
)
from metaq.testing import eventually
from tests.interop import metaq1_python
from tests.interop.metaq1 import Metaq1Client, OurServer, TextServer, Zookeeper
from tests.interop.metaq1_python import (
    config_of,
    server_fixture,
    topic_fixture,
    until_registered,
)
from tests.metaq1.conftest import patient_senders  # noqa: F401  a fixture
from tests.metaq1.stored import payloads
from tests.support import PATIENCE

pytestmark = pytest.mark.interop

TOPICS = [f"x{number}" for number in range(8)]
server = server_fixture("xa", TOPICS, 3)
topic = topic_fixture(TOPICS)
root, config = metaq1_python.root, metaq1_python.config
_numbers = itertools.count()


@pytest.fixture
def producer(config: MetaClientConfig, topic: str) -> Iterator[XAMessageProducer]:
    with XAMetaMessageSessionFactory(config) as factory:
        until_registered(factory, topic, 3)
        made = factory.create_xa_producer(unique_qualifier=f"q{next(_numbers)}-{os.getpid()}")
        made.publish(topic)
        yield made


def stored(server: TextServer, topic: str) -> list[str]:
    return sorted(payload.decode() for partition in payloads(server.text, topic) for payload in partition)


def until_stored(server: TextServer, topic: str, wanted: list[str]) -> None:
    """The original answers a commit before it has written what is in it."""
    eventually(lambda: stored(server, topic) == wanted, PATIENCE)


def test_two_phases_at_both_servers(server: TextServer, producer: XAMessageProducer, topic: str) -> None:
    """Committed, rolled back before and behind the preparation, in one phase, and empty."""
    resource = producer.get_xa_resource()
    names = ["two", "undone", "late", "one", "empty"]
    xids = {name: Xid(7, name.encode(), topic.encode()) for name in names}
    for name in names:
        resource.start(xids[name])
        if name != "empty":
            for number in range(3):
                sent = producer.send_message(Message(topic, f"{name} {number}".encode(), "red"))
                assert (sent.offset, sent.partition.broker_id) == (-1, 0)
        resource.end(xids[name])
    assert resource.recover() == []
    assert resource.prepare(xids["empty"]) is Vote.READ_ONLY
    assert [resource.prepare(xids[name]) for name in ("two", "late")] == [Vote.OK, Vote.OK]
    assert sorted(resource.recover(), key=str) == sorted([xids["two"], xids["late"]], key=str)
    resource.rollback(xids["undone"])
    assert stored(server, topic) == []
    resource.commit(xids["two"])
    resource.rollback(xids["late"])
    resource.commit(xids["one"], one_phase=True)
    until_stored(server, topic, [f"{name} {number}" for name in ("one", "two") for number in range(3)])
    assert resource.recover() == []


def test_errors_at_both_servers(server: TextServer, producer: XAMessageProducer, topic: str) -> None:
    resource, unknown = producer.get_xa_resource(), Xid(7, b"unknown", topic.encode())
    for call in (resource.prepare, resource.commit, resource.rollback):
        with pytest.raises(XaError) as error:
            call(unknown)
        assert (error.value.code, error.value.name) == (-4, "XAER_NOTA")
    resource.forget(unknown)
    xid = Xid(7, b"early", topic.encode())
    resource.start(xid)
    producer.send_message(Message(topic, b"a"))
    resource.end(xid)
    with pytest.raises(XaError) as error:
        resource.commit(xid)  # not prepared
    assert error.value.code == -6
    resource.rollback(xid)


def test_java_and_python_recover_each_other(
    server: TextServer, producer: XAMessageProducer, topic: str, java1: Metaq1Client, zookeeper: Zookeeper, root: str
) -> None:
    """With the same qualifier: what Java has prepared Python commits, and the other way about."""
    prefix = f"mix-{topic}"
    producer.set_unique_qualifier_prefix(prefix)
    resource = producer.get_xa_resource()
    java1.factory("xa", zookeeper.address, root=root, kind="xa")
    java1.publisher("p", "xa", [topic], qualifier=prefix)
    java1.xa("p", "start", "j")
    java1.send("p", topic, ["java"])
    java1.xa("p", "end", "j")
    assert java1.xa("p", "prepare", "j") == 0
    own = Xid(7, b"g", b"p")
    resource.start(own)
    producer.send_message(Message(topic, b"python"))
    resource.end(own)
    resource.prepare(own)
    other = Xid(7, b"g", b"j")
    assert sorted(java1.xa("p", "recover")) == ["7:g:j", "7:g:p"]
    assert sorted(resource.recover(), key=str) == sorted([own, other], key=str)
    resource.commit(other)
    java1.xa("p", "commit", "p")
    until_stored(server, topic, ["java", "python"])


def test_a_server_that_has_all_topics_is_chosen(zookeeper: Zookeeper, tmp_path: Path) -> None:
    """One of two has both; a topic of the other alone is refused, and the rest goes on."""
    registry = {"zk.zkRoot": "/xa-two"}
    sections = {"here": {}, "both": {}}, {"both": {}, "there": {}}
    first, second = (
        OurServer(tmp_path / str(number), zookeeper, topics, {"brokerId": number}, registry=registry)
        for number, topics in enumerate(sections)
    )
    config = config_of(zookeeper, "/xa-two", tmp_path)
    with first, second, XAMetaMessageSessionFactory(config) as factory:
        until_registered(factory, "both", 2)
        producer = factory.create_xa_producer(unique_qualifier="two")
        producer.publish("both")
        assert {producer.get_xa_resource().address for _ in range(40)} == {first.text, second.text}
        assert not producer.get_xa_resource(first.text).is_same_rm(producer.get_xa_resource(second.text))
        producer.publish("here")
        with pytest.raises(NoRoute, match="together with the topics published before"):
            producer.publish("there")
        assert producer.published == {"both", "here"}
        resource, xid = producer.get_xa_resource(), Xid(7, b"two", b"")
        assert resource.address == first.text
        resource.start(xid)
        for topic in ("both", "here", "both"):
            assert producer.send_message(Message(topic, b"a")).partition.broker_id == 0
        resource.end(xid)
        resource.prepare(xid)
        assert resource.recovered() == {xid: first.text}
        second.kill()
        eventually(lambda: resource.recover() == [xid], what="it is found without the server that is away")
        resource.commit(xid)
        assert len(payloads(first.text, "both", 1)[0]) == 2
        with pytest.raises(NoRoute, match="serves no published topic"):
            producer.get_xa_resource("127.0.0.1:1")
