"""All roles over IPv6: `::1`, and `::` for both families."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket

import pytest

import metaq
from metaq import aio
from metaq.address import join_address
from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.app.up import start_up
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.model.message import SysFlag
from metaq.options import BrokerOptions, Metaq1Options, NamesrvOptions
from metaq.spark.cluster.client import ClusterClient
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from metaq.wire.record import decode_record
from tests.broker.support import small_store
from tests.support import PATIENCE, exchange, run_metaq


def _lacks_ipv6() -> str:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return ""
    except OSError as error:
        return f"this machine has no IPv6 loopback address: {error}"


pytestmark = pytest.mark.skipif(bool(_lacks_ipv6()), reason=_lacks_ipv6())

V6_ID_CHARS = 56


def namesrv_options(tmp_path, host: str = "::1") -> NamesrvOptions:
    return NamesrvOptions(listen_port=0, bind_address=host, kv_config_path=str(tmp_path / "kv.json"))


def broker_options(host: str = "::1", **more: object) -> BrokerOptions:
    return BrokerOptions(listen_port=0, broker_name="a", bind_address=host, **more)


def run(body) -> None:
    asyncio.run(asyncio.wait_for(body, PATIENCE))


@contextlib.asynccontextmanager
async def started(tmp_path, host: str = "::1", **more):
    up = await start_up(broker_options(host), small_store(tmp_path / "data"), namesrv_options(tmp_path, host), **more)
    try:
        yield up
    finally:
        await up.close()


def test_messages_go_through_ipv6_and_say_so(tmp_path):
    """Both hosts of the record are 16 bytes with their flags, the offset id is 24 digits longer, and finds the message."""

    def use(namesrv: str) -> None:
        with metaq.Producer(namesrv) as producer:
            receipt = producer.send("orders", b"one", keys=["k"])
            for pending in [producer.submit("orders", b"more") for _ in range(100)]:
                pending.result()
        assert len(receipt.offset_id) == V6_ID_CHARS
        with metaq.Reader(namesrv, "orders", start="earliest", stop_at_end=True) as reader:
            messages = list(reader)
        assert len(messages) == 101
        for message in messages:
            assert message.born_host[0] == message.store_host[0] == "::1"
            assert message.sys_flag & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) == 0x30
        host, offset = bytes.fromhex(receipt.offset_id[:-16]), int(receipt.offset_id[-16:], 16)
        assert (ipaddress.ip_address(host[:16]), int.from_bytes(host[16:], "big")) == (
            ipaddress.ip_address("::1"),
            messages[0].store_host[1],
        )
        address = join_address("::1", messages[0].store_host[1])
        view = request(RequestCode.VIEW_MESSAGE_BY_ID, headers.ViewMessageHeader(offset=offset))
        [found] = exchange(address, [view])
        assert decode_record(found.body).body == b"one"
        with contextlib.closing(ClusterClient(namesrv, PATIENCE)) as spark:  # the sockets of Spark's workers
            assert len(spark.queues(["orders"])) > 0
        for words in (("cluster",), ("topic", "show", "orders")):
            shown = run_metaq(*words, "-n", namesrv)
            assert shown.returncode == 0, shown.stderr
        assert address in run_metaq("cluster", "-n", namesrv).stdout

    async def body() -> None:
        async with started(tmp_path) as up:
            assert up.namesrv.address.startswith("[::1]:")
            # With a name server in front that is not there.
            await asyncio.to_thread(use, f"[::1]:9;{up.namesrv.address}")

    run(body())


def test_group_consumes_over_ipv6(tmp_path):
    """Heartbeats, client ids, rebalancing, offsets; and the consumer's own address in the list of connections."""

    async def body() -> None:
        async with started(tmp_path) as up:
            namesrv = up.namesrv.address
            async with aio.Producer(namesrv, client_ip="2001:db8::5") as producer:
                for number in range(20):
                    await producer.send("orders", b"%d" % number)
            got = set()
            async with aio.Consumer(
                namesrv, group="g", topics="orders", start="earliest", client_ip="2001:db8::5"
            ) as consumer:
                async for message in consumer:
                    async with message:
                        got.add(int(message.body))
                    if len(got) == 20:
                        break
                shown = await asyncio.to_thread(run_metaq, "group", "show", "g", "-n", namesrv)
                assert shown.returncode == 0, shown.stderr
            assert got == set(range(20))

    run(body())


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_unspecified_address_takes_clients_of_both_families(tmp_path, host):
    """A server on `::` is reached by both, and an IPv4 client is one there, too: its messages' born host is 4 bytes."""

    def use(namesrv: str) -> None:
        with metaq.Producer(namesrv) as producer:
            producer.send("orders", b"x")
        with metaq.Reader(namesrv, "orders", start="earliest", stop_at_end=True) as reader:
            [message] = reader
        assert message.store_host[0] == message.born_host[0] == "127.0.0.1"
        assert not message.sys_flag & 0x30

    async def body() -> None:
        namesrv = await start_namesrv(namesrv_options(tmp_path, "::"))
        _, _, port = namesrv.address.rpartition(":")
        options = broker_options("::", namesrv_addr=f"{host}:{port}", broker_ip1="127.0.0.1")
        broker = await start_broker(options, small_store(tmp_path / "data"))
        try:
            await asyncio.to_thread(use, f"{host}:{port}")
        finally:
            await broker.close()
            await namesrv.close()

    run(body())


def test_slave_copies_over_ipv6(tmp_path):
    """It finds its master's log by the name server, has it byte for byte, and is served from."""

    async def body() -> None:
        namesrv = await start_namesrv(namesrv_options(tmp_path))
        options = broker_options(namesrv_addr=namesrv.address, broker_role="SYNC_MASTER", slave_timeout=3_600_000)
        master = await start_broker(options, small_store(tmp_path / "master"))
        assert master.addresses["replication"].startswith("[::1]:")
        slave_options = broker_options(namesrv_addr=namesrv.address, broker_role="SLAVE", broker_id=1)
        slave = await start_broker(slave_options, small_store(tmp_path / "slave"))
        async with asyncio.timeout(PATIENCE):
            while not master._broker.replicas.reported():
                await asyncio.sleep(0.01)
        async with aio.Producer(namesrv.address) as producer:
            assert (await producer.send("orders", b"x")).status is metaq.SendStatus.SEND_OK
        assert slave._broker.store.log.end == master._broker.store.log.end > 0
        async with asyncio.timeout(PATIENCE):  # the master's tables come some tenths of a second behind its log
            while slave._broker.topics.get("orders") is None:
                await asyncio.sleep(0.01)
        shown = await asyncio.to_thread(run_metaq, "broker", "status", "a", "-n", namesrv.address)
        assert shown.returncode == 0, shown.stderr
        await master.close()
        async with aio.Reader(namesrv.address, "orders", start="earliest", stop_at_end=True) as reader:
            assert [message.body async for message in reader] == [b"x"]
        await slave.close()
        await namesrv.close()

    run(body())


def test_text_server_answers_over_ipv6(tmp_path):
    """Clients of MetaQ 1.x, and the broker's name for them."""

    async def body() -> None:
        settings = Metaq1Settings(Metaq1Options(server_port=0, zk_enable=False))
        async with started(tmp_path, metaq1=settings) as up:
            address = up.broker.addresses["metaq1"]
            reader, writer = await asyncio.open_connection("::1", int(address.rpartition(":")[2]))
            writer.write(b"put test 9 1 0 4\r\nx")
            assert f"[broker 'meta://{address}']".encode() in await reader.readuntil(b"wrong partition 9")
            writer.close()

    run(body())
