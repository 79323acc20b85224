"""What a broker logs at its start of the addresses that its clients are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import pytest

from metaq.app.addressing import reachability
from metaq.app.addressing.reachability import Reachability
from metaq.app.broker import start_broker
from metaq.client.shared.transport import Transport
from metaq.options import BrokerOptions
from metaq.testing import FlakyNetwork, free_port
from tests.broker.support import small_store
from tests.support import PATIENCE


def told(tmp_path, caplog, **options: object) -> list[str]:
    """Start a broker and return its warnings about addresses, once it has looked."""

    async def body() -> None:
        broker = await start_broker(BrokerOptions(broker_name="a", **options), small_store(tmp_path / "data"))
        try:
            await broker._reaching
        finally:
            await broker.close()

    with caplog.at_level(logging.WARNING, "metaq.app.addressing.reachability"):
        asyncio.run(asyncio.wait_for(body(), PATIENCE))
    return [record.getMessage() for record in caplog.records if record.name == "metaq.app.addressing.reachability"]


def test_address_where_it_listens_needs_no_look(tmp_path, caplog):
    assert told(tmp_path, caplog, listen_port=0) == []


def test_address_that_leads_here_is_fine(tmp_path, caplog):
    """By a published port: the broker hears its own answer."""
    port = free_port()
    with FlakyNetwork(f"127.0.0.1:{port}") as published:
        given = {"listen_port": port, "advertised_addresses": f"outside={published.address}"}
        assert told(tmp_path, caplog, **given) == []
        assert published.connections == 0, "127.0.0.1 is where it listens, whatever the port"


def test_published_port_of_another_host_is_asked(tmp_path, caplog):
    port = free_port()
    with FlakyNetwork(f"127.0.0.1:{port}", listen="127.0.0.2:0") as published:
        given = {"listen_port": port, "advertised_addresses": f"outside={published.address}"}
        assert told(tmp_path, caplog, **given) == []
        assert published.connections == 1


def test_closed_port_is_warned_of(tmp_path, caplog):
    address = f"127.0.0.2:{free_port(host='127.0.0.2')}"
    [warning] = told(tmp_path, caplog, listen_port=0, advertised_addresses=f"outside={address}")
    assert f"clients are told {address} (advertisedAddresses), which does not answer here: cannot connect" in warning


def test_broker_ip_of_another_machine_is_warned_of(tmp_path, caplog):
    """No such address on this machine: `brokerIP1` was written wrong."""
    [warning] = told(tmp_path, caplog, listen_port=0, broker_ip1="127.0.0.3")
    assert "(brokerIP1), which does not answer here" in warning


def test_address_of_another_broker_is_warned_of(tmp_path, caplog):
    """It answers like a broker of ours, and is none of this process."""

    async def body() -> None:
        async with contextlib.AsyncExitStack() as stack:
            other = await start_broker(BrokerOptions(broker_name="b", listen_port=0), small_store(tmp_path / "b"))
            stack.push_async_callback(other.close)
            transport = Transport()
            stack.push_async_callback(transport.close)
            await Reachability(transport, "me", {other.address: "brokerIP1"}, "10.0.0.1").look()

    with caplog.at_level(logging.WARNING, "metaq.app.addressing.reachability"):
        asyncio.run(asyncio.wait_for(body(), PATIENCE))
    [warning] = [record.getMessage() for record in caplog.records if record.name == "metaq.app.addressing.reachability"]
    assert "where another server answers, not this broker" in warning


def test_silent_address_holds_up_neither_start_nor_stop(tmp_path, caplog, monkeypatch):
    """Something takes the connection and says nothing."""
    monkeypatch.setattr(reachability, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.2", 0)) as silent:
        address = f"127.0.0.2:{silent.getsockname()[1]}"
        [warning] = told(tmp_path, caplog, listen_port=0, advertised_addresses=f"outside={address}")
    assert "which does not answer here" in warning


def test_loopback_while_it_listens_everywhere_is_warned_of(caplog):
    """Clients elsewhere would ask their own machines."""

    async def body() -> None:
        transport = Transport()
        try:
            await Reachability(transport, "me", {"127.0.0.1:1": "brokerIP1"}, "0.0.0.0").look()
        finally:
            await transport.close()

    with caplog.at_level(logging.WARNING, "metaq.app.addressing.reachability"):
        asyncio.run(asyncio.wait_for(body(), PATIENCE))
    assert "leads them to their own machines" in caplog.records[0].getMessage()


@pytest.mark.parametrize("host", ["127.0.0.1"])
def test_broker_is_stopped_while_it_looks(tmp_path, host):
    """The look ends with it."""

    async def body() -> None:
        with socket.create_server(("127.0.0.2", 0)) as silent:
            advertised = f"outside=127.0.0.2:{silent.getsockname()[1]}"
            options = BrokerOptions(broker_name="a", listen_port=0, bind_address=host, advertised_addresses=advertised)
            broker = await start_broker(options, small_store(tmp_path / "data"))
            await broker.close()
            assert broker._reaching.cancelled()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))
