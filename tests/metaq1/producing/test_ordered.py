"""Ordered sends of the client of MetaQ 1.x: over outages of server and client each key's messages stay in order, and none is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metaq.admin import Admin
from metaq.errors import BrokerError, ConfigError, NoRoute
from metaq.metaq1 import Message, MetaClientConfig, OrderedMetaMessageSessionFactory, Partition, SendResult, aio
from metaq.metaq1.producing.layouts import from_file, parse_layout
from metaq.metaq1.storages.kept import KeptMessages, kept_path
from metaq.testing import EmbeddedBroker, eventually, free_port
from tests.interop.metaq1 import OurServer
from tests.metaq1.stored import read
from tests.metaq1.stub import Stub
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

LOCAL = SendResult(-1, Partition(0, 1), -1, "send to local")


def by_key(topic, partitions, message):
    return partitions[int(message.data.split(b"-")[0]) % len(partitions)]


def settings(address: str, folder: Path, **others) -> MetaClientConfig:
    return MetaClientConfig(
        server_url=address,
        local_message_path=str(folder),
        partitions_info={"topic.num.t": "0:2"},
        recover_message_interval=others.pop("interval", 300.0),
        **others,
    )


def stored(address: str, partition: int) -> list[bytes]:
    return [body for _, _, body in read(address, "t", partition)]


def without_repeats(found: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(found))


def test_layouts():
    assert parse_layout("t", "1:1;0:2") == (Partition(0, 0), Partition(0, 1), Partition(1, 0))
    assert parse_layout("t", "broker-1:1; broker-0:1") == (Partition(0, 0), Partition(1, 0))
    for wrong in (
        "",
        ";",
        "0",
        "0:",
        "broker-:1",
        "broker-a:1",
        "broker-0:1;0:1",
        "0:0",
        "a:1",
        "0:1;0:2",
        "0:-1",
        "0:99999",
        "0:\u0661",
    ):
        with pytest.raises(ConfigError, match=r"topic\.num\.t"):
            parse_layout("t", wrong)


def test_a_layout_in_a_file(tmp_path):
    file = tmp_path / "partitions.ini"
    file.write_text("# comment\n[partitions]\n topic.num.t = 0:2;1:3 \ntopic.num.u=0:1\n")
    assert from_file(file)("t") == "0:2;1:3"
    assert from_file(file)("v") is None
    file.unlink()
    with pytest.raises(ConfigError, match=r"partitions_file .* cannot be read"):
        from_file(file)("t")


def test_one_place_says_the_layout(tmp_path):
    config = MetaClientConfig(server_url="127.0.0.1:1")
    with pytest.raises(ConfigError, match="needs one of"):
        OrderedMetaMessageSessionFactory(config)
    with OrderedMetaMessageSessionFactory(config, order_config=lambda topic: None) as factory:
        producer = factory.create_producer(by_key)
        with pytest.raises(ConfigError, match="no fixed partitions"):
            producer.publish("t")
        with pytest.raises(NoRoute):
            producer.send_message(Message("t", b"1-"))
        with pytest.raises(TypeError):
            factory.create_producer(None)


@pytest.fixture
def ordered_server(tmp_path):
    with OurServer(tmp_path / "store", None, {"t": {"numPartitions": 2}}) as running:
        yield running


def test_a_changed_file_is_followed(ordered_server, tmp_path, monkeypatch):
    monkeypatch.setattr("metaq.metaq1.producing.ordered.WATCH_SECONDS", 0.0)
    file = tmp_path / "partitions.properties"
    file.write_text("topic.num.t=0:1")
    config = MetaClientConfig(server_url=ordered_server.text, local_message_path=str(tmp_path / "local"))
    with OrderedMetaMessageSessionFactory(config, partitions_file=file) as factory:
        producer = factory.create_producer(by_key)
        producer.publish("t")
        assert producer.send_message(Message("t", b"1-0")).partition == Partition(0, 0)
        file.write_text("topic.num.t=0:2")
        assert producer.send_message(Message("t", b"1-1")).partition == Partition(0, 1)
        file.unlink()
        assert producer.send_message(Message("t", b"1-2")).partition == Partition(0, 1)


def test_a_layout_of_the_name_servers(tmp_path, monkeypatch):
    """As `metaq topic order set` puts it there, by our brokers' names; a change is followed."""
    monkeypatch.setattr("metaq.metaq1.producing.ordered.WATCH_SECONDS", 0.0)
    with EmbeddedBroker() as names, Admin(names.namesrv) as admin:
        server = OurServer(tmp_path / "store", None, {"t": {"numPartitions": 3}})
        server.options = [f"namesrvAddr={names.namesrv}"]
        with server:
            config = MetaClientConfig(server_url=server.text, local_message_path=str(tmp_path / "local"))
            eventually(lambda: "t" in admin.list_topics(), what="the broker is registered")
            with OrderedMetaMessageSessionFactory(
                config, order_config=lambda topic: admin.topic_order(topic).layout
            ) as factory:
                producer = factory.create_producer(lambda topic, partitions, message: partitions[-1])
                with pytest.raises(ConfigError, match="no fixed partitions"):
                    producer.publish("t")
                assert admin.set_topic_order("t", "broker-0:2") == "broker-0:2"
                producer.publish("t")
                assert producer.send_message(Message("t", b"1-0")).partition == Partition(0, 1)
                admin.set_topic_order("t")
                assert producer.send_message(Message("t", b"1-1")).partition == Partition(0, 2)


