"""A broker with a MetaQ 1.x server: where it listens, what a stop does to it, and that both servers share the partitions."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest
import uvloop

import metaq
from metaq.app.broker import start_broker
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.options import BrokerOptions, Metaq1Options
from metaq.testing import free_port
from tests.broker.support import small_store
from tests.support import PATIENCE

LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])


def started(tmp_path, port: int = 0):
    options = BrokerOptions(listen_port=0, vip_port_enable=False, broker_name="broker-a")
    text = Metaq1Settings(Metaq1Options(server_port=port, host_name="meta.example", zk_enable=False))
    return start_broker(options, small_store(tmp_path / "data"), text=text)


async def ask(address: str, data: bytes, answer_end: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    found = await reader.readuntil(answer_end)
    writer.close()
    return found


def run(main, loop_factory) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main, PATIENCE))


@LOOPS
def test_a_text_server_answers_until_the_stop_and_again_after_a_start(tmp_path, loop_factory) -> None:
    """What was put is there, where it was; a first touch waits for the disk, on either loop. The port is free meanwhile."""

    async def main():
        port = free_port()
        for start in range(2):
            service = await started(tmp_path, port)
            assert service.addresses["metaq1"] == f"127.0.0.1:{port}"
            put = b"put test 0 2 0 1\r\nhiput test 0 2 0 2\r\nho"
            found = await ask(service.addresses["metaq1"], put + b"version 3\r\n", metaq.__version__.encode())
            places = [int(place) for place in re.findall(rb"\d+ 0 (\d+)", found)]
            assert places == [44 * start, 44 * start + 22]
            found = await ask(service.addresses["metaq1"], b"put test 9 1 0 4\r\nx", b"wrong partition 9")
            assert f"[broker 'meta://meta.example:{port}']".encode() in found
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await service.close()
            assert await reader.read() == b"", "the stop closes it"
            writer.close()
        with socket.create_server(("127.0.0.1", port)):
            pass

    run(main(), loop_factory)


@LOOPS
def test_a_taken_port_stops_the_start_and_is_named(tmp_path, loop_factory) -> None:
    """Before the store is touched."""

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(
                metaq.ConfigError, match=rf"the MetaQ 1.x server \(serverPort\): .*127.0.0.1:{port}.*in use"
            ):
                await started(tmp_path, port)

    run(main(), loop_factory)
    assert not (tmp_path / "data").exists()


@LOOPS
def test_a_broker_without_one_says_so(tmp_path, loop_factory) -> None:
    """No address of it is known."""

    async def main():
        options = BrokerOptions(listen_port=0, vip_port_enable=False, broker_name="broker-a")
        service = await start_broker(options, small_store(tmp_path / "data"))
        assert "metaq1" not in service.addresses
        await service.close()

    run(main(), loop_factory)
