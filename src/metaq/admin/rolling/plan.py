"""What a rolling restart would do with the brokers of one name, and whether it may begin. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct

from metaq.admin.growth.places import Refusal
from metaq.admin.replicas import Replica
from metaq.admin.rolling.standing import FailoverGroup, standing_of


class Kind(enum.Enum):
    """How who leads the brokers of a name is changed."""

    GROUP = "group"
    """By themselves: failover."""
    PAIR = "pair"
    """By hand."""
    SINGLE = "single"
    """Not at all: there is one broker."""


class BrokerProcess(Struct, frozen=True):
    """One broker process."""

    broker: str
    """Name of the broker."""
    member: int
    """Of a group its member number, for ever; else its brokerId when the restart began."""
    address: str
    """Where it is, `host:port`."""

    def __str__(self) -> str:
        return f"{self.broker}/{self.member} at {self.address}"


class Plan(Struct, frozen=True):
    """What is restarted of one name, who leads last. `gap`: why sends are refused meanwhile; "": they are not."""

    kind: Kind
    broker: str
    processes: tuple[BrokerProcess, ...]
    gap: str = ""


def plan_of(
    broker: str, found: Sequence[Replica], minimum: int = 0, *, anyway: bool = False, with_gaps: bool = False
) -> Plan:
    """Return the plan for the brokers of a name.

    Args:
        minimum: minInSyncReplicas of the master of a pair; 0: it is not known.
        anyway: also if some are not well. Those that do not answer are left out.
        with_gaps: also if sends are refused meanwhile.
    Raises Refusal: it may not begin; nothing was done.
    """
    foreign = [one for one in found if not one.error and one.state is None]
    if foreign:
        raise Refusal(
            f"the broker of {broker} at {foreign[0].address} is a RocketMQ: restart it where it runs, and name the other brokers here"
        )
    standing = standing_of(found)
    faults = _faults(found, standing)
    if faults and not anyway:
        raise Refusal(
            f"{broker} is not well: {'; '.join(faults)}. Nothing was restarted. Mend that first, or restart it as it is with --anyway"
        )
    there = [one for one in found if not one.error]
    leaders = [one for one in there if one.leads]
    if not leaders:
        raise Refusal(f"nobody leads {broker}: nothing was restarted. `metaq broker status {broker}` shows its brokers")
    gap = _gap(broker, len(there), minimum, standing)
    if gap and not with_gaps:
        raise Refusal(f"{gap}. Nothing was restarted; --with-gaps restarts it all the same")
    if standing is not None:
        kind, leads = Kind.GROUP, standing.address
        ordered = [*(one for one in there if one.address != leads), *(one for one in there if one.address == leads)]
        processes = [BrokerProcess(broker, _member(one), one.address) for one in ordered]
    else:
        kind = Kind.PAIR if len(there) > 1 else Kind.SINGLE
        processes = [
            BrokerProcess(broker, one.broker_id, one.address)
            for one in sorted(there, key=lambda one: (one.leads, one.broker_id))
        ]
    return Plan(kind, broker, tuple(processes), gap)


def _member(one: Replica) -> int:
    group = one.state.group if one.state is not None else None
    return group.member if group is not None else one.broker_id


def _faults(found: Sequence[Replica], standing: FailoverGroup | None) -> list[str]:
    faults = [f"the one at {one.address} does not answer ({one.error})" for one in found if one.error]
    if standing is None:
        if len([one for one in found if one.leads and not one.error]) > 1:
            faults.append("more than one of its brokers says that it leads")
        return faults
    if standing.leader is None:
        return [*faults, "nobody leads it"]
    if standing.doubt:
        faults.append(f"its leader acknowledges nothing: {standing.doubt}")
    for one in standing.members:
        if not one.address:
            faults.append(f"member {one.member} is in the in-sync set, and not registered at the name servers")
        elif not one.error and not one.in_sync:
            lag = f" ({one.behind:,} B behind)" if one.behind else ""
            faults.append(f"member {one.member} is not in the in-sync set{lag}")
    return faults


def _gap(broker: str, there: int, minimum: int, standing: FailoverGroup | None) -> str:
    """Return why sends are refused while one of the brokers restarts; "": they are not."""
    if there == 1:
        return (
            f"{broker} is one broker alone: while it restarts, sends to it are refused, and what it holds is not read"
        )
    if standing is not None:
        left, minimum = len(standing.in_sync) - 1, standing.minimum
        what = f"{left} of its in-sync set are left"
    else:
        left = there - 1
        what = f"{left} of its brokers are left"
    if left < max(1, minimum):
        return f"while one of {broker} restarts, {what}, and minInSyncReplicas is {minimum}: sends to it are refused"
    return ""
