"""When a broker that was restarted counts as in sync."""

from __future__ import annotations

from msgspec import structs

from metaq.admin.replicas import Replica
from metaq.admin.rolling.plan import Kind, Plan
from metaq.admin.rolling.restarting import why_not_in_sync
from metaq.model.leadership import ReplicaState, SlaveState
from tests.admin.rolling.test_standing import FIRST, LEADER, replica, state

GROUP, PAIR = Plan(Kind.GROUP, "a", ()), Plan(Kind.PAIR, "a", ())


def follower(log_end: int = 1000, *, epoch: int = 3, master: str = LEADER.address) -> Replica:
    return replica(structs.replace(state(1, epoch=epoch, log_end=log_end), master=master))


def group(own: Replica, leader: Replica = LEADER) -> str:
    return why_not_in_sync(GROUP, own, [own, leader], {})


def test_a_member_is_in_sync_when_it_follows_has_all_and_is_in_the_set():
    assert group(follower()) == ""
    assert group(follower(990)) == "it lacks 10 B"
    assert group(follower(epoch=2)) == "it is in epoch 2, its leader in 3"
    assert group(follower(master="")) == "it does not follow the leader yet"
    assert LEADER.state is not None
    assert LEADER.state.group is not None
    alone = structs.replace(LEADER.state, group=structs.replace(LEADER.state.group, in_sync=(2, 3)))
    assert group(follower(), structs.replace(LEADER, state=alone)) == "it is not in the in-sync set yet (2, 3)"
    assert why_not_in_sync(GROUP, FIRST, [FIRST], {}) == "nobody leads"
    assert why_not_in_sync(GROUP, Replica("a", 1, "h:1", "refused"), [LEADER], {}) == "refused"


def test_what_comes_later_need_not_be_there():
    """A log that grows all the time is caught up with as it was when both were first seen, in each epoch."""
    target = dict[int, int]()
    assert why_not_in_sync(GROUP, follower(900), [LEADER], target) == "it lacks 100 B"
    assert LEADER.state is not None
    grown = structs.replace(LEADER, state=structs.replace(LEADER.state, log_end=5000))
    assert why_not_in_sync(GROUP, follower(1000), [grown], target) == ""
    assert target == {3: 1000}


def test_one_that_has_taken_over_meanwhile_is_well():
    assert group(LEADER) == ""


def test_a_slave_is_in_sync_when_its_master_has_its_report():
    def one(number: int, copied: tuple[int, ...] = ()) -> Replica:
        slaves = tuple(SlaveState(f"h:4{place}", place, 0) for place in copied)
        role = "SLAVE" if number else "SYNC_MASTER"
        told = ReplicaState("a", number, role, not number, 0, 100, 1, slaves=slaves)
        return Replica("a", number, f"h:{number}", state=told, log_end=100)

    def why(*copied: int, slaves: int = 1) -> str:
        others = [one(number) for number in range(1, slaves + 1)]
        return why_not_in_sync(PAIR, others[0], [one(0, copied), *others], {})

    assert why(100) == ""
    assert why(99) == why() == why(100, slaves=2) == "its master does not have its report yet"
    assert why(100, 120, slaves=2) == ""
