"""Blocks of messages, all or none: what the client says to its caller."""

from __future__ import annotations

import asyncio

import pytest

import metaq
from metaq import aio
from metaq.model.staging import CHUNK_BYTES_MAX
from metaq.wire.codes import RequestCode
from tests.client.cluster import FakeCluster


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
            lambda: producer.outcome("4711@broker-a", timeout=5),
            lambda: producer.settle("4711@broker-a", commit=False, timeout=5),
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
                await producer.outcome("4711@broker-a", timeout=5)

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
