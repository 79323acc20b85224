"""How a group stands, of what its members say of themselves."""

from __future__ import annotations

from msgspec import structs

from metaq.admin.replicas import Replica
from metaq.admin.rolling.standing import FailoverMember, standing_of
from metaq.model.leadership import Epoch, GroupRole, ReplicaState


def state(member: int, *, leads: bool = False, epoch: int = 3, log_end: int = 1000, **role: object) -> ReplicaState:
    group = GroupRole(member, minimum=1, **role)  # type: ignore[arg-type]
    epochs = (Epoch(epoch, 0, "x", 0, 1),)
    number, kind = (0, "SYNC_MASTER") if leads else (member, "SLAVE")
    return ReplicaState("a", number, kind, leads, 0, log_end, 10912, epochs, group=group)


def replica(found: ReplicaState) -> Replica:
    assert found.group is not None
    return Replica("a", found.broker_id, f"127.0.0.1:{10000 + found.group.member}", state=found, log_end=found.log_end)


LEADER = replica(
    state(2, leads=True, in_sync=(1, 2), copied={1: 1000, 3: 400}, behind_ms={1: 0, 3: 1500}, acknowledged=1000, lease_ms=500)
)  # fmt: skip
FIRST, THIRD = replica(state(1)), replica(state(3, log_end=450))


def test_the_leader_says_who_is_in_sync_and_how_far_the_others_are():
    found = standing_of([FIRST, LEADER, THIRD])
    assert found is not None
    assert (found.broker, found.leader, found.address, found.epoch) == ("a", 2, "127.0.0.1:10002", 3)
    assert (found.in_sync, found.minimum, found.doubt, found.lease_ms) == ((1, 2), 1, "", 500)
    assert found.members == (
        FailoverMember(1, "127.0.0.1:10001", False, True, 1000, 0, 0),
        FailoverMember(2, "127.0.0.1:10002", True, True, 1000, None, None),
        FailoverMember(3, "127.0.0.1:10003", False, False, 450, 600, 1500),
    )
    assert found.out_of_sync == (3,)


def test_a_pair_without_failover_is_no_group():
    pair = ReplicaState("a", 0, "SYNC_MASTER", True, 0, 10, 10912)
    assert standing_of([Replica("a", 0, "127.0.0.1:1", state=pair), Replica("a", 1, "127.0.0.1:2", "refused")]) is None
    assert standing_of([]) is None


def test_without_a_leader_nothing_is_said_of_the_set():
    found = standing_of([FIRST, replica(state(3, epoch=4))])
    assert found is not None
    assert (found.leader, found.address, found.epoch, found.in_sync) == (None, "", 4, ())
    assert [one.in_sync for one in found.members] == [None, None]
    assert found.out_of_sync == (1, 3)


def test_of_two_that_say_so_the_one_of_the_newest_epoch_leads():
    """The other one slept through its replacement."""
    late = replica(state(1, leads=True, epoch=2, in_sync=(1, 2)))
    found = standing_of([late, LEADER])
    assert found is not None
    assert (found.leader, [one.leads for one in found.members]) == (2, [False, True])


def test_a_member_of_the_set_that_nobody_knows_and_one_that_does_not_answer():
    silent = Replica("a", 3, "127.0.0.1:10003", "it does not answer")
    found = standing_of([LEADER, silent])
    assert found is not None
    first, _, third = found.members
    assert (first.address, first.in_sync, first.behind) == ("", True, 0)
    assert (third.error, third.in_sync, third.behind, third.behind_ms) == ("it does not answer", False, 600, 1500)
    assert found.out_of_sync == (1, 3)


def test_doubt_of_the_leader_is_told():
    assert LEADER.state is not None
    assert LEADER.state.group is not None
    group = structs.replace(LEADER.state.group, doubt="ZooKeeper does not answer")
    found = standing_of([structs.replace(LEADER, state=structs.replace(LEADER.state, group=group)), FIRST])
    assert found is not None
    assert (found.doubt, found.leader) == ("ZooKeeper does not answer", 2)


def test_the_lag_of_a_member_that_has_not_reported_is_that_of_its_log():
    found = standing_of([LEADER, structs.replace(THIRD, log_end=900, state=state(4, log_end=900))])
    assert found is not None
    assert (found.members[-1].behind, found.members[-1].behind_ms) == (100, None)


def test_members_say_why_they_neither_lead_nor_follow():
    waits = replica(state(1, waiting="waiting for member 3"))
    found = standing_of([waits, replica(state(2))])
    assert found is not None
    assert [*found.troubles()] == [
        "none of its members that answer leads: sends are refused",
        "member 1 at 127.0.0.1:10001 neither leads nor follows: waiting for member 3",
    ]
    found = standing_of([waits, LEADER])
    assert found is not None
    assert "member 1 at 127.0.0.1:10001 neither leads nor follows: waiting for member 3" in found.troubles()
