"""Local transactions and XA branches of 1.x clients: nothing is seen before the commit, all of it after, and what is refused."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from metaq.broker.broker import Broker
from metaq.broker.log.acks import Due
from metaq.broker.metaq1.gathering import CHUNK_BYTES
from metaq.broker.metaq1.transactions import Metaq1Transactions
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import properties as props
from metaq.model.access import Action, Caller
from metaq.model.metaq1.partition import ANY_PARTITION, PartitionPut
from metaq.model.transactions.metaq1 import (
    BranchKey,
    BranchPhase,
    BranchRefused,
    Ended,
    Fault,
    LocalKey,
    TransactionKey,
    Vote,
)
from metaq.model.transactions.staging import DecisionOutcome, Phase
from metaq.options import Metaq1Options
from tests.broker.metaq1.test_partitions import settings
from tests.broker.staged.support import bodies, let_files_go, rollback, run_steps, stored
from tests.broker.staged.test_retention import SMALL
from tests.broker.support import BORN_HOST, FakeChannel, open_broker
from tests.support import eventually

KEY = LocalKey("10.0.0.5-1373971200000-1", 1)
XID = BranchKey(7, b"g1", b"b1", "uqA")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@contextmanager
def opened(
    root: pathlib.Path, clock: FakeClock, metaq1: Metaq1Options | None = None, **options: object
) -> Iterator[Broker]:
    with open_broker(root, clock, metaq1=settings(metaq1, test=3, stock=2), **options) as broker:
        yield broker


@pytest.fixture
def broker(tmp_path: pathlib.Path, clock: FakeClock) -> Iterator[Broker]:
    with opened(tmp_path, clock) as one:
        yield one


def branches(broker: Broker) -> Metaq1Transactions:
    assert broker.metaq1 is not None
    return broker.metaq1.transactions


def put(
    broker: Broker, key: TransactionKey | None, body: bytes, channel: FakeChannel, topic: str = "test", partition: int = 0,
    flag: int = 0,
) -> int:  # fmt: skip
    """The message's id."""
    wanted = PartitionPut(topic=topic, partition=partition, body=body, flag=flag, born_host=BORN_HOST)
    stored = branches(broker).put(key, wanted, channel)
    assert (stored.partition, stored.position) == (partition, -1)
    return stored.message_id


def fault(kind: Fault, act: Callable[..., object], *args: object, **more: object) -> str:
    with pytest.raises(BranchRefused) as error:
        act(*args, **more)
    assert error.value.fault is kind
    return error.value.text


def refused(reason: Reason, act: Callable[..., object], *args: object, **more: object) -> str:
    with pytest.raises(Refused) as error:
        act(*args, **more)
    assert error.value.reason is reason, error.value
    assert not isinstance(error.value, BranchRefused)
    return error.value.text


# ---------------------------------------------------------------------- local transactions


def test_messages_of_a_local_transaction_are_seen_after_its_commit_with_the_ids_that_they_were_put_with(
    broker: Broker, channel: FakeChannel
) -> None:
    service = branches(broker)
    service.begin(KEY, 20, channel)
    ids = [put(broker, KEY, b"t1", channel), put(broker, KEY, b"\x00\x00\x00\x04paidt2", channel, flag=1)]
    ids.append(put(broker, KEY, b"t3", channel, "stock", 1))
    assert bodies(broker, "test", 0) == bodies(broker, "stock", 1) == []
    assert service.commit(KEY, channel, one_phase=True) == Ended(stored=True)
    found = [*stored(broker, "test", 0), *stored(broker, "stock", 1)]
    assert [message.body for message in found] == [b"t1", b"t2", b"t3"]
    assert [int(message.properties[props.METAQ_ID]) for message in found] == ids
    assert found[1].properties[props.TAGS] == "paid"
    assert service.listing() == []


