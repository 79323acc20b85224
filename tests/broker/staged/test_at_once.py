"""Transactions that come as one request: the short way leaves what the long way leaves, to the last byte of the log."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.requests import Decide
from metaq.clock import FakeClock
from metaq.errors import MetaqError, Refused, StoreFull
from metaq.model.transactions.staging import Chunk, DecisionOutcome, ManifestPart, PartLifetime, PartSeal, Phase
from metaq.testing.faults import FaultyDisk
from metaq.wire import hot
from tests.broker.staged.support import batch, bodies, run_steps, seal_of, stage, whole_part
from tests.broker.support import open_broker
from tests.effort import repeats

TOPICS = ("orders", "stock", "audit")
NAME = "{}@broker-a"


def log_of(broker):
    """All that the log holds."""
    return b"".join(
        bytes(file.buffer[: min(file.end, broker.store.log.end) - file.start]) for file in broker.store.log.run.files
    )


def commit_of(name, parts):
    return Decide(transaction=name, outcome=DecisionOutcome.COMMIT, parts=tuple(parts))


def at_once(broker, number, *parts, **more):
    """Chunks with their manifest's parts, as one request."""
    name = NAME.format(number)
    decide = more.pop("decide", None) or commit_of(name, [part for _, part in parts])
    return stage(broker, *[chunk for chunk, _ in parts], transaction=name, decide=decide, **more)


def took_the_short_way(broker, monkeypatch):
    """A list that gets an entry for each transaction that does."""
    taken, run = [], broker.staging._at_once.run

    def counted(stage, transaction, facts):
        taken.append(transaction.id)
        run(stage, transaction, facts)

    monkeypatch.setattr(broker.staging._at_once, "run", counted)
    return taken


def test_what_is_small_and_plain_takes_the_short_way(tmp_path, monkeypatch):
    """From the second transaction on: the first one makes the topics."""
    with open_broker(tmp_path, FakeClock()) as broker:
        taken = took_the_short_way(broker, monkeypatch)
        for number in range(3):
            answer = at_once(
                broker, number, whole_part("p1", "orders", 0, b"a"), whole_part("p2", "stock", 1, b"b", b"c")
            )
            assert (answer.decision.outcome, answer.first, answer.remaining) == (DecisionOutcome.COMMIT, True, 0)
            assert broker.staging.state(NAME.format(number)).phase is Phase.COMMITTED
        assert taken == ["1@broker-a", "2@broker-a"]
        assert bodies(broker) == [b"a"] * 3
        assert bodies(broker, "stock", 1) == [b"b", b"c"] * 3
        again = at_once(broker, 2, whole_part("p1", "orders", 0, b"a"))
        assert (again.first, again.decision.parts[1].topic) == (False, "stock")
        broker.tick()
        again = at_once(broker, 2, whole_part("p1", "orders", 0, b"a"))
        assert (again.first, again.decision.parts[1].topic) == (False, "stock")
        assert broker.staging._table.parts == broker.staging._table.bytes == 0
    with open_broker(tmp_path, FakeClock()) as broker:
        run_steps(broker)
        assert bodies(broker) == [b"a"] * 3


def test_what_a_full_disk_cuts_goes_on_where_it_was_cut(tmp_path, monkeypatch):
    """Decided and not applied: the answer says what remains, the broker applies it later, nothing comes twice."""
    disk = FaultyDisk()
    with open_broker(tmp_path, FakeClock(), disk=disk) as broker:
        at_once(broker, 0, whole_part("p1", "orders", 0, b"a"), whole_part("p2", "stock", 1, b"b"))
        taken = took_the_short_way(broker, monkeypatch)

        def full(*_, **__):
            raise StoreFull("the disk is full")

        monkeypatch.setattr(hot, "expand", full)
        answer = at_once(broker, 1, whole_part("p1", "orders", 0, b"c"), whole_part("p2", "stock", 1, b"d"))
        assert (answer.decision.outcome, answer.remaining, taken) == (DecisionOutcome.COMMIT, 2, ["1@broker-a"])
        assert bodies(broker) == [b"a"]
        monkeypatch.undo()
        run_steps(broker)
        assert (bodies(broker), bodies(broker, "stock", 1)) == ([b"a", b"c"], [b"b", b"d"])


