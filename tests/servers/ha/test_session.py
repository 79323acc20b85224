"""The replication server's sessions: what slaves get, and what becomes of peers that are none."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.errors import RemoteProtocolError
from metaq.servers.ha.server import ReplicationServer
from metaq.servers.ha.session import SlaveSession
from metaq.servers.server import BrokerServices
from metaq.wire.ha import decode_chunks, encode_report
from tests.broker.support import open_broker
from tests.servers.support import FakePeer
from tests.store.log.test_raw import raw_log
from tests.store.support import message

FILE = 64 << 10
STORE = {"mapped_file_size_commit_log": FILE}


class Slave:
    """The other end of a session."""

    def __init__(self, master: Master) -> None:
        self.peer = FakePeer()
        self.session: SlaveSession = master.server.session(self.peer)

    def report(self, log_end: int) -> None:
        assert self.session.data_received(memoryview(encode_report(log_end))) == 8

    def got(self) -> list[tuple[int, bytes]]:
        """The chunks since the last call, all that waits for its turn included."""
        while self.peer.jobs:
            self.peer.jobs.popleft()()
        data, self.peer.writes = b"".join(self.peer.writes), []
        chunks, taken, _, _ = decode_chunks(memoryview(data))
        assert taken == len(data)
        return [(chunk.log_offset, bytes(chunk.data)) for chunk in chunks]


class Master:
    """A broker, and its replication server on a loop that the test turns."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker, self.loop, self.clock = broker, loop, broker.clock
        services = BrokerServices(broker, loop.call_soon, lambda done: done(), "127.0.0.1")

        async def make() -> ReplicationServer:
            return ReplicationServer(services)

        self.server = loop.run_until_complete(make())

    @property
    def end(self) -> int:
        return self.broker.store.log.end

    def put(self, *bodies: bytes) -> None:
        self.broker.appender.put([message("orders", 0, body) for body in bodies])

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.server.tick()


@contextmanager
def opened(root: pathlib.Path, *, hours: int = 72, **options: object) -> Iterator[Master]:
    loop = asyncio.new_event_loop()
    with open_broker(root, FakeClock(), {**STORE, "file_reserved_time": hours}, **options) as broker:
        master = Master(broker, loop)
        yield master
        master.server.close()
    loop.close()


