"""Staged transactions of one broker: nothing is seen before the commit, all of it after, and what is refused."""

from __future__ import annotations

import pytest

from metaq.broker.requests import Apply, Decide
from metaq.clock import FakeClock
from metaq.model import properties as props
from metaq.model.topics.system import STAGE_TOPIC
from metaq.model.transactions.staging import Chunk, DecisionOutcome, ManifestPart, Phase
from metaq.wire.record import copy_mark
from tests.broker.staged.support import (
    SOMEBODY,
    T,
    batch,
    bodies,
    commit,
    rollback,
    run_steps,
    seal,
    seal_of,
    stage,
    stored,
    whole_part,
)  # fmt: skip
from tests.broker.support import open_broker


@pytest.fixture
def clock():
    return FakeClock()


def test_staged_messages_are_seen_after_the_commit_in_all_queues_and_not_before(tmp_path, clock):
    """Copies are ordinary messages: offsets, tags, keys, the sender's time, and the mark of their chunk's record."""
    with open_broker(tmp_path, clock) as broker:
        one, first = whole_part("p1", "orders", 0, b"a", b"b")
        two, second = whole_part("p2", "stock", 3, b"c")
        stage(broker, one, two)
        clock.advance(5)
        assert bodies(broker) == bodies(broker, "stock", 3) == []
        assert broker.staging.state(T).phase is Phase.OPEN
        decided = commit(broker, first, second)
        assert (decided.first, decided.remaining, decided.decision.outcome) == (True, 0, DecisionOutcome.COMMIT)
        assert bodies(broker) == [b"a", b"b"]
        assert bodies(broker, "stock", 3) == [b"c"]
        chunk = stored(broker, STAGE_TOPIC, 0)[0]
        message = stored(broker, "orders", 0)[1]
        assert (message.queue_offset, message.flag, message.sys_flag, message.born_ms) == (1, 7, 0, chunk.born_ms)
        assert message.properties == {props.TAGS: "paid", props.KEYS: "k1", props.CLUSTER: "DefaultCluster"}
        assert message.prepared_offset == copy_mark(chunk.log_offset)
        assert message.store_ms == clock.now_ms()
        assert len(broker.store.reader.query("orders", "k1", 32, 0, 1 << 62)) == 2
        assert broker.staging.state(T).phase is Phase.COMMITTED


def test_a_small_transaction_of_one_broker_is_one_request(tmp_path, clock):
    """Chunks, seals and the decision in one; sent again after a lost answer it changes nothing and tells the outcome."""
    with open_broker(tmp_path, clock) as broker:
        one, first = whole_part("p1", "orders", 0, b"a")
        two, second = whole_part("p2", "stock", 1, b"b")
        both = Decide(transaction=T, outcome=DecisionOutcome.COMMIT, parts=(first, second))
        answer = stage(broker, one, two, decide=both)
        assert (answer.decision.outcome, answer.first, answer.remaining) == (DecisionOutcome.COMMIT, True, 0)
        for _ in range(2):
            again = stage(broker, one, two, decide=both)
            assert (again.decision, again.first, again.remaining) == (answer.decision, False, 0)
            broker.tick()
        assert (bodies(broker), bodies(broker, "stock", 1)) == ([b"a"], [b"b"])


def test_a_rollback_leaves_nothing_and_a_later_commit_is_told_so(tmp_path, clock):
    """The first end stands, also for a transaction that nobody has staged anything of."""
    with open_broker(tmp_path, clock) as broker:
        chunk, part = whole_part("p1", "orders", 0, b"a")
        stage(broker, chunk)
        assert rollback(broker).first
        answer = commit(broker, part)
        assert (answer.first, answer.decision.outcome) == (False, DecisionOutcome.ROLLBACK)
        assert stage(broker, chunk).decision.outcome is DecisionOutcome.ROLLBACK
        unknown = "never@broker-a"
        assert rollback(broker, unknown).first
        assert commit(broker, transaction=unknown).decision.outcome is DecisionOutcome.ROLLBACK
        assert broker.staging.state(unknown).phase is Phase.ROLLED_BACK
        assert bodies(broker) == []


def test_parts_grow_by_chunks_and_a_seal_of_its_own_ends_them(tmp_path, clock):
    """Each request may come twice; the part lies together in its queue."""
    with open_broker(tmp_path, clock) as broker:
        data = [batch(b"1", b"2"), batch(b"3"), batch(b"4")]
        for number, body in enumerate(data):
            for _ in range(2):
                stage(broker, Chunk(part="p", number=number, topic="orders", queue_id=2, body=body))
        whole = seal_of(*data, rows=4)
        seal(broker, "p", whole)
        seal(broker, "p", whole)
        state = broker.staging.state(T).parts[0]
        assert (state.chunks, state.rows, state.bytes, state.sealed) == (3, 4, sum(map(len, data)), True)
        commit(broker, ManifestPart("broker-a", "p", "orders", 2, whole))
        assert bodies(broker, "orders", 2) == [b"1", b"2", b"3", b"4"]
        seal(broker, "p", whole)  # the answer was lost, and it came once more
        assert len(stored(broker, STAGE_TOPIC, 0)) == 4


def test_a_decision_outlives_a_restart_and_is_done_once(tmp_path, clock):
    """From the log alone, whether it was written down as done or not."""
    chunk, part = whole_part("p1", "orders", 0, b"a", b"b")
    with open_broker(tmp_path, clock) as broker:
        stage(broker, chunk)
    with open_broker(tmp_path, clock) as broker:
        assert broker.staging.state(T).phase is Phase.OPEN
        commit(broker, part)
    for _ in range(2):
        with open_broker(tmp_path, clock) as broker:
            run_steps(broker)
            assert bodies(broker) == [b"a", b"b"]
            assert broker.staging.state(T).phase is Phase.COMMITTED
            assert commit(broker, part).first is False
            assert rollback(broker).decision.outcome is DecisionOutcome.COMMIT
            assert broker.staging.apply(Apply(transaction=T), SOMEBODY).remaining == 0


@pytest.mark.parametrize("index", [True, False])
def test_a_request_that_comes_again_after_a_restart_is_not_done_again(tmp_path, clock, index):
    """Its answer was lost with the connection. A broker without an index has to know it too."""
    chunk, part = whole_part("p1", "orders", 0, b"a")
    commits = Decide(transaction=T, outcome=DecisionOutcome.COMMIT, parts=(part,))
    options = {"message_index_enable": index}
    with open_broker(tmp_path, clock, store=options) as broker:
        assert stage(broker, chunk, decide=commits).first
        assert rollback(broker, "t-2@broker-a").first
    for _ in range(2):  # the end in order has written a checkpoint behind it
        with open_broker(tmp_path, clock, store=options) as broker:
            assert stage(broker, chunk, decide=commits).first is False
            assert rollback(broker).decision.outcome is DecisionOutcome.COMMIT
            assert broker.staging.state("t-2@broker-a").phase is Phase.ROLLED_BACK
            run_steps(broker)
            assert bodies(broker) == [b"a"]