def test_a_refused_decision_leaves_an_open_transaction(tmp_path, monkeypatch):
    """Its chunks are stored: the same request goes on, and nobody loses them."""
    with open_broker(tmp_path, FakeClock(), staged_seconds_max=60) as broker:
        at_once(broker, 0, whole_part("p1", "orders", 0, b"a"))
        put, calls = broker.store.writer.put, []

        def second_is_full(records, **more):
            calls.append(records)
            if len(calls) == 2:
                raise StoreFull("the disk is full")
            return put(records, **more)

        monkeypatch.setattr(broker.store.writer, "put", second_is_full)
        with pytest.raises(Refused):
            at_once(broker, 1, whole_part("p1", "orders", 0, b"b"))
        state = broker.staging.state(NAME.format(1))
        assert (state.phase, [part.rows for part in state.parts]) == (Phase.OPEN, [1])
        assert at_once(broker, 1, whole_part("p1", "orders", 0, b"b")).first
        assert bodies(broker) == [b"a", b"b"]


# ------------------------------------------------------------------ both ways

parts = st.tuples(
    st.sampled_from(["p1", "p2", "p3", "p 4"]),
    st.sampled_from([*TOPICS, "orders", "stock", "%RETRY%g"]),
    st.integers(-1, 5),
    st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=3),
    st.sampled_from(
        ["good"] * 12 + ["number", "no seal", "crc", "rows", "bytes", "other part", "other queue", "broker", "body"]
    ),
)
requests = st.tuples(
    st.integers(0, 6),  # few transactions: some come twice
    st.lists(parts, min_size=1, max_size=3),
    st.sampled_from(["commit"] * 6 + ["rollback", "prepared", "row", "fewer", "other id", "connection", "none"]),
)


def made(part):
    name, topic, queue_id, messages, fault = part
    body = b"no batch at all" if fault == "body" else batch(*messages)
    seal = seal_of(body, rows=len(messages))
    wrong = {
        "crc": PartSeal(seal.chunks, seal.rows, seal.bytes, seal.crc ^ 1),
        "rows": PartSeal(seal.chunks, seal.rows + 1, seal.bytes, seal.crc),
        "bytes": PartSeal(seal.chunks, seal.rows, seal.bytes + 1, seal.crc),
    }
    seal = wrong.get(fault, seal)
    chunk = Chunk(
        part=name, number=1 if fault == "number" else 0, topic=topic, queue_id=queue_id, body=body,
        seal=None if fault == "no seal" else seal,
    )  # fmt: skip
    named = ManifestPart(
        "elsewhere" if fault == "broker" else "broker-a", "p9" if fault == "other part" else name, topic,
        queue_id + (fault == "other queue"), seal,
    )  # fmt: skip
    return chunk, named


def answer_of(broker, request):
    number, drawn, kind = request
    name = NAME.format(number)
    both = [made(part) for part in drawn]
    manifest = tuple(named for _, named in both)
    decide = {
        "rollback": Decide(transaction=name, outcome=DecisionOutcome.ROLLBACK, parts=None),
        "prepared": Decide(transaction=name, outcome=DecisionOutcome.PREPARED, parts=manifest),
        "row": Decide(transaction=name, outcome=DecisionOutcome.COMMIT, parts=manifest, row="writer", sequence=number),
        "fewer": commit_of(name, manifest[1:]),
        "other id": commit_of("x@broker-a", manifest),
        "none": None,
    }.get(kind, commit_of(name, manifest))
    more = {"lifetime": PartLifetime.CONNECTION} if kind == "connection" else {}
    try:
        return stage(broker, *[chunk for chunk, _ in both], transaction=name, decide=decide, **more)
    except MetaqError as error:
        return type(error), str(error)


@settings(max_examples=repeats(25), deadline=None)
@given(st.lists(st.tuples(requests, st.booleans()), min_size=1, max_size=12))
def test_both_ways_leave_the_same(drawn):
    """Whatever comes, in whatever order: answers, refusals, states, and every byte of the log."""
    found = []
    for short in (True, False):
        with tempfile.TemporaryDirectory() as folder, open_broker(Path(folder), FakeClock()) as broker:
            for topic in TOPICS:
                broker.topics.ensure(topic, 4)
            if not short:
                broker.staging._at_once.judge = lambda *_: None
            answers = []
            for request, ticks in drawn:
                answers.append(answer_of(broker, request))
                if ticks:
                    broker.tick()
            states = [broker.staging.state(NAME.format(number)) for number in range(7)]
            table = broker.staging._table
            found.append((answers, states, table.parts, table.bytes, dict(table._peers), log_of(broker)))
    assert found[0] == found[1]
