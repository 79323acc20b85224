"""Sends of many connections in one pass: the same answers and the same store as one by one, over real sockets."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import uvloop

from metaq.net import sweep as sweeps
from metaq.net.listener import listen
from metaq.net.sweep import COLUMNS
from metaq.servers.remoting.server import RemotingServer
from metaq.servers.remoting.sweeping import SweptAnswers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import LENGTH_BYTES, Command, SerializeType, decode, encode, request
from metaq.wire.record import decode_record
from tests.broker.support import open_broker
from tests.servers.support import SlowDisk, pull_header, send_header
from tests.support import PATIENCE

pytestmark = pytest.mark.skipif(not sweeps.available(), reason="the compiled module is not built, or this is no Linux")

CONNECTIONS = 12


@contextmanager
def opened(root, *, sweeping: bool = True, disk=None, **store) -> Iterator[tuple[RemotingServer, asyncio.Runner]]:
    """A server on a loop of its own. Without `sweeping`, every connection is read by itself."""
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        open_broker(root, store=store, disk=disk) as broker,
    ):
        loop = runner.get_loop()

        def call_soon(act) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(act)

        protocol_server = RemotingServer(broker, call_soon)
        if not sweeping:
            protocol_server.workspace.sweep = None
        yield protocol_server, runner
        protocol_server.close()


def script(number: int) -> list[bytes]:
    """What one connection sends, event by event: mostly one plain send, in both forms; now and then something else."""
    chance, opaque = random.Random(number), 0
    form = SerializeType.BINARY if number % 3 == 0 else SerializeType.JSON

    def frame(code: int, header, body: bytes = b"", *, oneway: bool = False) -> bytes:
        nonlocal opaque
        opaque += 1
        command = request(code, header, body, serialize=form, oneway=oneway)
        command.opaque = opaque
        return encode(command)

    def send(body: bytes, **more: object) -> bytes:
        return frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", number % 4, **more), body)

    events = []
    for turn in range(60):
        body = b"%d-%d" % (number, turn)
        events.append(send(body, tag="t"))
        if turn == 20 and number % 2:
            events.append(
                send(body + b"+1") + send(body + b"+2") + frame(RequestCode.GET_MAX_OFFSET, None) + send(body + b"+3")
            )
        if chance.random() < 0.1:
            events.append(frame(7777, None))
        if chance.random() < 0.1:
            events.append(send(b"later" + body, properties={"DELAY": "1"}) + send(body + b"+4"))
        if chance.random() < 0.1:
            events.append(send(b"") + frame(RequestCode.PULL_MESSAGE, pull_header("nowhere")))
    return events


def said(command: Command) -> tuple[object, ...]:
    """An answer without what depends on the order among connections."""
    return command.opaque, command.code, command.remark or "", command.ext.get("queueId") or ""


async def answers_of(port: int, number: int) -> list[tuple[object, ...]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for event in script(number):
        cut = len(event) // 2 if number == 5 else len(event)
        writer.write(event[:cut])
        await asyncio.sleep(0)
        writer.write(event[cut:])
        at, answers = 0, []
        while at < len(event):
            at += LENGTH_BYTES + struct.unpack_from(">i", event, at)[0]
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            answers.append(said(decode(await reader.readexactly(size))))
        found += sorted(answers, key=lambda answer: answer[0])  # a send's waits for the disk, another's does not
    writer.close()
    return found


def served(root, *, sweeping: bool, disk=None, **store) -> tuple[list[list[tuple[object, ...]]], list[bytes], int]:
    """All answers by connection, all bodies by connection as they lie, and how many passes brought something."""
    with opened(root, sweeping=sweeping, disk=disk, **store) as (protocol_server, runner):
        broker = protocol_server.broker
        passes = 0
        if protocol_server.workspace.sweep is not None:
            inner = protocol_server.workspace.appender.parts

            def counted(*args) -> None:
                nonlocal passes
                inner(*args)
                passes += protocol_server.workspace.outcome.messages > 0

            protocol_server.workspace.appender.parts = counted

        async def act() -> list[list[tuple[object, ...]]]:
            listener = await listen("127.0.0.1", 0, protocol_server.session)
            found = await asyncio.gather(*(answers_of(listener.port, number) for number in range(CONNECTIONS)))
            await listener.close()
            return found

        found = runner.run(asyncio.wait_for(act(), PATIENCE))
        bodies = sorted(  # stable: those of one connection stay in the order in which they lie
            (body for queue_id in range(4) for body in _bodies(broker, queue_id)), key=lambda body: body.split(b"-")[0]
        )
        return found, bodies, passes


def _bodies(broker, queue_id: int) -> Iterator[bytes]:
    offset = 0
    while (found := broker.store.reader.pull("orders", queue_id, offset, 1)).body:
        yield bytes(decode_record(found.body).body)
        offset = found.next_offset


@pytest.mark.parametrize("store", [{}, {"flush_disk_type": "SYNC_FLUSH"}], ids=["async", "sync"])
def test_a_sweep_changes_nothing_but_the_speed(tmp_path, store) -> None:
    """Sends, delayed sends, errors, requests cut in two: every connection hears the same, and the same is stored."""
    swept, swept_bodies, passes = served(tmp_path / "swept", sweeping=True, **store)
    singly, single_bodies, _ = served(tmp_path / "singly", sweeping=False, **store)
    if (
        store
    ):  # a request that was cut in two, and waits for no disk, may be answered before what came with its first half
        swept, singly = [sorted(answers) for answers in swept], [sorted(answers) for answers in singly]
    assert swept == singly
    assert swept_bodies == single_bodies
    assert passes > 20


def frame(code: int, opaque: int, ext: dict[str, str] | None = None) -> bytes:
    return encode(Command(code, opaque, flag=1, ext=ext or {}))


def test_answers_that_come_too_late_go_to_who_asked(tmp_path) -> None:
    """Their texts are longer than those that they replace: each part gets as many answers as it had."""
    written = []
    sweep = SimpleNamespace(
        write=lambda data, parts, members: written.append((data, parts.tolist(), members)),
        answered=lambda _: ["a", "b", "d"],
    )
    parts = memoryview(bytearray(4 * 4 * COLUMNS)).cast("i")
    before = [frame(0, 1), frame(0, 2) + frame(0, 3), b"", frame(0, 4)]
    after = [frame(10, 1, {"a": "b"}), frame(10, 2, {"a": "bb"}) + frame(10, 3), b"", frame(0, 4)]
    end = 0
    for place, piece in enumerate(before):
        end += len(piece)
        parts[place * COLUMNS], parts[place * COLUMNS + 5] = place, end if piece else 0
    answers = SweptAnswers(sweep, parts, b"".join(before))
    answers.write(b"".join(after))
    data, rows, members = written[0]
    assert members == ["a", "b", "d"]
    ends = rows[5::COLUMNS]
    assert ends == [len(after[0]), len(after[0] + after[1]), 0, len(b"".join(after))]
    assert rows[0::COLUMNS] == [0, 1, 2, 3]
    assert data == b"".join(after)


def test_a_disk_that_is_late_is_told_to_each(tmp_path) -> None:
    """SYNC_FLUSH: two swept connections wait for one sync that does not come in time."""
    disk = SlowDisk()
    with opened(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=100) as (protocol_server, runner):

        async def ask(reader, writer, opaque: int) -> Command:
            command = request(RequestCode.SEND_MESSAGE_V2, send_header("orders", 0), b"x")
            command.opaque = opaque
            writer.write(encode(command))
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            return decode(await reader.readexactly(size))

        async def act() -> None:
            listener = await listen("127.0.0.1", 0, protocol_server.session)
            pairs = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
            for opaque in range(12):
                for pair in pairs:
                    assert (await ask(*pair, opaque)).code == ResponseCode.SUCCESS
            assert len(protocol_server.workspace.sweep) == 2
            disk.may_sync.clear()
            late = [asyncio.create_task(ask(*pair, 77 + place)) for place, pair in enumerate(pairs)]
            while not len(protocol_server.workspace.held_acks):
                await asyncio.sleep(0)
            protocol_server.broker.clock.advance(5)
            while not all(task.done() for task in late):
                protocol_server.tick()
                await asyncio.sleep(0)
            disk.may_sync.set()
            assert [(task.result().opaque, task.result().code) for task in late] == [
                (77, ResponseCode.FLUSH_DISK_TIMEOUT),
                (78, ResponseCode.FLUSH_DISK_TIMEOUT),
            ]
            for _, writer in pairs:
                writer.close()
            await listener.close()

        runner.run(asyncio.wait_for(act(), PATIENCE))


@pytest.mark.parametrize("how", ["half a frame", "a long read"])
def test_who_leaves_the_sweep_still_gets_the_answers_that_wait(tmp_path, how) -> None:
    """SYNC_FLUSH: the connection goes on by itself before the disk has the messages that the sweep took from it."""
    disk = SlowDisk()
    with opened(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH") as (protocol_server, runner):

        def event(opaque: int, body: bytes = b"x") -> bytes:
            command = request(RequestCode.SEND_MESSAGE_V2, send_header("orders", 0), body)
            command.opaque = opaque
            return encode(command)

        async def act() -> None:
            listener = await listen("127.0.0.1", 0, protocol_server.session)
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)

            async def heard() -> Command:
                return decode(await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0]))

            for opaque in range(12):
                writer.write(event(opaque))
                await heard()
            assert len(protocol_server.workspace.sweep) == 1
            disk.may_sync.clear()
            writer.write(event(77))
            while not len(protocol_server.workspace.held_acks):
                await asyncio.sleep(0)
            more = event(78, b"y" * (20 if how == "half a frame" else 100_000))
            writer.write(more[:-3])
            while len(protocol_server.workspace.sweep):
                await asyncio.sleep(0)
            disk.may_sync.set()
            answer = await heard()
            assert (answer.opaque, answer.code) == (77, ResponseCode.SUCCESS)
            writer.write(more[-3:])
            assert (await heard()).opaque == 78
            writer.close()
            await listener.close()

        runner.run(asyncio.wait_for(act(), PATIENCE))


def test_lost_answers_end_their_connections_and_no_other(tmp_path, monkeypatch) -> None:
    """Nobody waits for an answer that never comes."""
    with opened(tmp_path) as (protocol_server, runner):

        async def act() -> None:
            listener = await listen("127.0.0.1", 0, protocol_server.session)
            pairs = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]

            def event(opaque: int) -> bytes:
                command = request(RequestCode.SEND_MESSAGE_V2, send_header("orders", 0), b"x")
                command.opaque = opaque
                return encode(command)

            for opaque in range(12):
                for reader, writer in pairs:
                    writer.write(event(opaque))
                    await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            acks = protocol_server.workspace.broker.acks
            monkeypatch.setattr(acks, "due", lambda: (_ for _ in ()).throw(MemoryError))
            pairs[0][1].write(event(99))
            assert await pairs[0][0].read() == b""
            monkeypatch.undo()
            reader, writer = pairs[1]
            writer.write(event(100))
            answer = decode(await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0]))
            assert answer.opaque == 100
            writer.close()
            await listener.close()

        runner.run(asyncio.wait_for(act(), PATIENCE))