def test_a_selector_chooses_what_is_configured(ordered_server, tmp_path):
    with OrderedMetaMessageSessionFactory(settings(ordered_server.text, tmp_path / "local")) as factory:
        producer = factory.create_producer(lambda *_: Partition(0, 2))
        producer.publish("t")
        with pytest.raises(ValueError, match="not configured"):
            producer.send_message(Message("t", b"1-"))


def test_order_over_an_outage_of_the_server(ordered_server, tmp_path):
    """Killed while two threads send; nobody waits for it, and what was kept goes before what comes later."""
    config = settings(ordered_server.text, tmp_path / "local", interval=0.2, save_to_local_when_failed=True)
    local = threading.Event()
    go_on = threading.Event()
    with OrderedMetaMessageSessionFactory(config) as factory:
        producer = factory.create_producer(by_key)
        producer.publish("t")
        ends: list[int] = []

        def send(key: int) -> None:
            number = after = 0
            while after < 50:
                result = producer.send_message(Message("t", b"%d-%05d" % (key, number)))
                number += 1
                if result.text:
                    local.set()
                if go_on.is_set():
                    after += 1
            ends.append(number)

        threads = [threading.Thread(target=send, args=(key,)) for key in (0, 1)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(stored(ordered_server.text, 1)) > 100)
        ordered_server.kill()
        assert local.wait(PATIENCE)
        ordered_server.start()
        go_on.set()
        for thread in threads:
            thread.join()
        eventually(lambda: factory._backlog.get().waiting == 0)
    assert len(ends) == 2
    for key in (0, 1):
        found = without_repeats(stored(ordered_server.text, key))
        assert found == [b"%d-%05d" % (key, number) for number in range(len(found))]
        assert len(found) in ends


SENDS = """
import sys
from metaq.metaq1 import Message, MetaClientConfig, OrderedMetaMessageSessionFactory
config = MetaClientConfig(server_url=sys.argv[1], local_message_path=sys.argv[2], partitions_info={"topic.num.t": "0:2"},
    save_to_local_when_failed=True, recover_message_interval=0.2)
with OrderedMetaMessageSessionFactory(config) as factory:
    producer = factory.create_producer(lambda topic, partitions, message: partitions[1])
    producer.publish("t")
    number = int(sys.argv[3])
    while True:
        result = producer.send_message(Message("t", b"1-%05d" % number))
        print(number, result.text or "stored", flush=True)
        number += 1
"""


def test_order_over_kills_of_client_and_server(ordered_server, tmp_path):
    """What a killed client has kept is sent by the next one, before what that sends itself."""
    folder, begin = tmp_path / "local", 0

    def child() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SENDS, ordered_server.text, str(folder), str(begin)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def killed(process: subprocess.Popen[str]) -> int:
        """The number after the last that was said."""
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        rest = [line for line in process.stdout.readlines() if line.endswith("\n")]
        process.wait()
        return int(rest[-1].split()[0]) + 1 if rest else last + 1

    for server_dies in (True, False, True):
        process = child()
        assert process.stdout is not None
        for _ in range(60):
            last = int(process.stdout.readline().split()[0])
        if server_dies:
            ordered_server.kill()
            while not (line := process.stdout.readline()).endswith("local\n"):
                assert line
            for _ in range(40):
                last = int(process.stdout.readline().split()[0])
        begin = killed(process)
        if server_dies:
            ordered_server.start()
    with OrderedMetaMessageSessionFactory(settings(ordered_server.text, folder, interval=0.2)) as factory:
        producer = factory.create_producer(lambda topic, partitions, message: partitions[1])
        producer.publish("t")
        producer.send_message(Message("t", b"1-%05d" % begin))
        eventually(lambda: factory._backlog.get().waiting == 0)
    found = without_repeats(stored(ordered_server.text, 1))
    assert found == [b"1-%05d" % number for number in range(begin + 1)]


