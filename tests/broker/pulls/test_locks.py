"""Locks on queues: who holds what, since when, and who cannot have it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from metaq.broker.environment import Tables
from metaq.broker.pulls import locks as locks_module
from metaq.broker.pulls.locks import CLIENT_ID_CHARS_MAX, QUEUES_MAX, Locks
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import GroupConfig, MessageQueue, QueueLocks
from metaq.model.access import Action, Caller
from tests.broker.support import FakeChannel, open_broker
from tests.effort import repeats

WHO = Caller("10.0.0.1", loopback=False)
ALL = tuple(MessageQueue("orders", "broker-a", queue_id) for queue_id in range(8))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker(tmp_path, clock):
    with open_broker(tmp_path, clock) as broker:
        broker.topics.ensure("orders", 8)
        yield broker


@pytest.fixture
def locks(broker):
    return broker.locks


def wants(client_id: str, *queues: MessageQueue, group: str = "G") -> QueueLocks:
    return QueueLocks(group, client_id, queues)


def test_a_queue_is_locked_by_one_client_of_a_group_and_by_others_of_other_groups(locks):
    """The second client gets what is left, and another group everything."""
    assert locks.lock(WHO, wants("a@1", *ALL[:5])) == list(ALL[:5])
    assert locks.lock(WHO, wants("b@1", *ALL[3:])) == list(ALL[5:])
    assert locks.lock(WHO, wants("b@1", *ALL, group="H")) == list(ALL)
    assert locks.holder("G", "orders", 3) == "a@1"
    assert locks.holder("G", "orders", 7) == "b@1"


def test_a_lock_holds_for_a_minute_after_its_last_renewal(locks, clock):
    """So a dead client's queue is free after that, and not before; its own client keeps it as long as it asks."""
    locks.lock(WHO, wants("a@1", *ALL[:2]))
    clock.advance(40)
    locks.lock(WHO, wants("a@1", ALL[1]))
    clock.advance(20)
    assert locks.lock(WHO, wants("b@1", *ALL[:2])) == []
    clock.advance(0.001)
    assert locks.lock(WHO, wants("b@1", *ALL[:2])) == [ALL[0]]
    assert locks.lock(WHO, wants("a@1", *ALL[:2])) == [ALL[1]]


def test_a_lock_is_let_go_by_its_holder_alone(locks):
    """42 of somebody else changes nothing."""
    locks.lock(WHO, wants("a@1", ALL[0]))
    locks.unlock(WHO, wants("b@1", ALL[0]))
    locks.unlock(WHO, wants("a@1", ALL[0], group="H"))
    assert locks.lock(WHO, wants("b@1", ALL[0])) == []
    locks.unlock(WHO, wants("a@1", ALL[0], ALL[1]))
    assert locks.lock(WHO, wants("b@1", ALL[0])) == [ALL[0]]


def test_queues_that_do_not_exist_are_not_locked_and_the_log_says_so_once(broker, locks, clock, caplog):
    """Each with its reason, beside those that do exist; what is repeated is counted."""
    wrong = [
        MessageQueue("nothing", "broker-a", 0),
        MessageQueue("orders", "broker-a", 8),
        MessageQueue("orders", "broker-a", -1),
        MessageQueue("orders", "broker-b", 0),
        MessageQueue("rmq_sys_METAQ_STAGE", "broker-a", 0),
        MessageQueue("../../etc", "broker-a", 0),
    ]
    for _ in range(3):
        assert locks.lock(WHO, wants("a@1", *wrong, ALL[0])) == [ALL[0]]
    told = [record.getMessage() for record in caplog.records if record.name == "metaq.broker.pulls.locks"]
    for part in (
        "nothing",
        "orders@broker-a:8",
        "this broker is broker-a",
        "belongs to the broker itself",
        "../../etc",
    ):
        assert sum(part in line for line in told) == 1, part
    assert all("a@1" in line and "group G" in line for line in told)
    assert locks.count == 1
    clock.advance(20)
    caplog.clear()
    locks.expire()
    assert "more like this in the last" in caplog.text


def test_made_up_queues_do_not_fill_the_log(locks, caplog):
    """One line tells of the first of them, whatever a client asks for and how often."""
    for turn in range(3):
        made_up = [MessageQueue(f"nothing-{turn}-{number}", "broker-a", 0) for number in range(500)]
        assert locks.lock(WHO, wants("a@1", *made_up, ALL[0])) == [ALL[0]]
    (told,) = [record.getMessage() for record in caplog.records if record.name == "metaq.broker.pulls.locks"]
    assert "no lock on 500 queues" in told
    assert "nothing-0-0" in told
    assert len(told) < 5000


