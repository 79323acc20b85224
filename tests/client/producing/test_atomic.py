"""Blocks of messages, all or none: what the client says to its caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import structs

import metaq
from metaq import aio
from metaq.client.producing.atomic import OPEN_BYTES_MAX
from metaq.client.shared.messages import queue_for_key
from metaq.model.transactions.staging import CHUNK_BYTES_MAX
from metaq.options import BrokerOptions
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from tests.client.cluster import FakeCluster
from tests.scripted import Fate, Later, ScriptedCluster, goes_on
from tests.support import PATIENCE, environment, eventually

BRIEF = 2.0
"""Before a transaction that cannot be completed is given up."""


@pytest.fixture
def rocketmq():
    """A cluster that has never heard of us."""
    with FakeCluster() as running:
        yield running


def test_a_rocketmq_is_not_supported_and_nothing_is_stored(rocketmq):
    """Said when the first message is to go there, with what works there instead."""
    with metaq.Producer(rocketmq.namesrv) as producer:
        with (
            pytest.raises(metaq.NotSupported, match=r"broker broker-a .* a RocketMQ.*metaq\.TransactionProducer"),
            producer.atomic() as tx,
        ):
            tx.send("orders", b"x")
        assert tx.outcome is metaq.TransactionOutcome.ROLLBACK
        for ask in (
            lambda: producer.outcome("4711@broker-a", timeout=PATIENCE),
            lambda: producer.settle("4711@broker-a", commit=False, timeout=PATIENCE),
        ):
            with pytest.raises(metaq.NotSupported, match="broker broker-a"):
                ask()
    assert rocketmq.count(RequestCode.STAGE) == 0
    assert not rocketmq.stored


def test_a_rocketmq_is_not_supported_in_asyncio(rocketmq):
    async def main() -> None:
        async with aio.Producer(rocketmq.namesrv) as producer:
            with pytest.raises(metaq.NotSupported):
                async with producer.atomic() as tx:
                    await tx.send("orders", b"x")
            with pytest.raises(metaq.NotSupported):
                await producer.outcome("4711@broker-a", timeout=PATIENCE)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("send", "error", "text"),
    [
        (lambda tx: tx.send("orders", "text"), TypeError, "encode it"),
        (lambda tx: tx.send("orders", b""), metaq.InvalidMessage, "empty"),
        (lambda tx: tx.send("orders", b"x" * CHUNK_BYTES_MAX * 5), metaq.InvalidMessage, "the limit is"),
        (lambda tx: tx.send("or ders", b"x"), metaq.ConfigError, "or ders"),
        (lambda tx: tx.send("orders", b"x", properties={"p": "x" * 40_000}), metaq.InvalidMessage, "together exceed"),
        (lambda tx: tx.send(metaq.Message("orders", b"x", delay_level=3)), metaq.InvalidMessage, "delay_level=3"),
        (lambda tx: tx.send(metaq.Message("orders", b"x", wait_store_ok=False)), metaq.InvalidMessage, "wait_store_ok"),
        (lambda tx: tx.send("orders", b"x", ordering_key=7), TypeError, "ordering_key is 7"),
        (lambda tx: tx.send("orders", b"x", queue=3), TypeError, "queue is 3"),
        (lambda tx: tx.send("orders", b"x", queue=metaq.MessageQueue("s", "b", 0)), metaq.ConfigError, "not one of topic"),
        (lambda tx: tx.send("orders", b"x", selector=lambda _: 3), TypeError, "the selector returned 3"),
        (lambda tx: tx.send("orders", b"x", strict=True), metaq.ConfigError, "strict=True"),
        (lambda tx: tx.send("nowhere", b"x"), metaq.NoRoute, "nowhere"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_sent_is_refused_at_once_and_the_block_may_go_on(rocketmq, send, error, text):
    """As `producer.send` refuses it, with the same words."""
    with metaq.Producer(rocketmq.namesrv) as producer, producer.atomic() as tx:
        with pytest.raises(error, match=text):
            send(tx)
        assert tx.messages == 0


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"timeout": -1}, {"expire_after": 0}, {"expire_after": float("inf")}, {"expire_after": 1e9}],
)
def test_seconds_out_of_bounds_are_refused(rocketmq, options):
    with metaq.Producer(rocketmq.namesrv) as producer, pytest.raises(metaq.ConfigError, match=next(iter(options))):
        producer.atomic(**options)


@pytest.mark.parametrize("name", ["", "4711", "@broker-a", "a b@broker-a", "4711@", "x" * 101 + "@b"])
def test_what_is_no_id_is_refused_before_anybody_is_asked(rocketmq, name):
    with metaq.Producer(rocketmq.namesrv) as producer:
        with pytest.raises(metaq.ConfigError):
            producer.outcome(name)
        with pytest.raises(metaq.ConfigError):
            producer.settle(name, commit=True)
    with metaq.Producer(rocketmq.namesrv) as producer, pytest.raises(TypeError):
        producer.outcome(None)


def test_a_broker_that_there_is_not_cannot_be_asked(rocketmq):
    """The error names it."""
    with metaq.Producer(rocketmq.namesrv) as producer:
        for ask in (
            lambda: producer.outcome("4711@gone", timeout=0.5),
            lambda: producer.settle("4711@gone", commit=True, timeout=0.5),
        ):
            with pytest.raises(metaq.NoRoute, match="gone"):
                ask()


def test_an_empty_block_ends_as_it_wants_and_asks_nobody(rocketmq):
    """And has no id: nobody would know it."""
    with metaq.Producer(rocketmq.namesrv) as producer:
        with producer.atomic() as tx, pytest.raises(metaq.ClientError, match="no id before its first message"):
            tx.id  # noqa: B018
        assert tx.result == metaq.AtomicResult("", metaq.TransactionOutcome.COMMIT, 0, delivered=True)
        with producer.atomic() as tx:
            tx.prepare()
            with pytest.raises(metaq.TransactionEnded, match="is prepared"):
                tx.send("orders", b"x")
        assert tx.outcome is metaq.TransactionOutcome.COMMIT
        with pytest.raises(KeyError), producer.atomic() as tx:
            raise KeyError
        assert tx.outcome is metaq.TransactionOutcome.ROLLBACK
        assert tx.rollback() == tx.result
        with pytest.raises(metaq.TransactionEnded, match="cannot commit any more"):
            tx.commit()
    assert {command.code for command in rocketmq.seen} & set(range(30000, 30100)) == set()


def test_a_closed_producer_has_no_transactions(rocketmq):
    producer = metaq.Producer(rocketmq.namesrv)
    tx = producer.atomic()
    producer.close()
    for use in (
        producer.atomic,
        lambda: tx.send("orders", b"x"),
        tx.commit,
        tx.prepare,
        lambda: producer.outcome("1@b"),
    ):
        with pytest.raises(metaq.ClientClosed):
            use()


# -------------------------------------------------------------- at a broker of ours


@pytest.fixture
def patient(monkeypatch):
    """A slow machine says nothing: ends are waited for."""
    monkeypatch.setattr("metaq.client.conversation.staged.atomic.ROLLBACK_SECONDS", 60.0)
    monkeypatch.setattr("metaq.client.conversation.staged.atomic.DELIVERY_SECONDS", 60.0)
    monkeypatch.setattr("metaq.client.producing.atomic.ROLLBACK_SECONDS", 60.0)
    return monkeypatch


@pytest.fixture
def cluster(tmp_path, patient):
    with ScriptedCluster(tmp_path) as running:
        running.make_topic("orders", 4)
        running.make_topic("stock", 2)
        yield running


@pytest.fixture
def producer(cluster):
    with metaq.Producer(cluster.namesrv, instance_name="atomic") as running:
        yield running


def stored(cluster, topic="orders"):
    """What consumers can see now: (queue id, message) in the order of queues and offsets."""
    with metaq.Reader(cluster.namesrv, topic, stop_at_end=True) as reader:
        return sorted(
            ((message.queue.queue_id, message.queue_offset, message) for message in reader), key=lambda one: one[:2]
        )


def bodies(cluster, topic="orders"):
    return [message.body for _, _, message in stored(cluster, topic)]


def asked(cluster):
    """The requests about staged transactions so far."""
    return [RequestCode(code).name for code in cluster.requests if 30000 <= code < 30100]


def once(code, fate):
    """A script: the first request with this code has that fate."""
    left = [fate]

    def script(command):
        return left.pop() if command.code == code and left else None

    return script


def broken(code):
    """An answer script: the connection breaks instead of the first answer to such a request."""
    wanted, left = set(), [True]

    def script(command):
        if command.code == code and left:
            wanted.add(command.opaque)

    def answer_script(command):
        if command.opaque in wanted and left:
            left.pop()
            return Fate.HANG_UP
        return None

    return script, answer_script


def test_nothing_is_seen_before_the_end_and_everything_after_it(cluster, producer):
    """One request for all of it, since there is one broker; the messages are as plain sends make them."""
    with producer.atomic() as tx:
        ids = [tx.send("orders", b"a", tag="paid", keys=["k1", "k2"], flag=7, properties={"p": "1"})]
        ids.append(tx.send(metaq.Message("orders", b"b")))
        ids.append(tx.send("stock", b"c", ordering_key="lamp"))
        assert bodies(cluster) + bodies(cluster, "stock") == []
        assert tx.outcome is None
        assert tx.messages == 3
        assert producer.outcome(tx.id) is metaq.Phase.UNKNOWN, "it is not staged yet"
    assert asked(cluster) == ["STAGED_STATE", "STAGE"]
    assert tx.result == metaq.AtomicResult(tx.id, metaq.TransactionOutcome.COMMIT, 3, delivered=True)
    assert producer.outcome(tx.id) is metaq.Phase.COMMITTED
    (queue, _, first), (queue_2, _, second) = stored(cluster)
    [(_, _, third)] = stored(cluster, "stock")
    assert queue == queue_2, "messages that may go anywhere go together"
    assert [message.message_id for message in (first, second, third)] == ids
    assert (first.body, first.tag, first.keys, first.flag) == (b"a", "paid", ("k1", "k2"), 7)
    assert first.properties["p"] == "1"
    key_queue = queue_for_key("lamp", producer.queues("stock"))
    assert third.queue == key_queue
    with producer.atomic() as tx:
        tx.send("stock", b"d", queue=key_queue)
        tx.send("stock", b"e", selector=lambda queues: queues[-1])
    assert {message.body: message.queue.queue_id for _, _, message in stored(cluster, "stock")} == {
        b"c": key_queue.queue_id, b"d": key_queue.queue_id, b"e": 1,
    }  # fmt: skip


def test_raising_leaves_nothing_and_the_exception_goes_on(cluster, producer):
    """Also of what was staged already."""
    with pytest.raises(KeyError, match="mine"), producer.atomic() as tx:
        tx.send("orders", b"x")
        raise KeyError("mine")
    assert tx.outcome is metaq.TransactionOutcome.ROLLBACK
    assert asked(cluster) == [], "nobody had anything of it"
    with pytest.raises(KeyError), producer.atomic() as tx:
        for _ in range(40):
            tx.send("orders", bytes(150_000))
        raise KeyError
    assert "STAGE" in asked(cluster)
    assert producer.outcome(tx.id) is metaq.Phase.ROLLED_BACK
    assert bodies(cluster) == []
    with pytest.raises(KeyboardInterrupt), producer.atomic() as tx:
        tx.send("orders", b"x")
        raise KeyboardInterrupt
    assert tx.outcome is metaq.TransactionOutcome.ROLLBACK


def test_an_explicit_end_stays(cluster, producer):
    """Whatever the block does afterwards; the same again is no error, and another one is."""
    with pytest.raises(KeyError), producer.atomic() as tx:
        tx.send("orders", b"kept")
        assert tx.commit() == tx.commit()
        with pytest.raises(metaq.TransactionEnded, match="another message needs another transaction"):
            tx.send("orders", b"late")
        with pytest.raises(metaq.TransactionEnded, match="cannot roll back any more"):
            tx.rollback()
        raise KeyError
    with producer.atomic() as tx:
        tx.send("orders", b"dropped")
        tx.rollback()
    assert tx.outcome is metaq.TransactionOutcome.ROLLBACK
    assert bodies(cluster) == [b"kept"]
    with pytest.raises(metaq.TransactionEnded):
        tx.__enter__()


def test_a_transaction_larger_than_its_buffer_is_staged_while_the_block_runs(cluster, producer):
    """Its messages lie in order, none between them; what waits here stays bounded."""
    most = 0
    with producer.atomic() as tx:
        for number in range(120):
            tx.send("orders", b"%4d" % number + bytes(100_000), ordering_key="one")
            most = max(most, tx._parts.waits)
            if number == 100:
                producer.send("orders", b"between", queue=queue_for_key("one", producer.queues("orders")))
                assert bodies(cluster) == [b"between"]
    assert OPEN_BYTES_MAX - 200_000 < most < OPEN_BYTES_MAX + 200_000
    assert tx.result.delivered
    got = [message for _, _, message in stored(cluster)]
    assert [int(message.body[:4]) for message in got[1:]] == list(range(120))
    assert [message.queue_offset for message in got] == list(range(121))
    assert len({message.message_id for message in got}) == 121
    assert asked(cluster).count("DECIDE") + asked(cluster).count("STAGE") > 10


def test_many_messages_that_may_go_anywhere_are_spread(cluster, producer):
    """A request's worth to each queue in turn."""
    with producer.atomic() as tx:
        for _ in range(45):
            tx.send("orders", bytes(100_000))
    assert {queue for queue, _, _ in stored(cluster)} == {0, 1, 2, 3}


