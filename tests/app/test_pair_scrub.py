"""A slave compares its log with its master's, and damaged records are repaired from the other side: with real brokers and files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import metaq.app.role.scrub
from metaq import aio
from metaq.app.broker import RunningBroker, start_broker
from metaq.broker.replication import scrub
from metaq.client.conversation.administration import GetReplicaState, GetRuntime
from metaq.client.conversation.scrubbing.calls import GetLogBytes, GetLogChecksums, RepairLog
from metaq.clock import seeded
from metaq.errors import BrokerError
from metaq.model.scrub import RANGE_BYTES, DamagedSide, ScrubState
from metaq.options import BrokerOptions
from metaq.store.log.mend import overwrite
from metaq.wire import extensions, hot
from tests.app.test_pair import until
from tests.app.test_promotion import FILE, Brokers, consume, opened, send
from tests.broker.support import small_store
from tests.store.log.test_raw import raw_log

pytestmark = pytest.mark.slow

BODY_AT = 88
"""Within each record."""
NAMES = {DamagedSide.MASTER: "a", DamagedSide.SLAVE: "b"}


class ScrubbedPair(Brokers):
    """Master `a` and slave `b` with the same log, which the disk has."""

    def __init__(self, root: pathlib.Path, brokers: Brokers) -> None:
        self.__dict__ = brokers.__dict__
        self.root = root

    async def settle(self) -> None:
        await self.same()
        for name in "ab":
            store = self.broker(name).store
            await until(lambda store=store: store.state.flushed == store.log.end)

    @property
    def end(self) -> int:
        return self.broker("a").store.log.end

    def file(self, name: str, place: int) -> pathlib.Path:
        return self.root / name / "commitlog" / f"{place - place % FILE:020d}"

    def flip(self, name: str, place: int) -> None:
        """One bit, as a disk loses it."""
        with self.file(name, place).open("r+b") as file:
            file.seek(place % FILE)
            byte = file.read(1)[0]
            file.seek(place % FILE)
            file.write(bytes([byte ^ 4]))

    def records(self) -> list[tuple[int, int]]:
        data = raw_log(self.root / "a", 0, self.end)
        return [
            (head.log_offset, head.size)
            for start in range(0, self.end, FILE)
            for head in hot.scan_records(data, start, min(start + FILE, self.end), 0, 10_000, check_crc=True)[0]
        ]

    async def scrub(self) -> ScrubState:
        """A whole pass of the slave, as it does it in the background. Returns what the runtime information says then."""
        slave = self.running["b"]._tasks.role._slave
        await until(lambda: slave.search.address)
        await slave.scrubbing.run()
        table = await self.ask("b", GetRuntime())
        return extensions.scrub_state_of(table["metaqScrub"])


@contextlib.asynccontextmanager
async def pair(root: pathlib.Path, messages: int = 60, **options: Any) -> AsyncIterator[ScrubbedPair]:
    async with opened(root, **options) as brokers:
        one = ScrubbedPair(root, brokers)
        await send(brokers, 0, messages)
        await one.settle()
        yield one


@pytest.mark.parametrize("damaged", [DamagedSide.MASTER, DamagedSide.SLAVE])
@pytest.mark.parametrize("at", [1, 6, BODY_AT])
def test_a_flipped_bit_is_told_and_repaired_from_the_other_side(tmp_path, caplog, damaged, at):
    """In head or body, of either side: file and offset are in the log and in the runtime information; a restart finds the same
    bytes at both."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            assert (await one.scrub()).found == 0
            name = NAMES[damaged]
            start, size = one.records()[31]
            one.flip(name, start + at)
            rotten = raw_log(tmp_path / name, start, start + size)
            state = await one.scrub()
            (found,) = state.differences
            assert (found.log_offset, found.size, found.damaged, found.at) == (start, size, damaged, start)
            assert found.file == str(one.file(name, start))
            assert state.compared >= one.end
            assert f"{found.file} differs from the " in caplog.text
            assert f"at byte {start} (log offset {start}, {size} bytes): the {damaged}'s is damaged" in caplog.text
            other = one.running["b" if name == "a" else "a"].address
            mended = await one.ask(name, RepairLog(start, size, other))
            assert (mended.log_offset, mended.size) == (start, size)
            assert (pathlib.Path(mended.kept_in) / f"{start:020d}").read_bytes() == rotten.rstrip(b"\0")
            await one.same()
            assert (await one.scrub()).found == 0
            for each in "ba":
                await one.stop(each)
            for each in "ab":
                await one.start(each)
            await one.same()
            assert sorted(await consume(one, 60)) == list(range(60))

    asyncio.run(body())


