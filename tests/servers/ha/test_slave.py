"""A slave's side of the connection: what it reports when, and when it leaves its master."""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaq.clock import FakeClock
from metaq.errors import RemoteProtocolError
from metaq.servers.ha.slave import LONG_BYTES, Following, MasterSession, Progress, Source
from metaq.store.disk import Disk
from metaq.wire.ha import decode_reports, encode_head
from tests.broker.support import open_broker
from tests.servers.support import FakePeer, SlowDisk
from tests.store.log.test_raw import raw_log
from tests.store.support import message
from tests.support import eventually


class Slave:
    """A session on a loop that the test turns."""

    def __init__(self, broker, loop) -> None:
        self.broker, self.clock, self.peer, self.loop = broker, broker.clock, FakePeer(), loop
        self.peer.resume = lambda: self.resumed.append(True)
        self.resumed: list[bool] = []
        self.session = loop.run_until_complete(self._make())

    async def _make(self) -> MasterSession:
        return MasterSession(self.peer, self.broker, lambda act: act(), lambda: None)

    def get(self, data: bytes) -> int:
        return self.session.data_received(memoryview(data))

    def reported(self) -> list[int]:
        writes, self.peer.writes = self.peer.writes, []
        return [decode_reports(memoryview(data))[0] for data in writes]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.session.tick()


@pytest.fixture
def log(tmp_path: pathlib.Path) -> bytes:
    with open_broker(tmp_path / "master", FakeClock()) as master:
        for number in range(40):
            master.appender.put([message("orders", 0, b"%d" % number * 5000)])
        end = master.store.log.end
    return raw_log(tmp_path / "master", 0, end)


@contextmanager
def opened(root: pathlib.Path, disk: Disk | None = None, **store: object) -> Iterator[Slave]:
    loop = asyncio.new_event_loop()
    with open_broker(root, FakeClock(), store, disk, leading=False, broker_id=1) as broker:
        yield Slave(broker, loop)
    loop.close()


def test_it_says_where_its_log_ends_at_once_and_after_each_chunk(tmp_path, log):
    """RocketMQ's slave waits five seconds before the first report. Of a cut record only what is whole counts."""
    with opened(tmp_path / "slave") as slave:
        assert slave.reported() == [0]
        first = encode_head(0, 20_000) + log[:20_000]
        assert slave.get(first[:100]) == 0
        assert slave.session.frame_needed() == len(first)
        assert slave.get(first) == len(first)
        end = slave.broker.store.log.end
        assert 0 < end < 20_000
        assert slave.reported() == [end]
        slave.get(encode_head(20_000, 0))
        assert slave.reported() == []
        slave.get(encode_head(20_000, len(log) - 20_000) + log[20_000:])
        assert slave.reported() == [len(log)]


def test_a_slave_that_has_not_synced_all_yet_says_nothing_before(tmp_path, log):
    """Its master would go on behind what is synced, and so send again what is here: the connection would end."""
    disk = SlowDisk()
    with opened(tmp_path / "slave", disk, flush_disk_type="SYNC_FLUSH") as slave:
        slave.broker.store.flusher.flush()
        disk.may_sync.clear()
        slave.broker.store.writer.append_raw(log, 0)
        again = Slave(slave.broker, slave.loop)
        assert again.reported() == []
        disk.may_sync.set()
        eventually(lambda: again.peer.writes)
        assert again.reported() == [len(log)]


def test_a_long_chunk_lets_others_have_their_turn(tmp_path, log):
    """A slave that catches up serves on."""
    with opened(tmp_path / "slave") as slave:
        slave.get(encode_head(0, 1000) + log[:1000])
        assert slave.resumed == []
        size = 2 * LONG_BYTES
        slave.get(encode_head(1000, size) + log[1000 : 1000 + size])
        assert (slave.peer.paused, slave.resumed) == (True, [True])


def test_heartbeats_and_a_silent_master(tmp_path):
    """It speaks every haSendHeartbeatInterval, and leaves a master that did not for haHousekeepingInterval."""
    with opened(tmp_path / "slave") as slave:
        slave.reported()
        for _ in range(5):
            slave.pass_time(5.1)
            slave.get(encode_head(0, 0))
            assert slave.reported() == [0]
        for _ in range(3):
            slave.pass_time(5.1)
        assert not slave.peer.closed
        slave.pass_time(5.1)
        assert slave.peer.closed
        assert slave.peer.why == "it was silent for 20 s"


def test_what_cannot_be_taken_counts_as_nothing_copied(tmp_path, log):
    """So that the next connection is not tried at once, again and again."""
    with opened(tmp_path / "slave") as slave:
        damaged = log[:500] + b"!" + log[501:10_000]
        with pytest.raises(RemoteProtocolError, match="none of them was appended"):
            slave.get(encode_head(0, len(damaged)) + damaged)
        assert not slave.session.copied


def test_it_goes_on_whatever_the_look_for_a_master_raises(tmp_path, caplog):
    """A task that died would leave a slave that follows nobody."""

    async def body(broker) -> None:
        asked = []

        async def find() -> Source | None:
            asked.append(True)
            if len(asked) == 1:
                raise RuntimeError("what nobody expects")
            return None

        following = Following(broker, lambda act: act(), find, lambda: None, retry_seconds=(0.0,))
        following.start()
        while len(asked) < 3:
            await asyncio.sleep(0)
        await following.stop()

    with open_broker(tmp_path / "slave", FakeClock(), leading=False, broker_id=1) as broker:
        asyncio.run(body(broker))
    assert "what nobody expects" in caplog.text
    assert "no master of broker-a is known" in caplog.text


def test_a_slave_far_behind_says_how_far_it_has_come(caplog):
    """With rate and the time that is left, every few seconds; and when it has all."""
    clock, ends, wanted = FakeClock(), [0], 10 * 1000**3
    progress = Progress(clock, lambda: ends[-1], lambda: wanted)
    caplog.set_level(logging.INFO)
    for end in (1000**3, 2 * 1000**3, wanted):
        ends.append(end)
        for _ in range(10):
            clock.advance(0.5)
            progress.tick()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "1.00 of 10.00 GB of the master's log are here (10 %): 200.0 MB/s, about 45 s left",
        "2.00 of 10.00 GB of the master's log are here (20 %): 200.0 MB/s, about 40 s left",
        "all of the master's log is here, up to 10000000000",
    ]