def test_many_threads_send_in_one_block(cluster, producer):
    """Each message is there once."""
    with producer.atomic() as tx, ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda number: tx.send("orders", b"%d" % number + bytes(30_000), ordering_key=str(number % 7)),
                range(400),
            )
        )
    assert sorted(int(body.rstrip(b"\0")) for body in bodies(cluster)) == list(range(400))
    assert tx.result.messages == 400


def test_topics_are_made(cluster, producer):
    """With as many queues as the broker gives a topic that says nothing of them."""
    with producer.atomic() as tx:
        tx.send("made", b"x")
        tx.send("made", b"y", ordering_key="k")
    eventually(lambda: len(bodies_or_none(cluster, "made")) == 2, what="the new topic")
    assert len(eventually(lambda: producer.queues("made"), what="queues")) == BrokerOptions().default_topic_queue_nums


def test_topics_are_made_as_the_broker_makes_them_whatever_the_producer_has_for_plain_sends(cluster):
    """With a template of its own, of more queues than the broker gives."""
    cluster.make_topic("template", 16)
    options = {"create_topic_key": "template", "default_topic_queue_nums": 16, "instance_name": "template"}
    with metaq.Producer(cluster.namesrv, **options) as producer, producer.atomic() as tx:
        for number in range(16):
            tx.send("made", b"%d" % number, ordering_key=str(number))
    eventually(lambda: len(bodies_or_none(cluster, "made")) == 16, what="the new topic")


