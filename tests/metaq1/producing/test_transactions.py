"""Local transactions: all or nothing over several partitions, whose they are, and every way in which they end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from metaq.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ConnectionFailed,
    NoRoute,
    TransactionEnded,
    TransactionFailed,
)
from metaq.metaq1 import Message, MetaClientConfig, MetaMessageSessionFactory, Partition
from metaq.metaq1.producing.transactions import TransactionState
from metaq.metaq1.shared.links import ConnectionPace
from metaq.metaq1.shared.routes import TopicRoute
from metaq.testing import eventually
from tests.interop.metaq1 import OurServer
from tests.metaq1.stored import payloads
from tests.support import PATIENCE


def by_name(topic, partitions, message):
    """The partition is the last digit of the message."""
    return Partition(-1, int(message.data[-1:]))


@pytest.fixture
def producer(factory, topic):
    made = factory.create_producer(by_name)
    made.publish(topic)
    return made


def test_leaving_the_block_makes_all_of_it_visible_at_once(producer, topic, server):
    """Over three partitions; before that, nothing of it, and what was sent meanwhile comes first."""
    with producer.transaction() as transaction:
        results = [producer.send_message(Message(topic, b"t%d" % number)) for number in (0, 1, 2, 0)]
        assert [one.offset for one in results] == [-1] * 4
        assert (transaction.messages, transaction.state) == (4, TransactionState.OPEN)
        assert payloads(server.text, topic) == [[], [], []]
    assert transaction.state is TransactionState.COMMITTED
    assert payloads(server.text, topic) == [[b"t0", b"t0"], [b"t1"], [b"t2"]]


def test_an_exception_in_the_block_rolls_back(producer, topic, server):
    """And comes out of it."""
    with pytest.raises(KeyError, match="mine"), producer.transaction() as transaction:
        producer.send_message(Message(topic, b"0"))
        raise KeyError("mine")
    assert transaction.state is TransactionState.ROLLED_BACK
    producer.send_message(Message(topic, b"after 0"))
    assert payloads(server.text, topic) == [[b"after 0"], [], []]


def test_begin_commit_and_rollback_are_the_thread_s(producer, topic, server):
    """As in Java: another thread's sends do not belong to it."""
    producer.begin_transaction()
    producer.send_message(Message(topic, b"in 0"))
    other = threading.Thread(target=lambda: producer.send_message(Message(topic, b"out 1")))
    other.start()
    other.join()
    assert payloads(server.text, topic) == [[], [b"out 1"], []]
    producer.commit()
    producer.begin_transaction()
    producer.send_message(Message(topic, b"never 2"))
    producer.rollback()
    assert payloads(server.text, topic) == [[b"in 0"], [b"out 1"], []]
    for call in (producer.commit, producer.rollback):
        with pytest.raises(ClientError, match="no transaction of this producer has begun"):
            call()


def test_transactions_of_two_threads_and_of_two_producers_are_apart(factory, producer, topic, server):
    second = factory.create_producer(by_name)
    with pytest.raises(KeyError), producer.transaction():
        producer.send_message(Message(topic, b"a0"))
        with second.transaction():
            second.send_message(Message(topic, b"b1"))
            thread = threading.Thread(target=_commit, args=(producer, topic))
            thread.start()
            thread.join()
        raise KeyError
    assert payloads(server.text, topic) == [[], [b"b1"], [b"c2"]]


def _commit(producer, topic):
    with producer.transaction():
        producer.send_message(Message(topic, b"c2"))


def test_they_do_not_nest(producer, topic):
    with producer.transaction(), pytest.raises(ClientError, match="do not nest"):
        producer.begin_transaction()
    with producer.transaction() as transaction:
        producer.send_message(Message(topic, b"0"))
        producer.rollback()
        producer.send_message(Message(topic, b"outside 0"))
    assert transaction.state is TransactionState.ROLLED_BACK


def test_one_without_messages_is_nothing(producer, server, factory):
    """No server hears of it."""
    begun = factory.get_stats()[server.text]["tx_begin"]
    with producer.transaction() as transaction:
        pass
    assert transaction.state is TransactionState.COMMITTED
    with pytest.raises(KeyError), producer.transaction():
        raise KeyError
    assert factory.get_stats()[server.text]["tx_begin"] == begun


