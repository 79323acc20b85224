"""The replicas of a broker: who leads, how far the others are, and changes of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.admin.brokers import BrokerNotFound, BrokerStatus
from metaq.client.conversation.administration import GetReplicaState, GetRuntime, Promote, StepDown
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, ConfigError, ConnectionFailed, NotFound
from metaq.model.leadership import Rank, ReplicaState
from metaq.model.topics.route import MASTER_ID
from metaq.wire.codes import ResponseCode

AGAIN_SECONDS: Final = 60.0
"""So long a slave that has led before may take to start again, before it is promoted."""
PAUSE_SECONDS: Final = 0.2
"""Between two tries."""


class NoSuchReplica(NotFound):
    """None of the brokers of that name is the one that is wanted."""


class Replica(Struct, frozen=True):
    """One broker of a name."""

    broker: str
    """Name of the broker, which all its replicas share."""
    broker_id: int
    """0: the master; above: a slave. Of a group with failover: the member's number, from 1 on."""
    address: str
    """`host:port`."""
    error: str = ""
    """Why it cannot be asked."""
    state: ReplicaState | None = None
    """None also of a RocketMQ."""
    log_end: int | None = None
    """LogOffset where its log ends; None: it cannot be asked."""
    disk_used: float | None = None
    """Share of its log's disk that is used, 0 to 1; None: it does not say."""
    disk_step: str = ""
    """What a full disk has come to: ok, warn, clean, refuse (docs/cleaning.md); "": it does not say."""

    @property
    def leads(self) -> bool:
        """Whether it is the master, or the leader of its group."""
        return self.state.leads if self.state is not None else self.broker_id == MASTER_ID


async def _ask(core: ClientCore, broker: str, broker_id: int, address: str) -> Replica:
    try:
        state = await core.ask(address, GetReplicaState())
        runtime = await core.ask(address, GetRuntime())
        known = BrokerStatus("", broker, broker_id, address, "", runtime)
        disk = known.disk_used, known.disk_step
        if state is not None:
            return Replica(state.broker, state.broker_id, address, "", state, state.log_end, *disk)
        return Replica(broker, broker_id, address, "", None, int(runtime["commitLogMaxOffset"]), *disk)
    except (*FAULTS, KeyError, ValueError) as error:
        return Replica(broker, broker_id, address, str(error))


async def ask_replica(core: ClientCore, address: str) -> Replica:
    """Return the broker at an address."""
    return await _ask(core, "", MASTER_ID, address)


async def replicas(core: ClientCore, broker: str) -> list[Replica]:
    """Return the replicas of a broker, by their numbers; of `host:port`, the one there. Raises BrokerNotFound."""
    if ":" in broker:
        return [await ask_replica(core, broker)]
    addresses = await _addresses(core, broker)
    found = await asyncio.gather(*(_ask(core, broker, number, address) for number, address in addresses.items()))
    return sorted(found, key=lambda one: one.broker_id)


async def _addresses(core: ClientCore, broker: str) -> Mapping[int, str]:
    info = await core.consult(core.name_servers.cluster())
    if broker not in info.brokers:
        known = ", ".join(sorted(info.brokers)) or "none"
        raise BrokerNotFound(
            f"no broker {broker} is registered at name servers {core.name_servers}; registered: {known}. One that is not can be "
            "named by its address, host:port"
        )
    return info.brokers[broker].addresses


async def promote(
    core: ClientCore, broker: str, *, broker_id: int | None = None, role: str = "", force: bool = False
) -> Replica:
    """Make a slave the master, see `Admin.promote`."""
    found = await replicas(core, broker)
    slaves = [one for one in found if one.state is not None and not one.leads and broker_id in {None, one.broker_id}]
    if not slaves:
        raise NoSuchReplica(
            f"no slave{_numbered(broker_id)} of broker {broker} answers that can be promoted: {told(broker, found)}"
        )
    # Whose log is the longest of the newest epoch has lost the least.
    chosen = max(slaves, key=_rank)
    end, restarts = core.clock.monotonic() + AGAIN_SECONDS, False
    while True:
        try:
            state = await core.ask(chosen.address, Promote(role, force))
            break
        except BrokerError as error:
            # One that has led in this process starts again first.
            if error.code != ResponseCode.SYSTEM_BUSY or core.clock.monotonic() > end:
                raise
            restarts = True
        except ConnectionFailed:
            if not restarts or core.clock.monotonic() > end:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
    return Replica(state.broker, state.broker_id, chosen.address, "", state, state.log_end)


def _rank(slave: Replica) -> tuple[Rank, int]:
    assert slave.state is not None, "it was asked"
    return slave.state.rank, slave.state.log_end


async def demote(core: ClientCore, broker: str, *, broker_id: int | None = None) -> Replica:
    """Make a master a slave, see `Admin.demote`."""
    found = await replicas(core, broker)
    masters = [one for one in found if one.state is not None and one.leads]
    if not masters:
        raise NoSuchReplica(f"no master of ours answers: {told(broker, found)}")
    if masters[0].state is not None and masters[0].state.group is not None:
        raise ConfigError(
            f"{broker} is a group with failover: another member leads as soon as this one does not. `metaq cluster move-leader {broker}` has "
            "it hand over"
        )
    taken = {one.broker_id for one in found}
    number = broker_id or next(number for number in range(1, len(taken) + 2) if number not in taken)
    state = await core.ask(masters[0].address, StepDown(number))
    return Replica(state.broker, number, masters[0].address, "", state, state.log_end)


def _numbered(broker_id: int | None) -> str:
    return "" if broker_id is None else f" with brokerId {broker_id}"


def told(broker: str, found: list[Replica]) -> str:
    """Return what answers under a name, for errors."""

    def one(replica: Replica) -> str:
        if replica.error:
            return f"{replica.address} ({replica.error})"
        kind = "a RocketMQ" if replica.state is None else "the master" if replica.leads else "a slave"
        return f"{replica.address} is {kind}, brokerId {replica.broker_id}"

    return f"{broker}: {'; '.join(map(one, found)) or 'nothing'}"
