"""Leading: a broker that has followed another finds what it would find at a start, and goes on in the same way.

A leader's log is appended raw to the store of a follower, as replication does, up to some place in it. The follower then
leads; another broker starts on a copy of its folder. Both must know the same, and write the same log from there on, to the byte.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import Struct

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.requests import EndTransaction, Send, SendBack
from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model import TopicConfig, TransactionOutcome
from metaq.model import properties as props
from metaq.model.metaq1.partition import PartitionPut
from metaq.model.transactions.metaq1 import BranchKey, LocalKey
from metaq.model.transactions.staging import DecisionOutcome, PartLifetime
from metaq.options import BrokerOptions
from metaq.saved import Saving
from metaq.store.config_file import ConfigFile
from metaq.store.message_store import MessageStore
from metaq.wire.record import decode_record
from tests.broker.metaq1.support import Patient, settings
from tests.broker.metaq1.support import put as put_metaq1
from tests.broker.staged.support import SOMEBODY, commit, stage, whole_part
from tests.broker.support import BORN_HOST, STORE_HOST, FakeChannel, open_broker, small_store
from tests.store.log.test_raw import borders, raw_log
from tests.store.support import copy_running

STORE = {"mapped_file_size_commit_log": 64 << 10}
BEGIN_MS = 1_700_000_000_000
PREPARED, OPEN_XA, BY_HAND = (BranchKey(7, b"g1", name, "uqA") for name in (b"b1", b"b2", b"b3"))
CUTS = 9
READS = {
    "heads",
    "record_at",
    "outline_at",
    "query",
    "owes",
    "queues",
    "queue",
    "existing_queue",
    "pull",
    "put",
    "delete_topic",
}
OUTCOMES = (TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK)


class Led(Struct):
    """What a leader has left."""

    root: pathlib.Path
    log: bytes
    places: Sequence[int]
    """Where its records begin, and where the log ends."""
    topics: list[TopicConfig]
    now_ms: int
    halves: list[tuple[int, int]]
    """(queue offset, log offset) of its half messages."""
    sent: list[int]
    """LogOffsets of plain messages."""


@contextmanager
def opened(root: pathlib.Path, clock: FakeClock, *, leading: bool = True) -> Iterator[Broker]:
    metaq1 = settings(test=2, stock=1)
    with open_broker(
        root,
        clock,
        STORE,
        metaq1=metaq1,
        leading=leading,
        transaction_time_out=20_000,
        transaction_check_interval=30_000,
    ) as broker:
        broker.staging.stopwatch = broker.schedule.stopwatch = broker.transactions.checks.stopwatch = lambda: 0.0
        yield broker


def send(broker: Broker, body: bytes, topic: str = "orders", queue_id: int = 0, **pairs: str) -> Any:
    pairs = {props.UNIQUE_ID: f"id-{body.decode()}", **pairs}
    return broker.sends.send(
        Send(
            topic=topic,
            body=body,
            born_ms=broker.clock.now_ms(),
            born_host=BORN_HOST,
            queue_id=queue_id,
            properties=props.join(pairs),
            producer_group="payers",
        )
    )


def half(broker: Broker, body: bytes) -> tuple[int, int]:
    put = send(broker, body, **{props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: "payers"}).put
    return put.queue_offset, put.log_offset


def end(broker: Broker, place: tuple[int, int], outcome: TransactionOutcome) -> str:
    return broker.transactions.end(
        EndTransaction(producer_group="payers", outcome=outcome, slot=place[0], log_offset=place[1]), SOMEBODY
    )


def pass_time(broker: Broker, clock: FakeClock, seconds: float) -> None:
    """A tick each half second, and as many steps as there is work for."""
    for _ in range(round(2 * seconds)):
        clock.advance(0.5)
        broker.tick()
        while not broker.deliver():
            pass
        broker.store.flusher.flush()


def branch_put(broker: Broker, key: BranchKey | LocalKey, body: bytes, channel: FakeChannel) -> None:
    assert broker.metaq1 is not None
    broker.metaq1.transactions.put(
        key, PartitionPut(topic="test", partition=1, body=body, flag=0, born_host=BORN_HOST), channel
    )


def lead_for_a_while(broker: Broker, clock: FakeClock) -> tuple[list[tuple[int, int]], list[int]]:
    """Everything that a part takes up from the log, some of it finished, some not. Returns halves and plain messages."""
    channel, branches, patient = FakeChannel(), broker.metaq1.transactions, Patient(broker)
    assert branches is not None
    for topic in ("orders", "lost"):
        broker.topics.update(TopicConfig(topic, 4, 4))
    broker.groups.require("G")
    sent = [send(broker, b"plain-%d" % number, queue_id=number).put.log_offset for number in range(3)]
    send(broker, b"without a topic", topic="lost", queue_id=2)
    for level in (1, 2, 3, 3, 4):
        send(broker, b"level-%d" % level, queue_id=1, **{props.DELAY: str(level)})
    halves = [half(broker, b"half-%d" % number) for number in range(5)]
    end(broker, halves[0], TransactionOutcome.COMMIT)
    end(broker, halves[2], TransactionOutcome.ROLLBACK)
    put_metaq1(patient, b"frame-1")
    put_metaq1(patient, b"frame-2" * 9)
    pass_time(broker, clock, 2)
    for place in sent[:2]:
        broker.retries.send_back(SendBack(group="G", log_offset=place))
    for number, rows in enumerate((1, 3)):
        chunk, part = whole_part(f"p{number}", "orders", number, *(b"staged-%d" % row for row in range(rows)))
        stage(broker, chunk, transaction=f"t-{number}@broker-a")
        if number:
            commit(broker, part, transaction=f"t-{number}@broker-a", row="writer", sequence=4)
    chunk, _ = whole_part("p0", "orders", 3, b"of a connection")
    stage(broker, chunk, transaction="c-1@broker-a", lifetime=PartLifetime.CONNECTION, channel=channel)
    for key in (PREPARED, OPEN_XA, BY_HAND):
        branches.begin(key, 0, channel)
        branch_put(broker, key, str(key).encode(), channel)
    branches.prepare(PREPARED, channel)
    branches.prepare(BY_HAND, channel)
    branches.end_by_hand(str(BY_HAND), DecisionOutcome.ROLLBACK)
    big, part = whole_part("p0", "orders", 2, *(bytes([65 + row]) * 900 for row in range(20)))
    stage(broker, big, transaction="t-2@broker-a")
    commit(broker, part, transaction="t-2@broker-a")
    fill = (send(broker, b"fill-%02d" % number + b"." * 1500, queue_id=number % 4) for number in range(40))
    sent += [one.put.log_offset for one in fill]  # into the next log file
    put_metaq1(patient, b"frame-3", partition=1)
    pass_time(broker, clock, 33)  # a round of checks: open half messages are written anew
    end(broker, halves[1], TransactionOutcome.COMMIT)
    halves.append(half(broker, b"half-5"))
    send(broker, b"last", **{props.DELAY: "2"})
    put_metaq1(patient, b"frame-4")
    return halves, sent


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Led:
    root, clock = tmp_path_factory.mktemp("leader"), FakeClock(BEGIN_MS)
    with opened(root, clock) as broker:
        halves, sent = lead_for_a_while(broker, clock)
        broker.store.flusher.flush()
        log_end = broker.store.log.end
        topics = [config for config in broker.topics.table.values() if config.name != "lost"]
        return Led(root, raw_log(root, 0, log_end), borders(root, log_end), topics, clock.now_ms(), halves, sent)


def follow(broker: Broker, led: Led, stop: int) -> None:
    """Take what a follower gets: settings by administration, the log as it is."""
    for config in led.topics:
        if not broker.topics.is_system(config.name):
            broker.topics.update(config)
    broker.groups.require("G")
    if stop > broker.store.log.end:
        broker.store.writer.append_raw(led.log[broker.store.log.end : stop], broker.store.log.end)
    broker.store.flusher.flush()


def known(broker: Broker) -> dict[str, object]:
    """All that parts have taken up, as values."""
    progress, branches = broker.transactions.progress, broker.metaq1.transactions
    assert branches is not None
    end = broker.store.reader.queue("RMQ_SYS_TRANS_HALF_TOPIC", 0).max_offset
    return {
        "delays": (broker.schedule.positions.offsets, broker.schedule.progress()),
        "open levels": [level for level in range(1, 19) if broker.schedule.delays.is_open(level)],
        "halves": [slot for slot in range(end) if progress.is_open(slot)],
        "op records owed": list(progress.owed),
        "gates": (broker.transactions.gate.half is None, broker.transactions.gate.op is None),
        "staged": broker.staging.listing("", 100),
        "rows": broker.staging.rows("", 100),
        "held": broker.staging.held,
        "branches": branches.listing(),
        "to recover": branches.recover(None),
        "bases": {key: (kept.base, kept.debt) for key, kept in broker.metaq1.bases._kept.items()},
        "given back": {key: taken.put for key, taken in broker.retries._taken.items()},
        "topics": {name: (one.read_queues, one.perm) for name, one in broker.topics.table.items()},
        "groups": dict(broker.groups.table),
        "deleted": dict(broker.deletions.marks.table),
        "owed": [
            owner.oldest() for owner in (broker.transactions, broker.schedule, broker.staging, broker.metaq1.bases)
        ],
        "queues": {
            key: (one.min_offset, one.max_offset) for key, one in broker.store.reader.queues().items() if one.max_offset
        },
    }


def go_on(broker: Broker, clock: FakeClock, led: Led) -> list[object]:
    """Clients come back and do what they would do after a restart. Returns what they are answered."""
    channel, answers = FakeChannel(), list[object]()
    assert broker.metaq1 is not None
    branches = broker.metaq1.transactions

    def ask(question: Callable[[], object]) -> None:
        for _ in range(100):
            try:
                answers.append(question())
                return
            except Saving:
                broker.store.flusher.flush()
                broker.deliver()
            except Refused as error:
                answers.append(str(error))
                return
        answers.append("never known")

    ask(lambda: broker.staging.state("t-2@broker-a"))
    for place in led.sent[:3]:
        ask(lambda place=place: broker.retries.send_back(SendBack(group="G", log_offset=place, repeated=True)))
    for number, place in enumerate(led.halves):
        ask(lambda number=number, place=place: end(broker, place, OUTCOMES[number % 2]))
    pass_time(broker, clock, 3)
    for number in range(3):
        chunk, part = whole_part(f"p{number}", "orders", number, b"late")
        ask(lambda number=number, part=part: commit(broker, part, transaction=f"t-{number}@broker-a"))
        ask(lambda number=number, chunk=chunk: stage(broker, chunk, transaction=f"n-{number}@broker-a"))
    chunk, part = whole_part("p0", "orders", 0, b"row")
    ask(lambda: stage(broker, chunk, transaction="r-1@broker-a"))
    ask(lambda: commit(broker, part, transaction="r-1@broker-a", row="writer", sequence=4))
    ask(lambda: branches.commit(PREPARED, channel, one_phase=False))
    ask(lambda: branches.rollback(BY_HAND, channel))
    ask(lambda: branches.begin(OPEN_XA, 0, channel))
    ask(lambda: branches.rollback(OPEN_XA, channel))
    patient = Patient(broker)
    for partition in (0, 1):
        ask(lambda partition=partition: put_metaq1(patient, b"after", partition=partition))
    ask(lambda: send(broker, b"new", **{props.DELAY: "1"}).put)
    pass_time(broker, clock, 70)
    return answers


def log_of(broker: Broker) -> list[tuple[object, ...]]:
    """Every record, without what only says which life of a process it comes from."""
    found = []
    for head in broker.store.reader.heads(0):
        record = decode_record(broker.store.reader.record_at(head.log_offset))
        found.append(
            (head.log_offset, record.topic, record.queue_id, record.queue_offset, record.store_ms, record.sys_flag,
             record.prepared_offset, record.properties, record.body)
        )  # fmt: skip
    return found


def assert_goes_on_as_after_a_restart(led: Led, follower: Broker, clock: FakeClock, copy: pathlib.Path) -> None:
    follower.offsets.save()
    follower.store.flusher.flush()
    copy_running(follower.store.folder.root, copy)
    restarted_clock = FakeClock(clock.now_ms())
    follower.lead()
    with opened(copy, restarted_clock) as restarted:
        assert known(follower) == known(restarted)
        assert go_on(follower, clock, led) == go_on(restarted, restarted_clock, led)
        assert log_of(follower) == log_of(restarted)
        assert known(follower) == known(restarted)


@pytest.mark.parametrize("cut", range(1, CUTS + 1))
def test_a_broker_that_begins_to_lead_goes_on_as_after_a_restart(led, tmp_path, cut):
    """Wherever the leader's log broke off: delayed, half and staged messages, retries, XA branches, positions, lost topics."""
    stop = led.places[(len(led.places) - 1) * cut // CUTS]
    clock = FakeClock(led.now_ms)
    with opened(tmp_path / "follower", clock, leading=False) as follower:
        follow(follower, led, stop)
        assert_goes_on_as_after_a_restart(led, follower, clock, tmp_path / "copy")


def test_a_follower_appends_nothing(led, tmp_path):
    """However much is due, and whatever is decided; its tables are saved all the same."""
    clock = FakeClock(led.now_ms)
    with opened(tmp_path, clock, leading=False) as follower:
        follow(follower, led, led.places[-1])
        follower.offsets.put("G", "orders", 0, 5)
        pass_time(follower, clock, 60)
        assert follower.store.log.end == led.places[-1]
        assert not (tmp_path / "positions").exists()
        assert not (tmp_path / "config" / "delayOffset.json").exists()
        assert "orders@G" in (tmp_path / "config" / "consumerOffset.json").read_text()
        assert follower.topics.get("lost") is None


def test_a_log_that_was_cut_while_following_leads_to_the_same(led, tmp_path):
    """A new leader knows nothing of the tail: it goes, and another one comes."""
    clock = FakeClock(led.now_ms)
    with opened(tmp_path / "follower", clock, leading=False) as follower:
        follow(follower, led, led.places[-1])
        follower.store.writer.truncate(led.places[len(led.places) // 3])
        follow(follower, led, led.places[len(led.places) // 2])
        pass_time(follower, clock, 11)
        assert_goes_on_as_after_a_restart(led, follower, clock, tmp_path / "copy")


class Watched:
    """A store, or one of its handles, that notes what is asked of it."""

    def __init__(self, found: Any, asked: set[str]) -> None:
        self.found, self.asked = found, asked

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.found, name)
        if name in {"reader", "writer", "keeper"}:
            return Watched(found, self.asked)
        if name not in READS:
            return found

        def call(*args: Any, **more: Any) -> Any:
            self.asked.add(name)
            return found(*args, **more)

        return call


def test_no_constructor_reads_the_log(led, tmp_path):
    """Nor asks retention to keep anything: what a broker does by itself begins when it leads, what its master needs counts when it follows."""
    shutil.copytree(led.root, tmp_path / "copy")
    root, options = tmp_path / "copy", BrokerOptions(broker_name="broker-a")
    with MessageStore(small_store(root, **STORE), FakeClock(led.now_ms), STORE_HOST, "DefaultCluster") as store:
        watched: Any = Watched(store, set())
        environment = Environment(options, store.options, store.clock, watched, "broker-a", STORE_HOST)
        files = broker_files(lambda name: ConfigFile(root / "config" / name))
        broker = Broker(environment, files, metaq1=settings(test=2, stock=1))
        assert watched.asked == set()
        broker.follow()
        # Of the log it reads the positions that it tells clients of MetaQ 1.x, and nothing that it would act on.
        assert watched.asked <= {"owes", "existing_queue", "record_at", "queue", "queues"}
        broker.lead()
        assert {"heads", "queues", "existing_queue", "record_at", "owes"} <= watched.asked
        broker.close()
