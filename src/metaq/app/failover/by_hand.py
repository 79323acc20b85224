"""Who leads a group, changed by an administrator: a hand-over to this broker, or to another one, or leadership by force."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from metaq.app.failover.group import Group, members
from metaq.app.failover.leading import HAND_OVER_SECONDS, Leading
from metaq.broker.failover.protocol import forced, leads
from metaq.client.conversation.administration import StepDown
from metaq.client.conversation.driver import Caller, ask
from metaq.errors import Reason, Refused
from metaq.model.failover import GroupState
from metaq.model.leadership import ReplicaState

log = logging.getLogger(__name__)

CATCH_UP_SECONDS: Final = 5.0
"""How long who is to lead may take to come into the in-sync set."""
LOOK_SECONDS: Final = 0.05
LED_SECONDS: Final = 0.02
"""Pauses between two looks whether a broker is in the set, and whether this one leads."""


class ByHand:
    """Changes of one broker. Only in its event loop.

    Args:
        caller: asks the leader.
        address: this broker's, as it is registered.
        changing: held by whoever changes who leads.
        try_to_lead: asks ZooKeeper for the leader's place, with a state and the version that it replaces.
    """

    def __init__(
        self,
        group: Group,
        leading: Leading,
        caller: Caller,
        address: str,
        changing: asyncio.Lock,
        try_to_lead: Callable[[GroupState, int], Awaitable[None]],
    ) -> None:
        self._group, self._leading, self._caller, self._address = group, leading, caller, address
        self._changing, self._try_to_lead = changing, try_to_lead

    async def promote(self, *, force: bool) -> ReplicaState:
        """Have the leader hand over to this broker, or take its place by force. Raises Refused, MetaqError."""
        group, roles = self._group, self._group.broker.roles
        if not force:
            await self._catch_up()
        async with self._changing:
            seen = await group.nodes.look()
            state, own = seen.state, group.membership.member()
            if state is None:
                raise Refused(Reason.UNAVAILABLE, f"the group {group.name} has no state in ZooKeeper yet")
            leader = leads(state, seen.live)
            if own.place not in state.in_sync and not force:
                raise Refused(
                    Reason.UNAVAILABLE,
                    f"this broker is not in the in-sync set of {group.name} ({members(state)}): it may lack what was acknowledged. Its log "
                    f"ends at {own.log_end}. With --force it leads with what it has; what only others have is cut off there, and kept",
                )
            if force and (leader is None or own.place not in state.in_sync):
                log.warning("this broker leads %s by force, from log offset %d on", group.name, own.log_end)
                await self._try_to_lead(forced(own, state), seen.version)
                return roles.state()
        if leader is not None:
            await ask(self._caller, leader.address, StepDown(group.number, self._address))
        await self._led()
        return roles.state()

    async def _catch_up(self) -> None:
        """Return when this broker is in the in-sync set, or will not be soon."""
        group = self._group
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while True:
                    seen = await group.nodes.look()
                    state = seen.state
                    if (
                        state is None
                        or leads(state, seen.live) is None
                        or group.membership.member().place in state.in_sync
                    ):
                        return
                    await asyncio.sleep(LOOK_SECONDS)

    async def _led(self) -> None:
        """Return when this broker leads. Raises Refused: not within some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS):
                while self._leading.epoch is None:  # noqa: ASYNC110  asked for by hand, once
                    await asyncio.sleep(LED_SECONDS)
                return
        name, waiting = self._group.name, self._group.in_sync.waiting
        raise Refused(
            Reason.UNAVAILABLE,
            f"this broker does not lead {name}: {waiting}. With --force it leads with what it has; what only others have is "
            "cut off there when they come back, and kept"
            if waiting
            else f"this broker does not lead {name} yet: ask for its state",
        )
