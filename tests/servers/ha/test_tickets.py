"""Connections of followers in a group with failover: who they are, what counts of their reports, and what they are told."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import pytest

from metaq.broker.failover.in_sync import TICKET_SECONDS
from metaq.errors import RemoteProtocolError
from metaq.model.failover import GroupState, Place
from metaq.servers.ha.slave import MasterSession
from metaq.wire.ha import decode_chunks, encode_acknowledged, encode_head, encode_report, encode_ticket
from tests.broker.support import open_broker
from tests.servers.ha.test_session import Master, Slave, opened
from tests.servers.support import FakePeer

ONE, TWO = Place(1, "one"), Place(2, "two")
SESSION = 6.0


@pytest.fixture
def master(tmp_path) -> Iterator[Master]:
    """Member 1, which leads in epoch 5; member 2 is in sync."""
    with opened(tmp_path, failover="zookeeper", broker_id=1, slave_timeout=1000) as leader:
        leader.broker.in_sync.begin(1, GroupState("history", 5, 1, "me", (ONE, TWO)), 0)
        renew(leader)
        leader.broker.lead()
        slave = shown(leader)
        slave.report(0)  # so many are here: it takes messages
        leader.first = slave
        yield leader


def renew(leader: Master) -> None:
    leader.broker.in_sync.renewed(leader.clock.elapsed(), SESSION)


def shown(leader: Master, place: Place = TWO) -> Slave:
    """A connection that has shown its ticket."""
    slave = Slave(leader)
    assert slave.session.data_received(memoryview(encode_ticket(leader.broker.in_sync.ticket(place, 5)))) == 8
    return slave


def copy(leader: Master, slave: Slave) -> None:
    """The log goes out, and the slave reports all of it."""
    leader.turn()
    while slave.peer.jobs:
        slave.peer.jobs.popleft()()
    slave.report(leader.end)


def told(slave: Slave) -> list[int]:
    """What a follower was told of acknowledgements since the last call, chunks and heartbeats aside."""
    while slave.peer.jobs:
        slave.peer.jobs.popleft()()
    data, slave.peer.writes = b"".join(slave.peer.writes), []
    found, view = [], memoryview(data)
    while view.nbytes:
        place, size = struct.unpack_from(">qi", view)
        if place < 0:
            found.append(-place - 1)
        view = view[12 + size :]
    return found


def test_reports_of_a_connection_with_a_ticket_count(master):
    master.put(b"a" * 100)
    assert master.broker.in_sync.copied == 0
    copy(master, master.first)
    assert master.broker.in_sync.copied == master.end


def test_ticket_and_report_may_come_in_one_piece_and_the_ticket_in_two(master):
    ticket = encode_ticket(master.broker.in_sync.ticket(TWO, 5))
    slave = Slave(master)
    assert slave.session.data_received(memoryview(ticket + encode_report(0))) == 16
    assert not slave.peer.closed
    ticket = encode_ticket(master.broker.in_sync.ticket(TWO, 5))
    slave = Slave(master)
    assert slave.session.data_received(memoryview(ticket[:5])) == 0
    assert slave.session.data_received(memoryview(ticket)) == 8
    slave.report(0)
    assert not slave.peer.closed


@pytest.mark.parametrize("kind", ["forged", "shown twice", "expired", "of an epoch before"])
def test_a_connection_whose_ticket_is_not_good_is_ended(master, kind):
    """Its follower asks for another one. What stands behind the ticket is not looked at."""
    in_sync = master.broker.in_sync
    ticket = in_sync.ticket(TWO, 5)
    if kind == "forged":
        ticket += 1
    elif kind == "shown twice":
        Slave(master).session.data_received(memoryview(encode_ticket(ticket)))
    elif kind == "expired":
        master.clock.advance(TICKET_SECONDS + 1)
    else:
        in_sync.begin(1, GroupState("history", 6, 1, "me", (ONE, TWO)), 0)
    master.put(b"x") if kind == "shown twice" else None
    slave = Slave(master)
    slave.session.data_received(memoryview(encode_ticket(ticket) + encode_report(master.end)))
    assert slave.peer.closed and slave.peer.why == "its ticket is not, or not any more, good here"
    assert slave.peer.writes == []
    assert in_sync.copied == 0


def test_a_slave_without_a_ticket_copies_and_counts_for_nothing(master):
    """As one of RocketMQ does. It is told nothing that it would take for the log."""
    master.put(b"a" * 100)
    slave = Slave(master)
    slave.report(0)
    assert b"".join(data for _, data in slave.got()) != b""
    slave.report(master.end)
    master.pass_time(0.1)
    assert told(slave) == []
    assert master.broker.in_sync.copied == 0


def test_a_second_ticket_in_a_stream_is_no_report(master):
    """Of the first ticket the connection is a member's; a negative report behind it says nothing that can be true."""
    slave = master.first
    with pytest.raises(RemoteProtocolError, match="its log cannot end at -"):
        slave.session.data_received(memoryview(encode_ticket(master.broker.in_sync.ticket(TWO, 5))))


def test_a_pair_without_failover_takes_no_tickets(tmp_path):
    """A negative report is an error there, as it always was."""
    with opened(tmp_path) as pair:
        slave = Slave(pair)
        slave.session.data_received(memoryview(encode_ticket(7)))
        assert slave.peer.writes == []
        pair.pass_time(10)
        assert slave.peer.closed


def test_a_follower_is_told_what_was_acknowledged_when_that_has_changed(master):
    slave = master.first
    master.put(b"a" * 100)
    master.pass_time(0.1)
    assert told(slave) == [0]  # nothing yet
    copy(master, slave)
    master.pass_time(0.1)
    assert told(slave) == [master.end]
    master.pass_time(0.1)
    assert told(slave) == []
    first = master.end
    master.put(b"b" * 100)
    copy(master, slave)
    slave.peer.congested = True
    master.pass_time(0.1)
    assert told(slave) == []
    slave.peer.congested = False
    master.pass_time(0.1)
    assert told(slave) == [master.end] and master.end > first


def test_in_doubt_followers_are_told_nothing_new(master):
    slave = master.first
    master.put(b"a" * 100)
    master.clock.advance(SESSION)
    copy(master, slave)
    master.pass_time(0.1)
    assert told(slave) == [0]


def test_a_follower_lets_clients_read_what_it_was_told_and_only_with_a_ticket(tmp_path):
    """Its session at a leader. One that has shown nothing takes a negative place for what it is: no chunk."""

    async def run() -> None:
        with open_broker(tmp_path, failover="zookeeper", broker_id=2, leading=False) as broker:
            peer = FakePeer()
            session = MasterSession(peer, broker, lambda act: act(), lambda: None, 77)
            assert b"".join(peer.writes).startswith(encode_ticket(77))
            data = encode_acknowledged(4096) + encode_head(0, 0) + encode_acknowledged(5000)[:6]
            assert session.data_received(memoryview(data)) == 24
            assert broker.store.log.tail.read_end == 4096
            assert session.data_received(memoryview(encode_acknowledged(5000))) == 12
            assert broker.store.log.tail.read_end == 5000

    asyncio.run(run())


def test_what_a_follower_is_told_stands_between_chunks():
    chunk = encode_head(0, 3) + b"abc"
    data = memoryview(chunk + encode_acknowledged(3) + encode_head(3, 2) + b"de")
    chunks, taken, _, acknowledged = decode_chunks(data, told=True)
    assert ([bytes(one.data) for one in chunks], taken, acknowledged) == ([b"abc", b"de"], len(data), 3)