def test_both_sides_are_damaged_at_different_places(tmp_path):
    """Each is repaired from the other; where both are, neither is."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            records = one.records()
            places = {10: "a", 11: "b", 40: "ab"}
            for number, names in places.items():
                for name in names:
                    one.flip(name, records[number][0] + BODY_AT + (name == "b"))
            state = await one.scrub()
            assert [(found.log_offset, found.damaged) for found in state.differences] == [
                (records[10][0], DamagedSide.MASTER), (records[11][0], DamagedSide.SLAVE), (records[40][0], DamagedSide.BOTH),
            ]  # fmt: skip
            for number, damaged in ((10, "a"), (11, "b")):
                await one.ask(damaged, RepairLog(*records[number], one.running["b" if damaged == "a" else "a"].address))
            for name, other in ("ab", "ba"):
                with pytest.raises(BrokerError, match="nothing was changed"):
                    await one.ask(name, RepairLog(*records[40], one.running[other].address))
            state = await one.scrub()
            assert [(found.log_offset, found.damaged) for found in state.differences] == [
                (records[40][0], DamagedSide.BOTH)
            ]

    asyncio.run(body())


def test_records_that_both_look_right_are_told_and_never_repaired(tmp_path, caplog):
    """No checksum covers the store time."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            start, size = one.records()[5]
            one.flip("b", start + 60)
            (found,) = (await one.scrub()).differences
            assert (found.log_offset, found.damaged) == (start, DamagedSide.UNKNOWN)
            assert "it is not known which one is damaged" in caplog.text
            before = raw_log(tmp_path / "b", 0, one.end)
            with pytest.raises(BrokerError, match="nothing was changed"):
                await one.ask("b", RepairLog(start, size, one.running["a"].address))
            assert raw_log(tmp_path / "b", 0, one.end) == before
            one.flip("b", start + 60)

    asyncio.run(body())


def test_a_repair_takes_nothing_from_anybody_else(tmp_path):
    """From no other broker, no damaged record, no piece of one, no place that is not there; and changes nothing then."""

    async def body() -> None:
        another = await start_broker(
            BrokerOptions(broker_name="another", listen_port=0),
            small_store(tmp_path / "two", mapped_file_size_commit_log=FILE),
        )
        async with contextlib.aclosing(Closing(another)), pair(tmp_path / "one") as one:
            start, size = one.records()[5]
            one.flip("b", start + BODY_AT)
            before = raw_log(tmp_path / "one" / "b", 0, one.end)
            right, wrong = one.running["a"].address, another.address
            for call, why in (
                (RepairLog(start, size, wrong), "is no replica of pair"),
                (RepairLog(start, size, "nonsense"), "not host:port"),
                (RepairLog(start, size, one.namesrv.address), "is no replica|does not answer"),
                (RepairLog(start, size, "127.0.0.1:1"), "does not answer"),
                (RepairLog(start, size - 1, right), "nothing was changed"),
                (RepairLog(start + 1, size, right), "nothing was changed"),
                (RepairLog(start, 0, right), "1 to"),
                (RepairLog(-1, 10, right), "1 to"),
                (RepairLog(start, 1 << 30, right), "1 to"),
                (RepairLog(one.end, 100, right), "up to log offset"),
                (RepairLog(one.records()[6][0], one.records()[6][1], right), "is not damaged"),
            ):
                with pytest.raises(BrokerError, match=why):
                    await one.ask("b", call)
            one.flip("a", start + BODY_AT + 1)
            with pytest.raises(BrokerError, match="nothing was changed"):
                await one.ask("b", RepairLog(start, size, right))
            assert raw_log(tmp_path / "one" / "b", 0, one.end) == before

    asyncio.run(body())


