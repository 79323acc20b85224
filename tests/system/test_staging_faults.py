"""Staged transactions through the real server while things go wrong: what is refused costs nothing else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import structs

import metaq
from metaq.client.conversation.administration import DeleteTopic
from metaq.client.conversation.staged.staging import Apply, Decide, GetTransaction, SealPart, Stage
from metaq.errors import BrokerError
from metaq.model.transactions.staging import (
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartSeal,
    Phase,
    TransactionDecision,
    transaction_id,
)
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import STAGE_TOPIC, StagedSurvey
from metaq.testing import EmbeddedBroker, FaultyDisk
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from metaq.wire.staging import DecideBody
from tests.scripted import BROKER, ScriptedCluster
from tests.staged import BORN_MS, PlannedPart, ask, batch_of, stage
from tests.support import PATIENCE, eventually, exchange

TOPIC = "orders"
T = transaction_id("t", BROKER)
PART = PlannedPart(BROKER, "p", TOPIC, 1, ((b"a", b"b"), (b"c",)))
OTHER = PlannedPart(BROKER, "q", TOPIC, 0, ((b"d",),))


@pytest.fixture
def cluster(tmp_path):
    """A broker in this process, with a topic of two queues."""
    with ScriptedCluster(tmp_path) as running:
        running.make_topic(TOPIC, 2)
        yield running


def read(cluster, topic=TOPIC):
    with metaq.Reader(cluster.namesrv, topic, stop_at_end=True) as reader:
        return sorted(message.body for message in reader)


def one(chunk):
    return Stage(transaction=T, chunks=(chunk,), born_ms=BORN_MS)


def commit(*parts):
    return Decide(T, DecideBody(DecisionOutcome.COMMIT, tuple(part.manifest for part in parts)))


def refused(cluster, call, words):
    """The broker refuses, and says so; on a slow machine it may say first that it is busy."""

    def told():
        with pytest.raises(BrokerError) as caught:
            ask(cluster.broker, call)
        assert words in str(caught.value), caught.value
        return True

    eventually(told, what=f"a refusal with {words!r}")


def finish(cluster, *parts):
    """The transaction goes on as if nothing had been: it is staged, sealed, committed and read."""
    ask(cluster.broker, stage(T, parts))
    decided = ask(cluster.broker, commit(*parts))
    assert decided.decision.outcome is DecisionOutcome.COMMIT
    while ask(cluster.broker, Apply(T)).remaining:
        pass
    assert read(cluster) == sorted(body for part in parts for body in part.bodies)


CHUNK = PART.section(0)
BAD_CHUNKS = {
    "a gap": (PART.section(1), "gap"),
    "other content": (structs.replace(CHUNK, body=batch_of([b"x", b"y"])), "other content"),
    "another queue": (structs.replace(CHUNK, number=1, queue_id=0), "queue"),
    "another topic": (structs.replace(CHUNK, number=1, topic="bills"), "bills"),
    "no batch": (structs.replace(CHUNK, number=1, body=b"no batch"), "batch"),
    "an empty batch": (structs.replace(CHUNK, number=1, body=b""), "0 bytes"),
    "a batch cut off": (structs.replace(CHUNK, number=1, body=batch_of([b"abc"])[:-1]), "batch"),
    "a seal that is wrong": (structs.replace(PART.section(1), seal=PartSeal(2, 3, 4, 5)), "seal"),
    "a part id with a slash": (structs.replace(CHUNK, part="a/b"), "part"),
    "a delay": (structs.replace(CHUNK, number=1, body=batch_of([b"x"], b"DELAY\x013")), "DELAY"),
    "a half message": (structs.replace(CHUNK, number=1, body=batch_of([b"x"], b"TRAN_MSG\x01true")), "TRAN_MSG"),
    "too much": (structs.replace(CHUNK, number=1, body=batch_of([bytes(700_000), bytes(700_000)])), "bytes"),
}


@pytest.mark.parametrize("bad", BAD_CHUNKS)
def test_a_chunk_that_cannot_be_is_refused_at_its_stage(cluster, bad):
    """The part goes on where it was, and takes the right one."""
    chunk, words = BAD_CHUNKS[bad]
    if bad != "a gap":
        ask(cluster.broker, one(CHUNK))
    refused(cluster, one(chunk), words)
    state = ask(cluster.broker, GetTransaction(T))
    assert [part.chunks for part in state.parts] == ([] if bad == "a gap" else [1])
    finish(cluster, PART)


def test_what_is_staged_twice_with_the_same_content_is_there_once(cluster):
    """Chunks, the seal, the decision, applying: each may be asked again after a lost answer."""
    for chunk in (PART.section(0), PART.section(0), PART.section(1), PART.section(0), PART.section(1)):
        ask(cluster.broker, one(chunk))
    for _ in range(2):
        ask(cluster.broker, SealPart(T, PART.part, PART.seal))
    ask(cluster.broker, one(PART.section(1, seal=True)))
    answers = [ask(cluster.broker, commit(PART)) for _ in range(3)]
    assert [answer.first for answer in answers] == [True, False, False]
    assert len({answer.decision for answer in answers}) == 1
    for _ in range(2):
        ask(cluster.broker, Apply(T))
    assert read(cluster) == sorted(PART.bodies)


WRONG_TOPICS = {
    "no such queue": (structs.replace(CHUNK, queue_id=2), "queue"),
    "a negative queue": (structs.replace(CHUNK, queue_id=-1), "queue"),
    "a read-only topic": (structs.replace(CHUNK, topic="archive"), "archive"),
    "our own system topic": (structs.replace(CHUNK, topic=STAGE_TOPIC), STAGE_TOPIC),
    "half messages": (structs.replace(CHUNK, topic="RMQ_SYS_TRANS_HALF_TOPIC"), "RMQ_SYS_TRANS_HALF_TOPIC"),
    "delayed messages": (structs.replace(CHUNK, topic="SCHEDULE_TOPIC_XXXX"), "SCHEDULE_TOPIC_XXXX"),
    "a dead-letter topic": (structs.replace(CHUNK, topic="%DLQ%group", queue_id=0), "DLQ"),
    "no name of a topic": (structs.replace(CHUNK, topic="a/b"), "a/b"),
}


@pytest.mark.parametrize("wrong", WRONG_TOPICS)
def test_a_topic_that_may_not_be_written_is_refused_at_stage(cluster, wrong):
    """Not when it is too late to roll back. Nothing of the request is staged, also not its good chunks."""
    made = headers.CreateTopicHeader(topic="archive", read_queues=2, write_queues=2, perm=4)
    assert exchange(cluster.broker, [request(RequestCode.UPDATE_AND_CREATE_TOPIC, made)])[0].code == 0
    chunk, words = WRONG_TOPICS[wrong]
    call = Stage(transaction=T, chunks=(OTHER.section(0), chunk), born_ms=BORN_MS)
    refused(cluster, call, words)
    assert ask(cluster.broker, GetTransaction(T)).phase is Phase.UNKNOWN
    finish(cluster, PART, OTHER)


def test_a_topic_that_does_not_exist_is_made_or_refused_as_for_a_send():
    """autoCreateTopicEnable decides."""
    part = PlannedPart("", "p", "fresh", 0, ((b"a",),))
    for allowed in (True, False):
        with EmbeddedBroker(options={"autoCreateTopicEnable": allowed, "brokerName": BROKER}) as broker:
            if allowed:
                part = structs.replace(part, broker=BROKER)
                ask(broker.broker, stage(T, [part]))
                ask(broker.broker, commit(part))
                eventually(
                    lambda at=broker.namesrv: [m.body for m in metaq.Reader(at, "fresh", stop_at_end=True)] == [b"a"]
                )
            else:
                with pytest.raises(BrokerError, match="fresh"):
                    ask(broker.broker, stage(T, [part]))


SEAL = PART.seal
WRONG_SEALS = {
    "crc": structs.replace(SEAL, crc=SEAL.crc ^ 1),
    "rows": structs.replace(SEAL, rows=SEAL.rows + 1),
    "bytes": structs.replace(SEAL, bytes=SEAL.bytes - 1),
    "chunks": structs.replace(SEAL, chunks=1),
}


@pytest.mark.parametrize("wrong", WRONG_SEALS)
def test_a_wrong_seal_is_refused_and_the_part_stays_open(cluster, wrong):
    """Also one for a part that nobody knows, and a chunk behind a right one."""
    ask(cluster.broker, Stage(transaction=T, chunks=(PART.section(0), PART.section(1)), born_ms=BORN_MS))
    refused(cluster, SealPart(T, PART.part, WRONG_SEALS[wrong]), "seal")
    refused(cluster, SealPart(T, "nobody", SEAL), "nobody")
    assert [part.sealed for part in ask(cluster.broker, GetTransaction(T)).parts] == [False]
    refused(cluster, commit(PART), "p")
    ask(cluster.broker, SealPart(T, PART.part, SEAL))
    refused(cluster, SealPart(T, PART.part, WRONG_SEALS[wrong]), "seal")
    more = Chunk("p", 2, TOPIC, 1, batch_of([b"late"]))
    refused(cluster, one(more), "seal")
    finish(cluster, PART)


MANIFEST = PART.manifest
WRONG_MANIFESTS = {
    "an unknown part": ManifestPart(BROKER, "nobody", TOPIC, 1, SEAL),
    "another queue": structs.replace(MANIFEST, queue_id=0),
    "another topic": structs.replace(MANIFEST, topic="bills"),
    "another seal": structs.replace(MANIFEST, seal=WRONG_SEALS["rows"]),
    "a part of another transaction": ManifestPart(BROKER, "foreign", TOPIC, 1, SEAL),
}


@pytest.mark.parametrize("wrong", WRONG_MANIFESTS)
def test_a_commit_that_names_a_wrong_part_is_refused_and_decides_nothing(cluster, wrong):
    """Nothing is delivered; the right one is taken afterwards."""
    ask(cluster.broker, stage(T, [PART]))
    foreign = structs.replace(PART, part="foreign")
    ask(cluster.broker, stage(transaction_id("u", BROKER), [foreign]))
    parts = (MANIFEST, WRONG_MANIFESTS[wrong]) if "part" in wrong else (WRONG_MANIFESTS[wrong],)
    refused(cluster, Decide(T, DecideBody(DecisionOutcome.COMMIT, parts)), parts[-1].part)
    assert ask(cluster.broker, GetTransaction(T)).phase is Phase.OPEN
    assert read(cluster) == []
    finish(cluster, PART)


def test_only_the_coordinator_decides(cluster):
    """And an id that names nobody is none."""
    elsewhere = transaction_id("t", "broker-b")
    part = structs.replace(PART, broker="broker-a")
    ask(cluster.broker, stage(elsewhere, [part]))
    refused(cluster, Decide(elsewhere, DecideBody(DecisionOutcome.COMMIT, (part.manifest,))), "broker-b")
    for bad in ("t", "@broker-a", "t@", "a b@broker-a", "x" * 101 + "@broker-a"):
        refused(cluster, stage(bad, [PART]), "transaction id" if "@" not in bad or not bad.endswith("@") else "name")
    assert read(cluster) == []


def test_a_part_of_the_manifest_that_is_not_there_is_reported_by_its_broker(cluster):
    """The coordinator elsewhere has decided; what is here is delivered, and what is missing is named."""
    elsewhere = transaction_id("t", "broker-b")
    ask(cluster.broker, stage(elsewhere, [PART]))
    decision = TransactionDecision(elsewhere, DecisionOutcome.COMMIT, (PART.manifest, OTHER.manifest), decided_ms=1)
    assert ask(cluster.broker, Apply(elsewhere, decision)).missing == ("q",)
    assert read(cluster) == sorted(PART.bodies)
    eventually(lambda: not ask(cluster.broker, GetTransaction(elsewhere)).parts, what="it is done with what is there")
    assert ask(cluster.broker, Apply(elsewhere, decision)).missing == ("q",)
    assert ask(cluster.broker, GetTransaction(elsewhere)).missing == ("q",)


def test_a_topic_that_is_deleted_between_decision_and_apply_is_made_again(cluster):
    """What was promised comes; a participant learns of the decision when the topic is gone."""
    elsewhere = transaction_id("t", "broker-b")
    ask(cluster.broker, stage(elsewhere, [PART]))
    ask(cluster.broker, DeleteTopic(TOPIC))
    decision = TransactionDecision(elsewhere, DecisionOutcome.COMMIT, (PART.manifest,), decided_ms=1)
    eventually(lambda: ask(cluster.broker, Apply(elsewhere, decision)).phase is Phase.COMMITTED, what="it is applied")
    eventually(lambda: read(cluster) == sorted(PART.bodies), what="it is delivered")


@pytest.mark.parametrize("rounds", [25])
def test_two_clients_that_decide_differently_at_once_get_one_outcome(rounds):
    """Both are told the same, and the queues say so too."""
    with EmbeddedBroker(options={"brokerName": BROKER}) as broker, ThreadPoolExecutor(2) as threads:
        expected = []
        for number in range(rounds):
            transaction = transaction_id(f"t{number}", BROKER)
            part = PlannedPart(
                BROKER, "p", TOPIC, number % 2, ((b"%d-0" % number, b"%d-1" % number), (b"%d-2" % number,))
            )
            ask(broker.broker, stage(transaction, [part]))
            start = threading.Barrier(2)

            def decide(outcome, transaction=transaction, part=part, start=start):
                parts = (part.manifest,) if outcome is DecisionOutcome.COMMIT else None
                start.wait(PATIENCE)
                return ask(broker.broker, Decide(transaction, DecideBody(outcome, parts)))

            one, two = threads.map(decide, (DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK), timeout=PATIENCE)
            assert one.decision == two.decision
            assert {one.first, two.first} == {True, False}
            assert (one if one.first else two).decision.outcome is (
                DecisionOutcome.COMMIT if one.first else DecisionOutcome.ROLLBACK
            )
            if one.first:
                expected += part.bodies
            eventually(
                lambda asked=transaction: (
                    ask(broker.broker, GetTransaction(asked)).phase in {Phase.COMMITTED, Phase.ROLLED_BACK}
                )
            )
        with metaq.Reader(broker.namesrv, TOPIC, stop_at_end=True) as reader:
            assert sorted(message.body for message in reader) == sorted(expected)
        survey = StagedSurvey(StoreReader(broker.data))
        assert [problem for one in survey.transactions.values() for problem in one.problems] == []


# ---------------------------------------------------------------------- a full disk


class FullDisk:
    """Leaves so many bytes of the log, and gives nothing more."""

    def __init__(self, cluster, disk):
        self.cluster, self.disk = cluster, disk

    def fill(self, size=1500):
        """Until not even a message of `size` bytes goes in."""
        self.disk.room = 0
        for step in (100_000, 10_000, size):
            while self._send(bytes(step)):
                pass

    def mend(self):
        self.disk.room = None

    def _send(self, body):
        header = headers.SendHeader(
            producer_group="p", topic="padding", queue_id=0, born_ms=BORN_MS, properties="", sys_flag=0
        )
        (answer,) = exchange(self.cluster.broker, [request(RequestCode.SEND_MESSAGE_V2, header, body)])
        return answer.code == 0


@pytest.fixture
def full(tmp_path):
    """A broker whose disk can be full."""
    disk = FaultyDisk()
    with ScriptedCluster(tmp_path, disk=disk) as running:
        running.make_topic(TOPIC, 2)
        running.make_topic("padding", 1)
        running.put("padding", 0, [b"first"])
        for queue_id in range(2):  # whose queue files are there
            running.put(TOPIC, queue_id, [b"before"])
        ask(running.broker, stage(transaction_id("before", BROKER), [structs.replace(OTHER, part="before")]))
        ask(running.broker, Decide(transaction_id("before", BROKER), DecideBody(DecisionOutcome.ROLLBACK)))
        yield FullDisk(running, disk)
        disk.room = None


BIG = PlannedPart(
    BROKER, "big", TOPIC, 1, tuple(tuple(b"%d-%d" % (n, i) + bytes(3000) for i in range(4)) for n in range(3))
)


def test_a_full_disk_refuses_a_chunk_and_a_seal_and_takes_them_later(full):
    """Nothing of them counts."""
    cluster = full.cluster
    ask(cluster.broker, one(BIG.section(0)))
    full.fill(100)
    refused(cluster, one(BIG.section(1)), "room")
    assert [part.chunks for part in ask(cluster.broker, GetTransaction(T)).parts] == [1]
    full.mend()
    for number in (1, 2):
        ask(cluster.broker, one(BIG.section(number)))
    full.fill(100)
    refused(cluster, SealPart(T, BIG.part, BIG.seal), "room")
    assert [part.sealed for part in ask(cluster.broker, GetTransaction(T)).parts] == [False]
    full.mend()
    ask(cluster.broker, SealPart(T, BIG.part, BIG.seal))
    ask(cluster.broker, commit(BIG))
    eventually(lambda: ask(cluster.broker, Apply(T)).phase is Phase.COMMITTED)
    assert read(cluster) == sorted([b"before", b"before", *BIG.bodies])


@pytest.mark.parametrize("outcome", [DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK])
def test_a_full_disk_refuses_a_decision_and_takes_another_one_later(full, outcome):
    """It is open until one is stored."""
    cluster = full.cluster
    ask(cluster.broker, stage(T, [BIG]))
    full.fill(100)
    decide = Decide(T, DecideBody(outcome, (BIG.manifest,) if outcome is DecisionOutcome.COMMIT else None))
    refused(cluster, decide, "room")
    assert ask(cluster.broker, GetTransaction(T)).phase is Phase.OPEN
    full.mend()
    assert ask(cluster.broker, decide).first
    eventually(lambda: ask(cluster.broker, Apply(T)).phase in {Phase.COMMITTED, Phase.ROLLED_BACK})
    assert read(cluster) == sorted([b"before", b"before", *(BIG.bodies if outcome is DecisionOutcome.COMMIT else [])])


def test_a_full_disk_lets_a_commit_wait_and_loses_nothing_of_it(full):
    """The decision is stored, the messages have no room; they come when there is some, once and together."""
    cluster = full.cluster
    ask(cluster.broker, stage(T, [BIG]))
    full.fill(2000)
    decided = ask(cluster.broker, commit(BIG))
    assert decided.first
    assert decided.remaining == 3
    assert ask(cluster.broker, GetTransaction(T)).phase is Phase.COMMITTING
    assert read(cluster) == [b"before", b"before"]
    full.mend()
    eventually(lambda: ask(cluster.broker, Apply(T)).phase is Phase.COMMITTED)
    with metaq.Reader(cluster.namesrv, TOPIC, stop_at_end=True) as reader:
        assert [message.body for message in reader if message.queue_id == 1] == [b"before", *BIG.bodies]