def test_what_waits_goes_first(ordered_server, tmp_path):
    """A short backlog is waited for; those that met a closed partition go before the others."""
    folder = tmp_path / "local"
    with KeptMessages(kept_path(folder, "t", "-1--1")) as kept:
        kept.add(1, Message("t", b"1-0"))
    with KeptMessages(kept_path(folder, "t", "0-1")) as kept:
        kept.add_all((1, Message("t", b"1-%d" % number)) for number in range(1, 4))
    with OrderedMetaMessageSessionFactory(settings(ordered_server.text, folder)) as factory:
        producer = factory.create_producer(by_key)
        producer.publish("t")
        producer.send_message(Message("t", b"1-4"))
        eventually(lambda: len(stored(ordered_server.text, 1)) == 5)
    assert stored(ordered_server.text, 1) == [b"1-%d" % number for number in range(5)]


def test_a_server_that_is_away_costs_no_message(tmp_path):
    with OrderedMetaMessageSessionFactory(settings(f"127.0.0.1:{free_port()}", tmp_path / "local")) as factory:
        producer = factory.create_producer(by_key)
        producer.publish("t")
        assert [producer.send_message(Message("t", b"1-%d" % number)) for number in range(3)] == [LOCAL] * 3
    with KeptMessages(kept_path(tmp_path / "local", "t", "0-1")) as kept:
        assert [one.message.data for one in kept.oldest(9)] == [b"1-0", b"1-1", b"1-2"]


def test_a_closed_partition(tmp_path):
    """Its messages are kept, and go before what comes when it is open again; those of another partition do not wait for it."""
    open_again = False
    taken: list[bytes] = []

    def answering(connection, line) -> None:
        body = getattr(line, "body", b"")
        if body.startswith(b"1-") and not open_again:
            connection.answer(403, b"403", line.opaque)
        else:
            taken.append(body)
            connection.answer(200, b"7 1 70", line.opaque)

    async def scenario() -> None:
        nonlocal open_again
        async with (
            Stub(answering) as stub,
            aio.OrderedMetaMessageSessionFactory(settings(stub.address, tmp_path / "local")) as factory,
            factory.create_producer(by_key) as producer,
        ):
            await producer.publish("t")
            assert await producer.send_message(Message("t", b"1-0")) == LOCAL
            assert (await producer.send_message(Message("t", b"0-0"))).offset == 70
            assert await producer.send_message(Message("t", b"1-1")) == LOCAL
            open_again = True
            result = await producer.send_message(Message("t", b"1-2"))
            assert (result.offset, result.text) == (70, "")
            assert taken == [b"0-0", b"1-0", b"1-1", b"1-2"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("save", "kept"), [(False, 0), (True, 1)])
def test_other_failures_are_kept_by_option(tmp_path, save, kept):
    def answering(connection, line) -> None:
        connection.answer(500, b"no", line.opaque)

    async def scenario() -> None:
        config = settings(stub_address, tmp_path / "local", save_to_local_when_failed=save)
        async with aio.OrderedMetaMessageSessionFactory(config) as factory:
            producer = factory.create_producer(by_key)
            await producer.publish("t")
            if save:
                assert await producer.send_message(Message("t", b"1-0")) == LOCAL
            else:
                with pytest.raises(BrokerError, match="no"):
                    await producer.send_message(Message("t", b"1-0"))
            assert factory._backlog.get().waiting == kept

    async def with_stub() -> None:
        nonlocal stub_address
        async with Stub(answering) as stub:
            stub_address = stub.address
            await scenario()

    stub_address = ""
    asyncio.run(with_stub())


def test_a_long_backlog_is_not_waited_for(tmp_path):
    """More than 20 messages before it: it is kept at once behind them, while they are sent."""
    with KeptMessages(kept_path(tmp_path / "local", "t", "0-1")) as kept:
        kept.add_all((1, Message("t", b"1-%d" % number)) for number in range(21))

    async def scenario() -> None:
        async with (
            Stub(lambda connection, line: None) as stub,
            aio.OrderedMetaMessageSessionFactory(settings(stub.address, tmp_path / "local")) as factory,
        ):
            producer = factory.create_producer(by_key)
            await producer.publish("t")
            assert await producer.send_message(Message("t", b"1-21")) == LOCAL
            await stub.until(lambda: bool(stub.lines))
            assert factory._backlog.get().waiting == 22

    asyncio.run(scenario())