def bodies_or_none(cluster, topic):
    try:
        return bodies(cluster, topic)
    except metaq.NoRoute:
        return []


def test_a_namespace_is_kept(cluster):
    """Its topics are others; the id is nobody's."""
    cluster.make_topic("shop%orders", 1)
    with metaq.Producer(cluster.namesrv, namespace="shop", instance_name="ns") as producer:
        with producer.atomic() as tx:
            tx.send("orders", b"x")
        assert producer.outcome(tx.id) is metaq.Phase.COMMITTED
    assert bodies(cluster) == []
    [(_, _, message)] = stored(cluster, "shop%orders")
    assert message.properties["INSTANCE_ID"] == "shop"


# -------------------------------------------------------------- what is lost


@pytest.mark.parametrize("code", [RequestCode.STAGE, RequestCode.DECIDE, RequestCode.SEAL])
@pytest.mark.parametrize("way", ["request", "answer"])
def test_what_is_lost_is_asked_again_and_delivered_once(cluster, producer, code, way):
    """Of a small transaction, and of a large one; the outcome is asked for before a decision is sent again."""
    if way == "request":
        cluster.script = once(code, Fate.HANG_UP)
    else:
        cluster.script, cluster.answer_script = broken(code)
    with producer.atomic() as tx:
        tx.send("stock", b"small")
    with producer.atomic() as large:
        for number in range(45):
            large.send("orders", b"%d" % number + bytes(100_000), ordering_key="one")
    assert tx.result.delivered
    assert large.result.delivered
    assert bodies(cluster, "stock") == [b"small"]
    assert [int(body.rstrip(b"\0")) for body in bodies(cluster)] == list(range(45))


