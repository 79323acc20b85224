"""Staged transactions and the log's old files: what is needed still is written anew, and starts read from checkpoints on."""

from __future__ import annotations

import errno

import msgspec
import pytest

from metaq.broker.requests import Send
from metaq.broker.staged import retention as staging_retention
from metaq.broker.staged.apply import Applier
from metaq.broker.staged.peers import Finish, NoAnswer
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import properties as props
from metaq.model.topics.system import STAGE_TOPIC, TXN_TOPIC
from metaq.model.transactions.staging import DecisionOutcome, Phase
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.testing import FaultyDisk
from metaq.wire.record import copied_from
from tests.broker.staged.support import (
    T,
    bodies,
    commit,
    decide,
    let_files_go,
    rollback,
    run_steps,
    stage,
    stored,
    whole_part,
)
from tests.broker.support import BORN_HOST, open_broker

SMALL = {"mapped_file_size_commit_log": 64 * 1024, "max_message_size": 20_000, "file_reserved_time": 1}


@pytest.fixture
def clock():
    return FakeClock()


def kinds(broker):
    return [message.tag for message in stored(broker, TXN_TOPIC, 0)]


def test_undecided_chunks_outlast_their_file_and_are_committed_after_a_restart(tmp_path, clock):
    """As often as a file is to go; the seal, the time that they were staged at and the sender's time stay as they were."""
    chunk, part = whole_part("p", "orders", 0, b"a", b"b")
    with open_broker(tmp_path, clock, store=SMALL, staged_seconds_max=1_000_000) as broker:
        began = clock.now_ms()
        stage(broker, chunk)
        for _ in range(2):
            let_files_go(broker, clock)
        [renewed] = stored(broker, STAGE_TOPIC, 0)
        assert copied_from(renewed.prepared_offset) is not None
        assert renewed.born_ms == began
    with open_broker(tmp_path, clock, store=SMALL, staged_seconds_max=1_000_000) as broker:
        state = broker.staging.state(T).parts[0]
        assert (state.sealed, state.rows, state.staged_ms) == (True, 2, began)
        let_files_go(broker, clock)
        assert commit(broker, part).first
        assert bodies(broker) == [b"a", b"b"]
        let_files_go(broker, clock)
        assert broker.staging.oldest() is None


def test_age_is_counted_from_the_first_record(tmp_path, clock):
    """Writing a chunk anew does not make it younger."""
    chunk, _ = whole_part("p", "orders", 0, b"a")
    with open_broker(tmp_path, clock, store=SMALL, staged_seconds_max=1_000_000) as broker:
        stage(broker, chunk, seconds=50_000)
        let_files_go(broker, clock)
    with open_broker(tmp_path, clock, store=SMALL, staged_seconds_max=1_000_000) as broker:
        clock.advance(50_000)
        broker.tick()
        assert broker.staging.state(T).phase is Phase.ROLLED_BACK


def test_preparations_outlast_their_file(tmp_path, clock):
    """With their parts, however often."""
    chunk, part = whole_part("p", "orders", 0, b"a")
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        stage(broker, chunk)
        decide(broker, DecisionOutcome.PREPARED, [part])
        let_files_go(broker, clock)
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        assert broker.staging.state(T).phase is Phase.PREPARED
        assert decide(broker, DecisionOutcome.COMMIT).first
        assert bodies(broker) == [b"a"]


def test_rows_outlast_their_file(tmp_path, clock):
    """A writer may come back after weeks, and must not do its last step twice."""
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        commit(broker, transaction=T, row="writer", sequence=4)
        let_files_go(broker, clock)
        let_files_go(broker, clock)
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        again = commit(broker, transaction="u@broker-a", row="writer", sequence=4)
        assert (again.first, again.decision.transaction) == (False, T)


