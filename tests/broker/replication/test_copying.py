"""What a slave makes of its master's chunks: its log, who is told, and what it refuses."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaq.broker.broker import Broker
from metaq.broker.replication import copying
from metaq.broker.replication.copying import Copying
from metaq.clock import FakeClock, seeded
from metaq.errors import RemoteProtocolError, StoreError, StoreFull
from metaq.wire.ha import Chunk
from tests.broker.support import open_broker
from tests.store.log.test_raw import raw_log
from tests.store.support import message

FILE = 64 << 10


@contextmanager
def opened(root: pathlib.Path, *, leading: bool = True, size: int = FILE, **store: object) -> Iterator[Broker]:
    settings = {"mapped_file_size_commit_log": size, **store}
    with open_broker(root, FakeClock(), settings, leading=leading, broker_id=0 if leading else 1) as broker:
        yield broker


def put(broker: Broker, *bodies: bytes, topic: str = "orders") -> None:
    broker.appender.put([message(topic, 0, body) for body in bodies])


class Slave:
    """A following broker, and how often it has asked for its master's tables."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.asked = broker, 0
        self.copying = Copying(broker.environment, broker.appender, broker.topics, self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def take(self, *chunks: tuple[int, bytes]) -> int:
        self.copying.take([Chunk(place, memoryview(data)) for place, data in chunks])
        return self.copying.log_end


@pytest.fixture
def log(tmp_path) -> bytes:
    """A master's log over several files."""
    with opened(tmp_path / "master") as master:
        for number in range(300):
            put(master, b"%d" % number * (number % 200))
        end = master.store.log.end
    return raw_log(tmp_path / "master", 0, end)


@pytest.mark.parametrize("seed", range(4))
def test_chunks_cut_anywhere_make_the_same_log(tmp_path, log, seed):
    """Several at once or one by one, with heartbeats between; only whole records count as copied."""
    chance = seeded(f"chunks {seed}")
    with opened(tmp_path / "slave", leading=False) as broker:
        slave, place = Slave(broker), 0
        while place < len(log):
            chunks = []
            for _ in range(chance.choice((1, 2, 5))):
                size = chance.choice((1, 7, 300, 32 << 10))
                chunks.append((place, log[place : place + size]))
                place = min(len(log), place + size)
                if chance.random() < 0.2:
                    chunks.append((place, b""))
            end = slave.take(*chunks)
            assert end <= place
            assert slave.copying.held == end
        assert slave.copying.log_end == len(log)
        assert raw_log(tmp_path / "slave", 0, len(log)) == log
        queue = broker.store.reader.existing_queue("orders", 0)
        assert queue is not None and queue.max_offset == 300


def test_an_empty_log_begins_where_a_file_of_the_masters_does(tmp_path, log):
    """And nowhere else; a log that has something goes on where it ends."""
    with opened(tmp_path / "slave", leading=False) as broker:
        slave = Slave(broker)
        with pytest.raises(RemoteProtocolError, match="from 100 on, and 0 comes next"):
            slave.take((100, log[100:200]))
        slave.take((FILE, log[FILE:]))
        assert (broker.store.log.min, broker.store.log.end) == (FILE, len(log))
        for place in (0, FILE, len(log) - 1, len(log) + 1):
            with pytest.raises(RemoteProtocolError, match=f"and {len(log)} comes next here"):
                slave.take((place, b"x" * 10))
        assert slave.take((0, b"")) == len(log)


def test_what_is_no_log_is_not_appended(tmp_path, log, monkeypatch):
    """Damaged bytes, zeros, other file sizes, and a record that never ends."""
    with opened(tmp_path / "slave", leading=False) as broker:
        slave = Slave(broker)
        damaged = log[:1000] + bytes([log[1000] ^ 1]) + log[1001:5000]
        with pytest.raises(StoreError, match="none of them was appended"):
            slave.take((0, damaged))
        assert broker.store.log.end == 0
    with opened(tmp_path / "zeros", leading=False) as broker, pytest.raises(StoreError, match="untouched bytes"):
        Slave(broker).take((0, bytes(100)))
    other = opened(tmp_path / "other", leading=False, size=2 * FILE)
    with other as broker, pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        Slave(broker).take((0, log))
    monkeypatch.setattr(copying, "UNFINISHED_BYTES_MIN", 1000)
    with opened(tmp_path / "endless", leading=False, size=16 << 20, max_message_size=1000) as broker:
        slave = Slave(broker)
        head = (8 << 20).to_bytes(4, "big") + log[4:100]
        with pytest.raises(RemoteProtocolError, match="has more than"):
            slave.take((0, head + bytes(200_000)))
        assert broker.store.log.end == 0


def test_a_slave_that_flushes_promises_only_what_is_on_its_disk(tmp_path, log):
    """SYNC_FLUSH at the slave: its report waits for the sync."""
    with opened(tmp_path / "slave", leading=False, flush_disk_type="SYNC_FLUSH") as broker:
        slave, done = Slave(broker), []
        waiting = []
        broker.store.flusher.when_flushed = lambda end, done: waiting.append((end, done))  # type: ignore[method-assign]
        slave.take((0, log))
        slave.copying.when_held(lambda: done.append(True))
        assert (waiting[0][0], done) == (len(log), [])
        broker.store.flusher.flush()
        waiting[0][1](True)
        assert (done, slave.copying.held) == ([True], len(log))


def test_who_waits_at_the_slave_is_told_at_once(tmp_path, log):
    """Held pulls; and unknown topics have the slave ask for its master's tables."""
    with opened(tmp_path / "slave", leading=False) as broker:
        slave, grown = Slave(broker), []
        broker.appender.when_grown(
            lambda queues, messages, size, start, end: grown.append((len(queues), start, end)), watched_only=True
        )
        end = slave.take((0, log[:20_000]))
        assert grown == [(1, 0, end)]
        assert slave.asked == 1


def test_a_full_disk_keeps_what_has_fitted_and_goes_on_from_there(tmp_path, log):
    """As at 90 percent: nothing is taken until there is room."""
    with opened(tmp_path / "slave", leading=False) as broker:
        slave = Slave(broker)
        slave.take((0, log[:5000]))
        end = broker.store.log.end
        broker.store.state.set_writable(False)
        with pytest.raises(StoreFull):
            slave.take((5000, log[5000:]))
        broker.store.state.set_writable(True)
        assert Slave(broker).take((end, log[end:])) == len(log)
        assert raw_log(tmp_path / "slave", 0, len(log)) == log