def test_after_a_lost_answer_the_outcome_is_asked_for(cluster, producer):
    cluster.script, cluster.answer_script = broken(RequestCode.STAGE)
    with producer.atomic() as tx:
        tx.send("orders", b"x")
    assert tx.outcome is metaq.TransactionOutcome.COMMIT
    assert asked(cluster) == ["STAGE", "STAGED_STATE"]
    assert bodies(cluster) == [b"x"]


def staging(command):
    return 30000 <= command.code < 30100


@pytest.mark.parametrize("arrived", [True, False])
def test_what_nobody_can_tell_is_unknown_and_settled_later(cluster, producer, arrived):
    """The error names the transaction; its outcome is what the coordinator says, and stands."""
    if arrived:
        cluster.script, cluster.answer_script = broken(RequestCode.STAGE)
        lost = cluster.script

        def script(command):
            return Fate.HANG_UP if lost(command) is None and command.code == RequestCode.STAGED_STATE else None

        cluster.script = script
    else:
        cluster.script = lambda command: Fate.HANG_UP if staging(command) else None
    with (
        pytest.raises(metaq.TransactionFailed, match=r"unknown: ask producer\.outcome") as caught,
        producer.atomic(timeout=BRIEF) as tx,
    ):
        tx.send("orders", b"x")
    error = caught.value
    assert (error.state, error.transaction_id, error.retriable) == ("unknown", tx.id, False)
    assert tx.outcome is metaq.TransactionOutcome.UNKNOWN
    with pytest.raises(metaq.ConnectionFailed):
        producer.outcome(tx.id, timeout=BRIEF)
    cluster.script = cluster.answer_script = goes_on
    assert producer.outcome(tx.id) is (metaq.Phase.COMMITTED if arrived else metaq.Phase.UNKNOWN)
    wanted = metaq.TransactionOutcome.COMMIT if arrived else metaq.TransactionOutcome.ROLLBACK
    assert producer.settle(tx.id, commit=False) is wanted
    assert producer.settle(tx.id, commit=True) is wanted
    assert bodies(cluster) == [b"x"] * arrived


