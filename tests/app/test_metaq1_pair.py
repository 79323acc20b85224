"""A master and its slave that serve clients of MetaQ 1.x: what each answers, and what is ended at the one that leads next."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from metaq.app.broker import RunningBroker, start_broker
from metaq.app.namesrv import start_namesrv
from metaq.client.conversation.administration import Promote
from metaq.client.conversation.driver import ask
from metaq.client.shared.transport import Transport
from metaq.options import BrokerOptions, Metaq1Options, NamesrvOptions
from tests.app.test_pair import until
from tests.broker.metaq1.support import settings
from tests.broker.support import small_store
from tests.support import PATIENCE, kept_port

pytestmark = pytest.mark.slow

XID = "XID:7:6731:6231:uq"


class Answer(NamedTuple):
    code: int
    """0: data."""
    body: bytes


class Text:
    """A connection of the text protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, line: str, body: bytes = b"") -> Answer:
        self._writer.write(line.encode() + b" 1\r\n" + body)
        words = (await self._reader.readuntil(b"\r\n")).split()
        return Answer(int(words[1]) if words[0] == b"result" else 0, await self._reader.readexactly(int(words[-2])))

    async def good(self, line: str, body: bytes = b"") -> bytes:
        answer = await self.ask(line, body)
        assert answer.code in {0, 200}, answer
        return answer.body


class Pair:
    """A name server, and brokers `a` and `b` of one name, which begin as master and slave."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._ports = {name: kept_port(self) for name in "ab"}
        self._client = Transport(lambda _a, _c: None, lambda _a: None, lambda _a: None)
        self.running: dict[str, RunningBroker] = {}

    async def open(self) -> None:
        self._namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(self._root / "kv.json")))
        for name in "ab":
            await self.start(name)

    async def start(self, name: str) -> None:
        role = {"broker_id": 1, "broker_role": "SLAVE"} if name == "b" else {}
        options = BrokerOptions(
            broker_name="pair", listen_port=self._ports[name], namesrv_addr=self._namesrv.address, **role
        )
        text = settings(Metaq1Options(broker_id=7, server_port=0, host_name="127.0.0.1", zk_enable=False), test=2)
        store = small_store(self._root / name, mapped_file_size_commit_log=1 << 20)
        self.running[name] = await start_broker(options, store, metaq1=text)

    async def promote(self, name: str, other: str) -> None:
        await ask(self._client, self.running[name].address, Promote())
        await asyncio.wait_for(self.running[other].again, PATIENCE)
        await self.running.pop(other).close()
        await self.start(other)

    async def even(self) -> None:
        a, b = (self.running[name]._broker.store.log for name in "ab")
        await until(lambda: a.end == b.end)

    @contextlib.asynccontextmanager
    async def text(self, name: str) -> AsyncIterator[Text]:
        host, _, port = self.running[name].addresses["metaq1"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        yield Text(reader, writer)
        writer.close()

    async def close(self) -> None:
        for broker in self.running.values():
            await broker.close()
        await self._client.close()
        await self._namesrv.close()


@contextlib.asynccontextmanager
async def opened(root: pathlib.Path) -> AsyncIterator[Pair]:
    pair = Pair(root)
    await pair.open()
    try:
        yield pair
    finally:
        await pair.close()


def test_a_slave_serves_gets_and_refuses_what_changes_something(tmp_path):
    """In the original's words for the failed put; figures say that it is a slave."""

    async def body() -> None:
        async with opened(tmp_path) as pair, pair.text("a") as master, pair.text("b") as slave:
            for number in range(5):
                await master.good("put test 1 5 0", b"body%d" % number)
            await pair.even()

            async def topic_is_there() -> bool:
                return (await slave.ask("get test g 1 0 1024")).code == 0

            async with asyncio.timeout(PATIENCE):
                while not await topic_is_there():  # tables follow a moment later than the log
                    await asyncio.sleep(0.01)
            assert await slave.good("get test g 1 25 1024") == await master.good("get test g 1 25 1024")
            assert await slave.good("offset test g 1 30") == b"25"
            assert b"slave true\r\n" in await slave.good("stats ")
            assert b"slave false\r\n" in await master.good("stats ")
            assert b"test part 1 min_offset 0 max_offset 125\r\n" in await slave.good("stats offsets")
            assert (await slave.ask("version")).code == 200
            answer = await slave.ask("put test 1 2 0", b"hi")
            assert answer.code == 500
            assert answer.body.startswith(b"Put message to [broker 'meta://")
            assert b"Detail:pair takes no messages here: this broker is a slave (brokerId 1)" in answer.body
            assert (await slave.ask("transaction TX:s:1 s BEGIN")).code == 500
            answer = await slave.ask(f"transaction {XID} s COMMIT_TWO_PHASE uq")
            assert answer == (
                500,
                b"XAException:code=-7,msg=pair takes no messages here: this broker is a slave (brokerId 1)",
            )
            assert (await slave.ask("transaction null s RECOVER uq")).code == 500

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_what_is_in_doubt_at_the_master_is_ended_once_at_the_slave_that_leads(tmp_path):
    """A prepared branch over both partitions: all of it or nothing, and its second commit is told that it is over."""

    async def body() -> None:
        async with opened(tmp_path) as pair:
            async with pair.text("a") as master:
                await master.good("put test 0 6 0", b"before")
                await master.good(f"transaction {XID} s BEGIN uq")
                for number in range(6):
                    await master.good(f"put test {number % 2} 3 0 -1 {XID}", b"xa%d" % number)
                assert await master.good(f"transaction {XID} s PREPARE uq") == b"0"
                await master.good("transaction TX:s:1 s BEGIN")
                await master.good("put test 0 5 0 -1 TX:s:1", b"local")
            await pair.promote("b", "a")
            async with pair.text("b") as leader, pair.text("a") as slave:
                assert await leader.good("transaction null s RECOVER uq") == XID.encode()
                assert (await leader.ask("get test g 1 0 1024")).code == 404
                await leader.good(f"transaction {XID} s COMMIT_TWO_PHASE uq")
                again = await leader.ask(f"transaction {XID} s COMMIT_TWO_PHASE uq")
                assert again.code == 500
                assert again.body.startswith(b"XAException:code=-4,")
                assert await leader.good("transaction null s RECOVER uq") == b""
                position = int((await leader.good("put test 0 5 0", b"after")).split()[2])
                assert position == 26 + 3 * 23
                await pair.even()
                found = [await leader.good(f"get test g {partition} 0 4096") for partition in (0, 1)]
                assert [found[0].count(b"xa"), found[1].count(b"xa")] == [3, 3]
                assert b"local" not in found[0]
                assert [await slave.good(f"get test g {partition} 0 4096") for partition in (0, 1)] == found
                assert (await slave.ask("put test 0 1 0", b"x")).code == 500

    asyncio.run(asyncio.wait_for(body(), PATIENCE))