def test_rows_are_written_anew_though_a_commit_has_to_wait(tmp_path, clock, monkeypatch):
    """What holds up the one is no reason to lose the others on a disk that fills up."""

    def is_held_up(_applier, _part):
        raise Refused(Reason.NOT_STORED, "its topic cannot be made")

    chunk, part = whole_part("p", "orders", 0, b"a")
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        commit(broker, transaction="r@broker-a", row="writer", sequence=1)
        broker.tick()
        stage(broker, chunk)
        monkeypatch.setattr(Applier, "_is_topic_there", is_held_up)
        assert commit(broker, part).remaining == 1
        assert broker.staging.oldest() == 0
        end = broker.store.log.end
        broker.staging.carry(end)
        broker.staging.step()
        monkeypatch.undo()
        assert [message.log_offset >= end for message in stored(broker, TXN_TOPIC, 0) if message.tag == "decide"] == [
            False, False, True,
        ]  # fmt: skip
        run_steps(broker)
        assert bodies(broker) == [b"a"]
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        assert broker.staging.row("writer").sequence == 1


def test_a_row_that_was_forgotten_does_not_come_back_with_a_decision_that_is_written_anew(tmp_path, clock):
    """The commit is needed for another broker still, its row is not."""
    _, there = whole_part("q", "orders", 1, b"b", broker="broker-b")
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        commit(broker, there, row="writer", sequence=4)
        broker.staging.forget("writer")
        let_files_go(broker, clock)
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        assert broker.staging.state(T).unconfirmed == ("broker-b",)
        assert broker.staging.row("writer") is None


def test_what_comes_after_a_damaged_part_was_dropped_outlasts_its_file(tmp_path, clock):
    """The transaction is still open, and its client may go on with it."""
    lost, _ = whole_part("p", "orders", 0, b"lost")
    chunk, part = whole_part("q", "orders", 0, b"a")
    with open_broker(tmp_path, clock, store=SMALL, staged_seconds_max=1_000_000) as broker:
        stage(broker, lost)
        place = stored(broker, STAGE_TOPIC, 0)[0].log_offset
        file = broker.store.log.run.find(place)
        file.buffer[place - file.start + 100] ^= 1
        let_files_go(broker, clock)
        assert [held.part for held in broker.staging.state(T).parts] == []
        stage(broker, chunk)
        let_files_go(broker, clock)
    with open_broker(tmp_path, clock, store=SMALL, staged_seconds_max=1_000_000) as broker:
        assert commit(broker, part).first
        assert bodies(broker) == [b"a"]


def test_committed_chunks_that_are_lost_are_told_at_the_start(tmp_path, clock, caplog):
    """A disk that was full to the brim, or a hand, has taken their log file before they were delivered."""
    disk = FaultyDisk()
    chunk, part = whole_part("p", "orders", 0, b"a")
    with open_broker(tmp_path, clock, store=SMALL, disk=disk) as broker:
        broker.topics.ensure("orders", 4)
        stage(broker, chunk)
        while broker.store.log.end < 65 * 1024:
            send = Send(topic="fill", queue_id=0, body=b"x" * 15_000, born_ms=clock.now_ms(), born_host=BORN_HOST)
            broker.sends.send(send)
        rollback(broker, "u@broker-a")  # its queue has room now, and that of the messages has none
        disk.room = 0
        assert commit(broker, part).remaining == 1
        disk.room = None
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        state = broker.staging.state(T)
        assert (state.phase, state.missing) == (Phase.COMMITTED, ("p",))
        assert f"transaction {T} is committed, and its parts p are not in the log" in caplog.text
        broker.tick()


class Deaf:
    """A way to other brokers that leads nowhere."""

    def __init__(self):
        self.asked = []

    def ask(self, broker, question, done):
        self.asked.append((broker, question))
        done(NoAnswer("away"))