def test_keys_are_counted_by_producer_and_name_its_session(producer, factory):
    """As the original has them, `TX:address-time-sequence:number`."""
    first, second = producer.transaction(), producer.transaction()
    other = factory.create_producer().transaction()
    assert first.key.startswith("TX:")
    session = first.key.removeprefix("TX:").removesuffix(":1")
    assert ":" not in session
    assert second.key == f"TX:{session}:2"
    assert other.key != first.key
    assert other.key.endswith(":1")


def test_submitted_messages_belong_to_it_and_the_commit_waits_for_them(producer, topic, server):
    with producer.transaction() as transaction:
        futures = [producer.submit(Message(topic, b"%d" % (number % 3))) for number in range(60)]
    assert all(future.result(PATIENCE).offset == -1 for future in futures)
    assert transaction.messages == 60
    assert payloads(server.text, topic) == [[b"0"] * 20, [b"1"] * 20, [b"2"] * 20]


def test_a_refused_message_fails_the_block(producer, topic, server):
    """Whoever catches it inside goes on."""
    with pytest.raises(BrokerError, match="wrong partition 9"), producer.transaction() as transaction:
        producer.send_message(Message(topic, b"0"))
        producer.send_message(Message(topic, b"9"))
    assert transaction.state is TransactionState.ROLLED_BACK
    with producer.transaction():
        with pytest.raises(BrokerError):
            producer.send_message(Message(topic, b"9"))
        producer.send_message(Message(topic, b"kept 1"))
    assert payloads(server.text, topic) == [[], [b"kept 1"], []]


def test_a_submitted_message_that_fails_fails_the_commit(producer, topic, server):
    """Nobody may have looked at its future."""
    with pytest.raises(TransactionFailed, match="wrong partition 9") as failed, producer.transaction() as transaction:
        producer.send_message(Message(topic, b"0"))
        producer.submit(Message(topic, b"9"))
    assert (failed.value.state, transaction.state) == ("rolled back", TransactionState.ROLLED_BACK)
    assert payloads(server.text, topic) == [[], [], []]


def test_the_server_s_time_out_rolls_it_back(producer, topic, server):
    """Which the commit tells: do it again."""
    with pytest.raises(TransactionFailed, match="has not been started") as failed, producer.transaction(timeout=0.5):
        producer.send_message(Message(topic, b"0"))
        eventually(lambda: _has_none(server), PATIENCE)
    assert failed.value.state == "rolled back"
    assert failed.value.retriable
    assert payloads(server.text, topic) == [[], [], []]
    with pytest.raises(ConfigError, match="timeout=-1"):
        producer.transaction(timeout=-1)


def _has_none(server) -> bool:
    from metaq.admin import Admin

    with Admin("127.0.0.1:9876") as admin:
        return not any(admin.list_branches(broker=server.broker).branches.values())


def test_the_end_of_the_connection_rolls_it_back(tmp_path: Path, topic):
    """A message behind it fails, as does the commit; the next transaction goes over the new connection."""
    own = OurServer(tmp_path, None, {topic: {"numPartitions": 3}})
    with own:
        config = MetaClientConfig(server_url=f"meta://{own.text}")
        with MetaMessageSessionFactory(config, pace=ConnectionPace(reconnect_pause=0.05)) as factory:
            producer = factory.create_producer(by_name)
            producer.publish(topic)
            first = producer.transaction()
            with pytest.raises(ConnectionFailed, match="that the transaction belongs to has ended"), first:
                producer.send_message(Message(topic, b"lost 0"))
                _cut(factory)
                producer.send_message(Message(topic, b"lost 1"))
            assert first.state is TransactionState.ROLLED_BACK
            with pytest.raises(TransactionFailed, match="is rolled back") as failed, producer.transaction() as second:
                producer.send_message(Message(topic, b"lost 0"))
                _cut(factory)
            assert (failed.value.state, second.state) == ("rolled back", TransactionState.ROLLED_BACK)
            producer.begin_transaction()
            producer.send_message(Message(topic, b"lost 0"))
            _cut(factory)
            producer.rollback()
            with producer.transaction():
                producer.send_message(Message(topic, b"kept 2"))
            assert payloads(own.text, topic) == [[], [], [b"kept 2"]]


def _cut(factory: MetaMessageSessionFactory) -> None:
    """Break the factory's connection, and wait for the next one."""

    async def cut() -> None:
        (link,) = factory._core.links.connected
        connection = link.connection
        assert connection is not None
        connection.peer.close("of the test")
        await connection.lost
        await link.connected(PATIENCE)

    factory._core.thread.run(cut(), PATIENCE)