def test_what_could_not_be_staged_ends_the_transaction(cluster, producer):
    """The send says so; a block that passes over it does not end well."""
    cluster.script = lambda command: Fate.HANG_UP if command.code == RequestCode.STAGE else None
    with pytest.raises(metaq.TransactionFailed) as last, producer.atomic(timeout=BRIEF) as tx:
        with pytest.raises(metaq.TransactionFailed, match=r"not completed: .* broke") as first:
            for _ in range(100):
                tx.send("orders", bytes(100_000))
        with pytest.raises(metaq.TransactionFailed):
            tx.send("orders", b"x")
    assert first.value is last.value
    assert (first.value.state, first.value.retriable) == ("rolled back", True)
    cluster.script = goes_on
    assert producer.outcome(tx.id) is metaq.Phase.ROLLED_BACK


def test_a_broker_that_is_gone_leaves_it_open(cluster, producer, patient):
    """Some of it is staged, and no commit was sent."""
    patient.setattr("metaq.client.conversation.staged.atomic.ROLLBACK_SECONDS", 0.5)
    with (
        pytest.raises(metaq.TransactionFailed, match="the brokers drop it after 60 s") as caught,
        producer.atomic(timeout=BRIEF, expire_after=60) as tx,
    ):
        for _ in range(60):
            tx.send("orders", bytes(100_000))
        cluster.script = lambda command: Fate.HANG_UP if staging(command) else None
    assert caught.value.state == "open"
    cluster.script = goes_on
    assert producer.outcome(tx.id) is metaq.Phase.OPEN
    cluster.clock.advance(61)
    eventually(lambda: producer.outcome(tx.id) is metaq.Phase.ROLLED_BACK, what="its end")
    assert bodies(cluster) == []


def test_a_topic_that_may_not_be_written_rolls_everything_back(cluster, producer):
    """The broker says which; what else was in the block is not delivered."""
    producer.queues("stock")
    made = headers.CreateTopicHeader(topic="stock", read_queues=2, write_queues=2, perm=4)
    cluster._ask([request(RequestCode.UPDATE_AND_CREATE_TOPIC, made)])
    with (
        pytest.raises(metaq.TransactionFailed, match=r"the topic stock has permission 4.*do it again") as caught,
        producer.atomic() as tx,
    ):
        tx.send("orders", b"x")
        tx.send("stock", b"y")
    assert caught.value.state == "rolled back"
    assert isinstance(caught.value.__cause__, metaq.BrokerError)
    assert tx.outcome is metaq.TransactionOutcome.ROLLBACK
    assert bodies(cluster) == []