class Closing:
    """Closes a broker in the end."""

    def __init__(self, broker: RunningBroker) -> None:
        self.aclose = broker.close


def test_retention_on_one_side_is_no_difference(tmp_path, monkeypatch):
    """Also while a pass is under way, and where the file that goes is damaged."""
    monkeypatch.setattr(metaq.app.role.scrub, "STEP_RANGES", 1)

    async def body() -> None:
        async with pair(tmp_path, messages=2) as one:
            async with aio.Producer(one.namesrv.address) as producer:
                for number in range(3):
                    await producer.send("orders", seeded(number).randbytes(700_000))
            await one.settle()
            assert one.end > 2 * FILE
            one.flip("b", 200_000)
            comparing, ranges = asyncio.Event(), one.broker("b").log_ranges
            piece = ranges.piece

            def taken(start: int, size: int) -> Any:
                if not comparing.is_set():
                    comparing.set()
                    one.broker("a").store.log.run.drop_before(FILE)
                return piece(start, size)

            ranges.piece = taken
            state = await one.scrub()
            assert comparing.is_set()
            assert (state.found, state.compared > FILE) == (0, True)

    asyncio.run(body())


def test_a_pass_that_was_interrupted_goes_on(tmp_path):
    """When the master is back, from where it was."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            slave = one.running["b"]._tasks.role._slave
            start, _ = one.records()[31]
            one.flip("b", start + BODY_AT)
            ask = slave.scrubbing._caller.call

            async def once(address: str, command: Any, timeout: float) -> Any:
                if command.code == 30016:
                    slave.scrubbing._caller.call = ask
                    await one.stop("a")
                return await ask(address, command, timeout)

            slave.scrubbing._caller.call = once
            with pytest.raises(Exception, match="a"):
                await one.scrub()
            left = slave.scrubbing._left
            assert left is not None
            await one.start("a")
            state = await one.scrub()
            assert [found.log_offset for found in state.differences] == [start]
            assert slave.scrubbing._left is None

    asyncio.run(body())


def test_a_master_without_checksums_leaves_its_slave_to_check_its_own_records(tmp_path, monkeypatch, caplog):
    """A RocketMQ answers code 3. That is said once; damaged records are told."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(GetReplicaState, "read", lambda _self, _answer: None)

    async def body() -> None:
        async with pair(tmp_path) as one:
            assert (await one.scrub()).alone
            start, size = one.records()[31]
            one.flip("b", start + BODY_AT)
            state = await one.scrub()
            (found,) = state.differences
            assert (found.log_offset, found.size, found.damaged) == (start, size, DamagedSide.SLAVE)
            assert found.file == str(one.file("b", start))

    asyncio.run(body())
    assert caplog.text.count("tells no checksums of its log") == 1
    assert "is damaged at byte" in caplog.text