def test_too_many_queues_in_one_request_are_refused(locks):
    """Else it would stop everybody for seconds; the group's other locks stay."""
    locks.lock(WHO, wants("a@1", ALL[0]))
    many = wants("a@1", *(MessageQueue("orders", "broker-a", number) for number in range(QUEUES_MAX + 1)))
    for act in (locks.lock, locks.unlock):
        with pytest.raises(Refused, match="the limit is 10000"):
            act(WHO, many)
    assert locks.holder("G", "orders", 0) == "a@1"


def test_a_lock_on_a_deleted_topic_is_not_renewed(broker, locks):
    """Its consumer hears that the queue is gone."""
    locks.lock(WHO, wants("a@1", ALL[0]))
    broker.delete_topic("orders").settle()
    assert locks.lock(WHO, wants("a@1", ALL[0])) == []


def test_the_number_of_locks_is_bounded_and_dead_ones_make_room(tmp_path, clock, caplog):
    """queueLocksMax: what is beyond it is not granted and the log says why; what was granted can be renewed."""
    with open_broker(tmp_path, clock, queue_locks_max=6) as broker:
        broker.topics.ensure("orders", 8)
        assert broker.locks.lock(WHO, wants("a@1", *ALL[:4])) == list(ALL[:4])
        assert broker.locks.lock(WHO, wants("b@1", *ALL[:4], group="H")) == list(ALL[:2])
        assert "queueLocksMax" in caplog.text
        assert broker.locks.lock(WHO, wants("b@1", *ALL[:4], group="H")) == list(ALL[:2])
        clock.advance(30)
        broker.locks.lock(WHO, wants("a@1", *ALL[:4]))
        clock.advance(31)
        broker.tick()
        assert broker.locks.count == 4
        assert broker.locks.lock(WHO, wants("c@1", *ALL[:4], group="I")) == list(ALL[:2])


def test_another_host_with_the_same_client_id_gets_and_lets_go_of_nothing(locks, clock, caplog):
    """A client id is only said. After a minute without renewal the lock is anybody's; a signer is the same on every host."""
    elsewhere = Caller("10.0.0.2", loopback=False)
    locks.lock(WHO, wants("a@1", *ALL[:2]))
    assert locks.lock(elsewhere, wants("a@1", *ALL[:3])) == [ALL[2]]
    assert "a client of this id at 10.0.0.1 holds it" in caplog.text
    locks.unlock(elsewhere, wants("a@1", *ALL[:2]))
    assert "10.0.0.2 wants to let go of 2 locks of client a@1 of group G" in caplog.text
    assert locks.lock(WHO, wants("b@1", *ALL[:2])) == []
    clock.advance(61)
    assert locks.lock(elsewhere, wants("a@1", *ALL[:2])) == list(ALL[:2])
    signed = [Caller(f"10.0.0.{number}", loopback=False, identity="anna") for number in (3, 4)]
    locks.lock(signed[0], wants("c@1", ALL[5]))
    locks.unlock(signed[1], wants("c@1", ALL[5]))
    assert locks.holder("G", "orders", 5) is None


def test_a_host_and_a_group_have_a_share_of_all_locks(tmp_path, clock, caplog, monkeypatch):
    """The others get theirs; what expires or is let go of is free again for whoever asks."""
    monkeypatch.setattr(locks_module, "SHARE_MIN", 1)
    hosts = [Caller(f"10.0.0.{number}", loopback=False) for number in range(4)]
    with open_broker(tmp_path, clock, queue_locks_max=16) as broker:
        broker.topics.ensure("orders", 8)
        locks = broker.locks
        assert locks.lock(hosts[0], wants("a@1", *ALL[:3])) == list(ALL[:3])
        assert locks.lock(hosts[0], wants("a@1", *ALL[:3], group="H")) == [ALL[0]]
        assert "clients at 10.0.0.0 hold 4 locks, a host's share of queueLocksMax=16" in caplog.text
        assert locks.lock(hosts[1], wants("b@1", *ALL[3:])) == [ALL[3]]
        assert "the group holds 4 locks, its share of queueLocksMax=16" in caplog.text
        locks.unlock(hosts[0], wants("a@1", ALL[0]))
        assert locks.lock(hosts[1], wants("b@1", ALL[4])) == [ALL[4]]
        clock.advance(61)
        assert locks.lock(hosts[2], wants("c@1", *ALL[1:4])) == list(ALL[1:4])
        broker.tick()
        assert locks.lock(hosts[0], wants("a@1", *ALL[:4], group="I")) == list(ALL[:4])


