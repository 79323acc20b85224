"""A broker that leads its group: it begins an epoch, keeps the in-sync set and its lease, and hands over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from metaq.app.failover.group import Group, members
from metaq.app.role.pending import all_ended, durable, ended
from metaq.broker.failover.epochs import append_epoch
from metaq.broker.failover.lease import RENEWALS
from metaq.broker.failover.protocol import handed_over
from metaq.errors import ConfigError, ConnectionFailed, NotOurs, Reason, Refused, UnknownOutcome
from metaq.model.failover import NOBODY, GroupState, Place
from metaq.model.leadership import SYNC_MASTER, Epoch
from metaq.option_table import decide

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 0.2
"""Pause before the record of an epoch is tried again."""
HAND_OVER_SECONDS: Final = 5.0
"""Longest wait for a successor to have all of the log, s."""
TABLES_SECONDS: Final = 0.5
"""Longest wait for it to have the tables, s. It leads without the last changes then: groups repeat what they have just consumed."""


class Leading:
    """The leadership of one broker. Only in its event loop.

    Args:
        resigned: is told why this broker leads no more, because another one does.
        handed_over: is told the member that leads next.
    """

    def __init__(self, group: Group, resigned: Callable[[str], None], handed_over: Callable[[int], None]) -> None:
        self._group, self._resigned, self._handed_over = group, resigned, handed_over
        self._broker, self._in_sync = group.broker, group.in_sync
        self.epoch: int | None = None
        """The epoch in which this broker leads; None: it does not."""
        self.doubtful = False
        """Whether an operator has to look at the group: the lease is not renewed."""
        self._halted = False
        """Whether it takes no messages because it is handing over, or may have done so."""
        self._version = -1
        """Of the state in ZooKeeper, as it was seen or written last."""

    async def begin(self, state: GroupState, version: int) -> None:
        """Lead in the epoch that ZooKeeper has given to this process, which follows nobody any more.

        Raises Refused: what has to be durable cannot be saved. ConnectionFailed, NotOurs: ZooKeeper does not confirm it.
        """
        group, broker, roles = self._group, self._broker, self._broker.roles
        await all_ended(broker.saves())  # what the leader before has told of its tables
        await durable(broker.store, group.call_soon)  # an epoch begins where nothing is lost any more
        epoch = await self._begun(state)
        await group.membership.keep(history=state.history, epoch=state.epoch, whole=True)
        if await group.nodes.announce(group.membership.member()) is not None:  # that its log counts as whole now
            raise NotOurs(f"the node of member {group.number} of {group.name} is kept by another session")
        sent = await group.nodes.renew(group.membership.member())
        self.epoch, self._version = state.epoch, version
        decide(broker.options, broker_role=SYNC_MASTER, broker_id=0)
        roles.predecessor, roles.master, roles.leader_address = roles.master, "", ""
        self._in_sync.begin(group.number, state, epoch.start)
        self._in_sync.renewed(sent, group.nodes.session_timeout)
        broker.lead()
        broker.replicas.history += 1
        self._write_epoch(epoch)
        roles.begun()
        log.warning(
            "this broker, member %d, leads %s from log offset %d on, in epoch %d; in sync: %s",
            group.number, group.name, epoch.start, epoch.number, members(state),
        )  # fmt: skip

    async def _begun(self, state: GroupState) -> Epoch:
        """Return the epoch that begins here, once it is saved. Nothing is appended before this broker leads. Raises Refused."""
        roles, broker = self._broker.roles, self._broker
        newest = roles.kept.epochs[-1] if roles.kept.epochs else None
        if newest is not None and (newest.number, newest.leader) == (state.epoch, state.incarnation):
            return newest  # ZooKeeper did not confirm it at the first try
        # Each epoch is a change of leaders, also one that this log has not heard of: no former leader's is of a later term.
        term, now_ms = max(roles.kept.rank[0] + 1, state.epoch), broker.clock.now_ms()
        epoch = Epoch(state.epoch, broker.store.log.end, state.incarnation, now_ms, self._group.number, term)
        await ended(roles.keep(roles.leading(SYNC_MASTER, epoch)))
        return epoch

    def _write_epoch(self, epoch: Epoch) -> None:
        if self.epoch != epoch.number:
            return
        try:
            append_epoch(self._broker.appender, epoch, self._broker.environment.store_host)
        except Refused as error:  # too few brokers are here yet: the file beside the log has it meanwhile
            self._group.faults.write(logging.INFO, "epoch", "the record of epoch %d waits: %s", epoch.number, error)
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._write_epoch, epoch)

    async def go_on(self, state: GroupState, version: int) -> None:
        """Take the state as it is in ZooKeeper, which this process has put there, and change the set if it has to. Raises ConnectionFailed."""
        if version < self._version and (known := self._in_sync.state) is not None:
            await self._put_back(known, version)
            return
        self._version = version
        self._in_sync.settle(state)
        if self._halted:  # it has not handed over: what was sent was not made
            self._halt(None)
        wanted = self._in_sync.wanted()
        if wanted is None:
            return
        if len(wanted.in_sync) < len(state.in_sync):
            # Who leaves may be the only one that has kept what was acknowledged, should this machine lose its power now.
            await durable(self._broker.store, self._group.call_soon)
        self._in_sync.attempt(wanted)
        changed = await self._group.nodes.swap(wanted, version)
        if changed is None:
            self._group.wake.set()  # the next look says what is there
            return
        self._version = changed
        self._in_sync.settle(wanted)
        _tell_set(self._group.name, state, wanted)

    async def _put_back(self, known: GroupState, version: int) -> None:
        """Put the state of this epoch into a ZooKeeper that has an older one, and so perhaps members that have left the set since.

        Only the leader changes it within an epoch. Raises ConnectionFailed.
        """
        log.error(
            "ZooKeeper has an older state of %s than this leader has put there: it was restored from a backup. The in-sync set is written "
            "anew: %s", self._group.name, members(known),
        )  # fmt: skip
        changed = await self._group.nodes.swap(known, version)
        if changed is not None:
            self._version = changed
        self._group.wake.set()

    async def keep_renewing(self) -> None:
        """Renew the lease, for ever."""
        group = self._group
        while True:
            await asyncio.sleep(max(group.nodes.session_timeout, 0.2) / RENEWALS)
            if self.epoch is None or self.doubtful or not group.nodes.connected:
                continue
            try:
                sent = await group.nodes.renew(group.membership.member())
            except NotOurs:  # the session has ended: the next look makes the node anew, and says who leads
                self._in_sync.lease.lose()
                group.wake.set()
            except ConnectionFailed as error:
                group.faults.warning("renew", "the lease could not be renewed: %s", error)
            else:
                if not self.doubtful:
                    self._in_sync.renewed(sent, group.nodes.session_timeout)

    def resign(self, why: str) -> None:
        """Lead no more: somebody else does."""
        self._end(why)
        self._resigned(why)

    def _end(self, why: str) -> None:
        broker, name = self._broker, self._group.name
        self._in_sync.end()
        self.epoch, self._halted = None, False
        broker.step_down(f"{name} takes no messages here any more: {why}")
        log.warning("this broker leads %s no more, its log ends at %d: %s", name, broker.store.log.end, why)

    # ------------------------------------------------------------------ handing over

    async def hand_over(self, to: int, why: str) -> int:
        """Lead no more, once a member of the set has all of the log. Returns that member's number.

        Args: to: the member that is to lead; NOBODY: the one that is nearest.
        Raises Refused: there is none, or it does not come so far; this broker leads on then. ConnectionFailed: ZooKeeper does not answer.
        ConfigError: it does not let this broker write.
        """
        name, state = self._group.name, self._in_sync.state
        if state is None or self.epoch is None:
            raise Refused(Reason.INVALID, f"{name} is not led by this broker")
        successor = self._successor(state, to)
        self._halt(f"{name} takes no messages here now: member {successor} is to lead ({why})")
        try:
            await self._wait_for(successor)
            await self._wait_for_tables(next(one for one in state.in_sync if one.member == successor))
            await self._give_up(state, handed_over(state, successor))
        except UnknownOutcome:
            self._in_sync.lease.lose()  # it may lead no more: the next look says so
            self._group.wake.set()
            raise
        except (Refused, ConnectionFailed, ConfigError):
            self._in_sync.settle(state)
            self._halt(None)
            raise
        self._end(f"member {successor} is to lead ({why})")
        self._handed_over(successor)
        return successor

    def _halt(self, why: str | None) -> None:
        """Take no messages any more, for this reason; None: take them again."""
        self._halted = why is not None
        self._broker.step_down(why)

    def _successor(self, state: GroupState, to: int) -> int:
        """Return who can lead next. Raises Refused."""
        name, reported, present = self._group.name, self._in_sync.followers, self._in_sync.present
        able = [one.member for one in state.in_sync if one.member != self._group.number and one.member in present]
        if to in able:
            return to
        if to != NOBODY:
            raise Refused(
                Reason.UNAVAILABLE,
                f"member {to} cannot lead {name}: it is not in the in-sync set ({members(state)}), or not here",
            )
        if not able:
            raise Refused(Reason.UNAVAILABLE, f"no other member of the in-sync set of {name} is here")
        return max(able, key=lambda one: (reported[one], -one))

    async def _wait_for(self, successor: int) -> None:
        """Return when a member has all of the log, and all that waits for the set is answered. Raises Refused."""
        end, in_sync = self._broker.store.log.end, self._in_sync
        copied = asyncio.Event()
        in_sync.when_copied(end, copied.set)
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await copied.wait()
        except TimeoutError:
            raise Refused(
                Reason.UNAVAILABLE,
                f"member {successor} does not come to the end of the log within {HAND_OVER_SECONDS:g} s: this broker leads on",
            ) from None

    async def _wait_for_tables(self, successor: Place) -> None:
        """Return when a member has the tables as they are now, or has had its time."""
        acks = self._broker.table_acks
        assert acks is not None, "a leader of a group has them"
        try:
            await ended(acks.wait_for(successor, TABLES_SECONDS))
        except Refused:
            log.warning(
                "member %d has not taken the last changes of tables within %g s, and is to lead all the same: groups may repeat what "
                "they have just consumed",
                successor.member, TABLES_SECONDS,
            )  # fmt: skip

    async def _give_up(self, state: GroupState, new: GroupState) -> None:
        self._in_sync.attempt(new)
        if await self._group.nodes.swap(new, self._version) is None:
            raise Refused(
                Reason.BUSY, f"the state of {self._group.name} has changed meanwhile ({state.epoch}): try again"
            )


def _tell_set(name: str, before: GroupState, after: GroupState) -> None:
    old, new = ({one.member for one in state.in_sync} for state in (before, after))
    for number in sorted(new - old):
        log.info("member %d has caught up: it is in the in-sync set of %s now", number, name)
    for number in sorted(old - new):
        log.warning("member %d is away or lags: it has left the in-sync set of %s", number, name)