def test_a_master_that_answers_garbage_harms_nobody(tmp_path, monkeypatch):
    """Undecodable bodies end the pass; bytes that are no records make the master the damaged one."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            master = one.broker("a").log_ranges
            piece, checksums = master.piece, master.checksums

            def garbled(start: int, size: int) -> Any:
                reading = piece(start, size)
                reading.when_done(lambda _error: setattr(reading, "_outcome", b"\xda" * len(reading.outcome())))
                return reading

            master.piece = garbled
            one.flip("b", one.records()[31][0] + BODY_AT)
            state = await one.scrub()
            assert DamagedSide.SLAVE not in {found.damaged for found in state.differences}
            start, size = one.records()[31]
            with pytest.raises(BrokerError, match="nothing was changed"):
                await one.ask("b", RepairLog(start, size, one.running["a"].address))
            monkeypatch.setattr(extensions, "log_checksums", lambda _told: b"[}")
            with pytest.raises(Exception, match="no checksums of a log"):
                await one.scrub()
            assert checksums is not None
            assert one.broker("b").leads is False

    asyncio.run(body())


def test_the_background_passes_begin_by_themselves(tmp_path, monkeypatch):
    """So long after the start, and then each `scrubInterval`."""
    monkeypatch.setattr(scrub, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(metaq.app.role.scrub, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(metaq.app.role.scrub, "RETRY_SECONDS", 0.05)

    async def body() -> None:
        async with pair(tmp_path) as one:
            ledger = one.broker("b").scrub
            await until(lambda: ledger.state.ended_ms)
            assert 23 * 3600 < ledger.due_in() <= 24 * 3600

    asyncio.run(body())


def test_pieces_are_of_the_whole_log(tmp_path):
    """What a pass reads of a broker is what its files hold."""

    async def body() -> None:
        async with pair(tmp_path, messages=5) as one:
            told = await one.ask("a", GetLogChecksums(0, one.end))
            assert len(told.checksums) == 1
            data = await one.ask("b", GetLogBytes(0, RANGE_BYTES))
            assert data == raw_log(tmp_path / "a", 0, one.end)

    asyncio.run(body())


def test_nothing_differs_while_messages_come(tmp_path, monkeypatch):
    """Passes one after the other, over files that are being written; and a repair beside them."""
    monkeypatch.setattr(metaq.app.role.scrub, "STEP_RANGES", 1)

    async def body() -> None:
        async with pair(tmp_path) as one:
            slave = one.running["b"]._tasks.role._slave
            await until(lambda: slave.search.address)
            async with aio.Producer(one.namesrv.address) as producer:

                async def load() -> None:
                    chance = seeded(1)
                    for _ in range(300):
                        await producer.send("orders", chance.randbytes(chance.randrange(1, 20_000)))

                sending = asyncio.create_task(load())
                passes = 0
                while not sending.done():
                    await slave.scrubbing.run()
                    assert one.broker("b").scrub.state.found == 0
                    passes += 1
                    if passes == 3:
                        start, size = one.records()[2]
                        one.flip("b", start + BODY_AT)
                        await one.ask("b", RepairLog(start, size, one.running["a"].address))
                await sending
            assert passes > 3
            assert one.end > 2 * FILE
            await one.settle()
            assert (await one.scrub()).found == 0

    asyncio.run(body())


def test_the_end_of_a_file_is_repaired(tmp_path):
    """Its blank record, and the last record before it, with one request: they are written and synced together."""

    async def body() -> None:
        async with pair(tmp_path, messages=2) as one:
            async with aio.Producer(one.namesrv.address) as producer:
                for number in range(3):
                    await producer.send("orders", seeded(number).randbytes(700_000))
            await one.settle()
            last, size = [record for record in one.records() if record[0] < FILE][-1]
            one.flip("b", last + BODY_AT)
            one.flip("b", FILE - 5)
            one.flip("b", last + size + 2)
            state = await one.scrub()
            assert sum(found.size for found in state.differences) == FILE - last
            mended = await one.ask("b", RepairLog(last, FILE - last, one.running["a"].address))
            assert (mended.log_offset, mended.size) == (last, FILE - last)
            assert len(list((tmp_path / "b" / "cut").iterdir())) == 1
            await one.same()

    asyncio.run(body())


def test_a_repair_is_written_whole_when_the_broker_stops(tmp_path, monkeypatch):
    """Half a record in the log would be worse than the one that was damaged."""
    at_work, go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        at_work.set()
        go_on.wait()
        overwrite(*args)

    monkeypatch.setattr("metaq.store.message_writer.overwrite", slow)

    async def body() -> None:
        async with pair(tmp_path) as one:
            start, size = one.records()[31]
            one.flip("b", start + BODY_AT)
            requests = one.broker("b").repair_requests
            asked = asyncio.create_task(one.ask("b", RepairLog(start, size, one.running["a"].address)))
            await until(at_work.is_set)
            stopping = asyncio.create_task(one.stop("b"))
            await until(lambda: stopping.done() or requests._mend is None)
            go_on.set()
            await stopping
            await asyncio.gather(asked, return_exceptions=True)
            await one.start("b")
            await one.same()

    asyncio.run(body())
