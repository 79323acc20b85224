"""A remoting client that shuts its sending side after its requests: it gets their answers, and holds up nobody."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import uvloop

from metaq.app.broker import start_broker
from metaq.model import ConsumerView, Heartbeat
from metaq.model.filters.subscription import subscribe
from metaq.options import BrokerOptions, StoreOptions
from metaq.servers.remoting.handlers import Header
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from tests.servers.support import SlowDisk, pull_header, send_header
from tests.support import PATIENCE


class Talker:
    """A connection over which requests are sent, and answers read until its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._opaque = itertools.count(1)

    def frame(self, code: int, header: Header | None = None, body: bytes = b"") -> bytes:
        command = request(code, header, body)
        command.opaque, command.version = next(self._opaque), 409
        return encode(command)

    async def answer(self) -> None:
        size = int.from_bytes(await self._reader.readexactly(4))
        await self._reader.readexactly(size)

    async def rest(self) -> list[Command]:
        inbox = Connection()
        inbox.receive_data(await self._reader.read())
        return [command for command in iter(inbox.next_command, None) if command.is_response]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request, tmp_path):
    """Run a test beside a broker that answers sends when its disk has them."""

    def run(test) -> None:
        async def main() -> None:
            disk = SlowDisk()
            small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}
            store = StoreOptions(store_path_root_dir=str(tmp_path), flush_disk_type="SYNC_FLUSH", **small)
            broker = await start_broker(BrokerOptions(listen_port=0, broker_name="b"), store, disk=disk)
            host, port = broker.address.split(":")
            talker = Talker(*await asyncio.open_connection(host, int(port)))
            try:
                async with asyncio.timeout(PATIENCE):
                    await test(broker, disk, talker)
            finally:
                disk.may_sync.set()
                talker.writer.close()
                await broker.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


def test_every_kind_of_answer_still_comes(run):
    """Sends that wait for the disk and for their topic, a new topic, held pulls (at once: nothing new), reports."""

    async def body(_broker, disk, talker) -> None:
        frames = [
            talker.frame(RequestCode.SEND_MESSAGE_V2, send_header(f"t{number % 3}"), b"x") for number in range(50)
        ]
        created = headers.CreateTopicHeader(
            topic="made", default_topic="TBW102", read_queues=4, write_queues=4, perm=6, topic_filter_type="SINGLE_TAG"
        )
        frames.append(talker.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, created))
        frames += [talker.frame(RequestCode.GET_BROKER_RUNTIME_INFO), talker.frame(RequestCode.GET_ALL_TOPIC_CONFIG)]
        held = pull_header("TBW102", suspend_ms=3_600_000, sys_flag=6)
        frames.append(talker.frame(RequestCode.PULL_MESSAGE, held))
        disk.may_sync.clear()
        talker.writer.write(b"".join(frames))
        talker.writer.write_eof()
        await asyncio.sleep(0.02)  # a moment in which nothing can be answered that promises the disk
        disk.may_sync.set()
        answers = await talker.rest()
        assert sorted(answer.opaque for answer in answers) == list(range(1, len(frames) + 1))
        codes = {answer.opaque: answer.code for answer in answers}
        assert {codes[opaque] for opaque in range(1, 54)} == {0}
        assert codes[54] == 19  # PULL_NOT_FOUND

    run(body)


def test_one_that_a_sweep_reads_gets_its_last_answer(run):
    """A producer that sends one by one is read and answered with others."""

    async def body(_broker, disk, talker) -> None:
        for _ in range(20):
            talker.writer.write(talker.frame(RequestCode.SEND_MESSAGE_V2, send_header("t"), b"x"))
            await talker.answer()
        disk.may_sync.clear()
        talker.writer.write(talker.frame(RequestCode.SEND_MESSAGE_V2, send_header("t"), b"x"))
        talker.writer.write_eof()
        await asyncio.sleep(0.02)
        disk.may_sync.set()
        assert [answer.code for answer in await talker.rest()] == [0]

    run(body)


def test_its_memberships_end_at_once(run):
    """A dead client's kernel ends its sending just so: its group does not wait for what the disk owes it."""

    async def body(broker, disk, talker) -> None:
        members = broker._broker.members.consumers
        view = ConsumerView("G", {"t": subscribe("t", "*", 1)})
        beat = bodies.heartbeat(Heartbeat("c@1", (view,), ()))
        talker.writer.write(talker.frame(RequestCode.HEART_BEAT, None, beat))
        await talker.answer()
        assert members.get("G") is not None
        disk.may_sync.clear()
        talker.writer.write(talker.frame(RequestCode.SEND_MESSAGE_V2, send_header("t"), b"x"))
        while not broker._services.broker.acks.waiting_bytes:
            await asyncio.sleep(0)
        talker.writer.write_eof()
        while members.get("G") is not None:
            await asyncio.sleep(0)
        assert broker._services.broker.acks.waiting_bytes, "its answer waits still"
        disk.may_sync.set()
        assert (await talker.rest())[-1].code == 0  # behind what tells of the membership

    run(body)


def test_one_to_which_nothing_is_owed_is_closed_at_once(run):
    async def body(_broker, _disk, talker) -> None:
        talker.writer.write(talker.frame(RequestCode.GET_BROKER_RUNTIME_INFO))
        talker.writer.write_eof()
        assert [answer.code for answer in await talker.rest()] == [0]

    run(body)
