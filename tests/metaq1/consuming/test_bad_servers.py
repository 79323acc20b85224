"""Servers that vanish, lie, or have damaged files: nothing is lost, and no consumer is silently dead."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from metaq.metaq1 import MetaClientConfig, ReceivedMessage, aio
from metaq.wire.metaq1.commands import GetLine, Line, OffsetLine, StatsLine, ValueLine, VersionLine, encode
from metaq.wire.metaq1.frame import frame
from tests.metaq1.consuming.conftest import quick
from tests.metaq1.stub import Stub, StubConnection
from tests.support import PATIENCE

TOPIC = "t"
Gets = Callable[[StubConnection, GetLine], None]


class Server:
    """What a stub answers: one partition with these frames."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.gets: list[int] = []
        self.offsets: list[int] = []
        self.start: int | None = 0
        """What it answers to `offset`; None: that it does not have the partition."""
        self.silent = 0
        """Gets that are cut off in place of an answer."""

    def __call__(self, connection: StubConnection, line: Line) -> None:
        match line:
            case VersionLine(opaque=opaque):
                connection.answer(200, b"1.4.6.2", opaque)
            case StatsLine(item=item, opaque=opaque):
                rows = f"{TOPIC} part 0 min_offset 0 max_offset {len(self.data)}" if item else "broker_id 7"
                connection.answer(200, f"STATS\r\n{rows}\r\nEND\r\n".encode(), opaque)
            case OffsetLine(offset=offset, opaque=opaque):
                self.offsets.append(offset)
                if self.start is None:
                    connection.answer(404, b"is not exists", opaque)
                else:
                    connection.answer(200, str(self.start).encode(), opaque)
            case GetLine(offset=offset, max_bytes=most, opaque=opaque):
                self.gets.append(offset)
                if self.silent:
                    self.silent -= 1
                    connection.cut()
                elif offset >= len(self.data):
                    connection.answer(404, b"nothing", opaque)
                else:
                    connection.writer.write(encode(ValueLine(bytes(self.data[offset : offset + most]), opaque)))


def consumed(server: Server, count: int, tmp_path: Path, after: Callable[[list[bytes]], Coroutine[Any, Any, None]] | None = None) -> list[bytes]:  # fmt: skip
    """Return the bodies that a consumer gets, when there are `count`, and `after` has returned."""

    async def program() -> list[bytes]:
        got: list[bytes] = []
        enough = asyncio.Event()
        if not count:
            enough.set()

        async def listener(message: ReceivedMessage) -> None:
            got.append(message.data)
            if len(got) == count:
                enough.set()

        async with Stub(server) as stub:
            config = MetaClientConfig(
                server_url=f"meta://{stub.address}", recover_path=str(tmp_path / "r"), offsets_path=str(tmp_path / "o")
            )
            async with aio.MetaMessageSessionFactory(config) as factory:
                consumer = factory.create_consumer(quick(max_delay_fetch_time=0.01)).subscribe(TOPIC, 4096, listener)
                await consumer.complete_subscribe()
                async with asyncio.timeout(PATIENCE):
                    await enough.wait()
                    if after is not None:
                        await after(got)
        return got

    return asyncio.run(program())


