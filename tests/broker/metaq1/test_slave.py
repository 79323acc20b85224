"""A slave of the log that serves clients of MetaQ 1.x: it tells what its master tells, and takes nothing until it leads."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterable, Iterator

import pytest

from metaq.broker.broker import Broker
from metaq.broker.replication.replicas import Replica
from metaq.errors import Reason, Refused
from metaq.model.metaq1.partition import PartitionGet, PartitionPut
from metaq.model.transactions.metaq1 import BranchRefused, Fault, transaction_key
from metaq.options import Metaq1Options
from metaq.store.metaq1.queue_positions import QueuePositions
from tests.broker.metaq1.support import CHANNEL, Patient, get, put, refused, settings, settled
from tests.broker.metaq1.test_position_bases import bodies, told, work
from tests.broker.metaq1.test_position_bases import send as send_to
from tests.broker.metaq1.test_position_bases import touched as touched_of
from tests.broker.support import BORN_HOST, open_broker
from tests.store.log.test_raw import raw_log

TOPIC = "test"
STORE = {"mapped_file_size_commit_log": 64 << 10}


def touched(broker: Broker, partition: int = 0) -> QueuePositions:
    return touched_of(broker, partition, TOPIC)


def send(broker: Broker, bodies: Iterable[bytes]) -> None:
    send_to(broker, bodies, topic=TOPIC)


class Copied:
    """A leader and a follower of its log, both with clients of MetaQ 1.x."""

    def __init__(self, root: pathlib.Path, leader: Broker, follower: Broker) -> None:
        self.root, self.leader, self.follower = root, leader, follower

    def copy(self) -> None:
        """The follower gets what it lacks of the log."""
        work(self.leader, 3)
        start, end = self.follower.store.log.end, self.leader.store.log.end
        if start < end:
            part = raw_log(self.root / "leader", start, end)
            size = self.leader.store.log.file_bytes
            while part:
                first = min(len(part), size - start % size)
                self.follower.store.writer.append_raw(part[:first], start)
                part, start = part[first:], start + first
        work(self.follower, 3)


@contextlib.contextmanager
def opened(root: pathlib.Path, **options: object) -> Iterator[Copied]:
    served = settings(Metaq1Options(broker_id=7, **options), test=2)
    with (
        open_broker(root / "leader", store=STORE, metaq1=served) as leader,
        open_broker(root / "follower", store=STORE, metaq1=settings(served.options, test=2), leading=False) as follower,
    ):
        follower.topics.ensure(TOPIC, 2)
        yield Copied(root, leader, follower)


def test_a_slave_hands_out_the_masters_frames_at_the_masters_positions(tmp_path: pathlib.Path):
    """As they come, over the end of a log file, and after its own restart with lost files of positions."""
    with opened(tmp_path) as pair:
        ours, theirs = Patient(pair.leader), Patient(pair.follower)
        for number in range(3):
            for body in bodies(300, number):
                put(ours, body)
            send(pair.leader, bodies(20, number))  # of other protocols, between them
            pair.copy()
            end = settled(pair.leader, lambda: touched(pair.leader).max)
            assert settled(pair.follower, lambda: touched(pair.follower).max) == end
            assert told(pair.follower, touched(pair.follower)) == told(pair.leader, touched(pair.leader))
            assert get(theirs, 40, 4000) == get(ours, 40, 4000)
        assert pair.leader.store.log.end > STORE["mapped_file_size_commit_log"]
        expected = told(pair.leader, touched(pair.leader))
    shutil.rmtree(tmp_path / "follower" / "positions")
    with open_broker(tmp_path / "follower", store=STORE, metaq1=settings(test=2), leading=False) as follower:
        assert told(follower, touched(follower)) == expected


def test_a_slave_takes_nothing(tmp_path: pathlib.Path):
    """No put, no step of a transaction, no topic; a branch's manager is told to ask again, so that it forgets none."""
    with opened(tmp_path) as pair:
        partitions, transactions = Patient(pair.follower), pair.follower.metaq1.transactions
        for topic in (TOPIC, "wild-one"):
            wanted = PartitionPut(topic=topic, partition=0, body=b"x", flag=0, born_host=BORN_HOST)
            assert "this broker is a slave" in refused(Reason.NOT_LEADING, partitions.put, wanted)
        assert pair.follower.topics.get("wild-one") is None
        assert pair.follower.metaq1.partitions.admits(TOPIC, CHANNEL.caller) is None
        local, branch = transaction_key("TX:s:1"), transaction_key("XID:7:67:62:q")
        refused(Reason.NOT_LEADING, transactions.begin, local, 0, CHANNEL)
        for step in (transactions.commit, transactions.rollback, transactions.prepare):
            more = {"one_phase": False} if step == transactions.commit else {}
            with pytest.raises(BranchRefused) as caught:
                step(branch, CHANNEL, **more)
            assert caught.value.fault is Fault.UNAVAILABLE
        refused(Reason.NOT_LEADING, transactions.recover, None)
        assert pair.follower.store.log.end == 0


def test_a_partition_begins_at_the_master(tmp_path: pathlib.Path):
    """A slave cannot begin positions: until its master has, there is nothing."""
    with opened(tmp_path) as pair:
        send(pair.leader, bodies(5))
        pair.copy()
        wanted = PartitionGet(topic=TOPIC, group="g", partition=0, position=0, size_max=100)
        assert "they begin when a client of MetaQ 1.x uses it at the master" in refused(
            Reason.NOT_FOUND, Patient(pair.follower).get, wanted
        )
        touched(pair.leader)
        pair.copy()
        assert get(Patient(pair.follower), 0, 50) == get(Patient(pair.leader), 0, 50)


