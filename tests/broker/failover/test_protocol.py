"""The rules one by one: who may take part, who leads, who is in the set, what is acknowledged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metaq.broker.failover.protocol import (
    Election,
    Outcome,
    Waiting,
    acknowledged,
    adopted,
    caught_up,
    check_creation,
    check_state,
    created,
    elect,
    fits,
    following,
    forced,
    grown,
    handed_over,
    leads,
    may_report,
    must_have,
    shrunk,
)
from metaq.errors import Reason, Refused
from metaq.model.failover import CHANGING, NOBODY, GroupState, Member, Membership, Place


def place(number: int) -> Place:
    return Place(number, f"store {number}")


def member(number: int, *, whole: bool = True, log_end: int = 0, epoch: int = 1, store: str = "") -> Member:
    return Member(number, f"start {number}", store or f"store {number}", f"host{number}:10911", whole, log_end, epoch)


def live(*members: Member) -> dict[int, Member]:
    return {one.member: one for one in members}


def group(*numbers: int, leader: int = NOBODY, epoch: int = 5, hand_to: int = NOBODY) -> GroupState:
    incarnation = f"start {leader}" if leader else ""
    return GroupState("history", epoch, leader, incarnation, tuple(place(one) for one in numbers), hand_to)


def numbers(state: GroupState) -> list[int]:
    return [one.member for one in state.in_sync]


def elected(outcome: Outcome) -> GroupState:
    assert isinstance(outcome, Election), outcome
    return outcome.state


def waits(outcome: Outcome) -> str:
    assert isinstance(outcome, Waiting), outcome
    return outcome.why


# ---------------------------------------------------------------------- taking part


def test_a_new_group_has_its_creator_alone():
    assert created(member(3, epoch=0), "token") == GroupState("token", 1, 3, "start 3", (place(3),))


def test_epochs_of_a_new_group_go_on_from_those_of_the_log():
    assert created(member(3, epoch=7), "token").epoch == 8


def refusal(call, *args) -> str:
    with pytest.raises(Refused) as caught:
        call(*args)
    assert caught.value.reason == Reason.INVALID
    return caught.value.text


def test_a_group_that_zookeeper_has_forgotten_is_not_begun_anew():
    check_creation(Membership("store 1", 1), "broker-a")
    text = refusal(check_creation, Membership("store 1", 1, "history", 4), "broker-a")
    assert "ZooKeeper knows nothing of broker-a" in text
    assert "epoch 4" in text
    assert "failoverAdopt=true" in text


def test_a_folder_of_another_group_is_refused():
    kept = Membership("store 1", 1, "another token of a group", 4)
    text = refusal(check_state, kept, group(1), "broker-a")
    assert (
        "belongs to another group of replicas (history another ) than broker-a in ZooKeeper (history history)" in text
    )
    assert "with an empty one" in text


def test_a_zookeeper_that_has_gone_back_is_refused():
    text = refusal(check_state, Membership("store 1", 1, "history", 6), group(1, epoch=5), "broker-a")
    assert "broker-a is in epoch 5, and this broker has been in epoch 6" in text
    assert "restored from an older backup" in text
    assert "failoverAdopt=true" in text


@pytest.mark.parametrize("kept", [Membership("s"), Membership("s", 1, "history", 5), Membership("s", 1, "history", 4)])
def test_who_is_new_or_no_further_takes_part(kept):
    check_state(kept, group(1, epoch=5), "broker-a")


def test_a_broker_that_adopts_the_group_goes_on_behind_every_epoch():
    own, kept = member(2, epoch=3), Membership("store 2", 2, "history", 7)
    assert adopted(own, kept, group(1, 3, epoch=9), "new") == GroupState("history", 10, 2, "start 2", (place(2),))
    assert adopted(own, kept, None, "new") == GroupState("history", 8, 2, "start 2", (place(2),))
    assert adopted(member(2, epoch=12), Membership("store 2"), None, "new").epoch == 13
    assert adopted(own, Membership("store 2"), None, "new").history == "new"


def test_a_broker_that_is_not_whole_says_that_its_log_changes():
    assert following(member(1, log_end=9)) == member(1, log_end=9)
    assert following(member(1, whole=False, log_end=9)) == member(1, whole=False, log_end=CHANGING)


# ---------------------------------------------------------------------- who leads


def test_the_leader_is_the_process_that_was_elected():
    state = group(1, 2, leader=1)
    assert leads(state, live(member(1))) == member(1)
    assert leads(state, live(member(2))) is None
    assert leads(state, {1: structs.replace(member(1), incarnation="a later start")}) is None
    assert leads(group(1, 2), live(member(1), member(2))) is None


def test_nobody_is_elected_beside_a_leader():
    text = waits(elect(member(2), group(1, 2, leader=1), live(member(1), member(2)), minimum=1, patient=False))
    assert text == "member 1 leads"


def test_who_is_not_in_the_set_is_not_elected():
    text = waits(elect(member(3), group(1, 2), live(member(3)), minimum=1, patient=False))
    assert text == "this broker is not in the in-sync set: it may lack what was acknowledged"


def test_another_folder_is_not_in_the_set():
    own = member(2, store="empty")
    assert "not in the in-sync set" in waits(elect(own, group(1, 2), live(own), minimum=1, patient=False))


def test_the_first_of_the_set_that_is_here_leads_in_the_next_epoch():
    state, here = group(1, 3, 2, leader=1), live(member(2), member(3))
    assert waits(elect(member(2), state, here, minimum=1)) == "member 3 is to lead"
    assert elected(elect(member(3), state, here, minimum=1)) == GroupState(
        "history", 6, 3, "start 3", (place(3), place(2))
    )


def test_a_member_that_does_not_come_is_not_waited_for_any_longer():
    state, here = group(1, 3, 2, leader=1), live(member(2), member(3))
    assert numbers(elected(elect(member(2), state, here, minimum=1, patient=False))) == [2, 3]


def test_who_was_named_comes_first():
    state, here = group(1, 2, 3, hand_to=3), live(member(1), member(2), member(3))
    assert waits(elect(member(1), state, here, minimum=1)) == "member 3 is to lead"
    new = elected(elect(member(3), state, here, minimum=1))
    assert (new.leader, new.hand_to, numbers(new)) == (3, NOBODY, [3, 1, 2])


@pytest.mark.parametrize("named", [member(3, whole=False), member(3, store="empty"), None])
def test_who_was_named_and_cannot_lead_is_passed_over(named):
    here = live(member(1), member(2), *([named] if named is not None else []))
    assert elected(elect(member(1), group(1, 2, 3, hand_to=3), here, minimum=1)).leader == 1


def test_the_set_keeps_the_minimum_with_members_that_are_away():
    state = group(1, 2, 3, leader=1)
    assert numbers(elected(elect(member(2), state, live(member(2)), minimum=1))) == [2]
    assert numbers(elected(elect(member(2), state, live(member(2)), minimum=2))) == [2, 1]
    assert numbers(elected(elect(member(2), state, live(member(2)), minimum=9))) == [2, 1, 3]


def test_who_lost_its_power_leaves_it_to_those_who_did_not():
    own = member(1, whole=False, log_end=99)
    text = waits(elect(own, group(1, 2), live(own, member(2)), minimum=1, patient=False))
    assert text == "this broker may have lost the end of its log with its power, and others have it"
    assert numbers(elected(elect(member(2), group(1, 2), live(own, member(2)), minimum=1))) == [2]


def test_when_none_is_whole_all_are_waited_for():
    own = member(1, whole=False)
    text = waits(elect(own, group(1, 2, 3), live(own, member(3, whole=False)), minimum=1, patient=False))
    assert text.startswith(
        "all members of the in-sync set that are here may have lost the ends of their logs with their power"
    )
    assert text.endswith("waiting for member 2")


def test_a_member_with_another_folder_is_waited_for_too():
    own, other = member(1, whole=False), member(2, whole=False, store="empty")
    assert waits(elect(own, group(1, 2), live(own, other), minimum=1, patient=False)).endswith("waiting for member 2")


def test_a_log_that_changes_is_waited_for():
    own, other = member(1, whole=False, log_end=5), following(member(2, whole=False, log_end=3))
    assert waits(elect(own, group(1, 2), live(own, other), minimum=1, patient=False)).endswith("waiting for member 2")


def test_who_is_not_whole_leads_by_what_zookeeper_has_of_it_alone():
    own, other = member(1, whole=False, log_end=5), member(2, whole=False, log_end=7)
    for old in (
        member(1, whole=False, log_end=9),
        following(own),
        structs.replace(own, incarnation="an earlier start"),
    ):
        text = waits(elect(own, group(1, 2), live(old, other), minimum=1, patient=False))
        assert text == "ZooKeeper does not have yet how long this broker's log is"
    assert "not have yet" in waits(elect(own, group(1, 2), live(other), minimum=1))


@pytest.mark.parametrize(
    ("first", "second", "leader"),
    [((2, 10), (2, 20), 2), ((2, 20), (2, 10), 1), ((3, 10), (2, 20), 1), ((2, 10), (3, 5), 2), ((2, 10), (2, 10), 1)],
)
def test_when_none_is_whole_the_longest_log_of_the_latest_epoch_leads(first, second, leader):
    members = [member(at, whole=False, log_end=end, epoch=epoch) for at, (epoch, end) in enumerate((first, second), 1)]
    outcomes = [elect(one, group(1, 2), live(*members), minimum=1, patient=False) for one in members]
    assert elected(outcomes[leader - 1]).leader == leader
    assert sorted(numbers(elected(outcomes[leader - 1]))) == [1, 2]
    assert waits(outcomes[2 - leader]) == f"member {leader} is to lead"


def test_force_asks_for_no_set():
    assert forced(member(3), group(1, 2, leader=1)) == GroupState("history", 6, 3, "start 3", (place(3),))


def test_who_hands_over_leads_no_more():
    state = handed_over(group(1, 2, leader=1), 2)
    assert state == group(1, 2, hand_to=2)
    assert leads(state, live(member(1), member(2))) is None


groups = st.builds(
    lambda inside, leader, hand_to: group(*inside, leader=leader, hand_to=hand_to),
    st.permutations([1, 2, 3, 4]).flatmap(lambda all_: st.integers(1, 4).map(lambda count: all_[:count])),
    st.integers(0, 4),
    st.integers(0, 4),
)
any_member = st.builds(
    lambda number, whole, end, epoch, other: member(
        number, whole=whole, log_end=end, epoch=epoch, store="empty" if other else ""
    ),
    st.integers(1, 4), st.booleans(), st.integers(-1, 5), st.integers(1, 4), st.sampled_from([False, False, False, True]),
)  # fmt: skip
lives = st.lists(any_member).map(lambda found: live(*found))


@given(groups, lives, any_member, st.integers(1, 4), st.booleans())
def test_every_election_keeps_to_the_set(state, here, own, minimum, patient):
    here[own.member] = own
    outcome = elect(own, state, here, minimum=minimum, patient=patient)
    if isinstance(outcome, Waiting):
        assert outcome.why
        return
    new = outcome.state
    assert leads(state, here) is None
    assert own.place in state.in_sync
    assert (new.history, new.epoch, new.leader, new.incarnation) == (state.history, 6, own.member, own.incarnation)
    assert new.in_sync[0] == own.place
    assert set(new.in_sync) <= set(state.in_sync)
    assert len(set(new.in_sync)) == len(new.in_sync) >= min(minimum, len(state.in_sync))
    if not own.whole:
        there = [here.get(one.member) for one in state.in_sync]
        assert all(one is not None and not one.whole and one.log_end >= 0 for one in there)
        assert [one.place for one in there if one is not None] == list(state.in_sync)
        assert set(new.in_sync) == set(state.in_sync)


@given(groups, lives, st.integers(1, 4))
def test_one_alone_is_to_lead(state, here, minimum):
    """Those who are patient agree, as long as they see the same."""
    able = [one for one in here.values() if isinstance(elect(one, state, here, minimum=minimum), Election)]
    assert len(able) <= 1


@given(groups, lives, st.integers(1, 4))
def test_somebody_leads_when_a_whole_member_is_here(state, here, minimum):
    state = structs.replace(state, leader=NOBODY, incarnation="")
    here[state.in_sync[-1].member] = member(state.in_sync[-1].member)
    assert any(isinstance(elect(one, state, here, minimum=minimum), Election) for one in here.values())


# ---------------------------------------------------------------------- the in-sync set of a leader


def test_who_lags_leaves_the_set():
    assert shrunk(group(1, 2, 3, leader=1), (2,), 1) == group(1, 3, leader=1)
    assert shrunk(group(1, 2, 3, leader=1), (2, 3), 1) == group(1, leader=1)
    assert shrunk(group(1, 2, 3, leader=1), (), 1) is None
    assert shrunk(group(1, 2, 3, leader=1), (4,), 1) is None


def test_the_set_does_not_shrink_below_the_minimum():
    assert shrunk(group(1, 2, leader=1), (2,), 2) is None
    assert shrunk(group(1, 2, 3, leader=1), (2, 3), 2) == group(1, 2, leader=1)
    assert shrunk(group(1, leader=1), (1,), 2) is None


def test_the_leader_does_not_leave_the_set():
    assert shrunk(group(2, 1, leader=1), (1, 2), 1) == group(1, leader=1)


@given(groups, st.sets(st.integers(1, 4)), st.integers(1, 4))
def test_a_smaller_set_is_part_of_the_one_before(state, lagging, minimum):
    state = structs.replace(state, leader=state.in_sync[0].member)
    less = shrunk(state, lagging, minimum)
    if less is None:
        return
    assert set(less.in_sync) < set(state.in_sync)
    assert {one for one in state.in_sync if one.member not in lagging} <= set(less.in_sync)
    assert state.place_of(state.leader) in less.in_sync
    assert len(less.in_sync) >= min(minimum, len(state.in_sync))
    assert structs.replace(less, in_sync=state.in_sync) == state


def test_who_has_caught_up_comes_into_the_set():
    assert grown(group(1, 2, leader=1), place(3)) == group(1, 2, 3, leader=1)
    assert grown(group(1, 2, leader=1), place(2)) is None


def test_a_new_folder_takes_the_place_of_the_old_one():
    new = Place(2, "new")
    more = grown(group(1, 2, 3, leader=1), new)
    assert more is not None
    assert more.in_sync == (place(1), place(3), new)


@pytest.mark.parametrize(
    ("copied", "epoch_start", "acknowledged_end", "is_so"),
    [(10, 10, 10, True), (9, 10, 0, False), (10, 0, 11, False), (12, 10, 11, True), (-1, 0, 0, False)],
)
def test_caught_up_is_who_has_all_that_may_have_been_acknowledged(copied, epoch_start, acknowledged_end, is_so):
    assert caught_up(copied, epoch_start, acknowledged_end) is is_so


def test_all_that_may_be_in_the_set_are_waited_for():
    assert must_have(1, group(1, 2), group(1, 3), None) == {place(2), place(3)}
    assert must_have(1, group(1)) == frozenset()
    assert must_have(1, grown(group(1, 2), Place(2, "new"))) == {Place(2, "new")}


def test_what_the_slowest_has_is_acknowledged():
    copied = {place(2): 20, place(3): 10}
    assert acknowledged(30, copied, {place(2), place(3)}) == 10
    assert acknowledged(30, copied, {place(2)}) == 20
    assert acknowledged(5, copied, {place(2)}) == 5
    assert acknowledged(30, copied, ()) == 30


def test_nothing_is_acknowledged_without_a_report_of_each():
    assert acknowledged(30, {place(2): 20}, {place(2), place(3)}) == -1
    assert acknowledged(30, {Place(2, "empty"): 20}, {place(2)}) == -1


@given(
    st.integers(0, 20),
    st.dictionaries(st.integers(2, 4).map(place), st.integers(-1, 20)),
    st.sets(st.integers(2, 4).map(place)),
    st.sets(st.integers(2, 4).map(place)),
)
def test_more_members_never_have_more_acknowledged(log_end, copied, some, more):
    end = acknowledged(log_end, copied, some | more)
    assert end <= acknowledged(log_end, copied, some) <= log_end
    assert all(copied.get(one, -1) >= end for one in some | more)


def test_whose_reports_count():
    state = group(1, 2, leader=1)
    assert may_report(state, place(2), 5, "start 1") == ""
    assert may_report(state, place(3), 5, "start 1") == ""  # how else would it come into the set
    assert may_report(state, place(2), 5, "another start") == "this broker does not lead"
    assert may_report(state, place(2), 4, "start 1") == "it knows epoch 4, and this is epoch 5"
    text = may_report(state, Place(1, "another folder"), 5, "start 1")
    assert text == "member 1 is this broker: give each broker of the group a brokerId of its own"


@pytest.mark.parametrize(
    ("kept", "state", "found"),
    [
        (Membership("s"), None, True), (Membership("s", 1, "history", 4), None, False),
        (Membership("s"), group(1, epoch=5), True), (Membership("s", 1, "history", 5), group(1, epoch=5), True),
        (Membership("s", 1, "history", 6), group(1, epoch=5), False), (Membership("s", 1, "another", 4), group(1, epoch=5), False),
    ],
)  # fmt: skip
def test_a_group_fits_a_log_or_has_to_be_begun_anew(kept, state, found):
    assert fits(kept, state, "broker-a") is found
