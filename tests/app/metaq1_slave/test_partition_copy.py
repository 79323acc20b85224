"""The copy of a partition by the text protocol: ids and byte positions stay, nothing is passed over, and nothing is mixed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import struct
from collections.abc import Callable, Iterator, Sequence

import pytest

from metaq.app.metaq1_slave.appending import CopiedPartitions
from metaq.app.metaq1_slave.partition_copy import GET_BYTES, CopyRules, PartitionCopy
from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.errors import ConnectionFailed, Reason, Refused
from metaq.log import RateLimitedLog
from metaq.metaq1.conversation.pipeline import Make
from metaq.model.metaq1.partition import Frames, Got, Later, Moved, PartitionGet
from metaq.model.upkeep.floors import queue_key
from metaq.options import Metaq1Options
from metaq.store.offline.segments import FRAME_BYTES_MAX
from metaq.wire.metaq1.commands import Answer, GetLine, OffsetLine, ResultLine, TooLong, ValueLine
from metaq.wire.metaq1.frame import frame, frames
from tests.broker.metaq1.support import CHANNEL, Patient, put, settings
from tests.broker.metaq1.test_position_bases import bodies, work
from tests.broker.support import open_broker
from tests.support import PATIENCE

TOPIC = "test"


class _Connection:
    number = 1


class Master:
    """The master's end of the connection: a partition as bytes, from a position on."""

    address = "10.0.0.5:8123"

    def __init__(self, begin: int = 0) -> None:
        self.begin, self.data = begin, b""
        self.up: _Connection | None = _Connection()
        self.asked: list[tuple[int, int]] = []
        self.failure: Exception | None = None
        self.beyond_is_moved = False
        self.answer: ResultLine | None = None
        """To every get; None: what there is."""

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def put(self, bodies: Sequence[bytes], first_id: int = 1000, flag: int = 0) -> None:
        for number, body in enumerate(bodies):
            self.data += frame(first_id + number, flag, body)

    def connect_anew(self) -> None:
        self.up = _Connection()
        self.up.number = len(self.asked) + 2

    async def ask(self, make: Make, action: str, timeout: float, number: int | None = None) -> Answer | TooLong:
        if self.failure is not None:
            raise self.failure
        line = make(7)
        if isinstance(line, OffsetLine):
            return ResultLine(200, b"%d" % self.begin, 7) if self.data else ResultLine(404, b"nothing", 7)
        assert isinstance(line, GetLine)
        self.asked.append((line.offset, line.max_bytes))
        if self.answer is not None:
            return self.answer
        if line.offset < self.begin:
            return ResultLine(301, b"%d" % self.begin, 7)
        if line.offset > self.end and self.beyond_is_moved:
            return ResultLine(301, b"%d" % self.end, 7)
        if line.offset >= self.end:
            return ResultLine(404, b"nothing there", 7)
        at = line.offset - self.begin
        return ValueLine(self.data[at : at + line.max_bytes], 7)


class Slave:
    """A slave's broker, and its copy of partition 0."""

    def __init__(self, broker: Broker, master: Master) -> None:
        self.broker, self.master, self.patient = broker, master, Patient(broker)
        self.let_go: list[tuple[str, int]] = []
        self.copy = PartitionCopy(
            CopiedPartitions(broker), TOPIC, 0, CopyRules("g", 0.5), let_go=self._let_go, at_once=asyncio.Semaphore(1),
            faults=RateLimitedLog(logging.getLogger(), FakeClock()), clock=broker.clock,
        )  # fmt: skip

    async def _let_go(self, topic: str, partition: int) -> None:
        self.let_go.append((topic, partition))
        moved: list[bool | None] = []
        self.broker.store.keeper.trim({queue_key(topic, partition): self.broker.store.log.end}, moved.append)
        async with asyncio.timeout(PATIENCE):
            while not moved:  # by the thread of retention
                await asyncio.sleep(0.001)
        if moved != [True]:
            raise Refused(Reason.BUSY, "not yet")

    def steps(self, count: int = 1) -> None:
        async def run() -> None:
            async def serve() -> None:
                while True:
                    work(self.broker, 1)
                    await asyncio.sleep(0)

            serving = asyncio.create_task(serve())
            for _ in range(count):
                await self.copy.try_step(self.master)
            serving.cancel()

        asyncio.run(run())

    def read(self, position: int, size: int = 1 << 20) -> Got | Later:
        got = self.patient.get(
            PartitionGet(topic=TOPIC, group="g", partition=0, position=position, size_max=size), CHANNEL
        )
        return got.finish(got.job()) if isinstance(got, Later) else got

    def data(self, position: int = 0) -> bytes:
        got = self.read(position, 4 << 20)
        assert isinstance(got, Frames)
        return bytes(got.body)


