"""Another member of a group with failover leads, while clients send: nothing is refused, and nothing is lost."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from metaq.admin.growth.places import Refusal, Unfinished, at_name_servers
from metaq.admin.replicas import NoSuchReplica, Replica, ask_replica, replicas
from metaq.admin.rolling.standing import FailoverGroup, standing_of
from metaq.client.conversation.administration import StepDown
from metaq.client.conversation.routes import GetCluster
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, ConfigError
from metaq.model.failover import NOBODY
from metaq.model.topics.route import MASTER_ID
from metaq.wire.codes import ResponseCode

TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for the next leader, and for the name servers to know it."""
LOOK_SECONDS: Final = 0.05
BUSY_SECONDS: Final = 5.0
"""So long a leader is asked again that is changing the in-sync set just now."""


class HandOverPhase(enum.Enum):
    """What a change of leaders waits for."""

    HANDING_OVER = "the leader hands over"
    """The leader was asked to hand over, and finishes what it has begun."""
    TAKING_OVER = "the next one begins to lead"
    """The leader has stepped down; the next one has not begun to lead."""
    REGISTERING = "the name servers get to know it"
    """The next one leads; not all name servers know it."""
    DONE = "it leads"
    """It leads, and all name servers know it."""


class HandOverProgress(Struct, frozen=True):
    """How far a change of leaders is."""

    broker: str
    """Name of the group's broker."""
    phase: HandOverPhase
    """What is waited for."""
    member: int
    """That leads, from TAKING_OVER on if it is known; until then, that is to; NOBODY: whoever is nearest."""
    seconds: float
    """Since the leader was asked to hand over."""


class MovedLeader(Struct, frozen=True):
    """A change of leaders. Both the same: it led already."""

    broker: str
    """Name of the group's broker."""
    before: int
    """Member that led."""
    after: int
    """Member that leads."""
    address: str
    """Where it is."""
    epoch: int
    """Number of the epoch in which it leads."""
    seconds: float
    """From the request until all name servers knew it."""


def check_move(standing: FailoverGroup, to: int) -> None:
    """Return if a member can lead next. Args: to: NOBODY: any. Raises Refusal, NoSuchReplica."""
    name, in_sync = standing.broker, ", ".join(map(str, standing.in_sync))
    if standing.leader is None:
        raise Refusal(f"nobody leads {name} at present: there is nobody who could hand over")
    known = {one.member: one for one in standing.members}
    if to != NOBODY and to not in known:
        raise NoSuchReplica(f"{name} has no member {to}: its members are {', '.join(map(str, known))}")
    others = [one for one in standing.in_sync if one != standing.leader]
    if not others:
        raise Refusal(
            f"member {standing.leader} is alone in the in-sync set of {name}: no other one has all that was acknowledged. `metaq cluster` "
            "shows how far they are"
        )
    if to not in {NOBODY, standing.leader, *others}:
        lag = known[to].behind
        lack = f", and lacks {lag:,} B" if lag else ""
        why = f" ({known[to].error})" if known[to].error else ""
        raise Refusal(
            f"member {to} of {name} is not in the in-sync set ({in_sync}){lack}{why}: it may lack what was acknowledged. By force, and "
            f"with that loss, it leads by `metaq broker promote {name} --id {to} --force`"
        )
    if to != NOBODY and known[to].error:
        raise Refusal(f"member {to} of {name} does not answer: {known[to].error}")


async def move_leader(
    core: ClientCore,
    broker: str,
    *,
    to: int = NOBODY,
    timeout: float = TIMEOUT_SECONDS,
    progress: Callable[[HandOverProgress], None] = lambda _progress: None,
) -> MovedLeader:
    """Have another member lead, see `RollingCalls.move_leader`."""
    found = await replicas(core, broker)
    standing = standing_of(found)
    if standing is None:
        raise ConfigError(
            f"{broker} is no group with failover (option failover=zookeeper): `metaq broker promote {broker}` makes its slave the master"
        )
    check_move(standing, to)
    assert standing.leader is not None, "it was checked"
    if to == standing.leader:
        return MovedLeader(standing.broker, to, to, standing.address, standing.epoch, 0.0)
    clock = core.clock
    began = clock.monotonic()

    def tell(phase: HandOverPhase, member: int) -> None:
        progress(HandOverProgress(standing.broker, phase, member, clock.monotonic() - began))

    tell(HandOverPhase.HANDING_OVER, to)
    await _hand_over(core, standing, to)
    tell(HandOverPhase.TAKING_OVER, to)
    addresses = [one.address for one in found]
    try:
        async with asyncio.timeout(timeout):
            while (now := await _leader(core, addresses, standing.epoch)) is None:  # noqa: ASYNC110  they are other processes
                await asyncio.sleep(LOOK_SECONDS)
            assert now.leader is not None, "it leads"
            tell(HandOverPhase.REGISTERING, now.leader)
            await registered(core, standing.broker, now.address)
    except TimeoutError:
        raise Unfinished(
            f"member {standing.leader} has handed {standing.broker} over, and {timeout:g} s later no other one leads that all name servers "
            f"know: `metaq cluster` shows how it stands"
        ) from None
    tell(HandOverPhase.DONE, now.leader)
    return MovedLeader(standing.broker, standing.leader, now.leader, now.address, now.epoch, clock.monotonic() - began)


async def _hand_over(core: ClientCore, standing: FailoverGroup, to: int) -> None:
    address = next((one.address for one in standing.members if one.member == to), "")
    end = core.clock.monotonic() + BUSY_SECONDS
    while True:
        try:
            await core.ask(standing.address, StepDown(to, address))
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_BUSY or core.clock.monotonic() > end:
                raise
            await asyncio.sleep(LOOK_SECONDS)
        else:
            return


async def _leader(core: ClientCore, addresses: Iterable[str], epoch: int) -> FailoverGroup | None:
    """Return how the group stands if one of them leads in an epoch that is later; None: none does."""
    found: list[Replica] = await asyncio.gather(*(ask_replica(core, one) for one in addresses))
    now = standing_of(found)
    return now if now is not None and now.leader is not None and now.epoch > epoch else None


async def registered(core: ClientCore, broker: str, address: str) -> None:
    """Return when every name server that answers, one at least, has the broker at an address as the master of its name."""

    async def master(server: str) -> str | None:
        info = await core.ask(server, GetCluster())
        return info.brokers[broker].addresses.get(MASTER_ID) if broker in info.brokers else None

    while True:
        told = await at_name_servers(core, master)
        if told and all(one == address for one in told.values()):
            return
        await asyncio.sleep(LOOK_SECONDS)
