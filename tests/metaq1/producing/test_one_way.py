"""One-way sends of the client of MetaQ 1.x: they return at once, and what is not sent is kept and sent again in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metaq.errors import ClientClosed, ConfigError, InvalidMessage, NoRoute
from metaq.metaq1 import AsyncMetaMessageSessionFactory, Message, MetaClientConfig, Partition, SendResult, aio
from metaq.metaq1.storages.kept import KeptMessages, kept_path
from metaq.testing import eventually, free_port
from tests.interop.metaq1 import OurServer
from tests.metaq1.conftest import at
from tests.metaq1.stored import payloads, read
from tests.metaq1.stub import Stub
from tests.support import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "unsent"


def settings(address: str, folder: Path, interval: float = 300.0, **others: int) -> MetaClientConfig:
    return MetaClientConfig(
        server_url=address, async_storage_path=str(folder), recover_message_interval=interval, **others
    )


def stored(address: str, topic: str) -> list[bytes]:
    return sorted(body for bodies in payloads(address, topic) for body in bodies)


def fill(folder: Path, topic: str, count: int) -> None:
    """As a process before this one has left them."""
    with KeptMessages(kept_path(folder, topic, "-1-1")) as kept:
        kept.add_all((-1, Message(topic, b"%03d" % number)) for number in range(count))


def test_a_send_returns_at_once_and_arrives(server, topic, folder):
    with AsyncMetaMessageSessionFactory(settings(server.text, folder)) as factory:
        producer = factory.create_async_producer(at(2))
        producer.publish(topic)
        assert producer.send_message(Message(topic, b"0")) == SendResult(-1, Partition(-1, 2), -1)
        for number in range(1, 300):
            producer.send_message(Message(topic, b"%d" % number))
    assert [body for _, _, body in read(server.text, topic, 2)] == [b"%d" % number for number in range(300)]
    assert (producer.ignored, producer.dropped) == (0, 0)


def test_what_is_wrong_raises_at_once(server, topic, folder):
    with AsyncMetaMessageSessionFactory(settings(server.text, folder, max_message_bytes=1000)) as factory:
        producer = factory.create_async_producer()
        producer.publish(topic)
        for send in (producer.send_message, producer.async_send_message):
            with pytest.raises(InvalidMessage, match="too large"):
                send(Message(topic, b"x" * 1000))
            with pytest.raises(TypeError, match="pass a"):
                send(b"x")
        with pytest.raises(NoRoute):
            producer.send_message(Message("unpublished", b""))
        with pytest.raises(ConfigError, match="window"):
            factory.create_async_producer(window=0)
        with pytest.raises(TypeError, match="processor"):
            factory.create_async_producer(ignore_processor=1)
    with pytest.raises(ClientClosed):
        producer.async_send_message(Message(topic, b""))
    assert producer.ignored == 0


def test_async_send_message_keeps_what_has_no_route(server, topic, folder):
    """And what a selector raises for; both are sent when the next round comes."""
    with AsyncMetaMessageSessionFactory(settings(server.text, folder, 0.05)) as factory:
        factory.create_async_producer().async_send_message(Message(topic, b"a"))
        broken = factory.create_async_producer(lambda *_: 1 // 0)
        broken.publish(topic)
        broken.async_send_message(Message(topic, b"b"))
        eventually(lambda: stored(server.text, topic) == [b"a", b"b"])
        eventually(lambda: factory._backlog._backlog.waiting == 0)


def test_above_the_window_the_processor_is_asked(folder):
    """A unit is a full 4 KiB of the body, at least one is used; they are free again with the answer."""
    ignored: list[tuple[bytes, Partition]] = []
    called = threading.Event()

    def processor(message: Message, partition: Partition) -> None:
        ignored.append((message.data, partition))
        called.set()
        raise ZeroDivisionError

    async def scenario() -> None:
        async with (
            Stub() as stub,
            aio.AsyncMetaMessageSessionFactory(settings(stub.address, folder)) as factory,
        ):
            producer = factory.create_async_producer(at(1), window=4, ignore_processor=processor)
            await producer.publish("t")
            for body in (b"a" * 8191, b"b" * 8192, b"c"):  # 1, 2 and 1 units
                producer.send_message(Message("t", body))
            producer.send_message(Message("t", b"d"))
            await stub.until(lambda: len(stub.lines) == 3)
            assert called.wait(PATIENCE)
            assert ignored == [(b"d", Partition(-1, 1))]
            connection = stub.connections[0]
            connection.answer(200, b"1 1 0", connection.lines[1].opaque)
            while producer._units != 2:
                await asyncio.sleep(0.001)
            producer.send_message(Message("t", b"e" * 8192))
            await stub.until(lambda: len(stub.lines) == 4)
            assert len(ignored) == 1
            for line in connection.lines:
                connection.answer(200, b"1 1 0", line.opaque)

    asyncio.run(scenario())


def test_what_waits_is_sent_at_the_start_in_order(server, topic, folder):
    fill(folder, topic, 250)
    with AsyncMetaMessageSessionFactory(settings(server.text, folder)) as factory:
        factory.create_async_producer()
        eventually(lambda: len(read(server.text, topic, 1)) == 250)
        eventually(lambda: factory._backlog._backlog.waiting == 0)
    bodies = [body for _, _, body in read(server.text, topic, 1)]
    assert bodies == [b"%03d" % number for number in range(250)]
    with KeptMessages(kept_path(folder, topic, "-1-1")) as kept:
        assert len(kept) == 0


def test_messages_outlive_an_outage_of_the_server(tmp_path, folder):
    """Killed with sends under way: each message is stored at least once when it is back, those that were kept in their order."""
    with OurServer(tmp_path / "store", None, {"t": {"numPartitions": 1}}) as server:
        factory = AsyncMetaMessageSessionFactory(settings(server.text, folder, 0.1))
        producer = factory.create_async_producer(at(0))
        producer.publish("t")
        for number in range(100):
            producer.send_message(Message("t", b"%03d" % number))
        server.kill()
        for number in range(100, 200):
            producer.send_message(Message("t", b"%03d" % number))
        server.start()
        eventually(lambda: set(stored_of(server.text)) >= {b"%03d" % number for number in range(200)})
        eventually(lambda: factory._backlog._backlog.waiting == 0)
        factory.shutdown()
        late = [body for body in stored_of(server.text) if body >= b"100"]
        assert sorted(set(late)) == sorted({b"%03d" % number for number in range(100, 200)})
        assert late == sorted(late)


def stored_of(address: str) -> list[bytes]:
    return [body for _, _, body in read(address, "t", 0)]


def test_what_is_under_way_at_a_shutdown_is_kept(tmp_path, folder):
    """The server is away: nothing is lost, and nothing waits for it."""
    address = f"127.0.0.1:{free_port()}"
    with AsyncMetaMessageSessionFactory(settings(address, folder)) as factory:
        producer = factory.create_async_producer(at(0))
        producer.publish("t")
        for number in range(50):
            producer.send_message(Message("t", b"%02d" % number))
    assert producer.ignored == 50
    with KeptMessages(kept_path(folder, "t", "-1-0")) as kept:
        assert [one.message.data for one in kept.oldest(100)] == [b"%02d" % number for number in range(50)]


def test_a_full_file_drops_and_says_so(folder, caplog, monkeypatch):
    monkeypatch.setattr("metaq.metaq1.producing.backlog.Backlog.__init__.__defaults__", (10,))
    with AsyncMetaMessageSessionFactory(settings(f"127.0.0.1:{free_port()}", folder)) as factory:
        producer = factory.create_async_producer(at(0))
        producer.publish("t")
        for number in range(25):
            producer.send_message(Message("t", b"%02d" % number))
    assert (producer.ignored, producer.dropped) == (10, 15)
    assert "messages for topic t, partition -1-0, are dropped" in caplog.text
    with KeptMessages(kept_path(folder, "t", "-1-0")) as kept:
        assert [one.message.data for one in kept.oldest(100)] == [b"%02d" % number for number in range(10)]


def test_a_folder_in_use_drops_and_says_so(folder, caplog):
    """By another process: its file is not touched."""
    fill(folder, "t", 1)
    with KeptMessages(kept_path(folder, "t", "-1-0")):
        with AsyncMetaMessageSessionFactory(settings(f"127.0.0.1:{free_port()}", folder)) as factory:
            producer = factory.create_async_producer(at(0))
            producer.publish("t")
            producer.send_message(Message("t", b"x"))
        assert producer.dropped == 1
    assert "in use by another process" in caplog.text


FORGETS = """
import sys
from metaq.metaq1 import AsyncMetaMessageSessionFactory, Message, MetaClientConfig
config = MetaClientConfig(server_url=sys.argv[1], async_storage_path=sys.argv[2])
factory = AsyncMetaMessageSessionFactory(config)
producer = factory.create_async_producer()
producer.publish("t")
for number in range(30):
    producer.send_message(Message("t", b"%02d" % number))
"""


def test_a_program_that_forgets_its_factory_loses_nothing(folder):
    command = [sys.executable, "-W", "ignore", "-c", FORGETS, f"127.0.0.1:{free_port()}", str(folder)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    with KeptMessages(kept_path(folder, "t", "-1--1")) as kept:
        assert [one.message.data for one in kept.oldest(100)] == [b"%02d" % number for number in range(30)]
