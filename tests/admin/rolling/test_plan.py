"""What a rolling restart does in which order, and when it does not begin."""

from __future__ import annotations

import pytest
from msgspec import structs

from metaq.admin.growth.places import Refusal
from metaq.admin.replicas import Replica
from metaq.admin.rolling.plan import BrokerProcess, Kind, Plan, plan_of
from metaq.model.leadership import ReplicaState
from tests.admin.rolling.test_standing import FIRST, LEADER, replica, state


def group(*in_sync: int, minimum: int = 1, members: int = 3) -> list[Replica]:
    """Member 2 leads."""
    found = [replica(state(number)) for number in range(1, members + 1) if number != 2]
    assert LEADER.state is not None
    assert LEADER.state.group is not None
    role = structs.replace(LEADER.state.group, in_sync=in_sync, minimum=minimum)
    return [*found, structs.replace(LEADER, state=structs.replace(LEADER.state, group=role))]


def pair(master: int = 0, slaves: tuple[int, ...] = (1,)) -> list[Replica]:
    def one(number: int, leads: bool) -> Replica:
        role = "SYNC_MASTER" if leads else "SLAVE"
        return Replica("a", number, f"h:{number}", state=ReplicaState("a", number, role, leads, 0, 10, 1), log_end=10)

    return [one(master, True), *(one(number, False) for number in slaves)]


def refused(found: list[Replica], minimum: int = 0) -> str:
    with pytest.raises(Refusal, match=r"(?i)nothing was restarted") as caught:
        plan_of("a", found, minimum)
    return str(caught.value)


def test_followers_come_first():
    plan = plan_of("a", group(1, 2, 3))
    assert (plan.kind, [one.member for one in plan.processes], plan.gap) == (Kind.GROUP, [1, 3, 2], "")
    assert plan_of("a", pair(slaves=(2, 1))) == Plan(
        Kind.PAIR, "a", (BrokerProcess("a", 1, "h:1"), BrokerProcess("a", 2, "h:2"), BrokerProcess("a", 0, "h:0"))
    )


def test_a_single_master_is_a_gap():
    assert "one broker alone" in refused(pair(slaves=()))
    plan = plan_of("a", pair(slaves=()), with_gaps=True)
    assert (plan.kind, len(plan.processes), "sends to it are refused" in plan.gap) == (Kind.SINGLE, 1, True)


def test_a_group_without_one_to_spare_is_a_gap():
    """While it restarts, the set is below its minimum."""
    assert "1 of its in-sync set are left, and minInSyncReplicas is 2" in refused(group(1, 2, minimum=2, members=2))
    assert plan_of("a", group(1, 2, minimum=2, members=2), with_gaps=True).gap
    assert not plan_of("a", group(1, 2, 3, minimum=2)).gap
    assert "minInSyncReplicas is 2" in refused(pair(), minimum=2)
    assert not plan_of("a", pair(slaves=(1, 2)), 2).gap


def test_who_is_not_in_sync_keeps_it_from_beginning():
    assert "member 3 is not in the in-sync set (600 B behind)" in refused(group(1, 2))
    assert len(plan_of("a", group(1, 2), anyway=True).processes) == 3
    assert "member 3 is in the in-sync set, and not registered" in refused(group(1, 2, 3, members=2))


def test_one_that_does_not_answer_keeps_it_from_beginning_and_is_left_out_otherwise():
    silent = Replica("a", 3, "h:3", "connection refused")
    assert "the one at h:3 does not answer (connection refused)" in refused([*pair(slaves=(1, 2)), silent])
    assert len(plan_of("a", [*pair(slaves=(1, 2)), silent], anyway=True).processes) == 3


def test_without_a_leader_it_never_begins():
    for found in ([FIRST, replica(state(2))], pair(slaves=(1,))[1:]):
        with pytest.raises(Refusal, match=r"nobody leads"):
            plan_of("a", found, anyway=True, with_gaps=True)


def test_a_leader_in_doubt_keeps_it_from_beginning():
    *others, leader = group(1, 2, 3)
    assert leader.state is not None
    assert leader.state.group is not None
    role = structs.replace(leader.state.group, doubt="ZooKeeper does not answer")
    doubtful = structs.replace(leader, state=structs.replace(leader.state, group=role))
    assert "acknowledges nothing: ZooKeeper does not answer" in refused([*others, doubtful])


def test_two_masters_keep_it_from_beginning():
    assert "more than one" in refused([*pair(), *pair(master=2, slaves=())])


def test_a_rocketmq_is_not_restarted_from_here():
    with pytest.raises(Refusal, match=r"h:0 is a RocketMQ"):
        plan_of("a", [structs.replace(pair()[0], state=None)], anyway=True, with_gaps=True)
