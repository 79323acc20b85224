"""Outbox and idempotence with producers and consumers of MetaQ 1.x in Python, at the original server 1.4.6.2 and at ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaq.idempotence import Idempotence
from metaq.metaq1 import (
    ConsumerConfig,
    Message,
    MetaClientConfig,
    MetaMessageSessionFactory,
    ReceivedMessage,
    aio,
)
from metaq.outbox import SENT, AsyncOutboxSender, Outbox, OutboxSender, Rules
from tests.interop import metaq1_python
from tests.interop.metaq1_python import (
    PACE,
    server_fixture,
    topic_fixture,
    until_registered,
)
from tests.metaq1.conftest import patient_senders  # noqa: F401  a fixture
from tests.outbox.databases import connect, run
from tests.support import eventually

pytestmark = pytest.mark.interop

PARTITIONS = 2
TOPICS = [f"o{number}" for number in range(4)]
server = server_fixture("outbox", TOPICS, PARTITIONS)
topic = topic_fixture(TOPICS)
root, config = metaq1_python.root, metaq1_python.config


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], Any]:
    """Opens a database with an outbox, keys, and a table of effects."""

    def opened() -> Any:
        return connect(f"sqlite:///{tmp_path / 'shop.db'}")

    with contextlib.closing(opened()) as connection:
        Outbox().create_table(connection)
        Idempotence("billing").create_table(connection)
        run(connection, "CREATE TABLE effects (name TEXT)")
        connection.commit()
    return opened


def effects(opened: Callable[[], Any]) -> list[str]:
    with contextlib.closing(opened()) as connection:
        return sorted(name for (name,) in run(connection, "SELECT name FROM effects"))


def billing(factory: MetaMessageSessionFactory, topic: str, opened: Callable[[], Any]) -> list[ReceivedMessage]:
    """Start a consumer that writes what it gets into `effects`, once each. Returns all its deliveries, which grow."""
    seen, deliveries = Idempotence("billing"), list[ReceivedMessage]()

    @seen.handler(opened)
    def bill(message: ReceivedMessage, connection: Any) -> None:
        run(connection, "INSERT INTO effects (name) VALUES (?)", message.data.decode())

    def listen(message: ReceivedMessage) -> None:
        bill(message)
        deliveries.append(message)

    consumer = factory.create_consumer(ConsumerConfig("billing", max_delay_fetch_time=0.2))
    consumer.subscribe(topic, 1 << 20, listen).complete_subscribe()
    return deliveries


def test_sent_twice_handled_once(config: MetaClientConfig, topic: str, opened: Callable[[], Any]) -> None:
    """What the outbox sends a second time has another id of the server, and the same one of the outbox; so it is one message. What has
    an attribute of its own, or comes from no outbox, is known by the server's id."""
    outbox = Outbox()
    with contextlib.closing(opened()) as connection:
        ids = {
            text: outbox.add(connection, Message(topic, text.encode(), attribute), ordering_key=key)
            for text, attribute, key in [("plain", None, None), ("keyed", None, "k"), ("own", "red", None)]
        }
        connection.commit()
    with MetaMessageSessionFactory(config, pace=PACE) as factory, factory.create_producer() as producer:
        until_registered(factory, topic, PARTITIONS)
        sender = OutboxSender(outbox, opened, producer, Rules(keep=3600.0))
        assert sender.run_once()
        with contextlib.closing(opened()) as connection:
            assert {entry.state for entry in outbox.listed(connection)} == {SENT}
            assert outbox.resend(connection, ids.values()) == 3
            connection.commit()
        assert sender.run_once()
        assert (sender.sent, sender.failed) == (6, 0)
        result = producer.send_message(Message(topic, b"direct"))
        deliveries = billing(factory, topic, opened)
        eventually(lambda: len(deliveries) == 7, what="all have come")
        assert effects(opened) == ["direct", "keyed", "own", "own", "plain"]
        attributes = {message.data.decode(): message.attribute for message in deliveries}
        assert attributes == {
            "plain": f"metaq-outbox={ids['plain']}", "keyed": f"metaq-outbox={ids['keyed']}", "own": "red", "direct": None,
        }  # fmt: skip
        with contextlib.closing(opened()) as connection:
            keys = {key for (key,) in run(connection, "SELECT message_key FROM metaq_seen")}
        own = {str(message.message_id) for message in deliveries if message.data == b"own"}
        assert keys == {ids["plain"], ids["keyed"], str(result.message_id), *own}


def test_a_group_that_begins_anew_changes_nothing(
    config: MetaClientConfig, topic: str, opened: Callable[[], Any], zookeeper: Any, root: str
) -> None:
    """All is delivered again, from the first byte."""
    outbox = Outbox()
    with contextlib.closing(opened()) as connection:
        outbox.add(connection, Message(topic, b"by outbox"))
        connection.commit()
    with MetaMessageSessionFactory(config, pace=PACE) as factory, factory.create_producer() as producer:
        until_registered(factory, topic, PARTITIONS)
        OutboxSender(outbox, opened, producer).run_once()
        producer.send_message(Message(topic, b"direct"))
        deliveries = billing(factory, topic, opened)
        eventually(lambda: len(deliveries) == 2)
    with zookeeper.nodes() as nodes:
        nodes.client.delete(f"{root}/consumers/billing/offsets/{topic}", recursive=True)
    # Another factory: one remembers the ids of what it has delivered.
    with MetaMessageSessionFactory(config, pace=PACE) as factory:
        again = billing(factory, topic, opened)
        eventually(lambda: len(again) == 2, what="both have come again")
    assert effects(opened) == ["by outbox", "direct"]


def test_with_asyncio(config: MetaClientConfig, topic: str, opened: Callable[[], Any], tmp_path: Path) -> None:
    """Many messages of a topic at once, which the first of them publishes."""
    pytest.importorskip("aiosqlite")
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    outbox = Outbox()
    with contextlib.closing(opened()) as connection:
        for number in range(20):
            outbox.add(connection, Message(topic, b"%02d" % number))
        connection.commit()

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        async with aio.MetaMessageSessionFactory(config, pace=PACE) as factory:
            producer = factory.create_producer()
            sender = AsyncOutboxSender(outbox, async_sessionmaker(engine), producer)
            assert await sender.run_once()
            assert (sender.sent, sender.failed) == (20, 0)
        await engine.dispose()

    with MetaMessageSessionFactory(config, pace=PACE) as factory:
        until_registered(factory, topic, PARTITIONS)
        asyncio.run(main())
        deliveries = billing(factory, topic, opened)
        eventually(lambda: len(deliveries) == 20)
    assert effects(opened) == [f"{number:02}" for number in range(20)]