def test_a_block_that_takes_too_long_is_rolled_back(cluster, producer):
    with (
        pytest.raises(metaq.TransactionFailed, match="by its expiry") as caught,
        producer.atomic(expire_after=60) as tx,
    ):
        for _ in range(60):
            tx.send("orders", bytes(100_000))
        cluster.clock.advance(61)
        eventually(lambda: producer.outcome(tx.id) is metaq.Phase.ROLLED_BACK, what="its end")
    assert caught.value.state == "rolled back"
    assert bodies(cluster) == []


# -------------------------------------------------------------- prepared


def test_prepared_waits_for_a_decision(cluster, producer):
    """It does not expire; the block's end commits it."""
    with producer.atomic(expire_after=60) as tx:
        tx.send("orders", b"x")
        tx.prepare()
        cluster.clock.advance(100_000)
        assert producer.outcome(tx.id) is metaq.Phase.PREPARED
        assert bodies(cluster) == []
        with pytest.raises(metaq.TransactionEnded, match="is prepared"):
            tx.send("orders", b"y")
        with pytest.raises(metaq.TransactionEnded):
            tx.prepare()
    assert tx.outcome is metaq.TransactionOutcome.COMMIT
    assert bodies(cluster) == [b"x"]


def test_prepared_is_left_so_by_ctrl_c_and_rolled_back_by_an_exception(cluster, producer):
    """Nobody knows how far a block has come that was interrupted: the transaction is settled by its id."""
    with pytest.raises(KeyboardInterrupt), producer.atomic() as left:
        left.send("orders", b"left")
        left.prepare()
        raise KeyboardInterrupt
    assert left.outcome is None
    with pytest.raises(KeyError), producer.atomic() as raised:
        raised.send("orders", b"raised")
        raised.prepare()
        raise KeyError
    assert raised.outcome is metaq.TransactionOutcome.ROLLBACK
    assert producer.outcome(left.id) is metaq.Phase.PREPARED
    with metaq.Producer(cluster.namesrv, instance_name="another") as other:
        assert other.settle(left.id, commit=True) is metaq.TransactionOutcome.COMMIT
    assert left.commit().outcome is metaq.TransactionOutcome.COMMIT
    assert bodies(cluster) == [b"left"]


def test_a_preparation_that_is_not_confirmed_is_rolled_back(cluster, producer):
    """It might have been stored, and would wait for ever."""
    lost, cluster.answer_script = broken(RequestCode.STAGE)

    def script(command):
        lost(command)
        return (
            Fate.HANG_UP
            if command.code == RequestCode.STAGED_STATE and RequestCode.DECIDE not in cluster.requests
            else None
        )

    cluster.script = script
    with pytest.raises(metaq.TransactionFailed) as caught, producer.atomic(timeout=BRIEF) as tx:
        tx.send("orders", b"x")
        tx.prepare()
    assert (caught.value.state, tx.outcome) == ("rolled back", metaq.TransactionOutcome.ROLLBACK)
    cluster.script = goes_on
    assert producer.outcome(tx.id) is metaq.Phase.ROLLED_BACK


def test_what_is_not_prepared_is_not_committed_by_its_id(cluster, producer):
    with pytest.raises(metaq.BrokerError, match="is not prepared"):
        producer.settle("4711@broker-a", commit=True)
    with producer.atomic() as tx:
        tx.send("orders", b"x")
        assert producer.settle(tx.id, commit=False) is metaq.TransactionOutcome.ROLLBACK
        with pytest.raises(metaq.TransactionFailed, match="by hand"):
            tx.commit()
    assert bodies(cluster) == []


def test_a_rollback_of_what_somebody_has_committed_says_so(cluster, producer):
    with pytest.raises(metaq.TransactionEnded, match="committed by somebody else"), producer.atomic() as tx:
        tx.send("orders", b"x")
        tx.prepare()
        producer.settle(tx.id, commit=True)
        tx.rollback()
    assert tx.outcome is metaq.TransactionOutcome.COMMIT
    assert bodies(cluster) == [b"x"]