def test_a_commit_without_an_answer_is_in_doubt(producer, topic, server, monkeypatch):
    """The text says that it is all or nothing."""
    from metaq.metaq1.producing import transactions

    producer.begin_transaction()
    producer.send_message(Message(topic, b"0"))
    monkeypatch.setattr(transactions, "STEP_SECONDS", 0.0)
    with pytest.raises(TransactionFailed, match="All of it is delivered, or nothing") as failed:
        producer.commit()
    assert (failed.value.state, failed.value.retriable) == ("unknown", False)
    with pytest.raises(ClientError, match="no transaction"):
        producer.commit()
    found = [body for bodies in eventually(lambda: payloads(server.text, topic)) for body in bodies]
    assert found in ([], [b"0"])


def test_a_message_after_the_end_is_an_error(producer, topic):
    """Of a thread that was handed the transaction's context."""
    import contextvars

    with producer.transaction():
        producer.send_message(Message(topic, b"0"))
        inside = contextvars.copy_context()
        transaction = producer._transaction()
    assert producer._transaction() is None
    # The same thread: its owner.
    with pytest.raises(TransactionEnded, match="is committed"):
        inside.run(producer.send_message, Message(topic, b"0"))
    found = []
    thread = threading.Thread(target=lambda: inside.run(lambda: found.append(producer._transaction())))
    thread.start()
    thread.join()
    assert found == [None], "another thread that goes on sends for itself"
    assert transaction is not None


def test_a_transaction_stays_at_the_broker_of_its_first_message(factory, topic):
    """Whatever the selector is given else; a topic that this broker has not has no partition."""
    seen = []

    def selector(name, partitions, message):
        seen.append(list(partitions))
        return partitions[-1]

    producer = factory.create_producer(selector)
    both = TopicRoute((Partition(0, 0), Partition(0, 1), Partition(1, 0)), {0: "a:1", 1: "b:1"})
    elsewhere = TopicRoute((Partition(0, 0),), {0: "a:1"})
    transaction = producer._new_transaction(0.0)
    assert producer._place_in(transaction, Message(topic, b""), both) == Partition(1, 0)
    assert producer._place_in(transaction, Message(topic, b""), both) == Partition(1, 0)
    assert seen == [list(both.partitions), [Partition(1, 0)]]
    with pytest.raises(NoRoute, match=f"no available partition for topic {topic}"):
        producer._place_in(transaction, Message(topic, b""), elsewhere)


def test_a_fixed_server_is_asked_for_its_partitions(factory, topic, server):
    """The original refuses -1 in a transaction; a topic without a message has at least partition 0."""
    seen = []

    def selector(name, partitions, message):
        seen.append([one.partition for one in partitions])
        return partitions[-1]

    producer = factory.create_producer(selector)
    producer.publish(topic)
    with producer.transaction():
        producer.send_message(Message(topic, b"first"))
    by_digit = factory.create_producer(by_name)
    by_digit.publish(topic)
    for number in range(3):
        by_digit.send_message(Message(topic, b"%d" % number))
    with producer.transaction():
        producer.send_message(Message(topic, b"second"))
    assert seen == [[0], [0, 1, 2]]
    assert payloads(server.text, topic) == [[b"first", b"0"], [b"1"], [b"2", b"second"]]


def test_the_end_of_a_producer_rolls_back_and_leaves_the_connection_to_others(factory, topic, server):
    """Without a time-out the server would keep it for as long as the connection lives."""
    producer, other = factory.create_producer(by_name), factory.create_producer(by_name)
    for one in (producer, other):
        one.publish(topic)
    producer.begin_transaction()
    producer.send_message(Message(topic, b"0"))
    producer.shutdown()
    eventually(lambda: _has_none(server), PATIENCE)
    other.send_message(Message(topic, b"1"))
    with pytest.raises((ClientError, TransactionEnded)):
        producer.commit()
    assert payloads(server.text, topic) == [[], [b"1"], []]


def test_a_shutdown_rolls_back(config, topic, server):
    factory = MetaMessageSessionFactory(config)
    producer = factory.create_producer(by_name)
    producer.publish(topic)
    producer.begin_transaction()
    producer.send_message(Message(topic, b"0"))
    factory.shutdown()
    eventually(lambda: _has_none(server), PATIENCE)
    assert payloads(server.text, topic) == [[], [], []]