SLAVE = Metaq1Options(broker_id=7, slave_id=0, zk_connect="127.0.0.1:1")


@contextlib.contextmanager
def opened(root: pathlib.Path, master: Master) -> Iterator[Slave]:
    store = {"max_message_size": FRAME_BYTES_MAX, "mapped_file_size_commit_log": 16 << 20}
    with open_broker(root, store=store, metaq1=settings(SLAVE, test=1)) as broker:
        yield Slave(broker, master)


@pytest.fixture
def master() -> Master:
    return Master()


def test_every_message_keeps_its_id_and_its_place(tmp_path, master):
    """Bytes of the frames are the master's, whatever flags and attributes they have, negative ids too; also behind a restart."""
    master.put(bodies(200))
    master.put([struct.pack(">i", 4) + b"TAGS" + b"x", struct.pack(">i", 0)], 5000, flag=1)
    master.put([b"odd"], -5468926395948204032, flag=1 << 20)
    with opened(tmp_path, master) as slave:
        slave.steps(2)
        assert slave.data() == master.data
        assert slave.copy.pause > 0
    master.put(bodies(50, 3), 9000)
    with opened(tmp_path, master) as slave:
        slave.steps(2)
        assert slave.data() == master.data
        assert slave.data(40 * 20 + sum(map(len, bodies(40)))) == master.data[40 * 20 + sum(map(len, bodies(40))) :]


def test_a_partition_begins_where_the_masters_begins(tmp_path):
    """Its first files have gone: what is copied lies where it lies there, and who asks for less is moved there."""
    master = Master(begin=7_000)
    master.put(bodies(20))
    with opened(tmp_path, master) as slave:
        slave.steps(2)
        assert slave.data(7_000) == master.data
        assert slave.read(12) == Moved(7_000)


def test_pauses_grow_while_nothing_comes_and_end_when_something_does(tmp_path, master):
    with opened(tmp_path, master) as slave:
        pauses = []
        for _ in range(12):
            slave.steps()
            pauses.append(round(slave.copy.pause, 3))
        assert pauses == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.5, 0.5]
        master.put([b"x"])
        slave.steps()
        assert slave.copy.pause == 0
        master.failure = ConnectionFailed("away")
        slave.steps()
        assert slave.copy.pause == pytest.approx(0.05)


@pytest.mark.parametrize(
    "answer", [ResultLine(403, b"Partition[7-0] has been closed", 7), ResultLine(301, b"0", 7), ResultLine(500, b"", 7)]
)
def test_an_answer_that_leads_nowhere_is_not_asked_for_without_a_pause(tmp_path, master, caplog, answer):
    """A closed partition is told in the log: a slave that waits for it looks like one that has all."""
    master.answer = answer
    with opened(tmp_path, master) as slave:
        slave.steps(3)
        assert slave.copy.pause == pytest.approx(0.15)
        assert ("has been closed" in caplog.text) == (answer.code == 403)