# -------------------------------------------------------------- processes and event loops


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_ends_nothing_of_its_parent(cluster, producer):
    with producer.atomic() as tx:
        tx.send("orders", b"x")
        tx.prepare()
        child = os.fork()
        if child == 0:  # It leaves the block by an exception, and its parent's transaction alone.
            with contextlib.suppress(BaseException):
                tx.__exit__(KeyError, KeyError(), None)
                with contextlib.suppress(metaq.ClientForked):
                    tx.commit()
                    os._exit(1)
                os._exit(7)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert producer.outcome(tx.id) is metaq.Phase.PREPARED
    assert bodies(cluster) == [b"x"]


def test_asyncio(cluster):
    """The same, awaited; tasks may share a block."""

    async def main() -> None:
        async with aio.Producer(cluster.namesrv, instance_name="aio") as producer:
            async with producer.atomic() as tx:
                await asyncio.gather(*(tx.send("orders", b"%d" % number + bytes(60_000)) for number in range(100)))
            assert tx.result.delivered
            assert await producer.outcome(tx.id) is metaq.Phase.COMMITTED
            async with producer.atomic() as kept:
                await kept.send("stock", b"kept")
                await kept.prepare()
                assert await producer.settle(kept.id, commit=True) is metaq.TransactionOutcome.COMMIT
            with pytest.raises(KeyError):
                async with producer.atomic() as tx:
                    await tx.send("stock", b"dropped")
                    raise KeyError
            async with producer.atomic() as tx:
                await tx.send("stock", b"dropped, too")
                assert (await tx.rollback()).outcome is metaq.TransactionOutcome.ROLLBACK
            async with producer.atomic() as tx:
                await tx.send("stock", b"committed")
                assert (await tx.commit()).messages == 1

    asyncio.run(main())
    assert sorted(int(body.rstrip(b"\0")) for body in bodies(cluster)) == list(range(100))
    assert sorted(bodies(cluster, "stock")) == [b"committed", b"kept"]


def test_a_task_that_is_cancelled_in_its_block_leaves_nothing_and_one_that_waits_for_the_end_does_not_stop_that(
    cluster,
):
    event = threading.Event()
    cluster.script = once(RequestCode.STAGE, Later(event))

    async def main() -> None:
        async with aio.Producer(cluster.namesrv, instance_name="aio") as producer:
            inside, entered = asyncio.Event(), []

            async def block(body, *, stays) -> None:
                async with producer.atomic() as tx:
                    await tx.send("orders", body)
                    entered.append(tx)
                    inside.set()
                    if stays:
                        await asyncio.Event().wait()

            for stays, body in ((True, b"never"), (False, b"delivered")):
                inside.clear()
                task = asyncio.create_task(block(body, stays=stays))
                await inside.wait()
                while not stays and RequestCode.STAGE not in cluster.requests:
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            event.set()
            assert entered[0].outcome is metaq.TransactionOutcome.ROLLBACK
            assert (await entered[1].commit()).outcome is metaq.TransactionOutcome.COMMIT

    asyncio.run(main())
    assert bodies(cluster) == [b"delivered"]


DIES = """
import os, sys
import metaq
with metaq.Producer(sys.argv[1]) as producer:
    with producer.atomic(expire_after=60) as tx:
        for _ in range(60):
            tx.send("orders", bytes(100_000))
        print(tx.id, flush=True)
        os._exit(9)
"""


