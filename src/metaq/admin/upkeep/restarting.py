"""Restart of a broker's process: with the release that is installed now."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.admin.parts import AdminPart
from metaq.admin.replicas import NoSuchReplica, Replica, replicas, told
from metaq.client.conversation.administration import Identify
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.drain import RestartBroker
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError, RequestTimeout

LOOK_SECONDS: Final = 0.2
"""Between two questions whether it answers again."""
ANSWER_SECONDS: Final = 2.0


class RestartPhase(enum.Enum):
    """What a broker that restarts does."""

    STOPPING = "it is stopping"
    """It finishes what it has begun, and ends."""
    STARTING = "it is starting: nobody is served"
    """It does not answer yet."""
    READY = "it serves clients again"
    """It answers, and serves clients."""


class RestartProgress(Struct, frozen=True):
    """How far a restart is."""

    broker: str
    """Name of the broker."""
    address: str
    """Where it is, `host:port`."""
    phase: RestartPhase
    """What it does."""
    seconds: float
    """Since it was asked to."""


async def restart(
    core: ClientCore,
    broker: str,
    *,
    broker_id: int | None = None,
    wait: bool = True,
    timeout: float | None = None,
    progress: Callable[[RestartProgress], None] = lambda _progress: None,
) -> RestartProgress:
    """Restart one broker, see `RestartCalls.restart_broker`."""
    chosen = _chosen(broker, broker_id, await replicas(core, broker))
    address, clock = chosen.address, core.clock
    before = await core.ask(address, Identify())
    if before is None:
        raise NoSuchReplica(
            f"the broker at {address} is a RocketMQ, or an earlier release: it is restarted on its own machine"
        )
    await core.ask(address, RestartBroker())
    began, phase = clock.monotonic(), RestartPhase.STOPPING
    while True:
        now = RestartProgress(chosen.broker, address, phase, clock.monotonic() - began)
        progress(now)
        if phase is RestartPhase.READY or not wait:
            return now
        if timeout is not None and now.seconds >= timeout:
            raise RequestTimeout(
                f"the broker at {address} was told to restart, and does not serve clients after {timeout:g} s: its log says why"
            )
        await asyncio.sleep(LOOK_SECONDS)
        try:
            found = await core.ask(address, Identify(), ANSWER_SECONDS)
        except FAULTS:
            phase = RestartPhase.STARTING
        else:
            if found is None or found.instance != before.instance:
                phase = RestartPhase.READY


def _chosen(broker: str, broker_id: int | None, found: list[Replica]) -> Replica:
    """Return the one that is meant. Raises NoSuchReplica, ConfigError: there are several."""
    meant = [one for one in found if broker_id in {None, one.broker_id}]
    if len(meant) > 1:
        numbers = ", ".join(str(one.broker_id) for one in meant)
        raise ConfigError(
            f"there are {len(meant)} brokers of the name {broker}, with brokerId {numbers}: say which one is to restart"
        )
    if not meant or meant[0].error:
        wanted = "" if broker_id is None else f" with brokerId {broker_id}"
        raise NoSuchReplica(f"no broker{wanted} answers: {told(broker, found)}")
    return meant[0]


class RestartCalls(AdminPart):
    """Restarts of brokers."""

    def restart_broker(
        self,
        broker: str,
        *,
        broker_id: int | None = None,
        wait: bool = True,
        timeout: float | None = None,
        progress: Callable[[RestartProgress], None] = lambda _progress: None,
    ) -> RestartProgress:
        """Have the process of a broker of ours stop cleanly and start again, with the release that is installed by then.

        Producers of a broker that leads are refused meanwhile: promote another one first. One that shares its process (`metaq up`, a
        test's) refuses.

        Args:
            broker: its name, or `host:port`.
            broker_id: number of the one that is meant, where there are several of the name.
            wait: until it serves clients again.
            timeout: longest wait, seconds; None: however long it reads its log.
            progress: gets each look at it.

        Returns: how far it is: `phase`, and `seconds` since it was asked to.
        Raises also BrokerNotFound, NoSuchReplica; ConfigError: there are several.
        """
        work = restart(self._open, broker, broker_id=broker_id, wait=wait, timeout=timeout, progress=progress)
        return self._run(work)
