"""A cluster as from inside and outside a container: each client is told the address that fits where it came in.

The way through a `FlakyNetwork` stands for the published port of a container, or a translation of addresses.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import metaq
from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.client.conversation.driver import ask
from metaq.client.conversation.routes import GetCluster
from metaq.client.shared.transport import Transport
from metaq.errors import ConfigError
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.testing import FlakyNetwork, free_port
from tests.broker.support import small_store
from tests.support import PATIENCE


def use(namesrv: str, body: bytes) -> list[bytes]:
    with metaq.Producer(namesrv) as producer:
        producer.send("orders", body)
    with metaq.Reader(namesrv, "orders", start="earliest", stop_at_end=True) as reader:
        return sorted(message.body for message in reader)


def test_clients_inside_and_outside_get_the_address_that_fits(tmp_path):
    """A master with a slave: outside, all goes by the published ports, also while the inner ones are not reached from there."""

    async def body() -> None:
        async with contextlib.AsyncExitStack() as stack:
            namesrv = await start_namesrv(
                NamesrvOptions(listen_port=0, listeners="outside=127.0.0.1:0", kv_config_path=str(tmp_path / "kv.json"))
            )
            stack.push_async_callback(namesrv.close)
            port = free_port()
            published = stack.enter_context(FlakyNetwork(f"127.0.0.1:{port}"))
            options = BrokerOptions(
                broker_name="a", listen_port=port, namesrv_addr=namesrv.address, register_name_server_period=1000,
                advertised_addresses=f"outside={published.address}",
            )  # fmt: skip
            master = await start_broker(options, small_store(tmp_path / "master"))
            stack.push_async_callback(master.close)
            outer = namesrv.addresses["remoting outside"]
            assert outer != namesrv.address
            assert await asyncio.to_thread(use, namesrv.address, b"inside") == [b"inside"]
            assert published.connections == 0
            assert await asyncio.to_thread(use, outer, b"outside") == [b"inside", b"outside"]
            assert published.connections > 0

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_broker_that_is_told_its_own_outer_address_takes_it_for_itself(tmp_path, caplog):
    """Its own machine may be in a network with an address of its own: no other broker of its name, nor of its number, is there."""

    async def body() -> None:
        async with contextlib.AsyncExitStack() as stack:
            namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv.json")))
            stack.push_async_callback(namesrv.close)
            ports = {name: free_port(1) for name in ("master", "slave")}
            links = {name: stack.enter_context(FlakyNetwork(f"127.0.0.1:{port}")) for name, port in ports.items()}
            log = stack.enter_context(FlakyNetwork(f"127.0.0.1:{ports['master'] + 1}"))

            async def start(name: str, **more: object):
                options = BrokerOptions(
                    broker_name="a", listen_port=ports[name], ha_listen_port=ports[name] + 1, namesrv_addr=namesrv.address,
                    advertised_addresses=f"127.0.0.0/8={links[name].address}", register_name_server_period=1000, **more,
                )  # fmt: skip
                broker = await start_broker(options, small_store(tmp_path / name))
                stack.push_async_callback(broker.close)
                return broker

            master = await start("master", advertised_ha_addresses=f"127.0.0.1={log.address}")
            slave = await start("slave", broker_id=1, broker_role="SLAVE")
            transport = Transport()
            stack.push_async_callback(transport.close)
            told = (await ask(transport, namesrv.address, GetCluster())).brokers["a"].addresses
            assert told == {0: links["master"].address, 1: links["slave"].address}
            for broker in (master, slave):
                await broker._tasks.registrations[0]._namesakes.look(registered=True)
            assert await asyncio.to_thread(use, namesrv.address, b"x") == [b"x"]
            async with asyncio.timeout(PATIENCE):
                while slave._broker.store.log.end != master._broker.store.log.end:
                    await asyncio.sleep(0.01)
            assert log.connections > 0, "the slave copies by the address that fits it"
            assert "another broker named" not in caplog.text

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"advertised_addresses": "outside"}, "advertisedAddresses: 'outside' is not name=host:port"),
        ({"advertised_ha_addresses": "outside=host"}, "advertisedHaAddresses: the address 'host' is not host:port"),
        ({"broker_ip1": "broker.example.com"}, "brokerIP1=broker.example.com: need an IP address"),
        ({"broker_ip2": "256.1.1.1"}, "brokerIP2=256.1.1.1: need an IP address"),
    ],
)
def test_broker_with_an_address_that_is_none_does_not_start(tmp_path, options, why):
    with pytest.raises(ConfigError, match=why):
        asyncio.run(start_broker(BrokerOptions(listen_port=0, **options), small_store(tmp_path / "data")))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("text", ["outside", "outside=host", "a=127.0.0.1:0,a=127.0.0.1:0", "10.0.0.0/8=127.0.0.1:0"])
def test_listener_without_name_or_address_is_refused(tmp_path, text):
    options = NamesrvOptions(listen_port=0, listeners=text, kv_config_path=str(tmp_path / "kv.json"))
    with pytest.raises(ConfigError, match="listeners"):
        asyncio.run(start_namesrv(options))