def test_a_process_that_dies_leaves_nothing(cluster, producer):
    """What it had staged expires."""
    done = subprocess.run(
        [sys.executable, "-c", DIES, cluster.namesrv],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 9, done.stderr
    name = done.stdout.strip()
    assert producer.outcome(name) is metaq.Phase.OPEN
    cluster.clock.advance(61)
    eventually(lambda: producer.outcome(name) is metaq.Phase.ROLLED_BACK, what="its end")
    assert bodies(cluster) == []


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_lost_what_is_said_is_true(cluster, seed):
    """Connections break at every sixth request or answer: what was reported as committed is there once, the rest is not."""
    dice = random.Random(seed)

    def chance(command):
        return Fate.HANG_UP if 30000 <= command.code < 30100 and dice.random() < 0.16 else None

    def chance_of_answers(command):
        return Fate.HANG_UP if "transactionId" in command.ext and dice.random() < 0.16 else None

    said = {}
    with metaq.Producer(cluster.namesrv, instance_name=f"dice-{seed}") as producer:
        for topic in ("orders", "stock"):
            producer.queues(topic)
        cluster.script, cluster.answer_script = chance, chance_of_answers
        for number in range(60):
            body = b"%d" % number
            try:
                with producer.atomic(timeout=dice.choice((0.3, 1, 5))) as tx:
                    tx.send("orders", body)
                    tx.send("stock", body)
                    if number % 7 == 3:
                        tx.prepare()
                    if number % 5 == 4:
                        raise KeyError  # noqa: TRY301  in the block is the point
                said[body] = "committed"
            except KeyError:
                said[body] = "rolled back"
            except metaq.TransactionFailed as error:
                said[body] = error.state, error.transaction_id
        cluster.script = cluster.answer_script = goes_on
        for body, state in said.items():
            if isinstance(state, tuple):
                outcome = producer.settle(state[1], commit=False)
                assert state[0] == "unknown" or outcome is metaq.TransactionOutcome.ROLLBACK
                said[body] = "committed" if outcome is metaq.TransactionOutcome.COMMIT else "rolled back"
    wanted = sorted(body for body, state in said.items() if state == "committed")
    assert len(wanted) > 20
    for topic in ("orders", "stock"):
        assert sorted(bodies(cluster, topic)) == wanted


def test_an_older_broker_of_ours_is_sent_no_message_above_a_mebibyte(cluster, producer):
    """It takes none in a transaction: said before anything goes there, with what can be done; all else goes there."""

    def older(answer):
        return structs.replace(answer, ext=answer.ext | {"METAQ": "3"}) if "METAQ" in answer.ext else None

    cluster.answer_script = older
    with producer.atomic() as tx:
        with pytest.raises(metaq.NotSupported, match=r"older MetaQ.*1048576 bytes .* a body of 1048577 bytes is more"):
            tx.send("orders", b"x" * (CHUNK_BYTES_MAX + 1))
        tx.send("orders", b"small")
    assert bodies(cluster) == [b"small"]


def test_what_the_broker_takes_from_nobody_is_refused_with_size_and_limit(cluster, producer):
    """The client's limit is not the broker's, which is smaller here: said before the decision."""
    with (
        pytest.raises(
            metaq.TransactionFailed, match=r"body of 300000 bytes, the limit is 262144 \(maxMessageSize\)"
        ) as failed,
        producer.atomic() as tx,
    ):
        tx.send("orders", b"x" * 300_000)
    assert failed.value.state == "rolled back"
    assert bodies(cluster) == []


PROGRAM_WITHOUT_AN_END = """
import asyncio, sys
import metaq
from metaq import aio

with metaq.Producer(sys.argv[1]) as producer:
    tx = producer.atomic()
    tx.send(sys.argv[2], b"1")
    tx.send(sys.argv[2], b"2")
    del tx
    for end in ("commit", "rollback"):
        tx = producer.atomic()
        tx.send(sys.argv[2], b"3")
        getattr(tx, end)()
    producer.atomic()  # without messages
    try:
        producer.atomic(timeout=-1)
    except metaq.ConfigError:
        pass

async def main():
    async with aio.Producer(sys.argv[1]) as producer:
        await producer.atomic().send(sys.argv[2], b"4")

asyncio.run(main())
"""


def test_a_transaction_that_is_forgotten_says_so(metaq_broker):
    """Its messages are lost to a program that leaves `with` out. One line each, and none of those that have ended or are empty."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM_WITHOUT_AN_END, metaq_broker.namesrv, "atomic-forgotten"],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "neither committed nor rolled back" in line]
    assert len(told) == len(done.stderr.splitlines()) == 2, done.stderr
    assert sorted(re.findall(r"of (\d+ messages?) was", "\n".join(told))) == ["1 message", "2 messages"]
    with metaq.Reader(metaq_broker.namesrv, "atomic-forgotten", stop_at_end=True) as reader:
        assert [message.body for message in reader] == [b"3"]
