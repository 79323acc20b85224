"""What all that takes part in a group of replicas shares."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from metaq.app.failover.membership import KeptMembership
from metaq.broker.broker import Broker
from metaq.broker.failover.in_sync import InSyncReplicas
from metaq.log import RateLimitedLog
from metaq.model.failover import GroupState
from metaq.registry.zookeeper.group import GroupNodes
from metaq.servers.server import CallSoon


class Group(Struct, eq=False):
    """A broker's group: the brokers of its name."""

    name: str
    number: int
    """Of this broker."""
    broker: Broker
    in_sync: InSyncReplicas
    nodes: GroupNodes
    """In ZooKeeper."""
    membership: KeptMembership
    call_soon: CallSoon
    wake: asyncio.Event
    """Has this broker look at ZooKeeper at once."""
    faults: RateLimitedLog


def members(state: GroupState) -> str:
    """Return the in-sync set for people."""
    return ", ".join(f"member {one.member}" for one in state.in_sync)
