"""The rules by which brokers of one name agree on their leader. Pure: values in, values out; no clock, no I/O.

The state of a group (`GroupState`) is in ZooKeeper and changes by compare-and-set alone. These rules say which change a broker may
try, and what a leader may acknowledge. Their invariants (docs/failover-protocol.md):

1. An epoch has one leader, since a compare-and-set raised it.
2. Whatever was acknowledged is in the log of every member of the in-sync set.
3. Only a member of the set, with a log that has lost nothing, becomes leader. So it has whatever was acknowledged.
4. A leader that was replaced gets no acknowledgement any more: its successor was a member, reports to it no more, and cannot be
   removed from the set by a state that has changed since.

`tests/broker/failover/test_model.py` searches every interleaving of small groups for a state that breaks them, with these functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from msgspec import Struct, structs

from metaq.errors import Reason, Refused
from metaq.model.failover import CHANGING, NOBODY, GroupState, Live, Member, Membership, Place


class Election(Struct, frozen=True):
    """A broker may lead: `state` is what it must be able to put in the place of the state that it has seen."""

    state: GroupState


class Waiting(Struct, frozen=True):
    """A broker may not lead now."""

    why: str


Outcome: TypeAlias = Election | Waiting

# ---------------------------------------------------------------------- taking part


def created(own: Member, history: str) -> GroupState:
    """Return the state of a new group, which `own` leads alone. Its epochs go on from those of the log."""
    return GroupState(history, own.epoch + 1, own.member, own.incarnation, (own.place,))


def check_creation(kept: Membership, name: str) -> None:
    """Return if a broker may create the state of a group that ZooKeeper does not know. Raises Refused: it was in one already."""
    if kept.history:
        raise Refused(
            Reason.INVALID,
            f"ZooKeeper knows nothing of {name}, and this broker has been in its epoch {kept.epoch}: restore ZooKeeper's data, or start "
            "the broker with the longest log, when no other one runs, with failoverAdopt=true, so that it begins the group anew",
        )


def check_state(kept: Membership, state: GroupState, name: str) -> None:
    """Return if a broker may take part in a group. Raises Refused: its log belongs to another one, or ZooKeeper has gone back."""
    if kept.history and kept.history != state.history:
        raise Refused(
            Reason.INVALID,
            f"the log in this folder belongs to another group of replicas (history {kept.history:.8}) than {name} in ZooKeeper "
            f"(history {state.history:.8}): the folder is of another cluster, or the group was begun anew. Nothing was changed; start "
            "this broker with its own folder, or with an empty one",
        )
    if kept.epoch > state.epoch:
        raise Refused(
            Reason.INVALID,
            f"ZooKeeper says that {name} is in epoch {state.epoch}, and this broker has been in epoch {kept.epoch}: ZooKeeper was "
            "restored from an older backup. Nothing was changed; start the broker with the longest log, when no other one runs, with "
            "failoverAdopt=true, so that it goes on from there",
        )


def fits(kept: Membership, state: GroupState | None, name: str) -> bool:
    """Return whether a broker may take part in a group as it is, or create it if there is none."""
    try:
        check_creation(kept, name) if state is None else check_state(kept, state, name)
    except Refused:
        return False
    return True


def following(own: Member) -> Member:
    """Return what a broker says of itself, in ZooKeeper, before it cuts its log or copies anything from a leader, and while it does.

    Where the log of one that is not whole ends decides who leads when none is; what ZooKeeper has of it must not be out of date.
    When it follows nobody any more, it says so by its `Member` as it is then.
    """
    return own if own.whole else structs.replace(own, log_end=CHANGING)


def adopted(own: Member, kept: Membership, state: GroupState | None, history: str) -> GroupState:
    """Return the state by which a broker begins the group anew with its own log, because ZooKeeper's data is lost or too old.

    Only its operator knows that no other broker has more. Args: history: for a broker that was in no group.
    """
    epoch = max(kept.epoch, own.epoch, state.epoch if state is not None else 0) + 1
    return GroupState(kept.history or history, epoch, own.member, own.incarnation, (own.place,))


# ---------------------------------------------------------------------- who leads


def leads(state: GroupState, live: Live) -> Member | None:
    """Return the member that leads, and is alive; None: there is none."""
    member = live.get(state.leader)
    return member if member is not None and member.incarnation == state.incarnation else None


def elect(own: Member, state: GroupState, live: Live, *, minimum: int, patient: bool = True) -> Outcome:
    """Say whether a broker may lead now.

    Args:
        minimum: members that the set keeps at least.
        patient: leave it to the member that comes first; False: that one has had its time, and has not come.
    """
    leader = leads(state, live)
    if leader is not None:
        return Waiting(f"member {leader.member} leads")
    if own.place not in state.in_sync:
        return Waiting("this broker is not in the in-sync set: it may lack what was acknowledged")
    if not own.whole and live.get(own.member) != own:
        return Waiting("ZooKeeper does not have yet how long this broker's log is")
    there = [live[one.member] for one in state.in_sync if one.member in live and live[one.member].place == one]
    whole = [one for one in there if one.whole]
    if whole:
        if not own.whole:
            return Waiting("this broker may have lost the end of its log with its power, and others have it")
        first = next((one for one in whole if one.member == state.hand_to), whole[0])
        keeping = whole
    else:
        known = {one.place for one in there if one.log_end != CHANGING}
        missing = sorted(one.member for one in state.in_sync if one not in known)
        if missing:
            return Waiting(
                "all members of the in-sync set that are here may have lost the ends of their logs with their power: waiting for "
                + ", ".join(f"member {one}" for one in missing)
            )
        first = max(there, key=lambda one: (one.epoch, one.log_end, -one.member))
        keeping, patient = there, True  # who has the longest log leads, however long it takes
    if first.member != own.member and patient:
        return Waiting(f"member {first.member} is to lead")
    kept = {own.place, *(one.place for one in keeping)}
    return Election(
        GroupState(state.history, state.epoch + 1, own.member, own.incarnation, _set(state, own.place, kept, minimum))
    )


def forced(own: Member, state: GroupState) -> GroupState:
    """Return the state by which a broker leads though the rules do not let it: what only others have is lost."""
    return GroupState(state.history, state.epoch + 1, own.member, own.incarnation, (own.place,))


def handed_over(state: GroupState, to: int) -> GroupState:
    """Return the state in which the leader leads no more. It acknowledges nothing from before the compare-and-set on.

    Args: to: the member that is to lead; NOBODY: whoever can.
    """
    return structs.replace(state, leader=NOBODY, incarnation="", hand_to=to)


def _set(state: GroupState, first: Place, kept: Collection[Place], minimum: int) -> tuple[Place, ...]:
    """The in-sync set with those in `kept`, and so many of the others that it does not fall below the minimum."""
    ordered = [first, *(one for one in state.in_sync if one != first)]
    chosen = [one for one in ordered if one in kept]
    spare = [one for one in ordered if one not in kept]
    return (*chosen, *spare[: max(0, min(minimum, len(ordered)) - len(chosen))])


# ---------------------------------------------------------------------- the in-sync set of a leader


def shrunk(state: GroupState, lagging: Collection[int], minimum: int) -> GroupState | None:
    """Return the state without members that lag; None: it stays. The set does not fall below the minimum; the leader stays in it."""
    kept = {one for one in state.in_sync if one.member == state.leader or one.member not in lagging}
    leader = next(one for one in state.in_sync if one.member == state.leader)
    in_sync = _set(state, leader, kept, minimum)
    return structs.replace(state, in_sync=in_sync) if len(in_sync) < len(state.in_sync) else None


def grown(state: GroupState, follower: Place) -> GroupState | None:
    """Return the state with a follower that has caught up; None: it is there already.

    Before the compare-and-set is sent, the leader must wait for that follower with each acknowledgement (`must_have`).
    """
    if follower in state.in_sync:
        return None
    others = tuple(one for one in state.in_sync if one.member != follower.member)  # with another store, before
    return structs.replace(state, in_sync=(*others, follower))


def caught_up(copied: int, epoch_start: int, acknowledged: int) -> bool:
    """Return whether a follower may come into the set: it has all that the leader before has had, and all that was acknowledged.

    Args: LogOffsets: up to where it has the log; where the leader's epoch begins; up to where it was acknowledged.
    """
    return copied >= epoch_start and copied >= acknowledged


def must_have(own: int, *states: GroupState | None) -> frozenset[Place]:
    """Return the places, beside that of the leader `own`, whose brokers must have what is acknowledged.

    Args: states: the one in ZooKeeper as it is known, and those whose compare-and-set is under way or has had no answer.
    """
    return frozenset(one for state in states if state is not None for one in state.in_sync if one.member != own)


def acknowledged(log_end: int, copied: Mapping[Place, int], required: Collection[Place]) -> int:
    """Return the LogOffset up to which a leader may acknowledge, and let clients read; -1: a required member has reported nothing.

    Args: copied: place → up to where its broker has the log, as it has reported in this epoch. A broker that reports with another
        folder than the set has of it does not count: the folder may come back, and would lead without what that one had.
    """
    return min([log_end, *(copied.get(one, -1) for one in required)])


def may_report(state: GroupState, follower: Place, epoch: int, own: str) -> str:
    """Return why reports of a follower do not count at the leader; "": they do.

    Args: epoch: that the follower knows. own: the leader's incarnation.
    """
    if state.incarnation != own:
        return "this broker does not lead"
    if epoch != state.epoch:
        return f"it knows epoch {epoch}, and this is epoch {state.epoch}"
    if follower.member == state.leader:
        return f"member {follower.member} is this broker: give each broker of the group a brokerId of its own"
    return ""