def test_a_lock_ends_with_no_connection(broker, locks):
    """A member that is cut off goes on consuming for a while: whoever comes next has to wait."""
    locks.lock(WHO, wants("a@1", ALL[0]))
    broker.closed(FakeChannel())
    broker.unregister(FakeChannel(), None, "G")
    assert locks.lock(WHO, wants("b@1", ALL[0])) == []


@pytest.mark.parametrize("client_id", ["", "c" * (CLIENT_ID_CHARS_MAX + 1)])
def test_a_client_without_a_usable_id_gets_nothing(locks, client_id):
    """A lock keeps the id in memory."""
    for ask in (locks.lock, locks.unlock):
        with pytest.raises(Refused, match="client id has"):
            ask(WHO, wants(client_id, ALL[0]))
    assert locks.count == 0


def test_a_group_that_may_not_consume_gets_no_locks(broker, locks):
    """An illegal name, one that does not exist and may not be made, one that is switched off."""
    with pytest.raises(Refused, match="characters outside"):
        locks.lock(WHO, wants("a@1", ALL[0], group="../x"))
    broker.groups.update(GroupConfig("off", consume_enable=False)).settle()
    with pytest.raises(Refused) as refused:
        locks.lock(WHO, wants("a@1", ALL[0], group="off"))
    assert refused.value.reason is Reason.NO_PERMISSION
    assert locks.count == 0


def test_who_may_not_subscribe_may_not_lock(tmp_path):
    """Neither for another's group nor on a topic that is closed to it."""

    def authorise(_who: Caller, what: Action, resource: str) -> None:
        if resource in ("secret", "%RETRY%theirs"):
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not yours ({what.name})")

    secret = MessageQueue("secret", "broker-a", 0)
    with open_broker(tmp_path, authorise=authorise) as broker:
        broker.topics.ensure("orders", 8)
        broker.topics.ensure("secret", 8)
        assert broker.locks.lock(WHO, wants("a@1", secret, ALL[0])) == [ALL[0]]
        for ask in (broker.locks.lock, broker.locks.unlock):
            with pytest.raises(Refused, match="theirs is not yours"):
                ask(WHO, wants("a@1", ALL[0], group="theirs"))


def test_locks_are_held_as_a_model_of_one_sentence_says(broker, clock):
    """A queue is its holder's until 60 s after the last grant, or until it lets go."""
    tables = Tables(broker.topics, broker.groups, broker.members, broker.offsets, broker.closed_partitions)
    run_state_machine_as_test(
        lambda: LockMachine(Locks(broker.environment, tables, broker.gatekeeper), clock),
        settings=settings(max_examples=repeats(60), stateful_step_count=30, deadline=None),
    )


class LockMachine(RuleBasedStateMachine):
    """The locks beside the model of them."""

    def __init__(self, locks: Locks, clock: FakeClock):
        super().__init__()
        self.locks, self.clock = locks, clock
        self.model: dict[tuple[str, int], tuple[str, float]] = {}

    groups = st.sampled_from(["G", "H"])
    clients = st.sampled_from(["a@1", "b@1", "c@1"])
    queues = st.sets(st.integers(0, 4))

    def holder(self, group, queue_id):
        client, until = self.model.get((group, queue_id), ("", -1.0))
        return client if until >= self.clock.monotonic() else None

    @rule(group=groups, client=clients, queues=queues)
    def lock(self, group, client, queues):
        wanted = [ALL[queue_id] for queue_id in sorted(queues)]
        expected = [queue for queue in wanted if self.holder(group, queue.queue_id) in (None, client)]
        assert self.locks.lock(WHO, wants(client, *wanted, group=group)) == expected
        for queue in expected:
            self.model[group, queue.queue_id] = client, self.clock.monotonic() + 60

    @rule(group=groups, client=clients, queues=queues)
    def unlock(self, group, client, queues):
        self.locks.unlock(WHO, wants(client, *(ALL[queue_id] for queue_id in queues), group=group))
        for queue_id in queues:
            if self.holder(group, queue_id) == client:
                del self.model[group, queue_id]

    @rule(seconds=st.sampled_from([1.0, 20.0, 59.0, 61.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def expire(self):
        self.locks.expire()
        assert self.locks.count == sum(self.holder(*place) is not None for place in self.model)

    @invariant()
    def holders_agree(self):
        for group, queue_id in self.model:
            assert self.locks.holder(group, "orders", queue_id) == self.holder(group, queue_id)
