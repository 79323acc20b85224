"""How a follower comes to the log of the leader that ZooKeeper names, and has its reports counted there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from metaq.app.registration import NameServerRegistration
from metaq.app.role.master import MasterSearch, NoCommonHistory
from metaq.app.role.torn import first_difference
from metaq.broker.broker import Broker
from metaq.client.conversation.administration import GetReplicaState
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.following import JoinInSync
from metaq.model.failover import Membership, Place
from metaq.model.leadership import ReplicaState, parting
from metaq.net.address import join_address, split_address
from metaq.servers.ha.slave import Source

log = logging.getLogger(__name__)

COMPARED_BYTES = 1 << 20
"""Bytes at the end of a log that are compared before it becomes a member's, where no epoch says that it is the begin of the leader's."""


class LeaderSearch(MasterSearch):
    """Finds what ZooKeeper says.

    Args:
        kept: returns what this broker keeps of its group.
        agreed: is told of the leader's epoch when this log is a begin of that leader's, before anything of it comes.
    """

    def __init__(
        self,
        broker: Broker,
        caller: Caller,
        announced: NameServerRegistration,
        kept: Callable[[], Membership],
        agreed: Callable[[int, int], Awaitable[None]],
    ) -> None:
        super().__init__(broker, caller, announced)
        self._kept, self._agreed = kept, agreed
        self.leader: tuple[str, int] | None = None
        """(address of its remoting server, epoch) of who leads; None: nobody is followed."""

    async def find(self) -> Source | None:
        """Return from where to copy now; None: nobody leads, or the log says why not.

        This log is a begin of the log there then; what was not has been cut off, and is kept aside.
        """
        if self.leader is None:
            return None
        address, epoch = leader = self.leader
        try:
            state = await ask(self._caller, address, GetReplicaState())
            if state is None or not state.leads or state.epoch != epoch:
                return None  # it is just beginning, or ending
            if self.leader != leader or not await self._suits(state, address) or self.leader != leader:
                return None
            joined = await ask(self._caller, address, JoinInSync(self.place, epoch))
        except FAULTS as error:
            self._faults.warning(("leader", address), "the leader at %s cannot be followed yet: %s", address, error)
            return None
        await self._agreed(epoch, joined.log_end)
        if self.leader != leader:
            return None
        self.address = self._roles.master = self._roles.leader_address = address
        return Source(join_address(split_address(address)[0], state.ha_port), joined.ticket)

    def forget(self) -> None:
        """Follow nobody, until `leader` is set again."""
        self.leader = self.address = None
        self._roles.master = self._roles.leader_address = ""

    @property
    def place(self) -> Place:
        kept = self._kept()
        return Place(kept.member, kept.store)

    async def _agree(self, state: ReplicaState, address: str) -> None:
        if not self._kept().history:
            await self._check_begin(state, address)
        await super()._agree(state, address)

    async def _check_begin(self, state: ReplicaState, address: str) -> None:
        """Return if the log of a broker that was in no group is a begin of the leader's. Raises NoCommonHistory: nothing is cut then."""
        own, log_parts = self._roles.kept.epochs, self._broker.store.log
        if log_parts.end == 0:
            return
        why = ""
        if parting(own, log_parts.end, state.epochs, state.log_end) < log_parts.end:
            why = "it has records that the leader does not have"
        elif not {one.leader for one in own} & {one.leader for one in state.epochs}:
            start = max(log_parts.min, state.log_min, log_parts.end - COMPARED_BYTES)
            if start >= log_parts.end:
                why = "the leader has nothing of it any more"
            elif (place := await first_difference(self._asking(address), range(start, log_parts.end))) is not None:
                why = f"they differ at log offset {place}"
        if why:
            raise NoCommonHistory(
                f"the log in this folder is not a begin of that of {self._broker.environment.name}: {why}. It is of another cluster, "
                "or was used by itself; nothing was changed. Start this broker with its own folder, or with an empty one"
            )