def test_a_rolled_back_transaction_leaves_nothing(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    service.begin(KEY, 0, channel)
    put(broker, KEY, b"t1", channel)
    assert service.rollback(KEY, channel) == Ended(stored=False)
    assert bodies(broker, "test", 0) == []
    assert broker.staging.held == (0, 0)
    text = refused(Reason.NOT_FOUND, service.commit, KEY, channel, one_phase=True)
    assert text == "Local transaction 'TX:10.0.0.5-1373971200000-1:1' has not been started."


def test_beginning_a_live_transaction_again_changes_nothing(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    for key in (KEY, XID):
        service.begin(key, 20, channel)
        put(broker, key, b"t1", channel)
        service.begin(key, 20, channel)
        service.commit(key, channel, one_phase=True)
    assert bodies(broker, "test", 0) == [b"t1", b"t1"]


def test_a_local_transaction_belongs_to_its_connection(broker: Broker, channel: FakeChannel) -> None:
    """Another one knows nothing of it, and may use the same key."""
    service, other = branches(broker), FakeChannel("127.0.0.1:50001")
    service.begin(KEY, 0, channel)
    put(broker, KEY, b"mine", channel)
    refused(Reason.NOT_FOUND, service.rollback, KEY, other)
    service.begin(KEY, 0, other)
    put(broker, KEY, b"theirs", other)
    service.commit(KEY, other, one_phase=True)
    assert bodies(broker, "test", 0) == [b"theirs"]
    service.commit(KEY, channel, one_phase=True)
    assert bodies(broker, "test", 0) == [b"theirs", b"mine"]


def test_the_end_of_its_connection_rolls_a_local_transaction_back_and_leaves_branches_alone(
    broker: Broker, channel: FakeChannel
) -> None:
    service = branches(broker)
    for key in (KEY, XID):
        service.begin(key, 0, channel)
        for _ in range(3):
            put(broker, key, bytes(CHUNK_BYTES), channel)
    assert broker.staging.held[0] == 2
    broker.closed(channel)
    assert broker.staging.held[0] == 1
    assert [state.key for state in service.listing()] == [str(XID)]
    other = FakeChannel("127.0.0.1:50001")
    put(broker, XID, b"more", other)
    service.commit(XID, other, one_phase=True)
    run_steps(broker)
    assert [len(body) for body in bodies(broker, "test", 0)] == [CHUNK_BYTES] * 3 + [4]


def test_an_empty_local_transaction_can_be_committed(broker: Broker, channel: FakeChannel) -> None:
    branches(broker).begin(KEY, 0, channel)
    assert branches(broker).commit(KEY, channel, one_phase=True) == Ended(stored=False)


def test_a_local_transaction_cannot_be_prepared(broker: Broker, channel: FakeChannel) -> None:
    branches(broker).begin(KEY, 0, channel)
    fault(Fault.CANNOT, branches(broker).prepare, KEY, channel)


def test_a_put_needs_a_transaction_that_was_begun_and_a_partition(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    text = refused(Reason.NOT_FOUND, put, broker, KEY, b"t1", channel)
    assert text == "Local transaction 'TX:10.0.0.5-1373971200000-1:1' has not been started."
    fault(Fault.NOT_KNOWN, put, broker, XID, b"t1", channel)
    refused(Reason.NOT_FOUND, put, broker, None, b"t1", channel)
    service.begin(KEY, 0, channel)
    text = refused(Reason.INVALID, put, broker, KEY, b"t1", channel, partition=ANY_PARTITION)
    assert text == "Invalid partition for transaction command:-1"
    refused(Reason.INVALID, put, broker, KEY, b"t1", channel, partition=3)
    refused(Reason.NO_TOPIC, put, broker, KEY, b"t1", channel, "nowhere")
    put(broker, KEY, b"good", channel)
    service.commit(KEY, channel, one_phase=True)
    assert bodies(broker, "test", 0) == [b"good"], "what was refused is not in it"


def test_a_message_without_a_body_comes_as_it_is(broker: Broker, channel: FakeChannel) -> None:
    branches(broker).begin(KEY, 0, channel)
    put(broker, KEY, b"", channel)
    put(broker, KEY, b"\x00\x00\x00\x04paid", channel, flag=1)
    branches(broker).commit(KEY, channel, one_phase=True)
    run_steps(broker)
    assert [(one.body, one.properties.get(props.TAGS)) for one in stored(broker, "test", 0)] == [
        (b"", None),
        (b"", "paid"),
    ]


def test_what_can_never_be_stored_is_refused_at_the_put_and_the_rest_can_be_committed(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    with opened(tmp_path, clock, Metaq1Options(max_transfer_size=4 << 20)) as broker:
        branches(broker).begin(KEY, 0, channel)
        put(broker, KEY, b"good", channel)
        refused(Reason.ILLEGAL_MESSAGE, put, broker, KEY, bytes((1 << 20) + 1), channel)
        put(broker, KEY, bytes(1 << 20), channel)
        put(broker, KEY, b"better", channel)
        branches(broker).commit(KEY, channel, one_phase=True)
        run_steps(broker)
        assert bodies(broker, "test", 0) == [b"good", bytes(1 << 20), b"better"]


def test_a_topic_with_a_dot_takes_messages_of_transactions(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    """RocketMQ knows no such names; 1.x does."""
    with open_broker(tmp_path, clock, metaq1=settings(**{"a.b": 2})) as broker:
        for key in (KEY, XID):
            branches(broker).begin(key, 0, channel)
            put(broker, key, b"x", channel, "a.b", 1)
        branches(broker).commit(KEY, channel, one_phase=True)
        branches(broker).prepare(XID, channel)
        branches(broker).commit(XID, channel, one_phase=False)
        assert bodies(broker, "a.b", 1) == [b"x", b"x"]


@pytest.mark.parametrize("topic", ["stock", "a.b"])
def test_a_topic_that_is_deleted_while_a_branch_is_prepared_is_made_again_by_its_commit(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel, topic: str
) -> None:
    with open_broker(tmp_path, clock, metaq1=settings(**{topic: 2})) as broker:
        branches(broker).begin(XID, 0, channel)
        put(broker, XID, b"x", channel, topic, 1)
        branches(broker).prepare(XID, channel)
        gone = broker.delete_topic(topic)
        eventually(lambda: gone.done, what="the topic is deleted")
        branches(broker).commit(XID, channel, one_phase=False)
        eventually(lambda: run_steps(broker) or bodies(broker, topic, 1) == [b"x"], what="the message is there")


def test_a_topic_that_is_deleted_meanwhile_fails_the_commit_and_the_rest_is_rolled_back(
    broker: Broker, channel: FakeChannel
) -> None:
    service = branches(broker)
    for key in (KEY, XID):
        service.begin(key, 0, channel)
        put(broker, key, b"a", channel)
        put(broker, key, b"b", channel, "stock")
    broker.delete_topic("stock")
    assert "stock is not there any more" in refused(Reason.NO_TOPIC, service.commit, KEY, channel, one_phase=True)
    assert "stock is not there any more" in fault(Fault.ROLLED_BACK, service.prepare, XID, channel)
    assert (bodies(broker, "test", 0), broker.staging.held, service.listing()) == ([], (0, 0), [])


def test_rights_count_when_a_message_is_put_and_its_end_is_the_transactions_own(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    """A transaction manager, or an operator, ends what others were allowed to put."""
    theirs = FakeChannel("10.9.9.9:1")

    def authorise(who: Caller, what: Action, topic: str) -> None:
        if what is Action.PUBLISH and who != channel.caller:
            raise Refused(Reason.NO_PERMISSION, f"{topic} is not yours")

    other = BranchKey(7, b"g2", b"", "uqA")
    with opened(tmp_path, clock, authorise=authorise) as broker:
        service = branches(broker)
        for key in (XID, other):
            service.begin(key, 0, channel)
            refused(Reason.NO_PERMISSION, put, broker, key, b"no", theirs)
            put(broker, key, b"a", channel)
            service.prepare(key, channel)
        service.commit(XID, theirs, one_phase=False)
        service.end_by_hand(str(other), DecisionOutcome.COMMIT)
        assert bodies(broker, "test", 0) == [b"a", b"a"]


# ---------------------------------------------------------------------- XA


def test_a_prepared_branch_is_committed_in_a_second_phase(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    service.begin(XID, 0, channel)
    put(broker, XID, b"a", channel)
    put(broker, XID, b"b", channel, partition=2)
    assert service.prepare(XID, channel) == Ended(stored=True, vote=Vote.PREPARED)
    assert bodies(broker, "test", 0) == []
    assert service.recover("uqA") == service.recover(None) == [XID]
    assert service.recover("other") == []
    fault(Fault.PROTOCOL, put, broker, XID, b"late", channel)
    fault(Fault.PROTOCOL, service.prepare, XID, channel)
    assert service.commit(XID, channel, one_phase=False) == Ended(stored=True)
    assert bodies(broker, "test", 0) == [b"a"]
    assert bodies(broker, "test", 2) == [b"b"]
    assert service.recover(None) == []
    fault(Fault.NOT_KNOWN, service.commit, XID, channel, one_phase=False)


def test_a_branch_without_messages_is_read_only_and_over(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    service.begin(XID, 0, channel)
    assert service.prepare(XID, channel) == Ended(stored=False, vote=Vote.READ_ONLY)
    fault(Fault.NOT_KNOWN, service.commit, XID, channel, one_phase=False)
    service.begin(XID, 0, channel)
    put(broker, XID, b"again", channel)
    service.commit(XID, channel, one_phase=True)
    assert bodies(broker, "test", 0) == [b"again"]


def test_steps_in_the_wrong_order_fail_as_xa_says(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    for act in (service.prepare, service.rollback):
        fault(Fault.NOT_KNOWN, act, XID, channel)
    service.begin(XID, 0, channel)
    put(broker, XID, b"a", channel)
    fault(Fault.PROTOCOL, service.commit, XID, channel, one_phase=False)
    fault(Fault.NOT_KNOWN, service.forget, KEY)
    fault(Fault.NOT_KNOWN, service.forget, None)
    assert service.forget(XID) == Ended(stored=False)
    assert service.rollback(XID, channel) == Ended(stored=False)
    assert bodies(broker, "test", 0) == []


def test_a_key_may_come_again_when_its_branch_is_over(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    for body in (b"1", b"2", b"3"):
        service.begin(XID, 0, channel)
        put(broker, XID, body, channel)
        service.prepare(XID, channel)
        service.commit(XID, channel, one_phase=False)
    assert bodies(broker, "test", 0) == [b"1", b"2", b"3"]


def test_a_prepared_branch_outlives_a_restart_and_an_open_one_does_not(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    other, third = BranchKey(7, b"g2", b"", "uqA"), BranchKey(-1, b"", b"\xff", "uqB")
    with opened(tmp_path, clock) as broker:
        for key in (XID, other, third):
            branches(broker).begin(key, 20, channel)
            put(broker, key, str(key).encode(), channel)
        put(broker, other, bytes(CHUNK_BYTES), channel)
        branches(broker).prepare(XID, channel)
        branches(broker).prepare(third, channel)
    clock.advance(10 * 86_400)
    with opened(tmp_path, clock) as broker:
        service = branches(broker)
        broker.tick()
        assert service.recover(None) == [XID, third]
        assert service.recover("uqB") == [third]
        fault(Fault.NOT_KNOWN, service.commit, other, channel, one_phase=True)
        assert broker.staging.held[0] == 2
        service.commit(XID, channel, one_phase=False)
        service.rollback(third, channel)
        assert bodies(broker, "test", 0) == [str(XID).encode()]
    with opened(tmp_path, clock) as broker:
        assert branches(broker).recover(None) == []
        assert bodies(broker, "test", 0) == [str(XID).encode()]


def test_what_is_in_doubt_outlasts_the_log_files_that_it_was_written_to(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    """However often they go, over restarts, for months; what an operator has ended is remembered as long."""
    other = BranchKey(7, b"g2", b"", "uqA")
    options = Metaq1Options(delete_policy="delete,1", delete_when="0 * * * * ?")
    with opened(tmp_path, clock, options, store=SMALL) as broker:
        for key in (XID, other):
            branches(broker).begin(key, 5, channel)
            put(broker, key, b"kept", channel)
            branches(broker).prepare(key, channel)
        branches(broker).end_by_hand(str(other), DecisionOutcome.ROLLBACK)
        for _ in range(2):
            let_files_go(broker, clock)
    clock.advance(100 * 86_400)
    with opened(tmp_path, clock, options, store=SMALL) as broker:
        let_files_go(broker, clock)
        service = branches(broker)
        assert service.recover(None) == [XID, other]
        service.commit(XID, channel, one_phase=False)
        service.forget(other)
        assert bodies(broker, "test", 0) == [b"kept"]
        let_files_go(broker, clock)
        assert broker.staging.oldest() is None


# ---------------------------------------------------------------------- time


def test_a_time_out_rolls_back_what_is_open_and_is_cut_to_the_longest(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    second = LocalKey("s", 2)
    with opened(tmp_path, clock, Metaq1Options(max_tx_timeout_in_seconds=30)) as broker:
        service = branches(broker)
        service.begin(KEY, 5, channel)
        service.begin(second, 10_000, channel)
        service.begin(XID, 5, channel)
        prepared = BranchKey(1, b"x", b"y", "q")
        service.begin(prepared, 5, channel)
        for key in (KEY, second, XID, prepared):
            put(broker, key, b"a", channel)
        service.prepare(prepared, channel)
        clock.advance(6)
        broker.tick()
        refused(Reason.NOT_FOUND, service.commit, KEY, channel, one_phase=True)
        fault(Fault.NOT_KNOWN, service.commit, XID, channel, one_phase=True)
        clock.advance(25)
        broker.tick()
        refused(Reason.NOT_FOUND, service.commit, second, channel, one_phase=True)
        assert service.recover(None) == [prepared]


def test_a_branch_whose_manager_is_lost_ends_with_the_time_of_staged_transactions(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    with opened(tmp_path, clock, staged_seconds_max=100) as broker:
        branches(broker).begin(XID, 0, channel)
        branches(broker).begin(KEY, 0, channel)
        clock.advance(101)
        broker.tick()
        assert [state.key for state in branches(broker).listing()] == [str(KEY)], "its connection is still there"


def test_more_transactions_with_a_time_out_than_the_timers_hold_are_refused(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    with opened(tmp_path, clock, Metaq1Options(max_tx_timeout_timer_capacity=2)) as broker:
        service = branches(broker)
        service.begin(LocalKey("s", 1), 5, channel)
        service.begin(XID, 5, channel)
        assert "maxTxTimeoutTimerCapacity" in refused(Reason.BUSY, service.begin, LocalKey("s", 2), 5, channel)
        service.begin(LocalKey("s", 2), 0, channel)
        service.rollback(XID, channel)
        service.begin(LocalKey("s", 3), 5, channel)


def test_transactions_that_nobody_ends_are_limited(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    with opened(tmp_path, clock, staged_parts_max=8) as broker:
        service = branches(broker)
        for number in range(2):
            service.begin(LocalKey("s", number), 0, channel)
        refused(Reason.BUSY, service.begin, LocalKey("s", 2), 0, channel)
        others = [FakeChannel(f"10.0.0.{number}:50000") for number in range(3)]
        for number in range(6):
            service.begin(BranchKey(1, bytes([number]), b"", "q"), 0, others[number // 2])
        refused(Reason.BUSY, service.begin, LocalKey("s", 2), 0, FakeChannel("127.0.0.1:50001"))
        broker.closed(channel)
        service.begin(LocalKey("s", 2), 0, FakeChannel("127.0.0.1:50001"))


def test_one_client_may_not_have_all_branches_by_ever_new_connections(tmp_path: pathlib.Path, clock: FakeClock) -> None:
    """They outlive their connections."""
    with opened(tmp_path, clock, staged_parts_max=8) as broker:
        service, keys = branches(broker), [BranchKey(1, bytes([number]), b"", "q") for number in range(3)]
        for number in range(2):
            of_its_own = FakeChannel(f"10.0.0.1:{50000 + number}")
            service.begin(keys[number], 0, of_its_own)
            broker.closed(of_its_own)
        refused(Reason.BUSY, service.begin, keys[2], 0, FakeChannel("10.0.0.1:50002"))
        service.begin(keys[2], 0, FakeChannel("10.0.0.2:50000"))
        service.rollback(keys[0], FakeChannel("10.0.0.2:50000"))
        service.begin(keys[0], 0, FakeChannel("10.0.0.1:50003"))


def test_partitions_that_open_transactions_have_touched_are_limited(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    """Each takes memory, however small its messages are: 10 000 transactions over all partitions of a broker are too many."""
    with open_broker(tmp_path, clock, metaq1=settings(test=5), staged_parts_max=8) as broker:
        service, other = branches(broker), FakeChannel("127.0.0.1:50001")
        for number in range(2):
            service.begin(LocalKey("s", number), 0, channel)
            put(broker, LocalKey("s", number), b"", channel, partition=0)
            put(broker, LocalKey("s", number), b"", channel, partition=0)
        refused(Reason.BUSY, put, broker, LocalKey("s", 1), b"", channel, partition=1)
        service.begin(LocalKey("s", 0), 0, other)
        put(broker, LocalKey("s", 0), b"", other, partition=1)
        service.commit(LocalKey("s", 0), channel, one_phase=True)
        run_steps(broker)
        put(broker, LocalKey("s", 1), b"", channel, partition=1)
        service.rollback(LocalKey("s", 1), channel)
        service.begin(LocalKey("s", 2), 0, channel)
        for partition in range(2):
            put(broker, LocalKey("s", 2), b"", channel, partition=partition)
        assert [len(bodies(broker, "test", partition)) for partition in range(2)] == [2, 0]


def test_a_key_of_10_kib_is_refused_before_anything(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    for key in (BranchKey(1, bytes(5120), b"", "q"), LocalKey("s" * 10_240, 1)):
        for act in (service.begin, put):
            args = (key, 0, channel) if act is not put else (broker, key, b"", channel)
            assert "1024" in fault(Fault.INVALID, act, *args)
    assert service.listing() == []


# ---------------------------------------------------------------------- failures


def test_a_commit_that_cannot_be_stored_rolls_back_and_says_so(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    for key in (KEY, XID):
        service.begin(key, 0, channel)
        put(broker, key, b"a", channel)
    broker.store.state.failed = "the disk is gone"
    assert "rolled back" in refused(Reason.NOT_STORED, service.commit, KEY, channel, one_phase=True)
    assert "rolled back" in fault(Fault.ROLLED_BACK, service.prepare, XID, channel)
    broker.store.state.failed = None
    broker.tick()
    assert (bodies(broker, "test", 0), broker.staging.held, service.listing()) == ([], (0, 0), [])


def test_a_prepared_branch_stays_so_while_its_end_cannot_be_stored(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    service.begin(XID, 0, channel)
    put(broker, XID, b"a", channel)
    service.prepare(XID, channel)
    broker.store.state.failed = "the disk is gone"
    fault(Fault.RETRY, service.commit, XID, channel, one_phase=False)
    fault(Fault.UNAVAILABLE, service.rollback, XID, channel)
    broker.store.state.failed = None
    assert service.recover(None) == [XID]
    service.commit(XID, channel, one_phase=False)
    assert bodies(broker, "test", 0) == [b"a"]


# ---------------------------------------------------------------------- by hand


@pytest.mark.parametrize("outcome", [DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK])
def test_what_an_operator_has_ended_is_remembered_until_it_is_forgotten(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel, outcome: DecisionOutcome
) -> None:
    committed = outcome is DecisionOutcome.COMMIT
    kind = Fault.COMMITTED_BY_HAND if committed else Fault.ROLLED_BACK_BY_HAND
    phase = BranchPhase.COMMITTED_BY_HAND if committed else BranchPhase.ROLLED_BACK_BY_HAND
    with opened(tmp_path, clock) as broker:
        service = branches(broker)
        service.begin(XID, 0, channel)
        put(broker, XID, b"a", channel)
        refused(Reason.NOT_FOUND, service.end_by_hand, str(XID), outcome)
        service.prepare(XID, channel)
        service.end_by_hand(str(XID), outcome)
        assert bodies(broker, "test", 0) == ([b"a"] if committed else [])
    with opened(tmp_path, clock) as broker:
        service = branches(broker)
        assert service.recover("uqA") == [XID]
        assert [(state.key, state.phase) for state in service.listing()] == [(str(XID), phase)]
        fault(kind, service.commit, XID, channel, one_phase=False)
        fault(kind, service.rollback, XID, channel)
        fault(kind, service.begin, XID, 0, channel)
        fault(kind, service.end_by_hand, str(XID), outcome)
        assert service.forget(XID) == Ended(stored=True)
        assert service.recover(None) == []
        assert bodies(broker, "test", 0) == ([b"a"] if committed else [])
    with opened(tmp_path, clock) as broker:
        assert branches(broker).listing() == []


def test_an_operator_may_forget_what_was_ended_by_hand_and_nothing_else(broker: Broker, channel: FakeChannel) -> None:
    service = branches(broker)
    service.begin(XID, 0, channel)
    put(broker, XID, b"a", channel)
    service.prepare(XID, channel)
    refused(Reason.NOT_FOUND, service.forget_by_hand, str(XID))
    refused(Reason.INVALID, service.forget_by_hand, "XID:nonsense")
    refused(Reason.INVALID, service.end_by_hand, "XID:nonsense", DecisionOutcome.COMMIT)
    service.end_by_hand(str(XID), DecisionOutcome.ROLLBACK)
    service.forget_by_hand(str(XID))
    assert service.listing() == []


def test_a_branch_that_was_ended_as_a_staged_transaction_is_told_so(broker: Broker, channel: FakeChannel) -> None:
    """By `metaq transaction rollback` or `forget`, which know nothing of keys."""
    service = branches(broker)
    for act in ("rollback", "forget"):
        service.begin(XID, 0, channel)
        put(broker, XID, b"a", channel)
        service.prepare(XID, channel)
        (state,) = service.listing()
        assert (state.phase, state.messages) == (BranchPhase.PREPARED, 1)
        if act == "forget":
            broker.staging.forget(state.transaction)
            fault(Fault.NOT_KNOWN, service.commit, XID, channel, one_phase=False)
        else:
            rollback(broker, state.transaction)
            assert broker.staging.state(state.transaction).phase is Phase.ROLLED_BACK
            fault(Fault.ROLLED_BACK_BY_HAND, service.commit, XID, channel, one_phase=False)
        assert service.recover(None) == []


# ---------------------------------------------------------------------- what answers wait for


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_answers_wait_for_the_disk_as_flush_tx_log_at_commit_says(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel, mode: int
) -> None:
    """Without a wish of the broker's own: its sends are answered at once."""
    with opened(tmp_path, clock, Metaq1Options(flush_tx_log_at_commit=mode)) as broker:
        asked: list[int] = []
        broker.store.flusher.when_flushed = lambda end, _done: asked.append(end)  # type: ignore[method-assign]
        service = branches(broker)
        service.begin(KEY, 0, channel)
        put(broker, KEY, b"a", channel)
        service.commit(KEY, channel, one_phase=True)
        end = broker.store.log.end
        assert service.due() == (Due(end, 0, promised=True) if mode == 1 else None)
        broker.tick()
        broker.tick()
        assert asked == ([end] if mode == 2 else [])
