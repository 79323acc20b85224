"""A broker behind a layer that changes every byte: each fast path answers through it, and those that could not are not taken."""

from __future__ import annotations

import asyncio
import struct

import pytest

from metaq.model.access import Caller
from metaq.net.listener import listen
from metaq.store.reads.long_body import LONG_BYTES
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, decode, encode, request
from tests.net.layers import ChangingLayer, changed
from tests.servers.remoting.test_sweeping import opened
from tests.servers.support import Client, pull_header, send_header
from tests.support import PATIENCE


class Wire:
    """A client that speaks through the layer, and notes what came over the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.opaque = 0

    async def tell(self, code: int, header=None, body: bytes = b"") -> int:
        self.opaque += 1
        command = request(code, header, body)
        command.opaque = self.opaque
        self.writer.write(changed(encode(command)))
        await self.writer.drain()
        return self.opaque

    async def heard(self) -> Command:
        size = struct.unpack(">i", changed(await self.reader.readexactly(4)))[0]
        assert 0 < size < 1 << 24, "written past the layer"
        return decode(changed(await self.reader.readexactly(size)))

    async def ask(self, code: int, header=None, body: bytes = b"") -> Command:
        opaque = await self.tell(code, header, body)
        answer = await self.heard()
        assert answer.opaque == opaque
        return answer


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_no_fast_path_of_the_broker_writes_past_the_layer(tmp_path, flush) -> None:
    """Sends one by one that a sweep would take, native pull answers, held pulls that a send wakes, an answer in pieces."""
    with opened(tmp_path, flush_disk_type=flush) as (protocol_server, runner):
        broker = protocol_server.broker
        Client(protocol_server).beat("G", {"orders": "*", "long": "*"})
        joined: list[bool] = []

        def session(peer):
            made = protocol_server.session(peer)
            inner = peer.join
            peer.join = lambda sweep, sender: joined.append(inner(sweep, sender)) or joined[-1]
            return made

        async def act() -> None:
            listener = await listen("127.0.0.1", 0, session, layer=ChangingLayer)
            sender, puller = [
                Wire(*await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 24)) for _ in range(2)
            ]
            for number in range(40):
                answer = await sender.ask(RequestCode.SEND_MESSAGE_V2, send_header("orders", 0), b"%d" % number)
                assert (answer.code, int(answer.ext["queueOffset"])) == (0, number)
            assert joined
            assert not any(joined)
            for offset in range(40):
                answer = await puller.ask(RequestCode.PULL_MESSAGE, pull_header("orders", 0, offset, max_messages=1))
                assert answer.code == ResponseCode.SUCCESS
            path = broker.pulls.fast_paths.of(Caller("127.0.0.1", loopback=True, encrypted=True))
            assert path.gates, "they were answered by the compiled extension"
            for offset in range(40, 80):  # held, and answered at once from the sender's event
                held = pull_header("orders", 0, offset, sys_flag=2, suspend_ms=20_000, subscription=None)
                opaque = await puller.tell(RequestCode.PULL_MESSAGE, held)
                while not len(broker.held_pulls):
                    await asyncio.sleep(0)
                assert (await sender.ask(RequestCode.SEND_MESSAGE_V2, send_header("orders", 0), b"wakes")).code == 0
                answer = await puller.heard()
                assert (answer.opaque, answer.code) == (opaque, ResponseCode.SUCCESS)
            body = bytes(range(256)) * 256
            for _ in range(2 * LONG_BYTES // len(body)):
                assert (await sender.ask(RequestCode.SEND_MESSAGE_V2, send_header("long", 0), body)).code == 0
            long = pull_header("long", 0, 0, max_messages=1000, max_msg_bytes=8 << 20)
            answer = await puller.ask(RequestCode.PULL_MESSAGE, long)
            assert answer.code == ResponseCode.SUCCESS
            assert len(answer.body) > LONG_BYTES
            sender.writer.close()
            puller.writer.close()
            await listener.close()

        runner.run(asyncio.wait_for(act(), PATIENCE))
