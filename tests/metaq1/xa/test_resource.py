"""XA producers and resources for threads, at our broker."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from metaq.errors import ClientError, ConfigError, InvalidMessage, NoRoute, XaError
from metaq.metaq1 import (
    Message,
    MetaClientConfig,
    Partition,
    Vote,
    XAMessageProducer,
    XAMetaMessageSessionFactory,
    XAResource,
    Xid,
)
from metaq.testing import free_port
from tests.interop.metaq1 import OurServer
from tests.metaq1.stored import payloads

_numbers = itertools.count()


def new_xid() -> Xid:
    return Xid(7, f"g{next(_numbers)}-{os.getpid()}".encode(), b"b")


@pytest.fixture
def xa_factory(config: MetaClientConfig) -> Iterator[XAMetaMessageSessionFactory]:
    with XAMetaMessageSessionFactory(config) as made:
        yield made


@pytest.fixture
def producer(xa_factory: XAMetaMessageSessionFactory, topic: str) -> XAMessageProducer:
    made = xa_factory.create_xa_producer(unique_qualifier=f"q{next(_numbers)}-{os.getpid()}")
    made.publish(topic)
    return made


@pytest.fixture
def resource(producer: XAMessageProducer) -> XAResource:
    return producer.get_xa_resource()


def filled(resource: XAResource, producer: XAMessageProducer, topic: str, *texts: str) -> Xid:
    """A branch with these messages that has ended."""
    xid = new_xid()
    resource.start(xid)
    for text in texts:
        assert producer.send_message(Message(topic, text.encode())).offset == -1
    resource.end(xid)
    return xid


def stored(server: OurServer, topic: str) -> list[str]:
    return sorted(payload.decode() for partition in payloads(server.text, topic) for payload in partition)


def test_messages_appear_at_the_commit(
    server: OurServer, producer: XAMessageProducer, resource: XAResource, topic: str
) -> None:
    """Prepared, they are in doubt and unseen; committed, all are there."""
    xid = filled(resource, producer, topic, *"abcd")
    assert resource.recover() == []
    assert resource.prepare(xid) is Vote.OK
    assert resource.recover() == [xid]
    assert stored(server, topic) == []
    resource.commit(xid)
    assert stored(server, topic) == list("abcd")
    assert resource.recover() == []
    assert resource.unreached == ()


def test_one_phase(server: OurServer, producer: XAMessageProducer, resource: XAResource, topic: str) -> None:
    resource.commit(filled(resource, producer, topic, "a"), one_phase=True)
    assert stored(server, topic) == ["a"]


def test_rolled_back_before_and_behind_the_preparation(
    server: OurServer, producer: XAMessageProducer, resource: XAResource, topic: str
) -> None:
    resource.rollback(filled(resource, producer, topic, "a"))
    xid = filled(resource, producer, topic, "b")
    resource.prepare(xid)
    resource.rollback(xid)
    assert stored(server, topic) == []
    with pytest.raises(XaError) as error:
        resource.commit(xid)
    assert (error.value.code, error.value.name) == (-4, "XAER_NOTA")


def test_nothing_in_it_is_read_only(producer: XAMessageProducer, resource: XAResource, topic: str) -> None:
    assert resource.prepare(filled(resource, producer, topic)) is Vote.READ_ONLY
    assert producer._branches == {}


def test_sends_outside_of_a_branch_are_plain(
    server: OurServer, producer: XAMessageProducer, resource: XAResource, topic: str
) -> None:
    """Before it, behind its end, and while it is suspended."""
    assert producer.send_message(Message(topic, b"1")).offset >= 0
    xid = new_xid()
    resource.start(xid)
    producer.send_message(Message(topic, b"2"))
    resource.end(xid, resource.TMSUSPEND)
    assert producer.send_message(Message(topic, b"3")).offset >= 0
    resource.start(xid, resource.TMRESUME)
    producer.send_message(Message(topic, b"4"))
    resource.end(xid)
    assert producer.send_message(Message(topic, b"5")).offset >= 0
    assert stored(server, topic) == ["1", "3", "5"]
    resource.prepare(xid)
    resource.commit(xid)
    assert stored(server, topic) == list("12345")


def test_another_producer_recovers_by_the_qualifier(
    server: OurServer, xa_factory: XAMetaMessageSessionFactory, producer: XAMessageProducer, topic: str
) -> None:
    """As after a restart; with another qualifier it finds nothing."""
    resource = producer.get_xa_resource()
    xid = filled(resource, producer, topic, "a")
    resource.prepare(xid)
    for qualifier, found in (("another", []), (producer.unique_qualifier, [xid])):
        later = xa_factory.create_xa_producer(unique_qualifier=qualifier)
        later.publish(topic)
        there = later.get_xa_resource()
        assert there.recover() == found
        assert there.is_same_rm(resource)
    there.commit(xid)
    assert stored(server, topic) == ["a"]


@pytest.mark.parametrize(
    ("step", "code"),
    [("prepare", -4), ("commit", -4), ("rollback", -4)],
)
def test_steps_of_an_unknown_branch(resource: XAResource, step: str, code: int) -> None:
    with pytest.raises(XaError) as error:
        getattr(resource, step)(new_xid())
    assert error.value.code == code
    assert not error.value.in_doubt


def test_forgetting_what_is_unknown_is_no_error(resource: XAResource) -> None:
    """As with the original (13)."""
    resource.forget(new_xid())


def test_steps_in_a_wrong_order(producer: XAMessageProducer, resource: XAResource, topic: str) -> None:
    xid = new_xid()
    resource.start(xid)
    for call in (resource.prepare, resource.rollback, lambda one: resource.commit(one, one_phase=True)):
        with pytest.raises(XaError) as error:
            call(xid)
        assert error.value.name == "XAER_PROTO"
    with pytest.raises(XaError) as error:
        resource.end(xid, resource.TMJOIN)
    assert error.value.name == "XAER_INVAL"
    resource.end(xid)
    for flags, name in ((resource.TMNOFLAGS, "XAER_DUPID"), (resource.TMFAIL, "XAER_INVAL")):
        with pytest.raises(XaError) as error:
            resource.start(xid, flags)
        assert error.value.name == name
    with pytest.raises(XaError) as error:
        resource.start(new_xid(), resource.TMRESUME)
    assert error.value.name == "XAER_NOTA"
    with pytest.raises(XaError) as error:
        resource.commit(xid)  # not prepared
    assert error.value.name == "XAER_PROTO"
    resource.rollback(xid)


def test_a_thread_is_in_one_branch_at_a_time(producer: XAMessageProducer, resource: XAResource) -> None:
    first, second = new_xid(), new_xid()
    resource.start(first)
    with pytest.raises(ClientError, match="do not nest"):
        resource.start(second)
    assert list(producer._branches) == [first]
    resource.end(first)
    resource.start(second)
    resource.end(second)


def test_a_message_that_nobody_waited_for_fails_the_branch(
    server: OurServer, xa_factory: XAMetaMessageSessionFactory, topic: str
) -> None:
    """Its end says so, it cannot be prepared or committed, and a rollback ends it."""
    producer = xa_factory.create_xa_producer(lambda _topic, _known, message: Partition(-1, int(message.data)))
    producer.publish(topic)
    resource = producer.get_xa_resource()
    xid = new_xid()
    resource.start(xid)
    producer.send_message(Message(topic, b"1"))
    producer.submit(Message(topic, b"77"))  # a partition that there is not
    with pytest.raises(XaError, match="can only be rolled back") as error:
        resource.end(xid)
    assert error.value.code == 100
    for call in (resource.prepare, lambda one: resource.commit(one, one_phase=True)):
        with pytest.raises(XaError, match="can only be rolled back"):
            call(xid)
    resource.rollback(xid)
    assert stored(server, topic) == []


def test_work_that_has_failed_can_only_be_rolled_back(
    producer: XAMessageProducer, resource: XAResource, topic: str
) -> None:
    xid = new_xid()
    resource.start(xid)
    producer.send_message(Message(topic, b"a"))
    resource.end(xid, resource.TMFAIL)
    with pytest.raises(XaError) as error:
        resource.prepare(xid)
    assert error.value.name == "XA_RBROLLBACK"
    resource.rollback(xid)


def test_a_branch_that_was_left_open_ends_with_its_producer(
    server: OurServer, xa_factory: XAMetaMessageSessionFactory, topic: str
) -> None:
    with xa_factory.create_xa_producer() as producer:
        producer.publish(topic)
        resource = producer.get_xa_resource()
        xid = new_xid()
        resource.start(xid)
        producer.send_message(Message(topic, b"a"))
    with xa_factory.create_xa_producer() as later:
        later.publish(topic)
        with pytest.raises(XaError) as error:
            later.get_xa_resource().commit(xid, one_phase=True)
    assert error.value.name == "XAER_NOTA"
    assert stored(server, topic) == []


def test_a_time_out_at_the_server(producer: XAMessageProducer, resource: XAResource, topic: str) -> None:
    """It rolls back what is not prepared."""
    from tests.support import eventually

    resource.set_transaction_timeout(0.3)  # a second on the wire
    xid = filled(resource, producer, topic, "a")

    def gone() -> bool:
        with pytest.raises(XaError) as error:
            resource.commit(xid)
        assert error.value.name in {"XAER_PROTO", "XAER_NOTA"}
        return error.value.name == "XAER_NOTA"

    eventually(gone, what="the branch is rolled back")
    with pytest.raises(ConfigError):
        resource.set_transaction_timeout(-1)


def test_qualifiers(xa_factory: XAMetaMessageSessionFactory) -> None:
    """The default names the host; the setter checks what it is given, which the original's does not."""
    producer = xa_factory.create_xa_producer()
    host = os.uname().nodename
    assert producer.unique_qualifier == f"XAMessageProducer-{host}"
    producer.set_unique_qualifier_prefix("shop")
    assert producer.unique_qualifier == f"shop-{host}"
    for setting in (producer.set_unique_qualifier, producer.set_unique_qualifier_prefix):
        with pytest.raises(ConfigError):
            setting("a b")
    assert producer.unique_qualifier == f"shop-{host}"
    producer.set_unique_qualifier("till-1")
    assert producer.unique_qualifier == "till-1"


