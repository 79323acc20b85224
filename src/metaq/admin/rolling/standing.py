"""How a group with failover stands: who leads, who is in the in-sync set, how far the others are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from msgspec import Struct

from metaq.admin.replicas import Replica, replicas
from metaq.client.shared.core import ClientCore
from metaq.model.leadership import GroupRole, ReplicaState


class FailoverMember(Struct, frozen=True):
    """One member of a group."""

    member: int
    """Its number in the group."""
    address: str
    """"": it is in the in-sync set, and the name servers do not know it."""
    leads: bool
    """Whether it leads."""
    in_sync: bool | None
    """None: nobody leads who could tell."""
    log_end: int | None
    """LogOffset at which its log ends; None: it cannot be asked."""
    behind: int | None
    """Bytes of the leader's log that it lacks; None: it leads, or that is not known."""
    behind_ms: int | None
    """How long ago the leader's log was as long as its own; None: as `behind`."""
    error: str = ""
    """Why it cannot be asked."""
    waiting: str = ""
    """Why it neither leads nor follows; "": it does one of them."""

    @property
    def trouble(self) -> str:
        """Why it is of no use to its group now; "": it is."""
        who = f"member {self.member} at {self.address}"
        if self.error:
            return f"{who} does not answer: {self.error}"
        return f"{who} neither leads nor follows: {self.waiting}" if self.waiting else ""


class FailoverGroup(Struct, frozen=True):
    """The brokers of one name, when leaders change by themselves."""

    broker: str
    """The name that its members share."""
    leader: int | None
    """Its member number; None: none of those that answer leads."""
    address: str
    """Of the leader; "": there is none."""
    epoch: int
    """Of the leader; without one, the newest that a member knows."""
    in_sync: tuple[int, ...]
    """Numbers of the members in the in-sync set."""
    minimum: int
    """minInSyncReplicas."""
    members: tuple[FailoverMember, ...]
    """All members that are in the in-sync set, or that the name servers know."""
    doubt: str = ""
    """Why the leader acknowledges nothing at present; "": it does."""
    lease_ms: int = 0
    """For how long the leader still acknowledges if ZooKeeper does not answer any more."""

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        """Members that are here, or should be, and lack something or cannot be asked."""
        return tuple(one.member for one in self.members if one.error or not one.address or not one.in_sync)

    def troubles(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        if self.leader is None:
            yield "none of its members that answer leads: sends are refused"
            yield from (told for one in self.members if (told := one.trouble))
            return
        if self.doubt:
            yield f"member {self.leader} leads, and acknowledges nothing: {self.doubt}"
        if len(self.in_sync) == 1:
            yield f"member {self.leader} is alone in the in-sync set: without it nobody leads"
        elif len(self.in_sync) <= self.minimum:
            yield f"its in-sync set is at minInSyncReplicas ({self.minimum}): without one more of them sends are refused"
        for one in self.members:
            if not one.address:
                yield f"member {one.member} is in the in-sync set, and not registered at the name servers"
            elif told := one.trouble:
                yield told
            elif not one.in_sync:
                yield f"member {one.member} at {one.address} is not in the in-sync set"


def standing_of(found: Sequence[Replica]) -> FailoverGroup | None:
    """Return how the brokers of a name stand, of what each says of itself; None: none of them has failover."""
    states = [one.state for one in found if one.state is not None and one.state.group is not None]
    if not states:
        return None
    leader = _leader(found)
    state = leader.state if leader is not None else max(states, key=lambda one: one.epoch)
    assert state is not None, "it has answered"
    role = state.group
    assert role is not None, "it has failover"
    told = role if leader is not None else None
    members = {one.member: one for one in (_member(replica, leader, told) for replica in found)}
    for number in told.in_sync if told is not None else ():
        if number not in members:
            members[number] = FailoverMember(number, "", False, True, None, *_lag(state, role, number))
    return FailoverGroup(
        found[0].broker,
        told.member if told is not None else None,
        leader.address if leader is not None else "",
        state.epoch,
        tuple(sorted(told.in_sync)) if told is not None else (),
        role.minimum,
        tuple(members[number] for number in sorted(members)),
        told.doubt if told is not None else "",
        told.lease_ms if told is not None else 0,
    )


def _leader(found: Sequence[Replica]) -> Replica | None:
    """Return the member that leads in the newest epoch: one that was replaced may not know yet."""
    leading = [one for one in found if one.state is not None and one.state.group is not None and one.state.leads]
    return max(leading, key=lambda one: one.state.epoch if one.state is not None else 0, default=None)


def _member(replica: Replica, leader: Replica | None, told: GroupRole | None) -> FailoverMember:
    group = replica.state.group if replica.state is not None else None
    # Of one that does not answer: its number at the name servers, which is 0 if it led when it was registered.
    number = group.member if group is not None else replica.broker_id
    leads = replica is leader
    lag: tuple[int | None, int | None] = (None, None)
    if not leads and leader is not None and leader.state is not None and told is not None:
        lag = _lag(leader.state, told, number)
        if lag[0] is None and replica.log_end is not None:
            lag = max(0, leader.state.log_end - replica.log_end), None
    in_sync = number in told.in_sync if told is not None else None
    waiting = group.waiting if group is not None else ""
    return FailoverMember(number, replica.address, leads, in_sync, replica.log_end, *lag, replica.error, waiting)


def _lag(leader: ReplicaState, told: GroupRole, number: int) -> tuple[int | None, int | None]:
    """Return how far a member is behind, as its leader knows it: bytes and ms."""
    copied = told.copied.get(number)
    if copied is None:
        return None, None
    return max(0, leader.log_end - copied), told.behind_ms.get(number)


async def standings(core: ClientCore, brokers: Sequence[str] | None = None) -> list[FailoverGroup]:
    """Return how groups with failover stand: those of these broker names, or all. Brokers without failover are left out.

    Raises brokers.BrokerNotFound: a name is not registered.
    """
    if brokers is None:
        brokers = sorted((await core.consult(core.name_servers.cluster())).brokers)
    found = await asyncio.gather(*(replicas(core, one) for one in brokers))
    return [standing for one in found if (standing := standing_of(one)) is not None]