def test_a_slave_gets_the_log_as_it_is_in_chunks_that_end_with_files(tmp_path):
    """From the first record on, of at most haTransferBatchSize; the rest of a file as ordinary bytes."""
    with opened(tmp_path, ha_transfer_batch_size=10_000) as master:
        for number in range(300):
            master.put(b"%d" % number * 300)
        slave = Slave(master)
        assert slave.got() == []
        slave.report(0)
        chunks = slave.got()
        assert b"".join(data for _, data in chunks) == raw_log(tmp_path, 0, master.end)
        assert [place for place, _ in chunks] == [0, *(place + len(data) for place, data in chunks)][:-1]
        assert all(len(data) <= 10_000 and place // FILE == (place + len(data) - 1) // FILE for place, data in chunks)
        assert master.end > 2 * FILE


def test_what_is_appended_goes_out_in_the_same_turn_of_the_loop(tmp_path):
    """To each slave, once for all that the turn has appended."""
    with opened(tmp_path) as master:
        slaves = [Slave(master), Slave(master)]
        for slave in slaves:
            slave.report(0)
        master.put(b"a")
        master.put(b"b", b"c")
        assert [slave.got() for slave in slaves] == [[], []]
        master.turn()
        assert [slave.got() for slave in slaves] == [[(0, raw_log(tmp_path, 0, master.end))]] * 2


def test_a_slave_goes_on_where_its_log_ends_also_within_a_record(tmp_path):
    """A RocketMQ slave's log may end anywhere."""
    with opened(tmp_path) as master:
        master.put(b"a" * 100)
        slave = Slave(master)
        slave.report(50)
        assert slave.got() == [(50, raw_log(tmp_path, 50, master.end))]
        slave.report(master.end)
        assert master.broker.replicas.copied == master.end


def test_a_slave_that_does_not_read_gets_no_more(tmp_path):
    """What it has not read stays in the log."""
    with opened(tmp_path) as master:
        slave = Slave(master)
        slave.report(0)
        slave.peer.congested = True
        for _ in range(20):
            master.put(b"x" * 9000)
            master.turn()
        master.server.tick()
        assert slave.got() == []
        slave.peer.congested = False
        slave.peer.on_writable()
        assert b"".join(data for _, data in slave.got()) == raw_log(tmp_path, 0, master.end)


def test_a_slave_that_catches_up_is_held_to_its_rate(tmp_path):
    """One that keeps up never is; and the option may be changed at any time."""
    with opened(tmp_path, ha_flow_control_enable=True, max_ha_transfer_byte_in_second=FILE) as master:
        for _ in range(60):
            master.put(b"x" * 9000)
        slave = Slave(master)
        slave.report(0)
        assert slave.got() == []
        sent = seconds = 0
        while master.end - sent > FILE:
            master.pass_time(0.1)
            seconds += 0.1
            sent += sum(len(data) for _, data in slave.got())
            assert sent <= seconds * FILE + 256 * 1024  # a piece at once
        assert seconds > (master.end - 256 * 1024) / FILE - 1
        master.put(b"y")
        master.turn()
        sent += sum(len(data) for _, data in slave.got())
        assert sent == master.end


def test_a_log_with_another_history_is_asked_for_anew(tmp_path):
    """A slave's log that was cut, or whose broker was promoted, is not sent on to slaves of its own."""
    with opened(tmp_path) as master:
        slaves = [Slave(master), Slave(master)]
        slaves[0].report(0)
        master.broker.replicas.history += 1
        master.server.tick()
        assert [slave.peer.closed for slave in slaves] == [True, True]
        slaves.append(Slave(master))
        slaves[2].report(0)
        master.put(b"a")
        master.turn()
        assert slaves[2].got() == [(0, raw_log(tmp_path, 0, master.end))]


def test_how_far_a_slave_is_behind_is_told_in_time_too(tmp_path):
    """Since when the log has been longer than what the slave has."""
    with opened(tmp_path) as master:
        slave = Slave(master)
        slave.report(0)
        master.put(b"a")
        first = master.end
        master.pass_time(0)
        master.put(b"b")
        master.pass_time(2)
        master.pass_time(3)
        replicas, now = master.broker.replicas, master.clock.monotonic()
        assert replicas.behind_ms(0, now) == 5000
        assert replicas.behind_ms(first, now) == 3000
        assert replicas.behind_ms(master.end, now) == 0


def test_old_files_are_read_in_a_thread(tmp_path, monkeypatch):
    """Where the kernel does not have them in memory, nobody waits for the disk."""
    with opened(tmp_path) as master:
        for _ in range(20):
            master.put(b"x" * 9000)
        monkeypatch.setattr(type(master.broker.store.reader), "log_bytes_cached", lambda *_: None)
        slave, found = Slave(master), b""

        async def report() -> None:
            slave.report(0)

        master.loop.run_until_complete(report())
        assert slave.got() == []
        while len(found) < master.end:
            master.loop.run_until_complete(asyncio.sleep(0.001))
            found += b"".join(data for _, data in slave.got())
        assert found == raw_log(tmp_path, 0, master.end)


def test_heartbeats_and_silence(tmp_path):
    """A master that has nothing to send says so every haSendHeartbeatInterval; a slave that reports nothing is closed."""
    with opened(tmp_path) as master:
        master.put(b"a")
        silent, slave = Slave(master), Slave(master)
        slave.report(0)
        slave.got()
        for _ in range(3):
            master.pass_time(5.1)
            assert slave.got() == [(master.end, b"")]
            slave.report(master.end)
        assert not silent.peer.closed
        master.pass_time(5.1)
        assert (silent.peer.closed, slave.peer.closed) == (True, False)
        assert "has not reported for 20 s" in silent.peer.why
        master.pass_time(20)
        assert slave.peer.closed


@pytest.mark.parametrize("reported", [-1, 10**6, 1 << 62, int.from_bytes(b"GET / HT", "big")])
def test_a_peer_whose_log_cannot_go_on_here_gets_nothing_and_counts_for_nothing(tmp_path, caplog, reported):
    """It is closed after a while: RocketMQ's slaves come back at once. At RocketMQ's master such a report makes SEND_OK."""
    with opened(tmp_path, broker_role="SYNC_MASTER") as master:
        master.put(b"a")
        peer = Slave(master)
        peer.report(reported)
        peer.report(reported)
        assert (peer.got(), peer.peer.closed) == ([], False)
        assert not master.broker.replicas.available
        assert master.broker.replicas.copied == 0
        assert "127.0.0.1:50000 says that its log ends at" in caplog.text
        master.pass_time(5.1)
        assert peer.peer.closed
        peer.session.connection_lost(peer.peer.why)
        assert master.broker.replicas.connected == []


def test_a_slave_that_was_away_for_longer_than_the_log_is_kept_is_told_apart(tmp_path, caplog):
    """RocketMQ's master sends it empty chunks for ever."""
    with opened(tmp_path, hours=0) as master:
        for _ in range(30):
            master.put(b"x" * 9000)
        slave = Slave(master)
        slave.report(100)
        slave.got()
        slave.session.connection_lost("")
        master.broker.store.keeper.retain(master.clock.now_ms() + 1, at_once=True)
        assert master.broker.store.log.min > 0
        again, new = Slave(master), Slave(master)
        again.report(100)
        assert again.got() == []
        assert "what lies between is gone by retention" in caplog.text
        new.report(0)
        assert b"".join(data for _, data in new.got()) == raw_log(tmp_path, master.broker.store.log.min, master.end)
        new.report(0)  # a heartbeat that it sent before the first chunk came
        new.report(master.end)
        with pytest.raises(RemoteProtocolError):
            new.report(0)


@pytest.mark.parametrize("reported", [0, 1 << 40, -8])
def test_a_report_of_what_was_never_sent_or_goes_back_ends_the_connection(tmp_path, reported):
    """And acknowledges nothing."""
    with opened(tmp_path) as master:
        master.put(b"a")
        slave = Slave(master)
        slave.report(0)
        slave.got()
        slave.report(master.end)
        with pytest.raises(RemoteProtocolError, match="its log cannot end at"):
            slave.report(reported)
        assert master.broker.replicas.copied == master.end


def test_a_file_that_goes_while_it_is_sent_ends_the_connection(tmp_path, monkeypatch):
    """The slave comes back, and is told where the log begins."""
    with opened(tmp_path) as master:
        master.put(b"a")
        slave = Slave(master)
        monkeypatch.setattr(type(master.broker.store.reader), "log_bytes_cached", lambda *_: b"")
        slave.report(0)
        assert slave.peer.closed
        assert "is gone" in slave.peer.why