def test_without_a_topic_there_is_no_resource(xa_factory: XAMetaMessageSessionFactory) -> None:
    with pytest.raises(NoRoute, match="no topic is published"):
        xa_factory.create_xa_producer().get_xa_resource()


def test_a_server_that_is_away() -> None:
    """Steps fail with XAER_RMFAIL, and nothing is in doubt."""
    config = MetaClientConfig(server_url=f"meta://127.0.0.1:{free_port()}")
    with XAMetaMessageSessionFactory(config) as factory, factory.create_xa_producer() as producer:
        producer.publish("t")
        resource = producer.get_xa_resource()
        for call in (lambda: resource.start(new_xid()), resource.recover, lambda: resource.commit(new_xid())):
            with pytest.raises(XaError) as error:
                call()
            assert (error.value.code, error.value.in_doubt) == (-7, False)
        assert len(resource.unreached) == 1
        assert producer._branches == {}


def test_a_message_that_is_refused_before_it_is_sent(
    producer: XAMessageProducer, resource: XAResource, topic: str
) -> None:
    """The branch goes on without it."""
    xid = new_xid()
    resource.start(xid)
    with pytest.raises(InvalidMessage):
        producer.send_message(Message(topic, b"x" * (2 << 20)))
    resource.end(xid)
    resource.rollback(xid)


def test_in_doubt_over_a_kill_of_the_broker(tmp_path) -> None:
    """Recovered and committed by the same resource, whose connection has broken."""
    from tests.support import eventually

    with OurServer(tmp_path, None, {"t": {"numPartitions": 3}}) as server:
        config = MetaClientConfig(server_url=f"meta://{server.text}")
        with XAMetaMessageSessionFactory(config) as factory, factory.create_xa_producer() as producer:
            producer.publish("t")
            resource = producer.get_xa_resource()
            xid = filled(resource, producer, "t", "a", "b")
            resource.prepare(xid)
            server.kill()
            with pytest.raises(XaError) as error:
                resource.commit(xid)
            assert error.value.code == -7
            server.start()

            def recovered() -> list[Xid]:
                try:
                    return resource.recover()
                except XaError:
                    return []

            assert eventually(recovered, what="the branch is listed") == [xid]
            resource.commit(xid)
            assert stored(server, "t") == ["a", "b"]