def test_a_damaged_message_is_never_passed_over(tmp_path, master):
    """Those before it are copied, and it is asked for again until it comes whole."""
    master.put(bodies(10))
    good, place = master.data, 5 * 20 + sum(map(len, bodies(5)))
    master.data = good[: place + 21] + bytes([good[place + 21] ^ 1]) + good[place + 22 :]
    with opened(tmp_path, master) as slave:
        slave.steps(5)
        assert slave.data() == good[:place]
        assert slave.copy.pause > 0
        assert [position for position, _ in master.asked[-2:]] == [place, place]
        master.data = good
        slave.steps()
        assert slave.data() == good


def test_a_message_longer_than_a_get_is_asked_for_with_more(tmp_path, master):
    master.put([b"a", b"x" * (3 * GET_BYTES), b"b"])
    with opened(tmp_path, master) as slave:
        slave.steps(8)
        assert [len(one.body) for one in frames(slave.data(21))][:1] == [3 * GET_BYTES]
        assert slave.data(21 + 20 + 3 * GET_BYTES) == frame(1002, 0, b"b")


def test_a_slave_that_was_away_for_too_long_goes_on_where_the_master_begins(tmp_path, master, caplog):
    """The gap is told; what it had before it goes, since positions are one sequence; consumers are moved over it."""
    master.put(bodies(30))
    with opened(tmp_path, master) as slave:
        slave.steps(2)
    end = master.end
    master.begin, master.data = end + 10_000, b""
    master.put(bodies(10, 5), 2000)
    with opened(tmp_path, master) as slave:
        slave.steps(20)
        assert slave.let_go
        assert "messages of 10000 bytes are lost to this slave" in caplog.text
        assert slave.data(master.begin) == master.data
        assert slave.read(end) == Moved(master.begin)
        assert slave.read(0) == Moved(master.begin)
    with opened(tmp_path, master) as slave:
        master.put([b"more"], 3000)
        slave.steps(3)
        assert slave.data(master.begin) == master.data


@pytest.mark.parametrize("moved", [False, True])
def test_a_master_that_has_lost_messages_is_not_followed(tmp_path, master, caplog, moved):
    """Other messages would come to the places of the lost ones. With updateConsumerOffsets it sends consumers back (301)."""
    master.put(bodies(30))
    with opened(tmp_path, master) as slave:
        slave.steps(2)
        kept, lost = master.data, sum(20 + len(body) for body in bodies(30)[25:])
        master.data, master.beyond_is_moved = kept[:-lost], moved
        master.connect_anew()
        slave.steps(2)
        assert "it has lost messages, or is another broker" in caplog.text
        master.put([b"y" * 3000], 7777)  # it has grown past the copy's end
        slave.steps(2)
        assert slave.data() == kept
        assert slave.copy.pause >= 5


def test_messages_of_others_in_the_copy_stop_it(tmp_path, master, caplog):
    """Whoever has put them, they have the place of a message of the master's."""
    master.put(bodies(5))
    with opened(tmp_path, master) as slave:
        slave.steps(2)
        copied = CopiedPartitions(slave.broker)
        copied.append([copied.record(TOPIC, 0, next(frames(frame(1, 0, b"foreign"))), 1)])
        work(slave.broker)
        master.put(bodies(50), 4000)
        master.connect_anew()
        slave.steps(3)
        assert "another message than the copy" in caplog.text
        assert slave.data().count(b"foreign") == 1
        assert len(list(frames(slave.data()))) == 6


def test_a_slave_takes_no_messages_of_clients(tmp_path, master):
    """Neither by the text protocol nor by any other server, also before and after the copy."""
    master.put(bodies(5))
    with opened(tmp_path, master) as slave:

        def puts() -> Iterator[Callable[[], object]]:
            yield lambda: put(slave.patient, b"x")
            yield lambda: slave.broker.topics.taking(TOPIC)

        for attempt in (*puts(), *puts()):
            with pytest.raises(Refused) as caught:
                attempt()
            assert caught.value.reason is Reason.NOT_LEADING
            assert "asynchronous slave 0" in caught.value.text
            slave.steps(2)
        assert slave.data() == master.data
