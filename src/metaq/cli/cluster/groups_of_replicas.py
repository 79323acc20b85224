"""How groups with failover are shown: who leads, the in-sync set, how far the others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from metaq.cli.output import print_table

if TYPE_CHECKING:
    from metaq.admin.brokers import BrokerStatus
    from metaq.admin.rolling.standing import FailoverGroup, FailoverMember


def group_json(groups: Sequence[FailoverGroup], broker: BrokerStatus) -> dict[str, Any] | None:
    """Return what is told of one broker's part in its group; None: it has no failover."""
    group = next((one for one in groups if one.broker == broker.broker), None)
    member = next((one for one in group.members if one.address == broker.address), None) if group is not None else None
    if group is None or member is None:
        return None
    told = {
        "member": member.member,
        "leads": member.leads,
        "in_sync": member.in_sync,
        "behind_bytes": member.behind,
        "behind_ms": member.behind_ms,
        "epoch": group.epoch,
        "leader": group.leader,
        "leader_address": group.address or None,
        "in_sync_set": list(group.in_sync),
        "min_in_sync": group.minimum,
        "doubt": group.doubt or None,
        "waiting": member.waiting or None,
    }
    if member.leads:
        told["lease_ms"] = group.lease_ms
    return told


def print_groups(groups: Sequence[FailoverGroup]) -> None:
    """Print a table of groups, and what is wrong with them; nothing if there are none."""
    if not groups:
        return
    print()
    print_table(
        ("group", "leader", "address", "epoch", "in sync", "at least", "behind"),
        (
            (
                one.broker,
                "none" if one.leader is None else one.leader,
                one.address,
                one.epoch,
                " ".join(map(str, one.in_sync)),
                one.minimum,
                ", ".join(_lags(one.members)),
            )
            for one in groups
        ),
    )
    for group in groups:
        for line in group.troubles():
            print(f"{group.broker}: {line}")


def in_words(group: FailoverGroup) -> str:
    """Return how a group stands, in one line."""
    if group.leader is None:
        return f"no member leads, epoch {group.epoch}"
    lags = ", ".join(_lags(group.members))
    return (
        f"member {group.leader} leads, in sync are {' '.join(map(str, group.in_sync))}, at least {group.minimum} must be"
        f"{f'; behind are {lags}' if lags else ''}; the lease holds for {group.lease_ms:,} ms"
    )


def _lags(members: Sequence[FailoverMember]) -> Iterator[str]:
    """Yield how far each member is behind that does not lead."""
    for one in members:
        if one.leads:
            continue
        if one.behind is None:
            yield f"{one.member}: not known"
        else:
            after = "" if one.behind_ms is None else f", {one.behind_ms:,} ms"
            yield f"{one.member}: {one.behind:,} B{after}"