def test_a_commit_that_a_participant_has_not_confirmed_outlasts_its_file(tmp_path, clock):
    """And what was applied here is not applied once more."""
    chunk, here = whole_part("p", "orders", 0, b"a")
    _, there = whole_part("q", "orders", 1, b"b", broker="broker-b")
    with open_broker(tmp_path, clock, store=SMALL) as broker:
        stage(broker, chunk)
        commit(broker, here, there)
        broker.tick()
        let_files_go(broker, clock)
        made = broker.staging.state(T).decision
    peers = Deaf()
    with open_broker(tmp_path, clock, store=SMALL, peers=peers) as broker:
        broker.tick()
        run_steps(broker)
        assert peers.asked == [("broker-b", Finish(made))]
        assert broker.staging.state(T).unconfirmed == ("broker-b",)
        assert b"a" not in bodies(broker)[1:]


def test_a_checkpoint_tells_a_start_where_to_read_on(tmp_path, clock):
    """Behind everything that is over, and not behind what is not."""
    with open_broker(tmp_path, clock) as broker:
        for number in range(20):
            chunk, part = whole_part("p", "orders", 0, b"%d" % number)
            stage(broker, chunk, transaction=f"t{number}@broker-a")
            commit(broker, part, transaction=f"t{number}@broker-a")
            broker.tick()
        chunk, _ = whole_part("p", "orders", 0, b"open")
        stage(broker, chunk, transaction="open@broker-a")
        clock.advance(61)
        broker.tick()
        newest = stored(broker, TXN_TOPIC, 0)[-1]
        assert newest.properties[props.TAGS] == "checkpoint"
        assert msgspec.json.decode(newest.body) == {"stage": 20, "txn": 40}
        count = len(kinds(broker))
        clock.advance(61)
        broker.tick()
        assert len(kinds(broker)) == count  # nothing has changed
        rollback(broker, "open@broker-a")
    with open_broker(tmp_path, clock) as broker:
        assert kinds(broker)[-1] == "checkpoint"
        assert msgspec.json.decode(stored(broker, TXN_TOPIC, 0)[-1].body) == {"stage": 21, "txn": 42}
        assert broker.staging.state("t3@broker-a").phase is Phase.COMMITTED  # from the index
        assert len(bodies(broker)) == 20
        clock.advance(61)
        broker.tick()
        count = len(kinds(broker))
    with open_broker(tmp_path, clock) as broker:
        assert len(kinds(broker)) == count  # a start that finds a fresh one leaves it at that


def test_what_lies_far_behind_is_written_anew_so_that_a_start_reads_little(tmp_path, clock, monkeypatch):
    """One old transaction must not make each start read all that came after it."""
    monkeypatch.setattr(staging_retention, "CARRY_RECORDS", 20)
    old, _ = whole_part("p", "orders", 0, b"old")
    with open_broker(tmp_path, clock) as broker:
        stage(broker, old, transaction="old@broker-a")
        for number in range(40):
            chunk, part = whole_part("p", "orders", 0, b"%d" % number)
            stage(broker, chunk, transaction=f"t{number}@broker-a")
            commit(broker, part, transaction=f"t{number}@broker-a")
            clock.advance(1)
            broker.tick()
            run_steps(broker)
        clock.advance(61)
        broker.tick()
        place = msgspec.json.decode(stored(broker, TXN_TOPIC, 0)[-1].body)
        assert place["stage"] > 15
    with open_broker(tmp_path, clock) as broker:
        assert broker.staging.state("old@broker-a").phase is Phase.OPEN
        assert len(bodies(broker)) == 40


def test_a_checkpoint_that_cannot_be_made_keeps_no_other_from_an_end_in_order(tmp_path, clock, monkeypatch, caplog):
    """No file may be opened any more: positions are saved all the same."""
    with open_broker(tmp_path, clock) as broker:
        stage(broker, whole_part("p", "orders", 0, b"a")[0])

        def no_file(*_arguments):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(ConsumeQueue, "first_at", no_file)
    assert "no checkpoint of staged transactions: [Errno 24] Too many open files" in caplog.text
