"""Staged transactions at the remoting server (30000 to 30006): what is asked, answered, refused, and when answers go out."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.model.transactions.staging import (
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    Phase,
    Staged,
    TransactionDecision,
    TransactionRow,
    chunk_crc,
    part_crc,
)
from metaq.wire import bodies, headers, staging
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import SerializeType
from metaq.wire.extensions import STAGING_LEVEL, level_of
from metaq.wire.record import decode_record, encode_batch
from metaq.wire.staging import ApplyBody, DecideBody
from tests.servers.support import Client, SlowDisk, open_server, tick
from tests.support import eventually

T = "t1@broker-a"


def batch(*texts, properties=b"TAGS\x01paid"):
    return encode_batch([(0, text, properties) for text in texts])


def seal_of(*chunks):
    """Of batches, given as the lists of texts that they are made of."""
    bodies, crc = [batch(*texts) for texts in chunks], 0
    for body in bodies:
        crc = part_crc(crc, chunk_crc(body))
    return PartSeal(len(bodies), sum(map(len, chunks)), sum(map(len, bodies)), crc)


def manifest(part="p", topic="orders", queue_id=0, chunks=((b"a", b"b"),), broker="broker-a"):
    return ManifestPart(broker, part, topic, queue_id, seal_of(*chunks))


def chunk(*texts, number=0, part="p", topic="orders", queue_id=0, last=True):
    return Chunk(part, number, topic, queue_id, batch(*texts), seal_of(texts) if last else None)


def stage(client, *chunks, transaction=T, decide=None, **more):
    header = headers.StageHeader(transaction=transaction, born_ms=1_700_000_000_000, **more)
    return client.ask(RequestCode.STAGE, header, staging.sections(chunks, decide))


def staged(client, *chunks, **more):
    answer = stage(client, *chunks, **more)
    assert answer.code == 0, answer.remark
    return staging.staged_of(answer.body)


def decide(client, outcome, *parts, transaction=T, row="", sequence=-1):
    header = headers.StagedTransactionHeader(transaction=transaction)
    body = staging.decide_body(DecideBody(outcome, parts or None, row, sequence))
    return client.ask(RequestCode.DECIDE, header, body)


def decided(client, outcome, *parts, **more):
    answer = decide(client, outcome, *parts, **more)
    assert answer.code == 0, answer.remark
    return staging.decided_of(answer.body)


def state(client, transaction=T):
    answer = client.ask(RequestCode.STAGED_STATE, headers.StagedSubjectHeader(transaction=transaction))
    assert answer.code == 0, answer.remark
    return staging.transaction_state_of(answer.body)


def bodies_of(answer):
    """Of the messages in an answer to a pull."""
    bodies, at = [], 0
    while at < len(answer.body):
        bodies.append(decode_record(answer.body, at).body)
        at += int.from_bytes(answer.body[at : at + 4], "big")
    return bodies


def pulled(client, topic="orders", queue_id=0):
    """The bodies in a queue."""
    [answer] = client.pull(topic, queue_id)
    return bodies_of(answer) if answer.code == 0 else []


def send_one(client, topic="orders", queue_id=3):
    """The topic is there, and so is the group that pulls."""
    assert client.send(topic, b"first", queue_id=queue_id).code == 0
    client.beat(topics={topic: "*"})


@pytest.fixture
def orders(client):
    send_one(client)
    return client


def test_broker_says_that_it_knows_staged_transactions(client):
    """In its answer to a heartbeat, as every extension is told."""
    assert level_of(client.beat().ext) >= STAGING_LEVEL


@pytest.mark.parametrize("serialize", SerializeType)
def test_one_request_stages_seals_and_decides(server, serialize):
    """Several parts, and the commit: the answer is the decision, and everything is in its queue."""
    client = Client(server, serialize)
    send_one(client)
    parts = manifest(), manifest("q", queue_id=1, chunks=((b"c",),))
    answer = staged(
        client, chunk(b"a", b"b"), chunk(b"c", part="q", queue_id=1), decide=DecideBody(DecisionOutcome.COMMIT, parts)
    )
    assert (answer.decision.outcome, answer.decision.parts, answer.first, answer.remaining) == (
        DecisionOutcome.COMMIT, parts, True, 0,
    )  # fmt: skip
    assert (pulled(client), pulled(client, queue_id=1)) == ([b"a", b"b"], [b"c"])
    assert state(client).phase is Phase.COMMITTED


def test_held_pull_is_answered_when_a_transaction_commits(orders, server):
    """The answer to the commit and that to the pull come at once, whoever asked."""
    other = Client(server)
    other.beat(client_id="other@1", topics={"orders": "*"})
    assert other.pull("orders", 0, 0, sys_flag=6, suspend_ms=15_000) == []
    staged(orders, chunk(b"a", b"b"))
    assert other.received() == []
    decided(orders, DecisionOutcome.COMMIT, manifest())
    [answer] = other.received()
    assert bodies_of(answer) == [b"a", b"b"]


def test_part_of_several_requests_is_sealed_by_its_own_and_committed_later(orders):
    """Nothing is seen before the decision; state tells what is held."""
    assert staged(orders, chunk(b"a", b"b", last=False)) == Staged()
    assert staged(orders, chunk(b"c", number=1, last=False)) == Staged()
    seal = seal_of((b"a", b"b"), (b"c",))
    header = headers.SealPartHeader(
        transaction=T, part="p", chunks=seal.chunks, rows=seal.rows, bytes=seal.bytes, crc=seal.crc
    )
    for _ in range(2):  # the second is what a client asks whose answer was lost
        assert orders.ask(RequestCode.SEAL, header).code == 0
    told = state(orders)
    assert told.phase is Phase.OPEN
    [part] = told.parts
    assert (part.part, part.topic, part.queue_id, part.chunks, part.rows, part.bytes, part.sealed, part.lifetime) == (
        "p", "orders", 0, 2, 3, seal.bytes, True, PartLifetime.AGE,
    )  # fmt: skip
    assert pulled(orders) == []
    decided(orders, DecisionOutcome.COMMIT, manifest(chunks=((b"a", b"b"), (b"c",))))
    assert pulled(orders) == [b"a", b"b", b"c"]


def test_everything_may_be_asked_again(orders):
    """After lost answers: the second time changes nothing and is answered with the same."""
    for _ in range(2):
        assert staged(orders, chunk(b"a", b"b")) == Staged()
    first = decided(orders, DecisionOutcome.COMMIT, manifest())
    again = decided(orders, DecisionOutcome.COMMIT, manifest())
    assert (first.first, again.first) == (True, False)
    assert again.decision == first.decision
    for _ in range(2):
        answer = orders.ask(RequestCode.APPLY, headers.StagedTransactionHeader(transaction=T))
        assert staging.transaction_state_of(answer.body).remaining == 0
    assert staged(orders, chunk(b"a", b"b")).decision == first.decision
    assert pulled(orders) == [b"a", b"b"]


def test_first_decision_wins(orders):
    """Whoever says otherwise later gets it back."""
    staged(orders, chunk(b"a", b"b"))
    assert decided(orders, DecisionOutcome.ROLLBACK).first
    late = decided(orders, DecisionOutcome.COMMIT, manifest())
    assert (late.first, late.decision.outcome) == (False, DecisionOutcome.ROLLBACK)
    assert pulled(orders) == []
    assert state(orders).phase is Phase.ROLLED_BACK


def test_prepared_transaction_is_committed_without_its_manifest(orders):
    """It is the manifest of the preparation that counts."""
    staged(orders, chunk(b"a", b"b"), lifetime=PartLifetime.PREPARED.value)
    assert decided(orders, DecisionOutcome.PREPARED, manifest()).decision.outcome is DecisionOutcome.PREPARED
    assert (state(orders).phase, pulled(orders)) == (Phase.PREPARED, [])
    assert decided(orders, DecisionOutcome.COMMIT).decision.parts == (manifest(),)
    assert pulled(orders) == [b"a", b"b"]


def test_coordinator_believes_a_client_that_all_others_are_done(orders):
    """It names them in an APPLY; until then the commit counts as under way. The answer is short."""
    staged(orders, chunk(b"a", b"b"))
    decided(
        orders, DecisionOutcome.COMMIT, manifest(), manifest("q", broker="broker-b"), manifest("r", broker="broker-c")
    )
    assert (state(orders).phase, state(orders).unconfirmed) == (Phase.COMMITTING, ("broker-b", "broker-c"))
    for confirmed, left in ((("broker-b", "elsewhere"), ("broker-c",)), (("broker-c",), ())):
        body = staging.apply_body(ApplyBody(confirmed=confirmed))
        answer = orders.ask(RequestCode.APPLY, headers.StagedTransactionHeader(transaction=T), body)
        told = staging.transaction_state_of(answer.body)
        assert (told.unconfirmed, told.remaining, told.parts, told.decision) == (left, 0, (), None)
    assert state(orders).phase is Phase.COMMITTED


def test_participant_is_brought_the_decision(orders):
    """What it holds of another broker's transaction is delivered once that one's decision comes with an APPLY."""
    name = "t1@broker-b"
    staged(orders, chunk(b"a", b"b"), transaction=name)
    refused = decide(orders, DecisionOutcome.COMMIT, manifest(), transaction=name)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "is decided by the broker broker-b" in refused.remark
    made = TransactionDecision(name, DecisionOutcome.COMMIT, (manifest(),), decided_ms=1_700_000_000_000)
    header, body = headers.StagedTransactionHeader(transaction=name), staging.apply_body(ApplyBody(made))
    for _ in range(2):
        answer = orders.ask(RequestCode.APPLY, header, body)
        assert answer.code == 0, answer.remark
        assert staging.transaction_state_of(answer.body).remaining == 0
    assert pulled(orders) == [b"a", b"b"]
    other = staging.apply_body(ApplyBody(TransactionDecision(name, DecisionOutcome.ROLLBACK, decided_ms=1)))
    assert orders.ask(RequestCode.APPLY, header, other).code == ResponseCode.SYSTEM_ERROR


def test_settling_rolls_back_what_nobody_decided_or_prepared(orders):
    """What a participant asks for whose part expired: a plain rollback would overrule a preparation."""
    settle = headers.StagedTransactionHeader(transaction=T, settle=True)
    staged(orders, chunk(b"a", b"b"))
    decided(orders, DecisionOutcome.PREPARED, manifest())
    told = staging.decided_of(orders.ask(RequestCode.DECIDE, settle).body)
    assert (told.decision.outcome, told.first) == (DecisionOutcome.PREPARED, False)
    decided(orders, DecisionOutcome.COMMIT)
    staged(orders, chunk(b"c"), transaction="t2@broker-a")
    settle.transaction = "t2@broker-a"
    told = staging.decided_of(orders.ask(RequestCode.DECIDE, settle).body)
    assert (told.decision.outcome, told.first) == (DecisionOutcome.ROLLBACK, True)
    assert pulled(orders) == [b"a", b"b"]


def test_state_of_a_row_is_what_its_writer_committed_last(orders):
    """`null` for a row that nobody has; a lower number is refused with a code of its own."""
    row = headers.StagedSubjectHeader(row="query-1")
    assert staging.row_state_of(orders.ask(RequestCode.STAGED_STATE, row).body) is None
    staged(orders, chunk(b"a", b"b"))
    decided(orders, DecisionOutcome.COMMIT, manifest(), row="query-1", sequence=7)
    assert staging.row_state_of(orders.ask(RequestCode.STAGED_STATE, row).body) == TransactionRow(
        "query-1", 7, T, Phase.COMMITTED
    )
    staged(orders, chunk(b"c"), transaction="t2@broker-a")
    parts = manifest(chunks=((b"c",),))
    stale = decide(orders, DecisionOutcome.COMMIT, parts, transaction="t2@broker-a", row="query-1", sequence=6)
    assert stale.code == ResponseCode.STALE_SEQUENCE
    assert "query-1" in stale.remark


def test_list_has_what_is_not_over_in_pages(orders, server):
    """In the order of ids, behind the one that is named; a count of 0 is 1."""
    ids = [f"t{n}@broker-a" for n in range(5)]
    for one in reversed(ids):
        staged(orders, chunk(b"a"), transaction=one)

    def page(after, count):
        answer = orders.ask(RequestCode.LIST_STAGED, headers.ListStagedHeader(after=after, count=count))
        assert answer.code == 0, answer.remark
        return [one.transaction for one in staging.transaction_list_of(answer.body)]

    assert page("", 100) == ids
    assert page("", 2) == ids[:2]
    assert page(ids[1], 2) == ids[2:4]
    assert page(ids[4], 2) == []
    assert page("", 0) == page("", -5) == ids[:1]
    assert page("", 2**31 - 1) == ids
    for number in (2, 1):
        decided(
            orders,
            DecisionOutcome.COMMIT,
            manifest(chunks=((b"a",),)),
            transaction=ids[number],
            row=f"w{number}",
            sequence=5,
        )
    tick(server)  # what is done is written down together
    assert page("", 100) == [ids[0], *ids[3:]]
    answer = orders.ask(RequestCode.LIST_STAGED, headers.ListStagedHeader(rows=True))
    assert [row.key for row in staging.row_list_of(answer.body)] == ["w1", "w2"]
    answer = orders.ask(RequestCode.LIST_STAGED, headers.ListStagedHeader(after="w1", rows=True))
    assert [(row.key, row.sequence) for row in staging.row_list_of(answer.body)] == [("w2", 5)]


def test_figures_of_the_broker_tell_what_is_held(orders, server):
    """28: so that a monitor sees how near the limits are."""

    def held():
        table = bodies.kv_table_of(orders.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}).body)
        return int(table["metaqStagedParts"]), int(table["metaqStagedBytes"])

    assert held() == (0, 0)
    staged(orders, chunk(b"a", b"b"), chunk(b"c", part="q", queue_id=1))
    assert held() == (2, len(batch(b"a", b"b") + batch(b"c")))
    decided(orders, DecisionOutcome.ROLLBACK)
    tick(server)
    assert held() == (0, 0)


def test_forgotten_transaction_is_gone(orders):
    """Its messages too; a row goes by its key."""
    staged(orders, chunk(b"a", b"b"))
    assert orders.ask(RequestCode.FORGET_STAGED, headers.StagedSubjectHeader(transaction=T)).code == 0
    assert state(orders).parts == ()
    assert decide(orders, DecisionOutcome.COMMIT, manifest()).code != 0
    staged(orders, chunk(b"a", b"b"), transaction="t2@broker-a")
    decided(orders, DecisionOutcome.COMMIT, manifest(), transaction="t2@broker-a", row="query-1", sequence=7)
    row = headers.StagedSubjectHeader(row="query-1")
    assert orders.ask(RequestCode.FORGET_STAGED, row).code == 0
    assert staging.row_state_of(orders.ask(RequestCode.STAGED_STATE, row).body) is None


@pytest.mark.parametrize("subject", [{}, {"transaction": T, "row": "query-1"}])
@pytest.mark.parametrize("code", [RequestCode.STAGED_STATE, RequestCode.FORGET_STAGED])
def test_transaction_and_row_are_one_of_both(client, code, subject):
    """Neither, or both: refused."""
    answer = client.ask(code, headers.StagedSubjectHeader(**subject))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name a transactionId or a row, one of both")


def requests_of(broker):
    """One of each request that may name the broker that it is for."""
    subject = headers.StagedSubjectHeader(transaction=T, broker=broker)
    named = headers.StagedTransactionHeader(transaction=T, broker=broker)
    seal = headers.SealPartHeader(transaction=T, part="p", chunks=1, rows=2, bytes=3, crc=4, broker=broker)
    return [
        (RequestCode.STAGE, headers.StageHeader(transaction=T, born_ms=1, broker=broker), staging.sections([chunk(b"a")])),
        (RequestCode.SEAL, seal, b""),
        (RequestCode.DECIDE, named, staging.decide_body(DecideBody(DecisionOutcome.ROLLBACK))),
        (RequestCode.APPLY, named, b""),
        (RequestCode.STAGED_STATE, subject, b""),
        (RequestCode.FORGET_STAGED, subject, b""),
    ]  # fmt: skip


def test_request_for_another_broker_is_refused(orders):
    """One whose address this one has now: it may be asked elsewhere, and nothing was done."""
    for code, header, body in requests_of("broker-b"):
        answer = orders.ask(code, header, body)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, code
        assert answer.remark == "this is the broker broker-a, not 'broker-b': look its address up again"
    assert state(orders).phase is Phase.UNKNOWN
    stage_request = requests_of("broker-a")[0]
    assert orders.ask(*stage_request).code == 0
    assert state(orders).phase is Phase.OPEN


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lifetime": "x" * 1000}, "lifetime='xxx"),
        ({"lifetime": ""}, "there are a, c, p"),
        ({"seconds": "-1"}, "seconds=-1"),
        ({"seconds": "soon"}, "the field seconds"),
        ({"bornTimestamp": "9" * 40}, "the field bornTimestamp"),
    ],
)
def test_hostile_header_of_a_stage_is_refused_with_its_field(orders, fields, says):
    """Nothing is staged."""
    ext = headers.StageHeader(transaction=T, born_ms=1).to_ext() | fields
    answer = orders.ask(RequestCode.STAGE, ext, staging.sections([chunk(b"a")]))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert says in answer.remark
    assert len(answer.remark) < 300
    assert state(orders).phase is Phase.UNKNOWN


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.STAGE, b""), (RequestCode.STAGE, b"\0" * 16), (RequestCode.STAGE, b"\xff" * 100),
        (RequestCode.DECIDE, b""), (RequestCode.DECIDE, b"{}"), (RequestCode.DECIDE, b"[" * 10_000),
        (RequestCode.APPLY, b"{"), (RequestCode.APPLY, b"\xff"),
    ],
)  # fmt: skip
def test_hostile_body_is_refused(orders, code, body):
    """With a text that says what cannot be read; the connection goes on."""
    header = (
        headers.StageHeader(transaction=T, born_ms=1)
        if code == RequestCode.STAGE
        else headers.StagedTransactionHeader(transaction=T)
    )
    answer = orders.ask(code, header, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert state(orders).phase is Phase.UNKNOWN


def test_oneway_requests_are_done_and_not_answered(orders):
    """As any request that nobody waits for."""
    header = headers.StageHeader(transaction=T, born_ms=1)
    body = staging.sections([chunk(b"a", b"b")], DecideBody(DecisionOutcome.COMMIT, (manifest(),)))
    orders.feed(orders.frame(RequestCode.STAGE, header, body, oneway=True))
    assert orders.received() == []
    assert pulled(orders) == [b"a", b"b"]


def test_parts_of_a_connection_go_with_it(orders, server):
    """What it staged with lifetime `c`, and nothing else."""
    other = Client(server)
    staged(other, chunk(b"a"), lifetime=PartLifetime.CONNECTION.value)
    staged(other, chunk(b"a"), transaction="t2@broker-a")
    other.leave()
    assert eventually(lambda: (tick(server), server.broker.deliver(), state(orders).phase)[-1] is Phase.ROLLED_BACK)
    assert state(orders, "t2@broker-a").phase is Phase.OPEN


def test_topic_that_is_made_for_a_chunk_is_there_before_its_answer(client, server):
    """As for a send: the request waits for the save, and is then handled once more."""
    client.feed(
        client.frame(
            RequestCode.STAGE,
            headers.StageHeader(transaction=T, born_ms=1),
            staging.sections([chunk(b"a", topic="new")]),
        )
    )
    [answer] = eventually(lambda: (tick(server), client.received())[-1])
    assert answer.code == 0, answer.remark
    assert server.broker.topics.get("new") is not None
    assert state(client).parts[0].topic == "new"


def test_answers_wait_for_the_disk(tmp_path):
    """With SYNC_FLUSH: to what is staged, sealed, decided, applied, and to questions about it."""
    disk = SlowDisk()
    with open_server(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}, disk=disk) as (broker, server):
        client = Client(server)
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, {"a": "PG", "b": "orders", "e": "3", "g": "1"}, b"x"))
        eventually(client.received)
        disk.may_sync.clear()
        try:
            for code, header, body in requests_of("broker-a")[:1] + requests_of("broker-a")[2:5]:
                client.feed(client.frame(code, header, body))
            assert client.received() == []
        finally:
            disk.may_sync.set()
        answers = []
        eventually(lambda: answers.extend(client.received()) or len(answers) == 4)
        assert [answer.code for answer in answers] == [0] * 4
        assert broker.store.state.flushed >= broker.store.log.end


def test_disk_that_is_late_is_told(tmp_path, monkeypatch):
    """After syncFlushTimeout: the decision stands, but nobody knows yet whether a power cut would take it back."""
    clock = FakeClock()
    with open_server(tmp_path, clock, {"flush_disk_type": "SYNC_FLUSH"}) as (broker, server):
        monkeypatch.setattr(broker.store.flusher, "when_flushed", lambda _end, _done: None)
        client = Client(server)
        for code, header, body in requests_of("broker-a")[2:5]:
            client.feed(client.frame(code, header, body))
        assert client.received() == []
        clock.advance(5)
        tick(server)
        answers = client.received()
        assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 3
        assert staging.decided_of(answers[0].body).decision.outcome is DecisionOutcome.ROLLBACK