def test_who_is_ahead_of_a_slave_is_not_sent_back(tmp_path: pathlib.Path):
    """Also with updateConsumerOffsets: a master would move the consumer to its end, but a slave may lack the rest alone."""
    with opened(tmp_path, update_consumer_offsets=True) as pair:
        put(Patient(pair.leader), b"12345")
        pair.copy()
        wanted = PartitionGet(topic=TOPIC, group="g", partition=0, position=5000, size_max=100)
        refused(Reason.NOT_FOUND, Patient(pair.follower).get, wanted)
        assert get(Patient(pair.leader), 5000) == 25
        pair.follower.lead()
        assert get(Patient(pair.follower), 5000) == 25


def test_a_slave_that_leads_goes_on_where_the_master_ended(tmp_path: pathlib.Path):
    """With positions that are open, and others that are not; its own bases carry them through its restart."""
    with opened(tmp_path) as pair:
        ours = Patient(pair.leader)
        for partition in (0, 1):
            for body in bodies(50, partition):
                put(ours, body, partition=partition)
        pair.copy()
        told(pair.follower, touched(pair.follower))
        ends = [touched(pair.leader, partition).max for partition in (0, 1)]
        pair.follower.lead()
        theirs = Patient(pair.follower)
        assert [put(theirs, b"12345", partition=partition) for partition in (0, 1)] == ends
    shutil.rmtree(tmp_path / "follower" / "positions")
    with open_broker(tmp_path / "follower", store=STORE, metaq1=settings(test=2)) as broker:
        assert [put(Patient(broker), b"", partition=partition) for partition in (0, 1)] == [end + 25 for end in ends]


def test_a_slaves_log_that_is_cut_takes_its_positions_along(tmp_path: pathlib.Path):
    """Other messages come to the same queue offsets then."""
    with opened(tmp_path) as pair:
        ours = Patient(pair.leader)
        for body in bodies(20):
            put(ours, body)
        pair.copy()
        place, end = pair.leader.store.log.end, touched(pair.leader).max
        for body in bodies(20, 5):
            put(ours, body)
            put(ours, body, partition=1)
        pair.copy()
        assert touched(pair.follower).max == touched(pair.leader).max
        assert settled(pair.follower, lambda: touched(pair.follower, 1).max) > 0
        pair.follower.store.writer.truncate(place)
        for pending in pair.follower.log_was_cut():
            settled(pair.follower, pending.settle)
        assert settled(pair.follower, lambda: touched(pair.follower).max) == end
        with pytest.raises(Refused) as caught:
            touched(pair.follower, 1)
        assert caught.value.reason is Reason.NOT_FOUND
        pair.follower.lead()
        assert put(Patient(pair.follower), b"1234567") == end
        assert put(Patient(pair.follower), b"1234567") == end + 27
        assert put(Patient(pair.follower), b"x", partition=1) == 0


def test_a_topic_that_is_made_anew_at_the_master_begins_behind_the_old_one(tmp_path: pathlib.Path):
    """The slave may still hold the old messages when it reads that: they have no positions any more."""
    with opened(tmp_path) as pair:
        put(Patient(pair.leader), b"old")
        pair.copy()
        old = touched(pair.follower).max
        settled(pair.leader, pair.leader.delete_topic(TOPIC).settle)
        work(pair.leader)
        pair.leader.topics.ensure(TOPIC, 2)
        pair.copy()
        with pytest.raises(Refused):
            touched(pair.follower)
        settled(pair.leader, lambda: pair.leader.topics.ensure(TOPIC, 2))
        begin = put(Patient(pair.leader), b"new")
        assert begin > old
        settled(pair.follower, pair.follower.deletions.delete(TOPIC).settle)  # as its master's tables say
        work(pair.follower)
        settled(pair.follower, lambda: pair.follower.topics.ensure(TOPIC, 2))
        pair.copy()
        assert told(pair.follower, touched(pair.follower)) == told(pair.leader, touched(pair.leader))


def test_a_master_begins_positions_for_its_slaves(tmp_path: pathlib.Path):
    """Of topics that 1.x clients use, or may by server.ini; not of all others."""
    with opened(tmp_path) as pair:
        leader = pair.leader
        for topic in ("t-other", "t-used"):
            leader.topics.ensure(topic, 2)
        for topic in (TOPIC, "t-other", "t-used"):
            send_to(leader, bodies(5), topic=topic)
            send_to(leader, bodies(5), queue_id=1, topic=topic)
        touched_of(leader, 1, "t-used")

        def begun() -> set[tuple[str, int]]:
            places = ((topic, number) for topic in leader.topics.table for number in (0, 1))
            return {place for place in places if leader.metaq1.bases.find(*place)}

        work(leader)
        assert begun() == {("t-used", 1)}
        leader.replicas.connected.append(Replica("127.0.0.1:1"))
        work(leader)
        assert begun() == {("t-used", 0), ("t-used", 1), (TOPIC, 0), (TOPIC, 1)}
        pair.copy()
        assert told(pair.follower, touched(pair.follower, 1)) == told(leader, touched(leader, 1))