def bodies(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


def frames_of(count: int) -> bytes:
    return b"".join(frame(number + 1, 0, body) for number, body in enumerate(bodies(count)))


def test_a_server_that_vanishes_during_fetches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(frames_of(3))
    server.silent = 1
    assert consumed(server, 3, tmp_path) == bodies(3)
    assert "gets nothing of topic t, partition 7-0" in caplog.text


def test_damage_that_passes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Messages before it are delivered, the server is asked where messages begin, and repetitions are left out."""
    server = Server(frames_of(5))
    server.data[2 * 24 + 21] ^= 1

    async def mend(got: list[bytes]) -> None:
        while not server.offsets:
            await asyncio.sleep(0.001)
        assert got == bodies(2)
        server.data[2 * 24 + 21] ^= 1
        while len(got) < 5:
            await asyncio.sleep(0.001)

    assert consumed(server, 2, tmp_path, mend) == bodies(5)
    assert server.offsets == [48]
    assert 0 in server.gets[1:]
    assert re.search(r"topic t, partition 7-0: the frame at 48 .* damaged: its checksum is", caplog.text)


def test_damage_that_stays_is_said_and_nothing_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server is asked once: what is damaged there is damaged, and the group stands."""
    server = Server(frames_of(5))
    server.data[2 * 24 + 21] ^= 1

    async def stands(got: list[bytes]) -> None:
        while server.gets.count(48) < 10:
            await asyncio.sleep(0.001)

    assert consumed(server, 2, tmp_path, stands) == bodies(2)
    assert server.offsets == [48]
    assert "group g stands in topic t, partition 7-0" in caplog.text


def test_a_place_within_a_message_is_left(tmp_path: Path) -> None:
    """A wrong stored offset: the server says where messages begin."""
    server = Server(frames_of(4))
    (tmp_path / "o").write_text(
        '{"g":[{"topic":"t","partition":{"brokerId":7,"partition":0},"offset":30,"messageId":1,"modified":false}]}'
    )
    assert consumed(server, 4, tmp_path) == bodies(4)
    assert server.gets[0] == 30


def test_a_topic_without_partitions_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Empty(Server):
        empty = True

        def __call__(self, connection: StubConnection, line: Line) -> None:
            if isinstance(line, StatsLine) and line.item and self.empty:
                connection.answer(200, b"STATS\r\nEND\r\n", line.opaque)
            else:
                super().__call__(connection, line)

    server = Empty(frames_of(2))

    async def program() -> None:
        async with Stub(server) as stub:
            config = MetaClientConfig(server_url=f"meta://{stub.address}", offsets_path=str(tmp_path / "o"))
            async with aio.MetaMessageSessionFactory(config) as factory:
                consumer = factory.create_consumer(quick()).subscribe(TOPIC, 4096, lambda message: None)
                await consumer.complete_subscribe()
                assert consumer.partitions == frozenset()

    asyncio.run(program())
    assert "topic t has no partition" in caplog.text


def test_a_server_that_is_away_at_the_start_is_said(tmp_path: Path) -> None:
    async def program() -> None:
        async with Stub() as stub:
            stub.deaf()
            config = MetaClientConfig(server_url=f"meta://{stub.address}", offsets_path=str(tmp_path / "o"))
            async with aio.MetaMessageSessionFactory(config) as factory:
                consumer = factory.create_consumer(quick()).subscribe(TOPIC, 4096, lambda message: None)
                from metaq.errors import ConnectionFailed

                with pytest.raises(ConnectionFailed):
                    await consumer.complete_subscribe()
                stub.answering = Server(frames_of(1))
                await stub.listen()
                async with asyncio.timeout(PATIENCE):
                    while True:
                        try:
                            await consumer.complete_subscribe()
                        except ConnectionFailed:
                            await asyncio.sleep(0.05)
                        else:
                            break
                assert consumer.partitions

    asyncio.run(program())


def test_a_partition_that_was_lost_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The group's offset is there, and the server knows neither the place nor the partition: a consumer waits, and says so; once."""
    server = Server(b"")
    server.start = None
    (tmp_path / "o").write_text(
        '{"g":[{"topic":"t","partition":{"brokerId":7,"partition":0},"offset":30,"messageId":1,"modified":false}]}'
    )

    async def after(_: list[bytes]) -> None:
        while len(server.gets) < 15:
            await asyncio.sleep(0.01)

    assert consumed(server, 0, tmp_path, after) == []
    assert caplog.text.count("group g waits at 30 in topic t, partition 7-0, which ends at 0 at") == 1
    assert server.offsets == [(1 << 63) - 1]
